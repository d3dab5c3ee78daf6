"""A trace as tables of numbers, from left to right."""

import math

import torch
from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead.drawing.colours import LESS, MORE, channels
from clearhead.drawing.notebook.inline.markup import frame, line, scrolling, table, title
from clearhead.tracing.text import MOST_COLUMNS, MOST_ROWS, number
from clearhead.tracing.text import table as text_of
from clearhead.tracing.trace import Step, Trace

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
    notes = [trace._verdict()]
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
    """Return the numbers of a stage as an HTML table with shaded cells; hidden weights are grey."""
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
