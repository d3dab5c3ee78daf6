"""Parameters of tests that take turns, where all combinations of them would say no more."""

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any


def in_turn(first: Iterable[Any], *others: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Each of the first beside one of each of the others, which come round again.

    Lengths without a common factor bring all pairs of the others together.
    """
    return [*zip(first, *map(cycle, others), strict=False)]
