"""KV caches: keys and values of earlier tokens, kept for later ones; one kind a file."""

from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.fixed import FixedCache
from clearhead.layers.caches.growing import GrowingCache
from clearhead.layers.caches.paged import PagedCache
from clearhead.layers.caches.quantised import QuantisedCache
from clearhead.layers.caches.sliding import SlidingCache
from clearhead.layers.caches.static import StaticCache

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
