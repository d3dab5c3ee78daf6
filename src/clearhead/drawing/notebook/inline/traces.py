"""A trace as tables of numbers, from left to right."""

import math

import torch
from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead.drawing.colours import LESS, MORE, channels
from clearhead.drawing.notebook.inline.markup import frame, line, scrolling, title
from clearhead.tracing.text import MOST_COLUMNS, MOST_ROWS, number, table
from clearhead.tracing.trace import Step, Trace

SHARES = {"weights", "dropped_weights"}
HIDDEN = "rgba(128,128,128,0.15)"
ABOVE, BELOW = (",".join(map(str, channels(each[6]))) for each in (MORE, LESS))
STRONGEST = 0.5
"""The most colour of a cell's ground; text keeps its contrast on dark and on light."""

CELL = "padding:1px 6px;text-align:right"


def trace_html(trace: Trace) -> str:
    """Every stage of the first sample and head: its formula, and its numbers if they are few.

    Example:
        >>> x = torch.eye(2)
        >>> drawn = trace_html(ch.trace(ch.attend, x, x, x))
        >>> drawn.count("<table"), "the same as scaled_scores" in drawn
        (7, True)
    """
    stages = [_stage(trace, step) for step in trace._drawn()]
    notes = [trace._verdict()]
    first = [
        f"{name} 0"
        for axis, name in (("batch", "sample"), ("num_heads", "head"))
        if any(_size(step, axis) > 1 for step in trace.steps.values())
    ]
    if first:
        notes.append(f"shown is {', '.join(first)}; show() and view() have the others")
    return frame(
        title(f"trace of {trace.title}"),
        element("div", *stages),
        line("; ".join(notes), small=True),
    )


def _size(step: Step, axis: str) -> int:
    return dict(zip(step.axes, step.tensor.shape, strict=True)).get(axis, 1)


def _stage(trace: Trace, step: Step) -> Html:
    heading = line(element("b", step.name), " ", element("code", f"[{step.shape}]"))
    if step.same_as is not None:
        parts = [line(f"the same as {step.same_as}: {step.formula}", small=True)]
    else:
        part, _ = trace._part(step, 0, 0)
        rows, columns = part.shape
        few = rows <= MOST_ROWS and columns <= MOST_COLUMNS
        numbers = _table(trace, step, part) if few else line(table(part, [], "")[0], small=True)
        parts = [line(step.formula, small=True), numbers]
    style = "display:inline-block;vertical-align:top;margin:6px 0;padding-right:24px;"
    style += "box-sizing:border-box;"
    return scrolling(heading, *parts, style=style)


def _table(trace: Trace, step: Step, part: Tensor) -> Html:
    names = trace._row_labels(step)[: len(part)]
    finite = part[torch.isfinite(part)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    hidden = torch.zeros_like(part, dtype=torch.bool)
    if step.name in SHARES:
        largest = max(1.0, largest)
        hidden = trace._hidden(part, 0, 0)
    rows = []
    for name, numbers, gone in zip(names, part.tolist(), hidden.tolist(), strict=True):
        label = element(
            "th",
            name,
            scope="row",
            style=f"{CELL};text-align:left;font-weight:400;font-family:inherit",
        )
        cells = [
            element("td", number(value), style=_style(-math.inf if grey else value, largest))
            for value, grey in zip(numbers, gone, strict=True)
        ]
        rows.append(element("tr", label, *cells, style="background:none"))
    style = (
        "border-collapse:collapse;margin:2px 0;font:12px ui-monospace,monospace;white-space:nowrap"
    )
    return element("table", element("tbody", *rows), style=style)


def _style(value: float, largest: float) -> str:
    """The style of a cell: grey where nothing is visible, else the more coloured the larger it is."""
    if not math.isfinite(value):
        return f"{CELL};background:{HIDDEN}"
    strength = STRONGEST * abs(value) / largest if largest else 0.0
    return f"{CELL};background:rgba({BELOW if value < 0 else ABOVE},{strength:.2f})"
