"""The stages of a trace, from left to right."""

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from clearhead._text import shown
from clearhead.drawing.figures.cells import (
    SIGNED,
    WEIGHTS,
    add_bar,
    around_zero,
    upwards,
    write_numbers,
)
from clearhead.drawing.figures.lettering import entitle, grid_of, tick
from clearhead.drawing.labels import words_of
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError
from clearhead.tracing.traced_call import Step, Trace

SHARES = ("weights", "dropped_weights")
ACROSS = 4
"""Stages in a row."""

WIDE, HIGH = 3.2, 2.8
"""Inches of a stage, with its title and tokens."""

HATCH = "#C0C0C0"
TOKENS_OF = {"query_len": "queries", "tokens": "queries", "kv_len": "keys", "source_tokens": "keys"}


def of_trace(
    trace: Trace, stages: Sequence[str] | None = None, *, sample: int = 0, head: int = 0
) -> np.ndarray:
    """Draw a trace, and return an array of axes, one for each stage; arguments and errors are those of `Trace.plot`."""
    steps = _chosen(trace, stages)
    parts = [trace._part(step, sample, head)[0] for step in steps]
    if min(part.numel() for part in parts) == 0:
        raise ArgumentError("plot.empty", "there is nothing to draw: a stage holds no numbers.")
    axes = np.array(grid_of(len(steps), ACROSS, WIDE, HIGH), dtype=object)
    for place, step, part in zip(axes, steps, parts, strict=True):
        hidden = trace._hidden(part, sample, head).cpu().numpy()
        _draw(place, step, part, hidden, f"{step.name}\n{_formula(trace, step)}")
        _label(place, trace, step)
    return axes


def _chosen(trace: Trace, stages: Sequence[str] | None) -> list[Step]:
    """Return the requested stages; for None, all that do not repeat another one.

    Raises ArgumentTypeError or ArgumentError (`plot.stages`) for no list or an empty one, SelectionError
    (`trace.stage`) for an unknown name.
    """
    if stages is None:
        return [step for step in trace._drawn() if step.same_as is None]
    if isinstance(stages, str) or not isinstance(stages, Sequence):
        raise ArgumentTypeError(
            "plot.stages", f"stages must be a list of names, or None; got {shown(stages)}."
        )
    if not stages:
        raise ArgumentError(
            "plot.stages", "stages must name one stage or more, or be None; got none."
        )
    for each in stages:
        if each not in trace.steps:
            raise SelectionError(
                "trace.stage",
                f"there is no stage {shown(each)}; there are {', '.join(trace.steps)}.",
            )
    return [trace.steps[each] for each in stages]


def _formula(trace: Trace, step: Step) -> str:
    """Return the formula of a stage, with repeated stages replaced by the stages that they repeat."""
    formula = step.formula
    for name, before in reversed(trace.steps.items()):
        if before.same_as is not None:
            formula = re.sub(rf"\b{name}\b", before.same_as, formula)
    return formula


def _draw(axes: Axes, step: Step, part: Tensor, hidden: np.ndarray, title: str) -> None:
    """Draw a stage as an image on axes, with its numbers where they fit, or else a colour bar.

    Hidden cells are hatched: for weights those in `hidden`, else those of −∞.
    """
    numbers = part.detach().cpu().double().numpy()
    is_shares = step.name in SHARES
    blank = hidden if is_shares else numbers == -np.inf
    values = np.ma.MaskedArray(numbers, mask=blank)
    scale = upwards([values]) if is_shares else around_zero(values)
    colours = WEIGHTS if is_shares else SIGNED
    image = axes.imshow(values, cmap=colours, norm=scale, aspect="auto")
    # White is the middle of a scale around 0, so that what is hidden is hatched.
    axes.patch.set(hatch="////", edgecolor=HATCH)
    entitle(axes, title, size="small")
    if not write_numbers(axes, image):
        words = ["share of 1"] * is_shares + ["hatched: hidden"] * bool(blank.any())
        add_bar(image, axes, "; ".join(words))


def _label(axes: Axes, trace: Trace, step: Step) -> None:
    """Write tokens along both axes, or the name of what the columns count."""
    sizes = step.tensor.shape[-2:]
    tick(axes, "y", sizes[0], _words(trace, step.axes[-2]))
    kind = step.axes[-1]
    tick(axes, "x", sizes[1], _words(trace, kind))
    if kind not in TOKENS_OF:
        axes.set_xlabel(kind, fontsize="small")


def _words(trace: Trace, kind: str) -> list[str] | None:
    """Return the tokens along an axis of this name, without their positions; None if there are none."""
    labels = {"queries": trace.tokens, "keys": trace.source_tokens}.get(TOKENS_OF.get(kind, ""), [])
    words = words_of(labels)
    return words if any(words) else None
