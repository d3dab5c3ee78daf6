"""KV caches: keys and values of earlier tokens, kept for later ones, by several rules."""

from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.columns import GrowingCache, QuantisedCache, StaticCache
from clearhead.layers.caches.fixed import FixedCache
from clearhead.layers.caches.paged import PagedCache
from clearhead.layers.caches.sliding import SlidingCache

__all__ = [
    "Cache",
    "CacheBundle",
    "FixedCache",
    "GrowingCache",
    "PagedCache",
    "QuantisedCache",
    "SlidingCache",
    "StaticCache",
]
