"""The rule that decides whether a call of a module continues the call before it.

A call of self-attention continues the call before where its earlier keys, all but those of its own queries, are keys
of that call: the last ones, as in a KV cache and behind a window, or the first ones, where a cache was cut. A beam
search takes rows of the call before in any order, so rows are compared one by one. A call of cross-attention continues
the call before where it has the same keys. Keys are compared by their fingerprints.

A generation also computes what it throws away: beams that end or are left, and drafts that are refused. What a call
read tells which of its queries are those of a returned sequence: those up to which both have the same tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.problem import Problem

PORTION = 1 << 18
"""The number of entries of keys that are multiplied at a time, unless a head has more."""


class Continuation(NamedTuple):
    """The link of a call to the call before it: the keys that both have.

    Attributes:
        rows: the sample of the call before that each sample continues, int64, (batch,).
        start: the place in the call before of the first key of this call.
        shared: the number of keys that both have.
        is_last: True if these are the last keys of the call before.
    """

    rows: Tensor
    start: int
    shared: int
    is_last: bool

    def past(self, of_before: Tensor) -> Tensor:
        """Return the part of a tensor of the call before, (batch, keys), that belongs to the shared keys."""
        return of_before[self.rows, self.start : self.start + self.shared]


class Continuations:
    """The links between the calls of each module, found call by call."""

    def __init__(self) -> None:
        self.prints: dict[str, Tensor] = {}
        """The fingerprints of the keys of the last call of each module, (batch, kv_len)."""

    def of(self, name: str, problem: Problem, value: Tensor | None = None) -> Continuation | None:
        """Return the link of a call to the call before of the same module; None if it does not continue that one.

        It does if its keys before its queries (in cross-attention all keys) are the last or first ones of that call.
        Stores the fingerprints of its keys, and of the value if given, for the next call. Meta tensors have no link.

        Example:
            >>> from clearhead.attention.problem import make_problem
            >>> key, links = torch.randn(2, 1, 5, 3), Continuations()
            >>> links.of("", make_problem(key[:, :, :4], key[:, :, :4], key[:, :, :4])) is None
            True
            >>> link = links.of("", make_problem(key[:, :, 4:], key, key))
            >>> link.rows.tolist(), link.start, link.shared
            ([0, 1], 0, 4)
        """
        known = self.prints.pop(name, None)
        if problem.key.is_meta:
            return None
        prints = fingerprints(problem.key)
        if value is not None:
            prints = prints + 3 * fingerprints(value)
        self.prints[name] = prints
        count = problem.kv_len - (0 if problem.cross else problem.query_len)
        if known is None or known.device != prints.device or not 0 < count <= known.shape[1]:
            return None
        last = known.shape[1] - count
        for start in dict.fromkeys((last, 0)):
            rows = _rows_of(known[:, start : start + count], prints[:, :count])
            if rows is not None:
                return Continuation(rows, start, count, start == last)
        return None


def _rows_of(known: Tensor, again: Tensor) -> Tensor | None:
    """Return, for each row of `again`, the index of an equal row of `known`, its own if possible.

    None if a row has none.
    """
    own = torch.arange(len(again), device=again.device)
    if torch.equal(known, again):
        return own
    same = (again[:, None] == known).all(dim=-1)
    if not bool(same.any(dim=1).all()):
        return None
    rows = same.to(torch.uint8).argmax(dim=1)
    return torch.where(same.diagonal(), own, rows) if len(known) == len(again) else rows


def fingerprints(key: Tensor) -> Tensor:
    """Return a checksum of each key, (batch, kv_len), int64; different keys have different ones, up to collisions.

    It is a weighted sum of the key's bits read as integers. Integer sums do not depend on the order of summation.

    Example:
        >>> fingerprints(torch.tensor([[[[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]]))[0, ::2]
        tensor([0, 0])
    """
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    size = key.shape[3] * key.dtype.itemsize
    wide = torch.int64 if size % 8 == 0 else kinds[key.dtype.itemsize]
    count = size // wide.itemsize
    places = torch.arange(1, key.shape[1] * count + 1, device=key.device)
    factors = (places * 0x9E3779B97F4A7C1 | 1).view(key.shape[1], count)
    found = key.new_zeros(key.shape[0], key.shape[2], dtype=torch.int64)
    # Products are as large as keys.
    heads = max(1, PORTION // max(1, key[:, 0].numel()))
    for some, factor in zip(key.detach().split(heads, 1), factors.split(heads), strict=True):
        found += (some.contiguous().view(wide) * factor[:, None]).sum(dim=(1, 3))
    return found


class QueryRun(NamedTuple):
    """Consecutive queries of the whole text, which one call made.

    Attributes:
        call: the number of the call.
        rows: the sample of the call for each sample of the whole, int64, (batch,).
        queries: the queries of the call.
        live: the samples of the whole that have not ended, bool, (batch,); None for all.
    """

    call: int
    rows: Tensor
    queries: slice
    live: Tensor | None = None

    def is_own(self, batch: int) -> bool:
        """Return True if the samples of the whole are those of the call, in their order."""
        return torch.equal(self.rows, torch.arange(batch, device=self.rows.device))

    def samples(self, tensor: Tensor) -> Tensor:
        """Return the samples of the whole from a tensor of the call, indexed by `rows`.

        One row, for all, stays as it is.
        """
        return tensor if len(tensor) == 1 or self.is_own(len(tensor)) else tensor[self.rows]

    def agrees(self, one: Tensor, other: Tensor) -> bool:
        """Return True if two tensors of the whole have equal numbers in the samples that have not ended.

        False for meta tensors, and for other dtypes or shapes; one row is broadcast.
        """
        if one.is_meta or (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
            return False
        one, other = torch.broadcast_tensors(one, other)
        live = slice(None) if self.live is None or len(one) == 1 else self.live
        return torch.equal(one[live], other[live])


class Text(NamedTuple):
    """The tokens that a call of self-attention had read at its end.

    Attributes:
        ids: from the beginning of the text on, (batch, len).
        start: the place in the text of the call's first key.
        query_len: the number of its last tokens, which the call itself read.
    """

    ids: Tensor
    start: int
    query_len: int

    @property
    def first(self) -> int:
        """The place in the text of the first token that the call itself read."""
        return self.ids.shape[1] - self.query_len

    def shared(self, sequences: Tensor) -> Tensor:
        """Return the number of first tokens that each sequence and each sample have in common, (sequences, batch)."""
        count = min(sequences.shape[1], self.ids.shape[1])
        same = sequences[:, None, :count] == self.ids[:, :count].to(sequences.device)
        return same.long().cumprod(dim=-1).sum(dim=-1)


def pieces_of(sequences: Tensor, texts: Sequence[Text]) -> list[QueryRun] | str:
    """Return the queries of the calls that read these sequences, in order; or why they were not read, in words.

    Args:
        sequences: token ids, (batch, len); one that ended early is padded. The last token was not read.
        texts: one for each call.

    Example:
        >>> prompt, drafts = torch.tensor([[5, 6]]), torch.tensor([[5, 6, 7, 9]])
        >>> pieces_of(torch.tensor([[5, 6, 7, 8]]), [Text(prompt, 0, 2), Text(drafts, 0, 2)])[1].queries
        slice(0, 1, None)
    """
    shared = [each.shared(sequences[:, :-1]) for each in texts]
    read = torch.stack([each.amax(dim=1) for each in shared]).amax(dim=0)
    for number, (sequence, count) in enumerate(zip(sequences, read.tolist(), strict=True)):
        if not count or len(sequence[count + 1 :].unique()) > 1:
            return f"sequence {number} was read up to token {count} of {len(sequence) - 1}"
    pieces: list[QueryRun] = []
    at, total = min(each.first for each in texts), int(read.max())
    while at < total:
        live = read > at
        for number in range(len(texts) - 1, -1, -1):
            text, same = texts[number], shared[number]
            if text.first <= at < text.ids.shape[1] and bool((same.amax(dim=1) > at)[live].all()):
                break
        else:
            return f"no call read token {at} of all sequences"
        stop = int(same.amax(dim=1)[live].min())
        count, batch = same.shape
        # Of rows that read the same, the one that is at the same place in the batch.
        apart = torch.arange(count)[:, None] * batch - torch.arange(batch) * count
        near = apart.abs().to(same.device)
        rows = near.masked_fill(same < stop, near.max() + 1).argmin(dim=1)
        queries = slice(at - text.first, stop - text.first)
        pieces.append(QueryRun(number, rows, queries, None if bool(live.all()) else live))
        at = stop
    return pieces
