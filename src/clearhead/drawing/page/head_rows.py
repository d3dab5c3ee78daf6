"""The numbers of each head of a layer, as its row in the page."""

import math
from typing import Any

from clearhead.matrix.head_numbers import ROLES
from clearhead.matrix.summary import Summary
from clearhead.watching.table import rows_of


def rows_of_heads(name: str, summary: Summary, *, crosses: bool) -> list[dict[str, Any]]:
    """Return a dict for each head of a layer: entropy, distance, role, and the score in each role.

    None for scores without roles. Between two texts (`crosses`) distance and scores are None, and the role is "".
    """
    return [
        {
            "entropy": _plain(row.entropy),
            "distance": None if crosses else _plain(row.distance),
            "role": "" if crosses else row.role,
            "scores": {role: None if crosses else _plain(getattr(row, role)) for role in ROLES},
        }
        for row in rows_of(name, [summary])
    ]


def _plain(value: float | None) -> float | None:
    """Return a number as JSON has it; None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None
