"""Packed documents: several texts in one row that do not see each other.

See Krell et al., 2021, https://arxiv.org/abs/2107.02027.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_has_numbers, check_tensor
from clearhead._common.hints import with_hints
from clearhead._common.memory import within_memory
from clearhead._common.torch_internals import is_concrete
from clearhead._text import shown
from clearhead.errors import ArgumentError, DeviceError, MaskError
from clearhead.masks.base import Mask, check_mask
from clearhead.masks.each_document import EachDocument, advice_for_rest
from clearhead.masks.full import full
from clearhead.masks.spans import Extent, Spans

RETURNS_WORTH_LISTING = 8


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask, kind="documents"):
    """Query and key belong to the same document; with fewer queries than keys, the queries are the last tokens.

    `ids` is int64, (tokens,) or (batch, tokens). `follows` is True if they were given as plain numbers, which go to the
    device of the query.
    """

    ids: Tensor
    follows: bool

    @property
    def batch(self) -> int | None:
        """The batch size that the mask is tied to, or None if it fits any."""
        return None if self.ids.ndim == 1 else self.ids.shape[0]

    @property
    def device(self) -> torch.device | None:
        """The device of the ids, or None if they were given as plain numbers and fit any."""
        return None if self.follows else self.ids.device

    def sizes(self) -> tuple[int, int]:
        """Return the number of tokens, as query_len and as kv_len."""
        return self.ids.shape[-1], self.ids.shape[-1]

    def check(self, extent: Extent) -> None:
        """Raise MaskError for another batch, another number of keys than of ids, or more queries than keys.

        Raises DeviceError if the ids were given as a tensor on another device.
        """
        super().check(extent)
        _, _, query_len, kv_len, device, _ = extent
        known = self.ids.shape[-1]
        if known != kv_len or query_len > kv_len:
            raise MaskError(
                "mask.kv-len",
                f"the mask {self.describe()} is for {known} keys, the last of which are also the "
                f"queries; there are query_len={query_len}, kv_len={kv_len}.{advice_for_rest(known, kv_len)}",
            )
        if not self.follows and self.ids.device != device:
            raise DeviceError(
                "mask.device",
                f"the mask must be on the query's device; its ids are on {self.ids.device}, "
                f"the query on {device}.",
            )

    def block(self, queries: slice, keys: slice, extent: Extent) -> Tensor:
        """Return the rectangle of a range of queries and of keys: bool, (batch or 1, 1, queries, keys)."""
        ids = torch.atleast_2d(self.ids.to(extent.device))[:, None]
        of_queries = ids[..., extent.kv_len - extent.query_len :][..., queries]
        return of_queries[..., None] == ids[..., None, keys]

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair of tokens with the same document id; as `Mask.visible` describes."""
        ids = torch.atleast_2d(self.ids.to(key_index.device))
        rows = torch.arange(ids.shape[0], device=ids.device).view(-1, 1, 1, 1)
        return ids[rows, query_index + (extent.kv_len - extent.query_len)] == ids[rows, key_index]

    def spans(self, extent: Extent) -> Spans | None:
        """Return the runs of each query's document; None if a document has more than RETURNS_WORTH_LISTING runs."""
        _, _, query_len, kv_len, device, _ = extent
        ids = torch.atleast_2d(self.ids.to(device))
        rows = []
        for row in ids:
            runs = _runs_of_each_token(row)
            if runs is None:
                return None
            rows.append(runs)
        most = max((start.shape[-1] for start, _ in rows), default=1)
        starts, stops = (
            torch.stack([_widen(pair[side], most, kv_len) for pair in rows])
            if rows
            else torch.zeros(0, kv_len, 1, dtype=torch.int64, device=device)
            for side in (0, 1)
        )
        return Spans(starts[:, kv_len - query_len :], stops[:, kv_len - query_len :])

    def describe(self) -> str:
        """Return `documents([…])` for up to 16 ids of a single row, otherwise the shape, `documents(<ids 2 × 512>)`."""
        if self.ids.ndim == 1 and self.ids.numel() <= 16 and is_concrete(self.ids):
            return f"documents({self.ids.tolist()})"
        return f"documents(<ids {' × '.join(map(str, self.ids.shape))}>)"


def _runs_of_each_token(ids: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the starts and the stops of the runs of each token's document, int64, (tokens, most runs), in order.

    Missing runs are empty, at `tokens`. None if a document has more than RETURNS_WORTH_LISTING runs.
    """
    tokens = ids.shape[0]
    if tokens == 0:
        nothing = torch.zeros(0, 1, dtype=torch.int64, device=ids.device)
        return nothing, nothing
    run_ids, run_of_token, run_len = torch.unique_consecutive(
        ids, return_inverse=True, return_counts=True
    )
    run_stop = run_len.cumsum(0)
    run_start = run_stop - run_len
    _, document_of_run, runs_of_document = torch.unique(
        run_ids, return_inverse=True, return_counts=True
    )
    most = int(runs_of_document.max())
    if most > RETURNS_WORTH_LISTING:
        return None
    # Runs in the order of their documents; a stable sort keeps those of one document in order.
    order = document_of_run.argsort(stable=True)
    before = runs_of_document.cumsum(0) - runs_of_document
    place = torch.empty_like(order)
    place[order] = torch.arange(order.shape[0], device=ids.device)
    place = place - before[document_of_run]
    shape = (runs_of_document.shape[0], most)
    start = torch.full(shape, tokens, dtype=torch.int64, device=ids.device)
    stop = start.clone()
    start[document_of_run, place] = run_start
    stop[document_of_run, place] = run_stop
    document_of_token = document_of_run[run_of_token]
    return start[document_of_token], stop[document_of_token]


def _widen(edges: Tensor, pieces: int, kv_len: int) -> Tensor:
    """Return edges padded along the last dimension to `pieces` with kv_len, which makes empty runs."""
    missing = pieces - edges.shape[-1]
    return torch.nn.functional.pad(edges, (0, missing), value=kv_len)


@with_hints
def documents(
    ids: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None,
    *,
    lengths: Sequence[int] | Tensor | None = None,
    offsets: Sequence[int] | Tensor | None = None,
    queries: Sequence[int] | Tensor | None = None,
    mask: Mask | None = None,
) -> Mask:
    """Return the mask in which each token attends to the tokens of its own document only.

    With ids 7, 7, 9, 9, 9::

        ● ● · · ·
        ● ● · · ·
        · · ● ● ●
        · · ● ● ●
        · · ● ● ●

    `causal() & documents(ids)` is what packed training needs. With fewer queries than keys the
    queries are the last tokens. Documents cost O(tokens) as long as the tokens of a document are
    neighbours, or in a few places; ids that keep coming back (0, 1, 0, 1, …) are compared pair by
    pair when they are used.

    Queries that are packed separately from the keys have lengths or offsets of their own, `queries`: the
    source texts of cross-attention, or new tokens of many requests over the keys of each. A mask that
    counts from token to token is then given for one document, as `mask`: the last query of each
    has the position of its last key. With lengths=[2, 3] and queries=[1, 2], without a mask and with `causal()`::

        ● ● · · ·     ● ● · · ·
        · · ● ● ●     · · ● ● ·
        · · ● ● ●     · · ● ● ●

    Elsewhere: FlexAttention document masks; flash-attention `cu_seqlens`, `cu_seqlens_q` and
    `cu_seqlens_k`; xformers `BlockDiagonalMask`; transformers finds packing from `position_ids`.

    Args:
        ids: which document each token belongs to, whole numbers of shape (tokens,), or
            (batch, tokens) when the rows of the batch are packed differently.
        lengths: instead of ids, how many tokens each document has, one after the other.
        offsets: instead of ids, where each document begins, and where the last one ends: 0, …, tokens,
            as `cu_seqlens` has them.
        queries: lengths or offsets of the queries, next to those of the keys; None if they are the
            same tokens.
        mask: next to lengths or offsets, the mask of each document alone, made of `causal()`,
            `sliding_window(…)` and `prefix(…)`; None shows all of it.

    Raises:
        ArgumentError: code `documents.which`, unless one of the three is given; `documents.ids`, for
            `queries` or `mask` next to ids.
        ArgumentTypeError: code `mask.type`, if `mask` is not a Mask.
        MaskError: codes `mask.lengths` and `mask.offsets`, for such of another kind;
            `mask.documents-pair`, for `queries` of more or fewer documents; `mask.documents-mask`, for
            a mask that does not fit any length; `mask.documents-beside`, for one that counts through
            the row, combined with `queries`.
        TooLargeError: code `memory.full`, for more tokens than fit into memory.
        MaskError: code `mask.ids`, for ids of another kind; `mask.kv-len`, `mask.batch` when it
            meets tensors of other sizes.

    Example:
        >>> import torch, clearhead as ch
        >>> print((ch.causal() & ch.documents([0, 0, 1])).draw(3, 3))
        ● · ·
        ● ● ·
        · · ●
        >>> torch.equal(ch.documents(offsets=[0, 2, 3]).to_dense(3, 3), ch.documents([0, 0, 1]).to_dense(3, 3))
        True
        >>> print(ch.documents(offsets=[0, 2, 5], queries=[0, 1, 3], mask=ch.causal()).draw(3, 5))
        ● ● · · ·
        · · ● ● ·
        · · ● ● ●
    """
    options = {"ids": ids, "lengths": lengths, "offsets": offsets}
    given = [name for name, option in options.items() if option is not None]
    if len(given) != 1:
        raise ArgumentError(
            "documents.which",
            f"documents takes ids, lengths or offsets; got {' and '.join(given) or 'none of them'}.",
        )
    extra = [name for name, each in (("queries", queries), ("mask", mask)) if each is not None]
    if ids is not None:
        if extra:
            raise ArgumentError(
                "documents.ids",
                f"{extra[0]} goes with lengths or offsets of the documents; got ids.",
            )
        return _of_ids(ids)
    source = lengths if offsets is None else offsets
    read = _lengths if offsets is None else _lengths_of_offsets
    keys = read(source, given[0])
    with within_memory("A mask of documents keeps numbers for each of their tokens: give fewer."):
        if extra:
            within = full() if mask is None else check_mask(mask)
            made = EachDocument(within, keys if queries is None else read(queries, "queries"), keys)
            _ = made.places
            return made
        device = source.device if isinstance(source, Tensor) else None
        # Plain numbers are on the CPU whatever the default device is: they go to that of the query.
        counts = torch.tensor(keys, dtype=torch.int64, device=device or "cpu")
        numbers = torch.arange(len(keys), device=counts.device)
        return Documents(numbers.repeat_interleave(counts, output_size=sum(keys)), device is None)


def _of_ids(ids: Sequence[int] | Sequence[Sequence[int]] | Tensor) -> Documents:
    """Return the mask of a copy of document ids.

    Raises MaskError unless they are integers, (tokens,) or (batch, tokens); ArgumentTypeError for a nested or sparse
    tensor.
    """
    follows = not isinstance(ids, Tensor)
    tensor = ids if isinstance(ids, Tensor) else _as_tensor(ids)
    check_tensor("ids", tensor)
    are_whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    if not are_whole or tensor.dtype == torch.bool or tensor.ndim not in (1, 2):
        raise MaskError(
            "mask.ids",
            "ids must be whole numbers of shape (tokens,) or (batch, tokens); got "
            f"{tensor.dtype} of shape {tuple(tensor.shape)}.",
        )
    # A copy, since what is computed from it is cached.
    return Documents(tensor.to(torch.int64, copy=True), follows)


def _lengths_of_offsets(offsets: object, name: str) -> list[int]:
    """Return the differences of offsets that start at 0 and never fall; raise MaskError, with `name`, for others.

    Raises as `_whole_numbers` too.
    """
    numbers, given = _whole_numbers(offsets, name)
    if not numbers or numbers[0] != 0 or numbers != sorted(numbers):
        raise MaskError(
            "mask.offsets",
            f"{name} must be whole numbers of shape (documents + 1,), from 0 on and never falling; "
            f"got {shown(given)}.",
        )
    return [after - before for before, after in pairwise(numbers)]


def _lengths(lengths: object, name: str) -> list[int]:
    """Return lengths as a list of integers of 0 or more; raise MaskError, with `name`, for anything else.

    Raises as `_whole_numbers` too.
    """
    numbers, given = _whole_numbers(lengths, name)
    if numbers is None or any(number < 0 for number in numbers):
        raise MaskError(
            "mask.lengths",
            f"{name} must be whole numbers of shape (documents,), 0 or more each; got "
            f"{shown(given)}.",
        )
    return numbers


def _whole_numbers(given: object, name: str) -> tuple[list[int] | None, object]:
    """Return the list of integers in an argument, and the argument itself, a tensor as a list.

    The first is None for anything but a sequence or tensor of integers. `name` is the argument's, for errors: raises
    ArgumentTypeError for a nested or sparse tensor, DeviceError for one without entries, as on the meta device.
    """
    plain = given
    if isinstance(given, Tensor):
        check_tensor(name, given)
        check_has_numbers(name, given)
        plain = given.tolist()
    numbers = [as_int(each) for each in plain] if isinstance(plain, Sequence) else [None]
    whole = [each for each in numbers if each is not None]
    return (whole if len(whole) == len(numbers) else None), plain


def _as_tensor(ids: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    """Return ids as a tensor on the CPU, int64 if it is empty.

    Raise MaskError if they are not numbers of equal rows.
    """
    try:
        tensor = torch.tensor(ids, device="cpu")
        return tensor.long() if tensor.numel() == 0 else tensor
    except (TypeError, ValueError, RuntimeError) as error:
        raise MaskError(
            "mask.ids",
            f"ids must be whole numbers of shape (tokens,) or (batch, tokens); got {shown(ids)}.",
        ) from error
