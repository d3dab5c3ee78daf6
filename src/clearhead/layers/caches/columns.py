"""KV caches with one column of memory for each token, padding included: growing, and of fixed size."""

from torch import Tensor

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import TooLargeError
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.layout import Layout


class ColumnCache(Cache):
    """A cache in which a token takes the slot of its column, so that tokens are in order; `append` returns views."""

    _limit: int | None = None

    def _start(self, layout: Layout) -> None:
        """Set `_stores` to new zeros for a layout, without columns if there is no limit.

        Stores that already have the layout's shapes, dtypes and device stay, with their contents.
        """
        shape = (layout.batch, layout.num_kv_heads, self._limit or 0)
        kinds = [(*shape, width, layout.dtype, layout.device) for width in layout.widths]
        # After a reset the memory of a fixed length is there, and stays if it fits.
        if [(*store.shape, store.dtype, store.device) for store in self._stores] != kinds:
            self._stores = self._allocate(layout, self._limit or 0)

    def _check_room(self, new: int) -> None:
        """Raise TooLargeError, code `cache.full`, if `new` more tokens exceed the limit; never without a limit."""
        held = len(self)
        if self._limit is not None and held + new > self._limit:
            raise TooLargeError(
                "cache.full",
                f"the cache has room for max_len={self._limit} tokens and holds {held}; got "
                f"{new} more.",
            )

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write keys and values after the stored ones; return views of all of them, old and new.

        If the store is too short, it is replaced by one of twice the length needed. `_start` must have been called.
        `valid` is not used, and the new tokens are not counted.
        """
        stop = self._seen + key.shape[2]
        if stop > self._stores[0].shape[2]:
            assert self._layout is not None
            # Twice what is needed now: the step after a long prompt then has room as well.
            old, self._stores = self._stores, self._allocate(self._layout, 2 * stop)
            for store, before in zip(self._stores, old, strict=True):
                store[:, :, : before.shape[2]] = before
        keys, values = self._stores
        keys[:, :, self._seen : stop], values[:, :, self._seen : stop] = key, value
        return keys[:, :, :stop], values[:, :, :stop]


@with_hints
class GrowingCache(ColumnCache):
    """A KV cache of any length: its memory doubles whenever it is full.

    Appending costs writing the new tokens, amortised; `append` returns views.

    Example:
        >>> import torch
        >>> from clearhead.layers.caches import GrowingCache
        >>> cache = GrowingCache()
        >>> _ = cache.append(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
        >>> key, value = cache.append(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4))
        >>> key.shape, cache
        (torch.Size([1, 2, 6, 4]), <GrowingCache(), 6 tokens>)
    """

    def describe(self) -> str:
        """Return the call that makes this cache, as text."""
        return "GrowingCache()"


@with_hints
class StaticCache(ColumnCache):
    """A KV cache of fixed memory, allocated at the first tokens and never moved after.

    `reset()` keeps the memory, emptied, for tokens of the same shape. A step that takes the cache as
    an argument can be compiled, and is recompiled at most once for its length.

    Args:
        max_len: the largest number of tokens, padding included.

    Raises:
        ArgumentTypeError, ArgumentError: codes `argument.type` and `argument.size`, for a max_len
            below 1.

    Example:
        >>> import torch
        >>> from clearhead.layers.caches import StaticCache
        >>> cache = StaticCache(8)
        >>> _ = cache.append(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
        >>> cache
        <StaticCache(8), 5 tokens>
        >>> cache.append(torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4))
        Traceback (most recent call last):
        ...
        clearhead.errors.TooLargeError: [cache.full] the cache has room for max_len=8 tokens and holds 5; got 4 more.
    """

    def __init__(self, max_len: int) -> None:
        super().__init__()
        check_sizes(max_len=max_len)
        self.max_len = self._limit = max_len

    def describe(self) -> str:
        """Return the call that makes this cache, as text."""
        return f"StaticCache({self.max_len})"

    def _forget(self) -> None:
        """Set the stores to zero in place, for `reset`; the memory stays."""
        for store in self._stores:
            store.zero_()
