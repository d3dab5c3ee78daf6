"""KV caches with one column of memory for each token, padding included: growing, of fixed size, in int8."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import TooLargeError
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.layout import Layout

STEPS = 127
"""Steps of int8 from 0 to the largest number."""


class ColumnCache(Cache):
    """A cache in which a token takes the slot of its column, so that tokens are in order; `append` returns views."""

    _limit: int | None = None

    def _start(self, layout: Layout) -> None:
        """Set `_stores` to new zeros for a layout, without columns if there is no limit.

        Stores that already have the layout's shapes, dtypes and device stay, with their contents.
        """
        shape = (layout.batch, layout.num_kv_heads, self._limit or 0)
        expected = [(*shape, *store, layout.device) for store in self._shapes(layout)]
        # After a reset the memory of a fixed length is there, and stays if it fits.
        if [(*store.shape, store.dtype, store.device) for store in self._stores] != expected:
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
        """Write keys and values after the stored ones, encoded; return all of them decoded, old and new.

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
        parts: list[Tensor] = []
        for store, new in zip(self._stores, self._encode(key, value), strict=True):
            store[:, :, self._seen : stop] = new
            parts.append(store[:, :, :stop])
        return self._decode(parts)


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


@with_hints
class QuantisedCache(ColumnCache):
    """A KV cache of any length in int8, with one scale for each head of each token.

    Sources: Zafrir et al., 2019, https://arxiv.org/abs/1910.06188; Liu et al., 2024, https://arxiv.org/abs/2402.02750.

    A number x is stored as round(x / scale), where scale is the largest `|x|` of its head and token
    over 127, and is returned as a float: a copy, since only the whole numbers are kept. Keys and
    values take a little more than a quarter of float32. A head of a token that is not finite is
    returned as NaN.

    Example:
        >>> import torch
        >>> from clearhead.layers.caches import QuantisedCache
        >>> cache = QuantisedCache()
        >>> key, value = torch.randn(2, 1, 2, 5, 64)
        >>> kept, _ = cache.append(key, value)
        >>> bool((kept - key).abs().max() <= cache.error)
        True
    """

    def describe(self) -> str:
        """Return the call that makes this cache, as text."""
        return "QuantisedCache()"

    @property
    def error(self) -> float:
        """A bound on `|x − x returned|` over all numbers of the real tokens held; 0 without any, NaN with a NaN or ∞.

        Half a step of the coarsest scale, and the rounding of the dtype.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import QuantisedCache
            >>> cache = QuantisedCache()
            >>> _ = cache.append(torch.full((1, 1, 1, 4), 127.0), torch.zeros(1, 1, 1, 4))
            >>> round(cache.error, 3)
            0.5
        """
        if self._layout is None or not self._seen:
            return 0.0
        scales = torch.cat(self._stores[2:], dim=3)[:, :, : self._seen]
        if self._valid is not None:
            scales = scales.masked_fill(~self._valid[:, None, :, None], 0.0)
        info = torch.finfo(self._layout.dtype)
        # Quantising and dequantising round once each, besides the loss to whole numbers.
        step = 0.5 + STEPS * info.eps
        return float(scales.max()) * step + info.smallest_normal * info.eps

    def _shapes(self, layout: Layout) -> tuple[tuple[int, torch.dtype], ...]:
        """Return (width, dtype) of each store: int8 keys, int8 values, and the scales of both, in float32 or wider."""
        scale = torch.promote_types(layout.dtype, torch.float32)
        return (
            (layout.head_dim, torch.int8),
            (layout.value_head_dim, torch.int8),
            (1, scale),
            (1, scale),
        )

    def _encode(self, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return the keys and the values as int8, then the scales of both, (batch, heads, tokens, 1).

        A head of a token that is not finite gets the scale NaN.
        """
        numbers: list[Tensor] = []
        scales: list[Tensor] = []
        for given in (key, value):
            exact = given.to(torch.promote_types(given.dtype, torch.float32))
            largest = exact.abs().amax(dim=3, keepdim=True)
            scale = largest / STEPS
            info = torch.finfo(scale.dtype)
            # Rounded up, the scale of the largest number there is would make it infinite.
            scale = torch.where(scale * STEPS > largest, scale * (1 - info.eps), scale)
            # Not below the smallest divisor; NaN where the scale would be infinite.
            scale = scale.clamp_min(info.smallest_normal)
            scale = scale.masked_fill(~largest.isfinite(), torch.nan)
            numbers.append((exact / scale).nan_to_num(0.0).round().to(torch.int8))
            scales.append(scale)
        return *numbers, *scales

    def _decode(self, stored: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return new keys and values in the dtype of the layout, from the stores in the order of `_encode`."""
        assert self._layout is not None
        keys, values, key_scales, value_scales = stored
        dtype = self._layout.dtype
        return (keys * key_scales).to(dtype), (values * value_scales).to(dtype)
