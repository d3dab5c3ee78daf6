"""The memory of a cache as a whole: cut, reordered, moved, and shared with a fork."""

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_length
from clearhead.attention.problem import DTYPES
from clearhead.errors import ArgumentError, DtypeError
from clearhead.layers.caches.layout import Layout, empty_columns, row_index, row_lengths
from clearhead.masks.base import Mask

Memory = TypeVar("Memory", bound="CacheMemory")


class CacheMemory(ABC):
    """The base of `Cache`: slots of memory, and which columns of the text are real tokens.

    From that follow cuts, other rows, forks and other devices, once for all kinds.
    """

    def __init__(self) -> None:
        # Keys, values, and whatever else encodes them, (batch, num_kv_heads, slots, width).
        self._stores: tuple[Tensor, ...] = ()
        # The caches that share the stores until they write to them; None for one alone.
        self._sharers: weakref.WeakSet[CacheMemory] | None = None
        self.reset()

    @abstractmethod
    def __len__(self) -> int: ...

    def truncate(self, length: int | Sequence[int] | Tensor) -> None:
        """Drop all tokens but the first ones, as when a draft of the next tokens is rejected.

        Args:
            length: number of tokens to keep, padding included, 0 to len(cache); or one for each row,
                (batch,). The cache is then as long as the longest row, and what the others have
                lost is padding. First columns that no row has a token in any more are given back:
                the cache is shorter by them, so that rows can come and go for ever.

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
            >>> cache.truncate([0, 4])  # the first row is free for another text
            >>> _ = cache.append(torch.zeros(2, 2, 1, 4), torch.zeros(2, 2, 1, 4))
            >>> cache.truncate([5, 0])  # only the last token of the first row is left
            >>> len(cache), cache.next_positions(1).tolist()
            (1, [[1], [0]])
        """
        self._truncate(length)
        if as_int(length) is None:
            self._give_back()

    def _truncate(self, length: int | Sequence[int] | Tensor) -> None:
        """The same with all columns, so that it can be undone."""
        if as_int(length) is not None or not isinstance(length, Sequence | Tensor):
            lengths = torch.tensor([check_length("length", length)])
        else:
            lengths = row_lengths(length, None if self._layout is None else self._layout.batch)
        longest, held = int(lengths.max()), len(self)
        if longest > held:
            raise ArgumentError(
                "cache.truncate",
                f"length must be at most the {held} tokens that the cache has seen; got {longest}.",
            )
        # Without a token of it there is nothing to be cut, and there may be no memory yet.
        if self._layout is None or 0 < held == int(lengths.min()):
            return
        lengths = lengths[:1] if int(lengths.min()) == longest else lengths
        with torch.inference_mode(False), torch.no_grad():
            valid = self._kept(lengths.to(self._layout.device), longest) if longest else None
            total = None if valid is None else valid.sum(-1)
            self._cut(longest if total is None else total, lengths)
            self._valid, self._total = None if valid is None else self._columns(valid), total
        self._shown = None
        self._advance(longest - held)

    def _kept(self, lengths: Tensor, longest: int) -> Tensor | None:
        """Which of the first `longest` columns are real after a cut."""
        valid = None if self._valid is None else self._valid[:, :longest]
        if len(lengths) == 1:
            return valid
        kept = torch.arange(longest, device=lengths.device) < lengths[:, None]
        return kept if valid is None else valid & kept

    def _give_back(self) -> None:
        """Give the first columns back that no row has a token in."""
        held = len(self)
        free = 0 if self._valid is None else empty_columns(self._valid[:, :held])
        if free == held:
            self._truncate(0)
        elif free:
            self._own()
            with torch.inference_mode(False), torch.no_grad():
                self._shift(free)
            self._advance(-free)

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Select rows of the batch, in this order, as a beam search does.

        A row may come several times, or not at all; the batch becomes as large as `rows` is long.

        Args:
            rows: whole numbers of shape (new_batch,), at least one, each 0 to batch − 1.

        Raises:
            ArgumentTypeError: code `rows.type`, for anything but whole numbers.
            ShapeError: code `cache.reorder-shape`, for another shape, or no row at all.
            SelectionError: code `cache.reorder`, for a row outside of the batch.

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
        self._own()
        with torch.inference_mode(False), torch.no_grad():
            index = index.to(layout.device)
            self._take(index)
            self._valid, self._total = (
                None if each is None else each.index_select(0, index)
                for each in (self._valid, self._total)
            )
        self._shown = None
        self._layout = layout._replace(batch=index.shape[0])

    def reset(self) -> None:
        """Drop everything, as if the cache were new: other shapes may follow.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> _ = cache.append(torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
            >>> cache.reset()
            >>> len(cache)
            0
        """
        self._layout: Layout | None = None
        # Columns appended, which of them are real, (batch, columns), and how many are, (batch,); None
        # as long as all are.
        self._seen = 0
        self._valid: Tensor | None = None
        self._total: Tensor | None = None
        # Positions and mask of the keys that `append` returned, where they are not those held.
        self._shown: tuple[Tensor, Mask] | None = None
        self._finite = True
        # What came last: how many tokens, and which of them are real.
        self._appended: tuple[int, Tensor | None] = (0, None)
        self._layer: weakref.ref[object] | None = None
        self._leave()
        self._forget()

    def to(
        self: Memory, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Memory:
        """Move the keys and values held to another device, or bring them to another dtype.

        The tokens that come next must be there too. A cache that holds nothing goes by the first
        tokens that come.

        Args:
            device: where to; None leaves it.
            dtype: float16, bfloat16, float32 or float64; None leaves it.

        Returns:
            The cache itself.

        Raises:
            DtypeError: code `cache.dtype`.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> token = torch.zeros(1, 2, 1, 4)
            >>> _ = cache.append(token, token)
            >>> key, value = cache.to(dtype=torch.bfloat16).append(token.bfloat16(), token.bfloat16())
            >>> key.dtype
            torch.bfloat16
        """
        if dtype is not None and dtype not in DTYPES:
            raise DtypeError(
                "cache.dtype",
                f"dtype must be float16, bfloat16, float32 or float64; got {dtype}.",
            )
        kept = self._layout
        if kept is None:
            return self
        device = kept.device if device is None else torch.empty(0, device=device).device
        layout = kept._replace(device=device, dtype=kept.dtype if dtype is None else dtype)
        if layout != kept:
            with torch.inference_mode(False), torch.no_grad():
                vars(self).update(self._moved(layout))
            self._leave()
            self._shown = None
            # What is finite may be ∞ in fewer bits.
            self._finite &= torch.promote_types(kept.dtype, layout.dtype) == layout.dtype
            self._layout = layout
        return self

    def fork(self: Memory) -> Memory:
        """A cache of its own that goes on from the same tokens, such as those of a prompt.

        The memory is shared until one of the two appends or reorders, and is copied then; memory
        that never moves, as that of a `StaticCache`, is copied at once. The fork belongs to no layer
        yet.

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
        with torch.inference_mode(False), torch.no_grad():
            other = copy.copy(self)
            vars(other).update(self._apart())
        if other._stores is self._stores:
            self._sharers = self._sharers or weakref.WeakSet([self])
            self._sharers.add(other)
            other._sharers = self._sharers
        return other

    def _own(self) -> None:
        """Copy memory that a fork shares, before it is written to."""
        if self._sharers is None:
            return
        if len(self._sharers) > 1:
            with torch.inference_mode(False), torch.no_grad():
                self._stores = tuple(store.clone() for store in self._stores)
        self._leave()

    def _leave(self) -> None:
        """Share the memory with no other cache any more."""
        if self._sharers is not None:
            self._sharers.discard(self)
            self._sharers = None

    def _allocate(self, layout: Layout, slots: int) -> tuple[Tensor, ...]:
        """Return empty stores of `slots` slots."""
        return tuple(
            layout.allocate(layout.batch, layout.num_kv_heads, slots, width, dtype=dtype)
            for width, dtype in self._shapes(layout)
        )

    def _grow(self, layout: Layout, slots: int) -> None:
        """Move everything to stores of `slots` slots."""
        old, self._stores = self._stores, self._allocate(layout, slots)
        for store, before in zip(self._stores, old, strict=False):
            store[:, :, : before.shape[2]] = before

    def _shapes(self, layout: Layout) -> tuple[tuple[int, torch.dtype], ...]:
        """Width and dtype of each store."""
        return (layout.head_dim, layout.dtype), (layout.value_head_dim, layout.dtype)

    def _encode(self, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """What the stores keep of keys and values."""
        return key, value

    def _decode(self, stored: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The keys and values of a part of the stores."""
        keys, values = stored
        return keys, values

    def _counts(self) -> int | Tensor:
        """Number of real tokens: one for all rows alike, or (batch,), or a tensor of one number."""
        return self._seen if self._total is None else self._total

    def _advance(self, new: int) -> None:
        """Count new columns, or fewer than before."""
        self._seen += new

    def _snapshot(self, new: int) -> dict[str, Any]:
        """The attributes as they are, to be put back if the next `new` tokens are refused.

        Slots that hold no token, and may be written to, need not be copied.
        """
        return dict(vars(self))

    def _cut(self, counts: int | Tensor, lengths: Tensor) -> None:
        """Truncate each row to `counts` real tokens, which are in the first `lengths` columns, or raise."""
        return

    def _shift(self, free: int) -> None:
        """Free the first `free` columns, fewer than all; `_seen` still counts them."""
        assert self._valid is not None
        self._valid = self._columns(self._valid[:, free:])

    def _columns(self, valid: Tensor) -> Tensor:
        """Which columns are real, (batch, columns), as a kind keeps it."""
        return valid

    def _take(self, rows: Tensor) -> None:
        """`reorder` the stores; in place if there are as many rows, as compiled steps want it."""
        assert self._layout is not None
        batch, _, slots, _ = self._stores[0].shape
        held, old = min(len(self), slots), self._stores
        if len(rows) != batch:
            self._stores = self._allocate(self._layout._replace(batch=len(rows)), slots)
        for store, before in zip(self._stores, old, strict=True):
            store[:, :, :held] = before[:, :, :held].index_select(0, rows)

    def _moved(self, layout: Layout) -> dict[str, Any]:
        """The attributes with tensors as another device or dtype has them."""
        stores = tuple(
            store.to(layout.device, dtype)
            for store, (_, dtype) in zip(self._stores, self._shapes(layout), strict=True)
        )
        tensors = [pair for pair in vars(self).items() if isinstance(pair[1], Tensor)]
        return {name: each.to(layout.device) for name, each in tensors} | {"_stores": stores}

    def _apart(self) -> dict[str, Any]:
        """Copies of what a fork may not share: of what is written to in place, but for the stores."""
        return {}

    def _forget(self) -> None:
        """`reset` what a kind has for itself."""
        self._stores = ()
