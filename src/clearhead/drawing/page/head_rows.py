"""The numbers of each head of a layer, as its row in the page."""

import math
from typing import Any

from clearhead.drawing.page.texts import PageText
from clearhead.matrix.head_numbers import ROLES
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.roles import summary_with_roles
from clearhead.matrix.summary import Summary
from clearhead.watching.table import rows_of


def rows_of_heads(name: str, summary: Summary, *, crosses: bool) -> list[dict[str, Any]]:
    """The numbers of each head, as a table has them; without roles only what is known, and between two
    texts, which have no distance from each other, neither roles nor distance."""
    return [
        {
            "entropy": _plain(row.entropy),
            "distance": None if crosses else _plain(row.distance),
            "role": "" if crosses else row.role,
            "scores": {role: None if crosses else _plain(getattr(row, role)) for role in ROLES},
        }
        for row in rows_of(name, [summary])
    ]


def beyond_chance(
    rows: list[dict[str, Any]], chance: dict[str, float | None] | None
) -> list[dict[str, Any]]:
    """The numbers of each head, without the role that it fills no further than chance does.

    Example:
        >>> sink = {"role": "first", "scores": {"first": 0.51}}
        >>> beyond_chance([sink], {"first": 0.6})[0]["role"], beyond_chance([sink], None)[0]["role"]
        ('', 'first')
    """
    even = {role: 0.0 if share is None else share for role, share in (chance or {}).items()}
    return [
        row | {"role": ""}
        if row["role"] and row["scores"][row["role"]] <= even.get(row["role"], 0)
        else row
        for row in rows
    ]


def by_chance(
    matrix: AttentionMatrix, text: PageText | None, sample: int
) -> dict[str, float | None] | None:
    """The roles of a head that gives every key the same, which is what chance gives here; None
    where that is not known, or would take long."""
    problem = matrix.problem
    hides = problem.bias is not None and problem.bias.may_hide
    heads = 1 if problem.mask is None else problem.mask.leading[1]
    if hides or heads != 1 or not matrix.query_len or not matrix.kv_len:
        return None
    query = problem.query.new_zeros(problem.batch, 1, matrix.query_len, 1)
    key = query.new_zeros(problem.batch, 1, matrix.kv_len, 1)
    even = AttentionMatrix(query, key, mask=problem.mask)
    ids = None if text is None else text.ids[: matrix.kv_len]
    summary = summary_with_roles(even, ids).sample(sample)
    return rows_of_heads("", summary, crosses=False)[0]["scores"]


def _plain(value: float | None) -> float | None:
    """A number as JSON has it; None for one that is not finite."""
    return value if value is not None and math.isfinite(value) else None
