"""The interface of a mask: which keys each query may attend to.

**True = may attend**, everywhere. A mask describes itself in O(tokens) numbers; only requested parts become tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_length
from clearhead._common.kinds import Filed
from clearhead._common.lazy import drawing
from clearhead._common.memory import within_memory
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, MaskError
from clearhead.masks.spans import Extent, Spans

if TYPE_CHECKING:
    from clearhead.masks.blocks import BlockMap

REPR_TOKENS = 6
DRAWING_TOKENS = 200
INSTEAD = "attend takes the mask as it is, and blocks counts what it shows."
VISIBLE, HIDDEN = "●", "·"


class Mask(Filed, ABC):
    """The keys that each query may attend to, for any number of queries and keys.

    Masks combine with `&` (both allow it), `|` (one of them allows it) and `~` (the opposite).

    Example:
        >>> import clearhead as ch
        >>> print((ch.causal() & ch.sliding_window(left=1)).draw(4, 4))
        ● · · ·
        ● ● · ·
        · ● ● ·
        · · ● ●
    """

    @abstractmethod
    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return which pairs of a query and a key may attend.

        Args:
            query_index: int64, four dimensions (batch, num_heads, queries, keys), any of size 1.
            key_index: indices of keys, in the same form; the two broadcast against each other.
            extent: the sizes of the whole call.

        Returns:
            bool, True = may attend, four dimensions that broadcast to (batch, num_heads, queries, keys).
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the mask as an expression, such as `causal() & padding([3, 5])`."""

    @property
    def batch(self) -> int | None:
        """The batch size that the mask is tied to, or None if it fits any, as here."""
        return None

    @property
    def heads(self) -> int | None:
        """The number of query heads that the mask is tied to, or None if it fits any, as here."""
        return None

    @property
    def device(self) -> torch.device | None:
        """The device that the mask is tied to by a tensor that it was given, or None if it fits any, as here."""
        return None

    @property
    def cross(self) -> bool:
        """True if queries and keys are tokens of different texts, with no distance between them; here False."""
        return False

    @property
    def leading(self) -> tuple[int, int]:
        """The batch and heads axes of the mask as a tensor, 1 where it fits any."""
        return 1 if self.batch is None else self.batch, 1 if self.heads is None else self.heads

    def extent(self, query_len: int, kv_len: int, device: torch.device | None = None) -> Extent:
        """Return the smallest call of these lengths that the mask fits; `device` of None is the mask's, or the CPU."""
        own = self.device or torch.device("cpu")
        return Extent(*self.leading, query_len, kv_len, device or own)

    def check(self, extent: Extent) -> None:
        """Raise an error if the mask does not fit a call; here its batch and heads alone are compared.

        Raises:
            MaskError: codes `mask.batch` and `mask.heads`; of a subclass also for its lengths.
            DeviceError: of a subclass, if it holds a tensor on another device.
        """
        batch, num_heads, *_ = extent
        if self.batch is not None and self.batch != batch:
            hint = " Tensors of three dimensions are (num_heads, len, dim)." if batch == 1 else ""
            raise MaskError(
                "mask.batch",
                f"the mask {self.describe()} describes a batch of {self.batch}; "
                f"the query has a batch of {batch}.{hint}",
            )
        if self.heads is not None and self.heads != num_heads:
            raise MaskError(
                "mask.heads",
                f"the mask {self.describe()} describes {self.heads} heads; the query has num_heads={num_heads}.",
            )

    def spans(self, extent: Extent) -> Spans | None:
        """Return the keys of each query as a few runs, or None if the mask has no such description, as here."""
        return None

    def common_run(self, extent: Extent) -> slice | None:
        """Return the run of keys that every query sees, if all see exactly these; None if not or unknown, as here."""
        return None

    def sizes(self) -> tuple[int, int] | None:
        """Return the query_len and kv_len that the mask fixes, or None if it fits any, as here."""
        return None

    def block(self, queries: slice, keys: slice, extent: Extent) -> Tensor:
        """Return the rectangle of a range of queries and of keys: bool, (batch or 1, heads or 1, queries, keys)."""
        device = extent.device
        query_index = torch.arange(queries.start, queries.stop, device=device).view(1, 1, -1, 1)
        key_index = torch.arange(keys.start, keys.stop, device=device).view(1, 1, 1, -1)
        seen = self.visible(query_index, key_index, extent)
        return seen.expand(-1, -1, query_index.shape[2], key_index.shape[3])

    def to_dense(
        self, query_len: int, kv_len: int, *, device: torch.device | str | None = None
    ) -> Tensor:
        """Return the mask as a tensor of tokens × tokens, True = may attend.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            device: where to put the tensor; None is where the mask is, or the CPU.

        Returns:
            bool of shape (query_len, kv_len), or (batch or 1, num_heads or 1, query_len, kv_len) for a
            mask that differs between samples or heads.

        Raises:
            ArgumentError: if a length is negative.
            ArgumentTypeError: if a length is not a whole number.
            MaskError: if the mask was made for other lengths.
            TooLargeError: code `memory.full`, if it does not fit in memory.

        Example:
            >>> import clearhead as ch
            >>> ch.causal().to_dense(2, 3)
            tensor([[ True,  True, False],
                    [ True,  True,  True]])
        """
        query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
        extent = self.extent(query_len, kv_len, self.device or torch.device(device or "cpu"))
        self.check(extent)
        with within_memory(INSTEAD):
            dense = self.block(slice(0, query_len), slice(0, kv_len), extent)
            dense = dense.expand(*self.leading, query_len, kv_len)
            if self.batch is None and self.heads is None:
                dense = dense[0, 0]
            return dense.contiguous().to(device or extent.device)

    def draw(self, query_len: int, kv_len: int) -> str:
        """Return the mask as text, once per sample and head that differ: a row per query, `●` visible, `·` hidden.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.

        Raises:
            ArgumentError: if a length is negative or too long to draw as text.
            ArgumentTypeError, MaskError: if a length is not a whole number, or not one of the mask.

        Example:
            >>> import clearhead as ch
            >>> print(ch.causal().draw(2, 5))
            ● ● ● ● ·
            ● ● ● ● ●
        """
        query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
        if max(query_len, kv_len) > DRAWING_TOKENS:
            raise ArgumentError(
                "mask.drawing-size",
                f"draw() writes one character a pair, up to {DRAWING_TOKENS} tokens a side; got "
                f"query_len={query_len}, kv_len={kv_len}. blocks() tells the shape of a long mask.",
            )
        return _draw(self.to_dense(query_len, kv_len))

    def blocks(self, query_len: int, kv_len: int, block: int | tuple[int, int]) -> "BlockMap":
        """Return the map of the blocks of the tokens × tokens matrix: each is empty, partial or full.

        Counted from the spans, in O(tokens + blocks) time and memory as long as a query sees few separate runs of
        keys. A mask that holds a tensor of tokens × tokens, documents whose ids keep coming back, or padding with
        holes is read in chunks of queries instead; tokens × tokens is never materialised.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            block: size of a block in tokens, or a pair (queries, keys). The last blocks may be smaller.

        Raises:
            ArgumentError: if a length is negative, or a block is not 1 token or more.
            ArgumentTypeError: if a length is not a whole number.
            MaskError: if the mask was made for other lengths.

        Example:
            >>> import clearhead as ch
            >>> ch.causal().blocks(6, 6, 2)
            3 × 3 blocks of 2 × 2: 3 full, 3 partial, 3 empty
            ◪ · ·
            ■ ◪ ·
            ■ ■ ◪
        """
        query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
        pair = block if isinstance(block, tuple | list) else (block, block)
        sizes = [size for each in pair if (size := as_int(each)) is not None and size >= 1]
        if len(pair) != 2 or len(sizes) != 2:
            raise ArgumentError(
                "mask.block-size",
                f"block must be a number of tokens, 1 or more, or a pair of them; got {shown(block)}.",
            )
        self.check(self.extent(query_len, kv_len))
        from clearhead.masks.blocks import block_map  # which is made of masks

        sizes = [min(size, 1 << 62) for size in sizes]
        return block_map(self, query_len, kv_len, (sizes[0], sizes[1]))

    def plot(
        self,
        query_len: int,
        kv_len: int,
        *,
        sample: int = 0,
        head: int = 0,
        tokens: Sequence[str] | None = None,
        source_tokens: Sequence[str] | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw the mask with matplotlib: a row per query, visible pairs dark, hidden ones white.

        A mask of more than 256 tokens is drawn by `blocks`, by the share of their pairs that is visible.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            sample: index of the row of the batch, for a mask that differs between them.
            head: index of the head, for a mask that differs between them.
            tokens: a word for each query, and for each key where there are as many.
            source_tokens: a word for each key.
            ax: axes to draw in; None is a new figure of pyplot's.

        Returns:
            The axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentError: codes `length.negative` and `plot.empty`.
            ArgumentTypeError: codes `length.type`, `plot.axes` and `plot.tokens`.
            ShapeError: code `plot.tokens`.
            SelectionError: code `plot.part`, for no such head or sample.
            MaskError: if the mask was made for other lengths.

        Example:
            >>> import clearhead as ch
            >>> axes = ch.causal().plot(3, 3)
            >>> axes.images[0].get_array().tolist()
            [[1.0, None, None], [1.0, 1.0, None], [1.0, 1.0, 1.0]]
            >>> print(ch.causal().plot(100_000, 100_000).get_xlabel())
            key
            one cell = 391 × 391 tokens
        """
        words, place = (tokens, source_tokens), (sample, head)
        return drawing("figures").of_mask(self, query_len, kv_len, words, place, ax)

    def figure(
        self,
        query_len: int,
        kv_len: int | None = None,
        *,
        sample: int = 0,
        head: int = 0,
        start: str | None = None,
    ) -> Any:
        """Return the mask as a figure of cells to toggle, with the runs and the blocks that result.

        Args:
            query_len: number of queries, in tokens, 64 at most.
            kv_len: number of keys, in tokens; None is query_len.
            sample: index of the row of the batch, for a mask that differs between them.
            head: index of the head, for a mask that differs between them.
            start: the cells that it opens with, as "mask=100.110.111"; None are those of the mask.

        Raises:
            TooLargeError: code `figure.size`.
            ArgumentError, ArgumentTypeError, SelectionError, MaskError: as `plot` does; code `figure.start`.

        Example:
            >>> import clearhead as ch
            >>> ch.causal().figure(6)
            figure of causal(): 6 queries × 6 keys; mask; edited: mask
        """
        made = drawing("element.figure").of_mask
        return made(self, query_len, kv_len, sample=sample, head=head, start=start)

    # What combines masks is made of them, and so imported here and not above.
    def __and__(self, other: "Mask") -> "Mask":
        """Return the mask that shows what both show; raise ArgumentTypeError, code `mask.type`, for no mask."""
        from clearhead.masks.algebra import And

        return And(self, check_mask(other))

    def __or__(self, other: "Mask") -> "Mask":
        """Return the mask that shows what one of them shows; raise ArgumentTypeError, code `mask.type`, for no mask."""
        from clearhead.masks.algebra import Or

        return Or(self, check_mask(other))

    def __invert__(self) -> "Mask":
        """Return the mask that shows what this one hides."""
        from clearhead.masks.algebra import Not

        return Not(self)

    # Reached where the left operand is no mask.
    def __rand__(self, other: "Mask") -> "Mask":
        """Raise ArgumentTypeError, code `mask.type`, since the left operand is no mask."""
        return check_mask(other) & self

    def __ror__(self, other: "Mask") -> "Mask":
        """Raise ArgumentTypeError, code `mask.type`, since the left operand is no mask."""
        return check_mask(other) | self

    def __bool__(self) -> bool:
        """Raise ArgumentTypeError, code `mask.truth`: a mask is neither true nor false."""
        raise ArgumentTypeError(
            "mask.truth",
            "a mask is neither true nor false; combine masks with &, | and ~, "
            "not with `and`, `or` and `not`.",
        )

    def __repr__(self) -> str:
        """Return `describe()`, and below it the drawing of a small mask."""
        query_len, kv_len = self.sizes() or (REPR_TOKENS, REPR_TOKENS)
        batch, heads = self.leading
        unreadable = self.device is not None and self.device.type == "meta"
        if max(query_len, kv_len) > 2 * REPR_TOKENS or batch * heads > 4 or unreadable:
            return self.describe()
        try:
            return f"{self.describe()}\n{self.draw(query_len, kv_len)}"
        except MaskError:  # made for lengths that only the query will tell
            return self.describe()

    def _repr_html_(self) -> str:
        """Return the mask as HTML for a notebook; the drawing is imported on first use."""
        return drawing("notebook.inline.matrices").mask_html(self)


def check_mask(other: object) -> Mask:
    """Return a mask, or raise an error if an operand of &, | or ~ is not one.

    Raises:
        ArgumentTypeError: code `mask.type`.
    """
    if not isinstance(other, Mask):
        hint = " Wrap it: clearhead.dense(tensor)." if isinstance(other, Tensor) else ""
        raise ArgumentTypeError(
            "mask.type", f"a mask combines with a mask only; got {type(other).__name__}.{hint}"
        )
    return other


def _draw(dense: Tensor) -> str:
    """Return rows of `●` and `·` of a bool tensor, (query_len, kv_len), or with two more axes, each part titled."""
    if dense.ndim == 2:
        rows = dense.tolist()
        return "\n".join(" ".join(VISIBLE if seen else HIDDEN for seen in row) for row in rows)
    parts = []
    batch, heads = dense.shape[:2]
    for sample in range(batch):
        for head in range(heads):
            title = f"batch {sample}" + (f", head {head}" if heads > 1 else "")
            parts.append(f"{title}\n{_draw(dense[sample, head])}")
    return "\n".join(parts)
