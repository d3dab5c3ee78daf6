"""Results as HTML in notebooks: lines, titles, tables of numbers and roles, and traces from left to right."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead._common.rows import MeasuredRows
from clearhead._text import count, readable
from clearhead.drawing.colours import LESS, MORE, channels
from clearhead.matrix.head_numbers import Roles
from clearhead.tracing.text import MOST_COLUMNS, MOST_ROWS, number
from clearhead.tracing.text import table as text_of
from clearhead.tracing.traced_call import Step, Trace

LINE = "1px solid rgba(128,128,128,0.35)"
"""A border that shows on dark and on light."""

FRAME = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
CELL = "padding:2px 8px;vertical-align:middle;background:none;white-space:nowrap"


def frame(*children: str) -> str:
    """Return a complete HTML output as a plain str, because marimo takes nothing else."""
    return str(element("div", *children, style=FRAME))


def line(*children: str, small: bool = False) -> Html:
    """Return a line of text, in smaller letters if it is `small`."""
    style = "margin:2px 0"
    return element("div", *children, style=f"{style};font-size:12px" if small else style)


def title(*children: str) -> Html:
    """Return a bold line, the title of an output."""
    return element("div", *children, style="margin:2px 0;font-weight:600")


def scrolling(*children: str, style: str = "") -> Html:
    """Return a box for content that may be wider than its cell; the keyboard scrolls it as well.

    `style` is further CSS, which ends in a semicolon.
    """
    return element("div", *children, style=f"{style}overflow-x:auto;max-width:100%", tabindex=0)


def table(
    headings: Sequence[Iterable[str]],
    rows: Iterable[Iterable[str]],
    sides: Sequence[str] = (),
    styles: Iterable[Iterable[str]] = (),
) -> Html:
    """Return a table of rows of text; the first cell of a row is its heading.

    Args:
        headings: rows above the others, the first of them bold.
        rows: the cells, row by row.
        sides: the text alignment of every column, the first too; () is left.
        styles: CSS of each cell but the first, row by row, each after a semicolon, as ";color:red"; else none.
    """

    def row(tag: str, cells: Iterable[str], weight: int, further: Iterable[str] = ()) -> Html:
        """Return a row of cells "td" or "th", in a font weight, with further CSS for each cell but the first."""
        styled = ["", *further]
        drawn = [
            element(
                "th" if at == 0 else tag,
                cell,
                scope="col" if tag == "th" else "row" if at == 0 else None,
                style=f"{CELL};text-align:{sides[at] if sides else 'left'};font-weight:{weight}"
                + (styled[at] if at < len(styled) else ""),
            )
            for at, cell in enumerate(cells)
        ]
        return element("tr", *drawn, style=f"border-top:{LINE};background:none")

    head = [row("th", cells, 400 if at else 600) for at, cells in enumerate(headings)]
    further = iter(styles)
    body = [row("td", cells, 400, next(further, ())) for cells in rows]
    style = "border-collapse:collapse;margin:4px 0"
    parts = [element("thead", *head)] if head else []
    return element("table", *parts, element("tbody", *body), style=style)


TABLE_ROWS = 60
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
    shown = [[readable(cell) for cell in cells] for cells in lines[:TABLE_ROWS]]
    parts = [scrolling(table(headings, shown, sides))]
    if rows.caption:
        parts.insert(0, title(rows.caption))
    if len(lines) > TABLE_ROWS:
        more = count(len(lines) - TABLE_ROWS, "more row")
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
        for head, role in enumerate(leading[:TABLE_ROWS])
    ]
    sides = ["right"] * (1 + len(scores)) + ["left"]
    parts = [
        title(element("code", repr(roles))),
        scrolling(table([["head", *scores, "role"]], lines, sides)),
    ]
    if roles.first.ndim == 2 and len(roles.first) > 1:
        parts.append(line(f"Sample 0 of {len(roles.first)}.", small=True))
    return frame(*parts)


SHARES = {"weights", "dropped_weights"}
HIDDEN = "rgba(128,128,128,0.15)"
ABOVE, BELOW = (",".join(map(str, channels(scale[6]))) for scale in (MORE, LESS))
STRONGEST = 0.5
"""The most colour of a cell's ground; text keeps its contrast on dark and on light."""


def trace_html(trace: Trace) -> str:
    """Return every stage of the first sample and head as HTML: its formula, and its numbers if they are few.

    Example:
        >>> x = torch.eye(2)
        >>> drawn = trace_html(ch.trace(ch.attend, x, x, x))
        >>> drawn.count("<table"), "the same as scaled_scores" in drawn
        (7, True)
    """
    stages = [_stage(trace, step) for step in trace._drawn()]
    notes = [trace.verdict]
    first = [
        f"{name} 0"
        for axis, name in (("batch", "sample"), ("num_heads", "head"))
        if any(
            dict(zip(step.axes, step.tensor.shape, strict=True)).get(axis, 1) > 1
            for step in trace.steps.values()
        )
    ]
    if first:
        notes.append(f"shown is {', '.join(first)}; show() and view() have the others")
    heading = title(f"trace of {trace.title}")
    return frame(heading, element("div", *stages), line("; ".join(notes), small=True))


def _stage(trace: Trace, step: Step) -> Html:
    """Return a stage as HTML: its name, its formula, and its numbers if they are few, else their shape.

    A stage that repeats another one has the name of that instead of numbers.
    """
    heading = line(element("b", step.name), " ", element("code", f"[{step.shape}]"))
    if step.same_as is not None:
        parts = [line(f"the same as {step.same_as}: {step.formula}", small=True)]
    else:
        part, _ = trace._part(step, 0, 0)
        few = part.shape[0] <= MOST_ROWS and part.shape[1] <= MOST_COLUMNS
        numbers = _table(trace, step, part) if few else line(text_of(part, [], "")[0], small=True)
        parts = [line(step.formula, small=True), numbers]
    style = "display:inline-block;vertical-align:top;margin:6px 0;padding-right:24px;"
    return scrolling(heading, *parts, style=f"{style}box-sizing:border-box;")


def _table(trace: Trace, step: Step, part: Tensor) -> Html:
    """Return the numbers of a stage as an HTML table with shaded cells; hidden weights and ±∞ and NaN are grey."""
    names = trace._row_labels(step)[: len(part)]
    finite = part[torch.isfinite(part)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    shaded = part
    if step.name in SHARES:
        largest = max(1.0, largest)
        shaded = part.masked_fill(trace._hidden(part, 0, 0), -math.inf)
    rows = [
        [name, *map(number, numbers)] for name, numbers in zip(names, part.tolist(), strict=True)
    ]
    styles = [[_ground(value, largest) for value in row] for row in shaded.tolist()]
    return table([], rows, ["left"] + ["right"] * part.shape[1], styles)


def _ground(value: float, largest: float) -> str:
    """Return the style of a cell: grey if it is not finite, or else a colour that is stronger for larger sizes.

    Values below 0 have the other colour; `largest` is the absolute value with the full colour.
    """
    if not math.isfinite(value):
        return f";background:{HIDDEN}"
    strength = STRONGEST * abs(value) / largest if largest else 0.0
    return f";background:rgba({BELOW if value < 0 else ABOVE},{strength:.2f})"
