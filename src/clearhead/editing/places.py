"""The positions of the queries and keys of a call in their sequences."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.attention.problem import Problem
from clearhead.layers.base import AttentionLayer
from clearhead.watching.hooks.running import SOURCES

CACHES = ("past_key_values", "past_key_value", "layer_past", "cache")
"""The arguments by which models and layers are handed their KV cache."""


class Running(NamedTuple):
    """A module that runs, and the arguments that it was called with by name."""

    module: nn.Module
    arguments: dict[str, Any]


class Places(NamedTuple):
    """The positions of a call, counted from the beginning of the sequence, padding included.

    Attributes:
        query: int64, (query_len,) or (batch, query_len); None if they are not known.
        key: int64, (kv_len,) or (batch, kv_len).
        total: tokens of the sequence so far.
        is_plain: True if both are simply counted from 0.
    """

    query: Tensor | None
    key: Tensor
    total: int
    is_plain: bool


def places_of(running: Sequence[Running], problem: Problem) -> Places:
    """Return the positions of a call.

    Args:
        running: the modules that run, the innermost last.
        problem: the call, whose keys the cache has been handed already.
    """
    query_len, kv_len, device = problem.query_len, problem.kv_len, problem.device
    queries, keys = (torch.arange(size, device=device) for size in (query_len, kv_len))
    innermost = running[-1]
    is_cross = any(innermost.arguments.get(name) is not None for name in SOURCES)
    cache = _cache(running)
    if isinstance(innermost.module, AttentionLayer):
        if cache is None or is_cross:
            return Places(queries, keys, query_len, True)
        total, keys = len(cache), cache.positions.to(device)
        # In a batch with padding a cache counts the real tokens; the new ones come last.
        last = queries + (total - query_len) if keys.ndim == 1 else keys[:, -query_len:]
        return Places(last, keys, total, total == kv_len == query_len)
    if cache is None:
        is_known = is_cross or query_len == kv_len or isinstance(innermost.module, _WHOLE)
        total = query_len if is_known else kv_len
        return Places(queries if is_known else None, keys, total, is_known)
    total = _length(cache, running)
    before = max(0, total - query_len)
    total = before + query_len
    if not is_cross:
        # Of a window only the last keys are left; a static cache has more room than tokens.
        keys = keys + max(0, total - kv_len)
    is_plain = before == 0 and (is_cross or total <= kv_len)
    return Places(queries + before, keys, total, is_plain)


_WHOLE = (nn.MultiheadAttention,)
"""Modules that have no cache."""


def _cache(running: Sequence[Running]) -> Any:
    """The KV cache that the innermost module with one was handed, or None."""
    for each in reversed(running):
        for name in CACHES:
            cache = each.arguments.get(name)
            if hasattr(cache, "get_seq_length") or hasattr(cache, "positions"):
                return cache
        if any(name in each.arguments for name in CACHES):
            return None
    return None


def _length(cache: Any, running: Sequence[Running]) -> int:
    """The tokens that a cache of transformers has been handed, those of this call included."""
    layer = next(
        (
            number
            for each in reversed(running)
            if isinstance(number := getattr(each.module, "layer_idx", None), int)
        ),
        0,
    )
    # A layer that uses the keys of another one has none of its own.
    return int(cache.get_seq_length(layer)) or int(cache.get_seq_length())
