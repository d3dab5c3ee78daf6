"""KV caches of transformers."""

import sys
from typing import Any


def grows_by_update(cache: object) -> bool:
    """Return True for a cache that holds keys and values of past tokens and is written to by `update` alone.

    Example:
        >>> grows_by_update([])
        False
    """
    if type(cache).__name__ != "DynamicCache":
        return False
    known: Any = sys.modules.get("transformers.cache_utils")
    layers = {type(each).__name__ for each in getattr(cache, "layers", ())}
    return (
        known is not None
        and type(cache) is known.DynamicCache
        and layers <= {"DynamicLayer", "DynamicSlidingWindowLayer"}
        and not getattr(cache, "offloading", False)
    )
