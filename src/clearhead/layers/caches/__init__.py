"""KV caches: keys and values of earlier tokens, kept for later ones, by several rules.

A cache is slots of memory, which columns are real tokens, and a rule that says where the next token goes: to its
column (`layers/caches/columns.py`), or to its position modulo the size (`layers/caches/sliding.py`).
`layers/caches/layout.py` has the memory and what a kind defines: `_start` and `_add`. `layers/caches/cache.py` appends,
cuts, reorders and forks, once for all kinds, and reports positions, mask and order. `layers/caches/layout.py` checks
the tensors that come. A cache reports the positions of its keys (`positions`), which of them a query may see in
addition to causality (`mask`), and whether columns are as far apart as tokens (`in_order`). Where they are not, in a
ring or in rows of different length, the layer wraps masks and biases in `layers/positions.py`, which passes positions
instead of columns. A mask or bias that is made for columns is refused there. `_last_positions` is where the tokens of
the last call are.

`FixedCache` returns all of its memory at every step, and its length is a tensor, so a step is one graph.
Under `torch.export` it makes new tensors instead of writing to those that it was given, which the step
returns. Any other cache would be exported as it is at that moment, and is refused. A cache knows its layer by
a weak reference, which copies do not have, and refuses another layer.

The record of real columns is never written to in place, except in `FixedCache`, so that a call that fails is undone
without a copy of it. Positions and mask of keys that `append` returned in another order than that of the memory are
`_shown`, until the next cut. A row that is cut shorter than others is padded from there on. A fork is a copy of the
memory. A `CacheBundle` finds a cache by the layer that asks for it, so that no key can be wrong.

A kernel on the CPU checks whether keys and values are finite, which for one query costs as much as the
attention. A cache has checked each token once, and passes that on: `Problem.keys_finite`.
"""

from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.columns import GrowingCache, StaticCache
from clearhead.layers.caches.fixed import FixedCache
from clearhead.layers.caches.sliding import SlidingCache

__all__ = [
    "Cache",
    "CacheBundle",
    "FixedCache",
    "GrowingCache",
    "SlidingCache",
    "StaticCache",
]
