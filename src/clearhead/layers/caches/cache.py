"""The KV cache of one layer: slots of memory, which columns are real tokens, and a rule of where tokens go."""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import as_int, check_length, check_tensor
from clearhead._common.torch_internals import can_read_now
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.layers.caches.layout import (
    Slots,
    check_valid,
    is_in_order,
    layout_of,
    row_index,
    row_lengths,
)
from clearhead.layers.positions import positions_from_valid
from clearhead.masks.base import Mask
from clearhead.masks.full import full
from clearhead.masks.padding import padding

Kind = TypeVar("Kind", bound="Cache")


class Cache(Slots):
    """The KV cache of one attention layer: keys and values of the tokens it has seen so far.

    `append` takes the keys and values of new tokens, and returns those that they may attend to. The
    new queries attend to them with `causal() & cache.mask()`: what it returns ends with the new
    tokens, so that the last query sits on the last key.

    Keys are kept as they are. Those that are rotated by their position are rotated before they are
    appended, at `next_positions(new)`.

    `append` returns views of the cache's memory where that is possible: they hold until the cache is
    cut, reordered or reset, or, in a ring, until the next tokens are appended. No gradient goes
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

    def append(
        self, key: Tensor, value: Tensor, *, valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens; return those that their queries may attend to.

        Args:
            key: (batch, num_kv_heads, new, head_dim).
            value: (batch, num_kv_heads, new, value_head_dim).
            valid: bool, (batch, new), True at real tokens, False at padding, on whichever side;
                None when all are real.

        Returns:
            Keys (batch, num_kv_heads, kv_len, head_dim) and values (batch, num_kv_heads, kv_len,
            value_head_dim); the last `new` tokens are the new ones.

        Raises:
            ArgumentTypeError: codes `key.type`, `value.type`, `valid.type` and `….layout`.
            ShapeError: code `cache.shape`, for sizes that are not those of the first tokens;
                `cache.valid` for a `valid` of another shape.
            DtypeError, DeviceError: codes `cache.dtype`, `cache.valid-dtype`, `cache.device`, `cache.valid-device`.
            ArgumentError: code `cache.grad`, for a key or value that requires a gradient, unless inside of no_grad().
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
        layout = layout_of(key, value, self._layout)
        if valid is not None:
            check_valid(valid, layout.batch, key.shape[2], layout.device)
        if (key.requires_grad or value.requires_grad) and torch.is_grad_enabled():
            raise ArgumentError(
                "cache.grad",
                "no gradient goes through a cache, and key or value requires one; append inside of "
                "torch.no_grad(), or detach them.",
            )
        self._check_room(key.shape[2])
        if self._layout is None:
            self._layout = layout
            self._start(layout)
        self._finite = self._finite and _are_finite(key, value)
        kept = self._add(key, value, valid)
        self._record(key.shape[2], valid)
        self._appended = key.shape[2], valid
        return kept

    @property
    def positions(self) -> Tensor:
        """The position of each key that `append` returned, in tokens, (kv_len,) or (batch, kv_len).

        The real tokens of a row are counted from 0. Padding has the position of the real token
        that comes next. The position of any other key that `mask()` hides means nothing.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import SlidingCache
            >>> cache = SlidingCache(2)
            >>> for token in torch.zeros(3, 1, 1, 1, 4):
            ...     _ = cache.append(token, token)
            >>> cache.positions  # a ring: token 2 has replaced token 0
            tensor([2, 1])
        """
        if self._shown is not None:
            return self._shown[0]
        real = self._real()
        if isinstance(real, Tensor):
            return positions_from_valid(real)
        return torch.arange(real, device=self._device)

    def mask(self) -> Mask:
        """Return the mask of the new queries over the keys that `append` returned, to be combined with causality.

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
        if self._shown is not None:
            return self._shown[1]
        real = self._real()
        return padding(real) if isinstance(real, Tensor) else full()

    @property
    def in_order(self) -> bool:
        """True if the keys that `append` returned are in the order of their tokens.

        In every row there is no padding between them, so that columns are as far apart as their tokens.

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
        real = self._real()
        return self._shown is None and (not isinstance(real, Tensor) or is_in_order(real))

    @property
    def finite(self) -> bool:
        """True if everything held is known to be finite.

        Known on the CPU only, where each token is checked once, so that a step need not check all of them again.

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
    def nbytes(self) -> int:
        """The memory of keys and values in bytes, slots without a token included.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import StaticCache
            >>> cache = StaticCache(100)
            >>> _ = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
            >>> cache.nbytes  # key and value, 2 heads, 100 tokens, 4 numbers of 4 bytes
            6400
        """
        return sum(store.nbytes for store in self._stores)

    def next_positions(
        self, new: int, valid: Tensor | None = None, *, device: torch.device | str | None = None
    ) -> Tensor:
        """Return the positions of the tokens that come next, in tokens, as rotary positions need them.

        Args:
            new: number of tokens that come next.
            valid: which of them are real, as in `append`.
            device: device of the positions; None is that of the keys, and before there are any,
                that of `valid`, or the CPU.

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
        if valid is not None:
            check_tensor("valid", valid)
            # Before the first tokens any batch will do, so long as there is one.
            batch = valid.shape[0] if valid.ndim else 0
            expected = (batch, new, valid.device)
            if self._layout is not None:
                expected = (self._layout.batch, new, self._layout.device)
            check_valid(valid, *expected)
        device = self._device if device is None else device
        counts = self._counts()
        steps = torch.arange(new, device=device) if valid is None else positions_from_valid(valid)
        if isinstance(counts, int):
            return (steps + counts).to(device)
        return (steps + counts.to(steps.device)[..., None]).to(device)

    def truncate(self, length: int | Sequence[int] | Tensor) -> None:
        """Drop all tokens but the first ones, as when a draft of the next tokens is rejected.

        Args:
            length: number of tokens to keep, padding included, 0 to len(cache); or one for each row,
                (batch,). The cache is then as long as the longest row, and what the others have
                lost is padding.

        Raises:
            ArgumentTypeError, ArgumentError: codes `length.type` and `length.negative`.
            ShapeError: code `cache.truncate-shape`, for lengths that are not one for each row.
            ArgumentError: code `cache.truncate`, for more tokens than there are, or for a length
                that needs tokens that the cache has dropped.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> _ = cache.append(torch.zeros(2, 2, 7, 4), torch.zeros(2, 2, 7, 4))
            >>> cache.truncate(5)
            >>> len(cache)
            5
            >>> cache.truncate([3, 4])  # of a draft of three tokens one row took one, the other two
            >>> len(cache), cache.next_positions(1).tolist()
            (4, [[3], [4]])
        """
        if as_int(length) is not None or not isinstance(length, Sequence | Tensor):
            lengths = torch.tensor([check_length("length", length)])
        else:
            lengths = row_lengths(length, None if self._layout is None else self._layout.batch)
        longest, shortest, held = int(lengths.max()), int(lengths.min()), len(self)
        if longest > held:
            raise ArgumentError(
                "cache.truncate",
                f"length must be at most the {held} tokens that the cache has seen; got {longest}.",
            )
        # Before the first tokens there may be no memory.
        if self._layout is None or 0 < held == shortest:
            return
        with torch.inference_mode(False), torch.no_grad():
            valid = None if self._valid is None else self._valid[:, :longest]
            if shortest < longest:
                columns = torch.arange(longest, device=self._device)
                kept = columns < lengths.to(columns.device)[:, None]
                valid = kept if valid is None else valid & kept
            valid = valid if longest else None
            self._cut(longest if valid is None else valid.sum(-1), lengths)
            self._valid = None if valid is None else self._columns(valid)
        self._shown = None
        self._advance(longest - held)

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Select rows of the batch, in this order, as a beam search does.

        A row may come several times, or not at all; the batch becomes as large as `rows` is long.

        Args:
            rows: whole numbers of shape (new_batch,), at least one, each 0 to batch − 1.

        Raises:
            ArgumentTypeError: code `rows.type`, for anything but whole numbers.
            ShapeError: code `cache.reorder-shape`, for another shape, or no row at all.
            SelectionError: code `cache.reorder`, for a row outside of the batch, and for any before the first tokens.

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
        layout = self._layout
        index = row_index(rows, 0 if layout is None else layout.batch)
        assert layout is not None
        with torch.inference_mode(False), torch.no_grad():
            index = index.to(layout.device)
            self._take(index)
            if self._valid is not None:
                self._valid = self._valid.index_select(0, index)
        self._shown = None
        self._layout = layout._replace(batch=index.shape[0])

    def fork(self: Kind) -> Kind:
        """Return a copy that continues from the same tokens, such as those of a prompt; it belongs to no layer yet.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> prompt = GrowingCache()
            >>> _ = prompt.append(torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
            >>> answer = prompt.fork()
            >>> _ = answer.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
            >>> len(prompt), len(answer)
            (7, 8)
        """
        with torch.inference_mode(False):
            return copy.deepcopy(self)

    def _last_positions(self) -> Tensor:
        """Return the positions of the tokens of the last `append`, (new,) or (batch, new).

        They are wrong once the cache was truncated or reordered after it.
        """
        new, valid = self._appended
        if valid is None:
            return self.next_positions(new) - new
        valid = valid.to(self._device)
        return self.next_positions(1) - valid.sum(-1, keepdim=True) + positions_from_valid(valid)

    def __len__(self) -> int:
        """Number of tokens appended, padding included, and not cut off again."""
        return self._seen

    def __bool__(self) -> bool:
        """Raise ArgumentTypeError, code `cache.truth`: a cache is neither true nor false."""
        raise ArgumentTypeError(
            "cache.truth",
            "a cache is neither true nor false; ask `cache is not None`, or len(cache) > 0.",
        )

    def __repr__(self) -> str:
        """Return `describe()` and the number of tokens, as `<GrowingCache(), 7 tokens>`."""
        return f"<{self.describe()}, {len(self)} tokens>"

    @abstractmethod
    def describe(self) -> str:
        """Return the cache with its arguments as text, such as `SlidingCache(512)`.

        Example:
            >>> from clearhead.layers.caches import SlidingCache
            >>> SlidingCache(512).describe()
            'SlidingCache(512)'
        """


def _are_finite(key: Tensor, value: Tensor) -> bool:
    """Return True if every entry is finite; False if one is not, and where the check would sync a GPU or be traced."""
    return can_read_now(key) and stages.rows_finite(key) and stages.all_finite(value)
