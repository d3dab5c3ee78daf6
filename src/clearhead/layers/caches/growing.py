"""A KV cache that grows with the text."""

from clearhead._common.hints import with_hints
from clearhead.layers.caches.columns import ColumnCache


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
        return "GrowingCache()"
