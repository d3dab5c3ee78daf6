"""What a cache of keys and values is, and what every kind of it refuses."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.axes import KEY_AXES, VALUE_AXES, describe_tensor
from clearhead._common.checks import as_int, check_length, check_tensor
from clearhead.attention.problem import DTYPES
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DtypeError,
    SelectionError,
    ShapeError,
)
from clearhead.masks.base import Mask


class Layout(NamedTuple):
    """What the first keys and values were like, and all others have to be."""

    batch: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    dtype: torch.dtype
    device: torch.device


class Cache(ABC):
    """The keys and values of one layer of attention, of the tokens it has seen so far.

    New tokens are appended, and the keys and values that they may attend to come back. The new
    queries attend to them with `causal() & cache.mask()`: what a cache gives back ends with the new
    tokens, so that the last query sits on the last key.

    Keys are kept as they come. Those that are rotated by their position are rotated before they are
    appended, at `next_positions(new)`.

    What comes back are views of the cache's memory where that is possible: they hold until the
    cache is cut, reordered or reset, or, in a ring, until the next tokens come. No gradient goes
    through a cache: keys and values that require one are refused.

    Example:
        >>> import torch, clearhead as ch
        >>> from clearhead.layers.caches import GrowingCache
        >>> cache = GrowingCache()
        >>> for chunk in torch.randn(3, 1, 2, 7, 4).split([4, 1, 2], dim=3):
        ...     query, key, value = chunk
        ...     key, value = cache.append(key, value)
        ...     context = ch.attend(query, key, value, mask=ch.causal() & cache.mask())
        >>> len(cache), key.shape
        (7, torch.Size([1, 2, 7, 4]))
    """

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._seen = 0
        self._finite = True

    def append(
        self, key: Tensor, value: Tensor, *, valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of new tokens; give back what their queries may attend to.

        Args:
            key: (batch, num_kv_heads, new, head_dim).
            value: (batch, num_kv_heads, new, value_head_dim).
            valid: bool, (batch, new), True at real tokens, False at those that only fill up the
                batch, on whichever side; None when all are real.

        Returns:
            Keys (batch, num_kv_heads, kv_len, head_dim) and values (batch, num_kv_heads, kv_len,
            value_head_dim), of which the last `new` are the new ones.

        Raises:
            ArgumentTypeError: codes `key.type`, `value.type`, `valid.type` and `….layout`.
            ShapeError: code `cache.shape`, for sizes that are not those of the first tokens;
                `cache.valid` for a `valid` of another shape.
            DtypeError, DeviceError: codes `cache.dtype`, `cache.valid-dtype`, `cache.device`.
            ArgumentError: code `cache.grad`, for what requires a gradient.
            TooLargeError: code `cache.full`, for a cache of fixed size that has no room left.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> valid = torch.tensor([[False, True, True], [True, True, True]])
            >>> key, value = torch.randn(2, 2, 1, 3, 4)
            >>> kept, _ = cache.append(key, value, valid=valid)
            >>> torch.equal(kept, key), cache.positions.tolist()
            (True, [[0, 0, 1], [0, 1, 2]])
        """
        layout = self._check(key, value, valid)
        self._check_room(layout.batch, key.shape[2], valid)
        if self._layout is None:
            self._layout = layout
            self._start(layout)
        self._finite = self._finite and _are_finite(key, value)
        kept = self._add(key, value, valid)
        self._seen += key.shape[2]
        return kept

    @property
    @abstractmethod
    def positions(self) -> Tensor:
        """Where each key that was given back stands, in tokens, (kv_len,), or (batch, kv_len).

        The real tokens of a row are counted from 0. Padding has the position of the real token
        that comes next. Of other keys that `mask()` hides the position says nothing.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import SlidingCache
            >>> cache = SlidingCache(2)
            >>> for token in torch.zeros(3, 1, 1, 1, 4):
            ...     _ = cache.append(token, token)
            >>> cache.positions  # a ring: token 2 has taken the place of token 0
            tensor([2, 1])
        """

    @abstractmethod
    def mask(self) -> Mask:
        """Which of the keys that were given back the new queries may see, beside causality.

        It fits all of the new queries, or the last few of them.

        Returns:
            A mask, to be combined: `causal() & cache.mask()`.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> token = torch.zeros(1, 1, 2, 4)
            >>> _ = cache.append(token, token, valid=torch.tensor([[False, True]]))
            >>> print(cache.mask().draw(2, 2))
            batch 0
            · ●
            · ●
        """

    @property
    @abstractmethod
    def in_order(self) -> bool:
        """Whether the keys that were given back stand in the order of their tokens, in every row
        without padding between them, so that columns are as far apart as their tokens.

        If not, a window or a bias by distance has to go by `positions`, as the layer's do.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import SlidingCache
            >>> cache = SlidingCache(2)
            >>> for token in torch.zeros(3, 1, 1, 1, 4):
            ...     _ = cache.append(token, token)
            ...     print(cache.positions.tolist(), cache.in_order)
            [0] True
            [0, 1] True
            [2, 1] False
        """

    @property
    def finite(self) -> bool:
        """Whether all that is held is known to be finite; on the CPU only, where each token is
        looked at once, so that a step need not look at all of them again.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> token = torch.zeros(1, 1, 1, 4)
            >>> _ = cache.append(token, token)
            >>> _ = cache.finite, cache.append(token, torch.full_like(token, torch.nan))
            >>> cache.finite
            False
        """
        return self._finite

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How much memory keys and values have, used or set aside, in bytes.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import StaticCache
            >>> cache = StaticCache(100)
            >>> _ = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
            >>> cache.nbytes  # key and value, 2 heads, 100 tokens, 4 numbers of 4 bytes
            6400
        """

    def next_positions(
        self, new: int, valid: Tensor | None = None, *, device: torch.device | str | None = None
    ) -> Tensor:
        """Where the next tokens will stand, in tokens: what a rotary position has to know.

        Args:
            new: how many tokens come next.
            valid: which of them are real, as in `append`.
            device: where to put the positions; None is where the keys are, and before there are
                any, where `valid` is, or the CPU.

        Returns:
            int64, (new,), or (batch, new) if there is or was padding. Real tokens are counted from
            0 in each row; padding has the position of the real token that comes next.

        Raises:
            ArgumentTypeError, ArgumentError: codes `length.type` and `length.negative`, for `new`.
            ArgumentTypeError, ShapeError, DtypeError, DeviceError: for `valid`, as in `append`.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> GrowingCache().next_positions(3)
            tensor([0, 1, 2])
            >>> GrowingCache().next_positions(3, torch.tensor([[False, True, True]]))
            tensor([[0, 0, 1]])
        """
        new = check_length("new", new)
        layout = self._layout
        if valid is not None:
            check_tensor("valid", valid)
            if layout is not None:
                check_valid(valid, layout.batch, new, layout.device)
            else:  # any batch will do, so long as there is one
                check_valid(valid, valid.shape[0] if valid.ndim else 0, new, valid.device)
        if device is None and layout is not None:
            device = layout.device
        counts = self._counts()
        if valid is None:
            steps = torch.arange(new, device=device)
            return steps + (counts if isinstance(counts, int) else counts.to(steps.device)[:, None])
        return (before(valid) + (counts if isinstance(counts, int) else counts[:, None])).to(device)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first ones, as when a draft of the next tokens is rejected.

        Args:
            length: how many tokens to keep, padding included, 0 to len(cache).

        Raises:
            ArgumentTypeError, ArgumentError: codes `length.type` and `length.negative`.
            ArgumentError: code `cache.truncate`, for more tokens than there are, or for a length
                at which tokens are wanted that the cache has dropped.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> _ = cache.append(torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
            >>> cache.truncate(5)
            >>> len(cache)
            5
        """
        length = check_length("length", length)
        if length > self._seen:
            raise ArgumentError(
                "cache.truncate",
                f"length must be at most the {self._seen} tokens that the cache has seen; got "
                f"{length}.",
            )
        # Without a token of it there is nothing to be cut, and there may be no memory yet.
        if self._layout is not None:
            self._cut(length)
            self._seen = length

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Go on with these rows of the batch, in this order, as a beam search does.

        A row may come several times, or not at all; the batch becomes as large as `rows` is long.

        Args:
            rows: whole numbers of shape (new_batch,), at least one, each 0 to batch − 1.

        Raises:
            ArgumentTypeError: code `rows.type`, for what does not hold whole numbers.
            ShapeError: code `cache.reorder-shape`, for another shape, or no row at all.
            SelectionError: code `cache.reorder`, for a row that is not there.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> key = torch.tensor([3.0, 5.0]).view(2, 1, 1, 1)
            >>> _ = cache.append(key, key)
            >>> cache.reorder([1, 1, 0])
            >>> cache.append(key[:1].expand(3, -1, -1, -1), key[:1].expand(3, -1, -1, -1))[0][:, 0, 0]
            tensor([[5.],
                    [5.],
                    [3.]])
        """
        index = _read_rows(rows, 0 if self._layout is None else self._layout.batch)
        assert self._layout is not None
        with torch.inference_mode(False), torch.no_grad():
            self._take(index.to(self._layout.device))
        self._layout = self._layout._replace(batch=index.shape[0])

    def reset(self) -> None:
        """Forget everything, as if the cache were new: other shapes may follow.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> _ = cache.append(torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
            >>> cache.reset()
            >>> len(cache)
            0
        """
        self._layout = None
        self._seen = 0
        self._finite = True
        self._forget()

    def __len__(self) -> int:
        """How many tokens were appended, padding included, and not cut off again."""
        return self._seen

    def __bool__(self) -> bool:
        raise ArgumentTypeError(
            "cache.truth",
            "a cache is neither true nor false; ask `cache is not None`, or len(cache) > 0.",
        )

    def __repr__(self) -> str:
        return f"<{self.describe()}, {self._seen} tokens>"

    @abstractmethod
    def describe(self) -> str:
        """The cache as it was made, such as `SlidingCache(512)`.

        Example:
            >>> from clearhead.layers.caches import SlidingCache
            >>> SlidingCache(512).describe()
            'SlidingCache(512)'
        """

    def _check_room(self, batch: int, new: int, valid: Tensor | None) -> None:
        """Refuse tokens that there is no room for; most kinds make room."""
        return

    @abstractmethod
    def _start(self, layout: Layout) -> None:
        """Set up for the first tokens, whose layout this is."""

    @abstractmethod
    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """`append` for tokens that fit; `_seen` still counts those before them."""

    @abstractmethod
    def _counts(self) -> int | Tensor:
        """How many real tokens there are: for all rows alike, or one number for each."""

    @abstractmethod
    def _cut(self, length: int) -> None:
        """`truncate` to no more than `_seen`, which still counts all tokens."""

    @abstractmethod
    def _take(self, rows: Tensor) -> None:
        """`reorder` for rows that are there."""

    @abstractmethod
    def _forget(self) -> None:
        """`reset`, of all that a kind has beside layout and length."""

    def _check(self, key: Tensor, value: Tensor, valid: Tensor | None) -> Layout:
        """The layout of new keys and values, or a refusal of what does not go together."""
        check_tensor("key", key)
        check_tensor("value", value)
        if (
            key.ndim != 4
            or value.ndim != 4
            or key.shape[:3] != value.shape[:3]
            or 0 in (key.shape[0], key.shape[1], key.shape[3], value.shape[3])
        ):
            raise ShapeError(
                "cache.shape",
                "key and value must have shape (batch, num_kv_heads, new, head_dim) and (batch, "
                "num_kv_heads, new, value_head_dim), all but `new` 1 or more; got "
                f"{tuple(key.shape)} and {tuple(value.shape)}.",
            )
        layout = Layout(
            key.shape[0], key.shape[1], key.shape[3], value.shape[3], key.dtype, key.device
        )
        if value.dtype != key.dtype or key.dtype not in DTYPES:
            raise DtypeError(
                "cache.dtype",
                "key and value must have one dtype, float16, bfloat16, float32 or float64; got "
                f"{key.dtype} and {value.dtype}.",
            )
        if value.device != key.device:
            raise DeviceError(
                "cache.device",
                f"key and value must be on one device; got {key.device} and {value.device}.",
            )
        if self._layout is not None and layout != self._layout:
            raise _other(key, value, layout, self._layout)
        if valid is not None:
            check_tensor("valid", valid)
            check_valid(valid, layout.batch, key.shape[2], layout.device)
        if (key.requires_grad or value.requires_grad) and torch.is_grad_enabled():
            raise ArgumentError(
                "cache.grad",
                "no gradient goes through a cache, and key or value requires one; append inside of "
                "torch.no_grad(), or detach them.",
            )
        return layout


def _are_finite(key: Tensor, value: Tensor) -> bool:
    """Whether every entry is; not on a device that would have to stop for it, or while tracing."""
    return key.is_cpu and not torch.compiler.is_compiling() and stages.both_finite(key, value)


def is_in_order(valid: Tensor) -> bool:
    """Whether in every row the real tokens are neighbours; valid is bool, (batch, tokens)."""
    begins = valid[:, 1:] & ~valid[:, :-1]
    return not valid.numel() or bool((begins.sum(dim=1) + valid[:, 0].long() <= 1).all())


def before(valid: Tensor) -> Tensor:
    """How many real tokens stand before each token of its row, int64, (batch, tokens)."""
    return valid.cumsum(-1) - valid.long()


def memory(
    like: Layout, *shape: int, dtype: torch.dtype | None = None, zeros: bool = False
) -> Tensor:
    """Memory that can be written to at any time, even if inference mode is on just now."""
    with torch.inference_mode(False):
        make = torch.zeros if zeros else torch.empty
        return make(shape, dtype=dtype or like.dtype, device=like.device)


def check_valid(valid: Tensor, batch: int, new: int, device: torch.device) -> None:
    if valid.dtype != torch.bool:
        raise DtypeError(
            "cache.valid-dtype",
            f"valid must be bool, True at real tokens; got {valid.dtype}. A tokenizer's "
            "attention_mask becomes one with .bool().",
        )
    if valid.shape != (batch, new):
        raise ShapeError(
            "cache.valid",
            f"valid must have shape (batch, new) = ({batch}, {new}); got {tuple(valid.shape)}.",
        )
    if valid.device != device:
        raise DeviceError(
            "cache.valid-device",
            f"valid must be where the keys are, on {device}; it is on {valid.device}.",
        )


def _other(
    key: Tensor, value: Tensor, given: Layout, kept: Layout
) -> ShapeError | DtypeError | DeviceError:
    """What is wrong with keys and values that are unlike the first ones."""
    if given.dtype != kept.dtype:
        return DtypeError(
            "cache.dtype", f"the cache holds {kept.dtype}; got keys and values of {given.dtype}."
        )
    if given.device != kept.device:
        return DeviceError(
            "cache.device", f"the cache is on {kept.device}; got keys and values on {given.device}."
        )
    return ShapeError(
        "cache.shape",
        f"the cache holds batch={kept.batch}, num_kv_heads={kept.num_kv_heads}, "
        f"head_dim={kept.head_dim}, value_head_dim={kept.value_head_dim}; got\n"
        f"  key    {describe_tensor(key, KEY_AXES)}\n"
        f"  value  {describe_tensor(value, VALUE_AXES)}",
    )


def _read_rows(rows: Sequence[int] | Tensor, batch: int) -> Tensor:
    """The rows as int64, (new_batch,), all of them there."""
    expected = "rows must hold whole numbers, one for each row that goes on; got"
    if isinstance(rows, Tensor):
        check_tensor("rows", rows)
        if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
            raise ArgumentTypeError("rows.type", f"{expected} a tensor of {rows.dtype}.")
        index = rows.long()
    else:
        if not isinstance(rows, Sequence) or any(as_int(row) is None for row in rows):
            raise ArgumentTypeError("rows.type", f"{expected} {rows!r}.")
        index = torch.tensor([int(row) for row in rows], dtype=torch.int64)
    if index.ndim != 1 or index.shape[0] == 0:
        raise ShapeError(
            "cache.reorder-shape",
            f"rows must have shape (new_batch,), with at least one row; got {tuple(index.shape)}.",
        )
    lowest, highest = int(index.min()), int(index.max())
    if lowest < 0 or highest >= batch:
        there = f"0 to {batch - 1}" if batch else "none: nothing was appended yet"
        raise SelectionError(
            "cache.reorder",
            f"rows must be those of the batch, {there}; got {lowest if lowest < 0 else highest}.",
        )
    return index
