"""Attention as people write it, right and wrong, each with what it is.

`ENTRIES` is what `check` is built against; `bank/held_out` is what it is judged on once.
"""

from tests.checking.bank import (
    functions,
    known,
    modules,
    right_modules,
    right_plain,
    right_unusual,
    wrong_bias,
    wrong_cache,
    wrong_dropout,
    wrong_heads,
    wrong_masks,
    wrong_rest,
    wrong_rope,
    wrong_scale,
    wrong_softmax,
)
from tests.checking.bank.entry import Entry

ENTRIES: list[Entry] = [
    *functions.ENTRIES,
    *modules.ENTRIES,
    *wrong_masks.ENTRIES,
    *wrong_softmax.ENTRIES,
    *wrong_scale.ENTRIES,
    *wrong_heads.ENTRIES,
    *wrong_bias.ENTRIES,
    *wrong_dropout.ENTRIES,
    *wrong_cache.ENTRIES,
    *wrong_rope.ENTRIES,
    *wrong_rest.ENTRIES,
    *right_plain.ENTRIES,
    *right_unusual.ENTRIES,
    *right_modules.ENTRIES,
    *known.ENTRIES,
]
