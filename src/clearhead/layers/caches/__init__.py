"""KV caches: keys and values of earlier tokens, kept for later ones, by several rules.

A cache is slots, which columns are real, and a rule of where the next token goes: its column
(`layers/caches/columns.py`), its position mod size (`layers/caches/sliding.py`), page and place
(`layers/caches/paged.py`). `layers/caches/cache_memory.py` has slots and real columns, and cuts, reorders, moves
and forks from them, once for all kinds; `layers/caches/cache.py` says positions, mask and order; a kind writes
`_start` and `_add`. `layers/caches/layout.py` checks what comes. A cache says where its keys stand
(`positions`), which of them a query may see next to causality (`mask`), and whether columns are as far apart
as tokens (`in_order`). Where they are not, in a ring or in rows of different length, the layer wraps masks
and biases in `layers/positions.py`, which hands them positions in the place of columns; what is made for
columns is refused there.

A cache says where what it took last stands (`_last_positions`); nothing else takes the last columns for it.
First columns that no row has any more are given back when a row is cut, after all caches of a bundle have
agreed.

`FixedCache` returns all of its memory at every step, and its length is a tensor: so a step is one graph.
Under `torch.export` it makes new tensors instead of writing to those that it was given, which the step
returns. Any other cache would be exported as it is at that moment, and is refused. A cache knows its layer by
a weak reference, which copies do not carry along, and refuses another one.

What says which columns are real is never written to in place (but in `FixedCache`), so that a fork and a
rollback need no copy of it; what `append` returned in another order than it is held is `_shown`, until the
next cut. A row that is cut shorter than others is padded from there on, so that nothing else knows of it.
Forks share tensors and know each other weakly: whichever appends or reorders first copies, and the last one
has the memory for itself. A `CacheBundle` finds a cache by the layer that asks for it, so that no key can be
wrong.

A kernel on the CPU looks whether keys and values are finite, which for one query costs as much as the
attention. A cache has looked at each token once, and says so: `Problem.keys_finite`.
"""

from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
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
