"""What a mask is, and how masks combine.

A mask says who may see whom: **True = may attend**. It is a description, not a tensor: it holds at
most O(tokens) numbers and is asked for the part that somebody needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_length
from clearhead._common.lazy import drawing
from clearhead.errors import ArgumentError, ArgumentTypeError, DeviceError, MaskError
from clearhead.masks.blocks import BlockMap, block_map
from clearhead.masks.drawing import draw_dense
from clearhead.masks.spans import Spans, complement, intersection, union

REPR_TOKENS = 6
DRAWING_TOKENS = 200

T = TypeVar("T")


class Mask(ABC):
    """Who may see whom, for any number of queries and keys.

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
    def visible(
        self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int
    ) -> Tensor:
        """Whether these queries may attend to these keys.

        Args:
            query_index: int64, four dimensions (batch, num_heads, queries, keys), any of size 1.
            key_index: likewise; the two broadcast against each other.
            query_len: how many queries there are in all.
            kv_len: how many keys there are in all.

        Returns:
            bool, four dimensions that broadcast to (batch, num_heads, queries, keys).
        """

    @abstractmethod
    def describe(self) -> str:
        """The mask as an expression, such as `causal() & padding([3, 5])`."""

    @property
    def batch(self) -> int | None:
        """The batch size the mask is tied to, or None when it fits any."""
        return None

    @property
    def heads(self) -> int | None:
        """The number of query heads the mask is tied to, or None when it fits any."""
        return None

    @property
    def device(self) -> torch.device | None:
        """The device the mask is tied to by a tensor it holds, or None when it fits any."""
        return None

    @property
    def leading(self) -> tuple[int, int]:
        """Batch and heads of the mask as a tensor: 1 where it fits any."""
        return 1 if self.batch is None else self.batch, 1 if self.heads is None else self.heads

    def check(
        self, batch: int, num_heads: int, query_len: int, kv_len: int, device: torch.device
    ) -> None:
        """Refuse sizes or a device that the mask was not made for.

        Raises:
            MaskError: if a size differs from what the mask describes.
            DeviceError: if the mask holds a tensor on another device.
        """
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
                f"the mask {self.describe()} describes {self.heads} heads; "
                f"the query has num_heads={num_heads}.",
            )

    def spans(
        self, query_len: int, kv_len: int, device: torch.device, given: dict[int, bool]
    ) -> Spans | None:
        """The keys of each query as a few runs, or None if there is no such short description.

        `given` says, for each of `columns()` by identity, whether the keys under study are in it.
        """
        return None

    def columns(self) -> Iterator["Mask"]:
        """The parts that treat every query alike, as any set of keys."""
        return iter(())

    def sizes(self) -> tuple[int, int] | None:
        """The query_len and kv_len that the mask itself brings, or None."""
        return None

    def block(
        self, queries: slice, keys: slice, query_len: int, kv_len: int, device: torch.device
    ) -> Tensor:
        """The rectangle of the mask for some queries and keys: bool, four dimensions."""
        query_index = torch.arange(queries.start, queries.stop, device=device).view(1, 1, -1, 1)
        key_index = torch.arange(keys.start, keys.stop, device=device).view(1, 1, 1, -1)
        seen = self.visible(query_index, key_index, query_len, kv_len)
        return seen.expand(-1, -1, query_index.shape[2], key_index.shape[3])

    def to_dense(
        self, query_len: int, kv_len: int, *, device: torch.device | str | None = None
    ) -> Tensor:
        """The mask as a tensor of tokens × tokens, True = may attend.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            device: where to put the tensor; None is where the mask is, or the CPU.

        Returns:
            bool of shape (query_len, kv_len), or (batch, num_heads or 1, query_len, kv_len) for a
            mask that differs between samples or heads.

        Raises:
            ArgumentError: if a length is negative.
            ArgumentTypeError: if a length is not a whole number.
            MaskError: if the mask was made for other lengths.

        Example:
            >>> import clearhead as ch
            >>> ch.causal().to_dense(2, 3)
            tensor([[ True,  True, False],
                    [ True,  True,  True]])
        """
        query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
        own = self.device or torch.device(device or "cpu")
        self.check(*self.leading, query_len, kv_len, own)
        dense = self.block(slice(0, query_len), slice(0, kv_len), query_len, kv_len, own)
        dense = dense.expand(*self.leading, query_len, kv_len)
        if self.batch is None and self.heads is None:
            dense = dense[0, 0]
        return dense.contiguous().to(device or own)

    def draw(self, query_len: int, kv_len: int) -> str:
        """The mask as text: a row per query, `●` where it may attend, `·` where it may not.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.

        Raises:
            ArgumentError: if a length is negative or too long to draw as text.
            ArgumentTypeError: if a length is not a whole number.

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
        return draw_dense(self.to_dense(query_len, kv_len))

    def blocks(self, query_len: int, kv_len: int, block: int | tuple[int, int]) -> BlockMap:
        """Which blocks of the tokens × tokens matrix are empty, partial or full.

        Worked out from the description, in O(tokens + blocks) time and memory as long as a query
        sees few separate runs of keys; never by forming tokens × tokens. A mask that holds a
        tensor of tokens × tokens, documents whose ids keep coming back, or many sets of keys with
        holes is read a few queries at a time instead.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            block: size of a block in tokens, or a pair (queries, keys). The last block of a row or
                column may be smaller.

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
                f"block must be a number of tokens, 1 or more, or a pair of them; got {block!r}.",
            )
        self.check(*self.leading, query_len, kv_len, self.device or torch.device("cpu"))
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
        cells: int | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw the mask with matplotlib: a row per query, visible pairs dark, hidden ones white.

        A long mask is drawn by `blocks`, by the share of their pairs that is visible.

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            sample: which row of the batch, of a mask that differs between them.
            head: which head, likewise.
            tokens: a word for each query, and for each key where there are as many.
            source_tokens: a word for each key.
            cells: how many cells a side the figure has at most; None is 256.
            ax: axes to draw in; None is a new figure of pyplot's.

        Returns:
            The axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentError: codes `length.negative`, `plot.cells` and `plot.empty`.
            ArgumentTypeError: codes `length.type`, `plot.axes` and `plot.tokens`.
            ShapeError: code `plot.tokens`.
            SelectionError: code `plot.part`, for no such head or sample.
            MaskError: if the mask was made for other lengths.

        Example:
            >>> import clearhead as ch
            >>> axes = ch.causal().plot(3, 3)
            >>> axes.images[0].get_array().tolist()
            [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
            >>> print(ch.causal().plot(100_000, 100_000).get_xlabel())
            key
            one cell = 391 × 391 tokens
        """
        return drawing("figures").of_mask(
            self,
            query_len,
            kv_len,
            sample=sample,
            head=head,
            tokens=tokens,
            source_tokens=source_tokens,
            cells=cells,
            ax=ax,
        )

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, _a_mask(other))

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, _a_mask(other))

    # Python asks the right-hand mask where the left-hand thing does not know masks.
    def __rand__(self, other: "Mask") -> "Mask":
        return _a_mask(other) & self

    def __ror__(self, other: "Mask") -> "Mask":
        return _a_mask(other) | self

    def __invert__(self) -> "Mask":
        return Not(self)

    def __bool__(self) -> bool:
        raise ArgumentTypeError(
            "mask.truth",
            "a mask is neither true nor false; combine masks with &, | and ~, "
            "not with `and`, `or` and `not`.",
        )

    def __repr__(self) -> str:
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
        return drawing("notebook.inline.mask_grid").mask_html(self)


@dataclass(frozen=True, eq=False, repr=False)
class _Pair(Mask):
    """Two masks and what they have in common."""

    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        left, right = self.left, self.right
        for name, a, b in (
            ("batch", left.batch, right.batch),
            ("heads", left.heads, right.heads),
        ):
            if a is not None and b is not None and a != b:
                raise MaskError(
                    f"mask.{name}",
                    f"masks of different {name} cannot be combined: {left.describe()} is for {a}, "
                    f"{right.describe()} for {b}.",
                )
        if left.device is not None and right.device is not None and left.device != right.device:
            raise DeviceError(
                "mask.device",
                "masks on different devices cannot be combined: "
                f"{left.describe()} is on {left.device}, {right.describe()} on {right.device}.",
            )

    @property
    def batch(self) -> int | None:
        return _either(self.left.batch, self.right.batch)

    @property
    def heads(self) -> int | None:
        return _either(self.left.heads, self.right.heads)

    @property
    def device(self) -> torch.device | None:
        return _either(self.left.device, self.right.device)

    def check(
        self, batch: int, num_heads: int, query_len: int, kv_len: int, device: torch.device
    ) -> None:
        self.left.check(batch, num_heads, query_len, kv_len, device)
        self.right.check(batch, num_heads, query_len, kv_len, device)

    def columns(self) -> Iterator[Mask]:
        yield from self.left.columns()
        yield from self.right.columns()

    def sizes(self) -> tuple[int, int] | None:
        return self.left.sizes() or self.right.sizes()

    def _both_spans(
        self, query_len: int, kv_len: int, device: torch.device, given: dict[int, bool]
    ) -> tuple[Spans, Spans] | None:
        left = self.left.spans(query_len, kv_len, device, given)
        right = self.right.spans(query_len, kv_len, device, given)
        return None if left is None or right is None else (left, right)


class And(_Pair):
    """A key is visible if both masks show it."""

    def visible(
        self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int
    ) -> Tensor:
        return self.left.visible(query_index, key_index, query_len, kv_len) & self.right.visible(
            query_index, key_index, query_len, kv_len
        )

    def spans(
        self, query_len: int, kv_len: int, device: torch.device, given: dict[int, bool]
    ) -> Spans | None:
        both = self._both_spans(query_len, kv_len, device, given)
        return both and intersection(*both, kv_len)

    def describe(self) -> str:
        return f"{_bracketed(self.left, And)} & {_bracketed(self.right, And)}"


class Or(_Pair):
    """A key is visible if one of the masks shows it."""

    def visible(
        self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int
    ) -> Tensor:
        return self.left.visible(query_index, key_index, query_len, kv_len) | self.right.visible(
            query_index, key_index, query_len, kv_len
        )

    def spans(
        self, query_len: int, kv_len: int, device: torch.device, given: dict[int, bool]
    ) -> Spans | None:
        both = self._both_spans(query_len, kv_len, device, given)
        return both and union(*both, kv_len)

    def describe(self) -> str:
        return f"{_bracketed(self.left, Or)} | {_bracketed(self.right, Or)}"


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask):
    """A key is visible if the mask hides it."""

    mask: Mask

    @property
    def batch(self) -> int | None:
        return self.mask.batch

    @property
    def heads(self) -> int | None:
        return self.mask.heads

    @property
    def device(self) -> torch.device | None:
        return self.mask.device

    def check(
        self, batch: int, num_heads: int, query_len: int, kv_len: int, device: torch.device
    ) -> None:
        self.mask.check(batch, num_heads, query_len, kv_len, device)

    def columns(self) -> Iterator[Mask]:
        return self.mask.columns()

    def sizes(self) -> tuple[int, int] | None:
        return self.mask.sizes()

    def visible(
        self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int
    ) -> Tensor:
        return ~self.mask.visible(query_index, key_index, query_len, kv_len)

    def spans(
        self, query_len: int, kv_len: int, device: torch.device, given: dict[int, bool]
    ) -> Spans | None:
        inside = self.mask.spans(query_len, kv_len, device, given)
        return None if inside is None else complement(inside, kv_len)

    def describe(self) -> str:
        return f"~{_bracketed(self.mask, Not)}"


def _either(a: T | None, b: T | None) -> T | None:
    return b if a is None else a


def _bracketed(mask: Mask, around: type[Mask]) -> str:
    """The mask as an expression, in brackets where Python would read it otherwise."""
    text = mask.describe()
    return f"({text})" if isinstance(mask, _Pair) and not isinstance(mask, around) else text


def _a_mask(other: object) -> Mask:
    if not isinstance(other, Mask):
        hint = " Wrap it: clearhead.dense(tensor)." if isinstance(other, Tensor) else ""
        raise ArgumentTypeError(
            "mask.type", f"a mask combines with a mask only; got {type(other).__name__}.{hint}"
        )
    return other
