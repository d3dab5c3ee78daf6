"""Code that nobody looks at while `check` is built; it is run once, at the end."""

from tests.checking.bank.entry import Entry
from tests.checking.bank.held_out import correct, decoders, layers, scores

ENTRIES: list[Entry] = [
    *scores.ENTRIES,
    *layers.ENTRIES,
    *decoders.ENTRIES,
    *correct.ENTRIES,
]
