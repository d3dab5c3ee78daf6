"""The memory of a cache as a whole: cut, moved, and shared with a fork."""

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
from clearhead.layers.caches.layout import Layout, row_lengths

Memory = TypeVar("Memory", bound="CacheMemory")


class CacheMemory(ABC):
    """The base of `Cache` that cuts, moves and forks."""

    _MEMORY: str
    """The attribute with the tensors that hold keys and values."""

    _layout: Layout | None
    _seen: int
    _finite: bool
    _sharers: "weakref.WeakSet[CacheMemory] | None" = None
    """The caches that share the memory until they write to it; None for one alone."""

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
        longest = int(lengths.max())
        if longest > len(self):
            raise ArgumentError(
                "cache.truncate",
                f"length must be at most the {len(self)} tokens that the cache has seen; got "
                f"{longest}.",
            )
        # Without a token of it there is nothing to be cut, and there may be no memory yet.
        if self._layout is None:
            return
        with torch.inference_mode(False), torch.no_grad():
            if int(lengths.min()) == longest:
                self._cut(longest)
            else:
                self._cut_rows(lengths.to(self._layout.device), longest)
        self._seen = longest

    def _give_back(self) -> None:
        """Give the first columns back that no row has a token in."""
        free, held = self._empty(), len(self)
        if not free:
            return
        self._own()
        with torch.inference_mode(False), torch.no_grad():
            if free == held:
                self._cut(0)
            else:
                self._shift(free)
        self._seen = held - free

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
        if getattr(other, self._MEMORY) is getattr(self, self._MEMORY):
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
                memory = getattr(self, self._MEMORY)
                setattr(self, self._MEMORY, tuple(each.clone() for each in memory))
        self._leave()

    def _leave(self) -> None:
        """Share the memory with no other cache any more."""
        if self._sharers is not None:
            self._sharers.discard(self)
            self._sharers = None

    @abstractmethod
    def _cut(self, length: int) -> None:
        """`truncate` to no more than `_seen`, which still counts all tokens."""

    @abstractmethod
    def _cut_rows(self, lengths: Tensor, longest: int) -> None:
        """The same for rows of different lengths, (batch,)."""

    @abstractmethod
    def _empty(self) -> int:
        """Number of first columns that no row has a token in."""

    @abstractmethod
    def _shift(self, free: int) -> None:
        """Give back so many of them, fewer than there are columns; `_seen` still counts all."""

    @abstractmethod
    def _moved(self, layout: Layout) -> dict[str, Any]:
        """The attributes with tensors as another device or dtype has them."""

    @abstractmethod
    def _apart(self) -> dict[str, Any]:
        """Copies of the attributes that are written to in place, but for the memory that is shared."""
