"""Rows of numbers, and the roles of heads, as tables."""

from typing import Any

import torch

from clearhead._common.elements import Html, element
from clearhead._common.rows import MeasuredRows
from clearhead._text import count, readable
from clearhead.drawing.notebook.inline.markup import LINE, frame, line, scrolling, title
from clearhead.matrix.head_numbers import Roles

MOST_ROWS = 60
"""The most rows that are drawn, so that the whole stays well below 300 kB."""

CELL = "padding:2px 8px;background:none;white-space:nowrap"


def rows_html(rows: MeasuredRows[Any]) -> str:
    """The rows below their names and units; of many the first.

    Example:
        >>> from clearhead.watching.finding import HeadLink, HeadLinks
        >>> rows_html(HeadLinks([HeadLink("<a>", 0, 2, 1, 0.25)])).count("&lt;a&gt;")
        1
    """
    names, units, lines = rows.cells()
    sides = ["left" if rows.is_words(name) else "right" for name in names]
    parts = [_table(names, units, lines[:MOST_ROWS], sides)]
    if rows.caption:
        parts.insert(0, title(rows.caption))
    if len(lines) > MOST_ROWS:
        more = count(len(lines) - MOST_ROWS, "more row")
        parts.append(line(f"{more}; top(…) and sort(…) choose.", small=True))
    parts += [line(each, small=True) for each in rows.notes]
    return frame(*parts)


def roles_html(roles: Roles) -> str:
    """The scores of each head of the first sample in each role, and its leading role.

    Example:
        >>> query = key = torch.zeros(1, 2, 20, 4)
        >>> drawn = roles_html(ch.roles(ch.AttentionMatrix(query, key, mask=ch.causal())))
        >>> drawn.count("<tr"), drawn.count("previous")
        (3, 2)
    """
    first = [torch.atleast_2d(getattr(roles, name))[:1] for name in roles.measured]
    scores = {
        name: each[0].tolist() if each.numel() else []
        for name, each in zip(roles.measured, first, strict=True)
    }
    leading: Any = roles.names()
    leading = [leading] if isinstance(leading, str) else leading
    leading = leading[0] if leading and isinstance(leading[0], list) else leading
    names = ["head", *scores, "role"]
    heads = len(next(iter(scores.values())))
    lines = [
        [str(head), *(f"{each[head]:.2f}" for each in scores.values()), leading[head]]
        for head in range(heads)
    ]
    sides = ["right"] * (len(names) - 1) + ["left"]
    parts = [title(element("code", repr(roles))), _table(names, [], lines[:MOST_ROWS], sides)]
    if roles.first.ndim == 2 and len(roles.first) > 1:
        parts.append(line(f"Sample 0 of {len(roles.first)}.", small=True))
    return frame(*parts)


def _table(names: list[str], units: list[str], lines: list[list[str]], sides: list[str]) -> Html:
    def row(tag: str, cells: list[str], style: str = "") -> Html:
        return element(
            "tr",
            *(
                element(tag, readable(cell), style=f"{CELL};text-align:{side}{style}")
                for cell, side in zip(cells, sides, strict=True)
            ),
            style=f"border-top:{LINE};background:none",
        )

    head = [row("th", names, ";font-weight:600")]
    if any(units):
        head.append(row("th", units, ";font-weight:400"))
    body = [row("td", each) for each in lines]
    style = "border-collapse:collapse;margin:4px 0"
    table = element("table", element("thead", *head), element("tbody", *body), style=style)
    return scrolling(table)
