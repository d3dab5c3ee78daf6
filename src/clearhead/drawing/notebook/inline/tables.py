"""Rows of numbers, and the roles of heads, as tables."""

from typing import Any

import torch

from clearhead._common.elements import element
from clearhead._common.rows import MeasuredRows
from clearhead._text import count, readable
from clearhead.drawing.notebook.inline.markup import frame, line, scrolling, table, title
from clearhead.matrix.head_numbers import Roles

MOST_ROWS = 60
"""The most rows that are drawn, so that the whole stays well below 300 kB."""


def rows_html(rows: MeasuredRows[Any]) -> str:
    """Return rows as an HTML table with names and units, caption and notes; of more than 60 rows only the first.

    Example:
        >>> from clearhead.watching.finding import HeadLink, HeadLinks
        >>> rows_html(HeadLinks([HeadLink("<a>", 0, 2, 1, 0.25)])).count("&lt;a&gt;")
        1
    """
    names, units, lines = rows.cells()
    sides = ["left" if rows.is_words(name) else "right" for name in names]
    headings = [names, units] if any(units) else [names]
    shown = [[readable(cell) for cell in cells] for cells in lines[:MOST_ROWS]]
    parts = [scrolling(table(headings, shown, sides))]
    if rows.caption:
        parts.insert(0, title(rows.caption))
    if len(lines) > MOST_ROWS:
        more = count(len(lines) - MOST_ROWS, "more row")
        parts.append(line(f"{more}; top(…) and sort(…) choose.", small=True))
    parts += [line(note, small=True) for note in rows.notes]
    return frame(*parts)


def roles_html(roles: Roles) -> str:
    """Return the scores of each head of the first sample in each role, and its leading role; of 60 heads at most.

    Example:
        >>> query = key = torch.zeros(1, 2, 20, 4)
        >>> drawn = roles_html(ch.roles(ch.AttentionMatrix(query, key, mask=ch.causal())))
        >>> drawn.count("<tr"), drawn.count("previous")
        (3, 2)
    """
    scores = {name: torch.atleast_2d(getattr(roles, name))[:1].flatten() for name in roles.measured}
    leading: Any = roles.names()
    leading = [leading] if isinstance(leading, str) else leading
    leading = leading[0] if leading and isinstance(leading[0], list) else leading
    lines = [
        [str(head), *(f"{float(score[head]):.2f}" for score in scores.values()), role]
        for head, role in enumerate(leading[:MOST_ROWS])
    ]
    sides = ["right"] * (1 + len(scores)) + ["left"]
    parts = [
        title(element("code", repr(roles))),
        scrolling(table([["head", *scores, "role"]], lines, sides)),
    ]
    if roles.first.ndim == 2 and len(roles.first) > 1:
        parts.append(line(f"Sample 0 of {len(roles.first)}.", small=True))
    return frame(*parts)
