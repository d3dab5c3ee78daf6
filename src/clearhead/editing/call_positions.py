"""The positions of the queries and keys of a call in their sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import CACHES
from clearhead.attention.problem import Problem
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
from clearhead.masks.causal import Causal
from clearhead.masks.tiles import portions
from clearhead.watching.hooks import tap

PORTION = 1 << 22
"""Chunk size in pairs, for a mask that is read as a tensor."""


class Running(NamedTuple):
    """A running module with its arguments, by name or by position."""

    module: nn.Module
    arguments: dict[Any, Any]


@dataclass(eq=False)
class Places:
    """The positions of a call, counted from the beginning of the sequence.

    Padding is counted, except next to a cache of clearhead, which counts the real tokens of each row.

    Attributes:
        problem: the call.
        query: int64, (query_len,) or (batch, query_len); None if they are not known.
        key: int64, (kv_len,) or (batch, kv_len); −1 for one that is no token, appended by the module. The
            room of a static cache, which is hidden, has any positions.
        tokens: of the sequence of the queries so far.
        key_tokens: of that of the keys.
        is_cross: True if the keys are of another sequence than the queries.
        ended: the position after the last key, (batch or 1, 1), or (1, kv_len) where a row holds
            several sequences; None where the mask says it.
    """

    problem: Problem
    query: Tensor | None
    key: Tensor
    tokens: int
    key_tokens: int
    is_cross: bool = False
    ended: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """True if queries and keys are all tokens of their sequences, counted from 0.

        False if unknown, or given by row.
        """
        lengths = self.problem.query_len, self.problem.kv_len
        if self.query is None or self.query.ndim == 2 or self.key.ndim == 2:
            return False
        return lengths == (self.tokens, self.key_tokens)

    @cached_property
    def key_end(self) -> Tensor | int:
        """The position after the last real key, an int, or (batch, 1) if rows differ. Computed once.

        A key that no query may see is padding.
        """
        if self.ended is not None:
            return self.ended
        call, mask = self.problem, self.problem.mask
        if mask is None or isinstance(mask, Causal) or not call.query_len or not call.kv_len:
            return self.key_tokens
        size = max(1, PORTION // (mask.leading[0] * mask.leading[1] * call.kv_len))
        blocks = [call.visible(rows) for rows in portions(call.query_len, size)]
        seen = torch.stack([each.any(1).any(1) for each in blocks if each is not None]).any(0)
        return (torch.atleast_2d(self.key) + 1).masked_fill(~seen, 0).amax(-1, keepdim=True)

    @property
    def query_end(self) -> Tensor | int:
        """The position after the last real query: that of the keys in self-attention, else the number of tokens."""
        return self.tokens if self.is_cross else self.key_end


def places_of(running: Sequence[Running], problem: Problem) -> Places:
    """Return the positions of a call.

    Args:
        running: the modules that run, the innermost last.
        problem: the call, whose keys are already in the cache.
    """
    query_len, kv_len = problem.query_len, problem.kv_len
    queries, keys = (torch.arange(size, device=problem.device) for size in (query_len, kv_len))
    given, appended = running[-1].arguments, tap.appended()
    is_layer = isinstance(running[-1].module, AttentionLayer)
    is_cross = problem.cross and not appended
    if is_layer:
        is_cross = given.get("context", given.get(1)) is not None
    cache = _cache(running[-1:] if is_layer else running)
    if isinstance(cache, Cache):
        return _of_cache(cache, queries, is_cross, problem)
    if cache is None:
        kv_len -= appended
        keys = keys.masked_fill(keys >= kv_len, -1)
        is_known = (
            is_layer or is_cross or query_len == kv_len or isinstance(running[-1].module, _WHOLE)
        )
        tokens = query_len if is_known else kv_len
        known = queries if is_known else None
        return Places(problem, known, keys, tokens, kv_len, is_cross)
    # A cache of transformers contains every token, padding included.
    before = max(0, _length(cache, running) - query_len)
    tokens = before + query_len
    if is_cross:
        return Places(problem, queries + before, keys, tokens, kv_len, is_cross)
    # Of a window only the last keys are left; a static cache has more room than tokens.
    return Places(problem, queries + before, keys + max(0, tokens - kv_len), tokens, tokens)


_WHOLE = (nn.MultiheadAttention,)
"""Modules that have no cache."""


def _of_cache(cache: Cache, queries: Tensor, is_cross: bool, problem: Problem) -> Places:
    """Return the positions of a call that has appended its tokens to a cache of clearhead.

    `queries` are 0 … query_len − 1. The positions of the queries are None if the cache does not tell, as for a context
    that it held already.
    """
    device, held = problem.device, len(cache)
    keys, ends = cache.positions.to(device), torch.atleast_2d(cache.next_positions(1)).to(device)
    last = cache._last_positions().to(device)
    if is_cross:
        # In a later call it holds the other text already, and says nothing of the queries.
        known = queries if last.shape[-1] else None
        return Places(problem, known, keys, len(queries), held, is_cross, ends)
    known = last[..., last.shape[-1] - len(queries) :] if last.shape[-1] >= len(queries) else None
    return Places(problem, known, keys, held, held, is_cross, ends)


def _cache(running: Sequence[Running]) -> Any:
    """Return the KV cache of the innermost running module that was given one; None if there is none.

    Of a bundle it is the cache of the innermost module, None if that has none. A module that was given None, or
    anything that is no cache, by the name of one ends the search.
    """
    for each in reversed(running):
        for name, cache in each.arguments.items():
            if isinstance(cache, CacheBundle):
                return cache._caches.get(running[-1].module)
            is_one = isinstance(name, int) or name in CACHES
            if isinstance(cache, Cache) or (is_one and hasattr(cache, "get_seq_length")):
                return cache
        if any(name in each.arguments for name in CACHES):
            return None
    return None


def _length(cache: Any, running: Sequence[Running]) -> int:
    """Return the number of tokens in a cache of transformers, including those of this call.

    It is that of the innermost running module with a layer_idx, or the cache's first if that layer has none.
    """
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
