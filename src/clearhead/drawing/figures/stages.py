"""The stages of a trace, from left to right."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from torch import Tensor

from clearhead.arguments import check_switch
from clearhead.drawing.figures import scales
from clearhead.drawing.figures.lettering import drawable, families, tick
from clearhead.drawing.figures.paper import across, array, given, inches, new_figure
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError
from clearhead.tracing import Step, Trace

SHARES = ("weights", "dropped_weights")
WRITTEN_ROWS, WRITTEN_COLUMNS = 12, 8
CELL = 0.5
"""Inches of a cell with a number in it."""

PANEL = 2.2
"""Inches of a stage without."""

ACROSS = 12.0
"""Inches; then a new row begins."""

LETTERS_PER_INCH = 12
WRITTEN = 0.36
TOKENS_OF = {
    "query_len": "queries",
    "tokens": "queries",
    "kv_len": "keys",
    "source_tokens": "keys",
}


def of_trace(
    trace: Trace,
    stages: Sequence[str] | None = None,
    *,
    sample: int = 0,
    head: int = 0,
    log: bool = False,
    ax: object = None,
) -> np.ndarray:
    """What `Trace.plot` draws: an array of axes, one for each stage."""
    check_switch("log", log)
    steps = _chosen(trace, stages)
    parts = [trace._part(step, sample, head)[0] for step in steps]
    if min(part.numel() for part in parts) == 0:
        raise ArgumentError("plot.empty", "there is nothing to draw: a stage holds no numbers.")
    hidden = (trace._part(trace.steps["masked_scores"], sample, head)[0] == -np.inf).cpu().numpy()
    axes = _laid_out(parts, trace) if ax is None else given(ax, len(steps), "one for each stage")
    for each, step, part in zip(axes, steps, parts, strict=True):
        _draw(each, trace, step, part, hidden, log=log)
    return array(axes)


def _chosen(trace: Trace, stages: Sequence[str] | None) -> list[Step]:
    """The stages asked for; without a wish those that are not merely repeated."""
    if stages is None:
        return [step for step in trace.steps.values() if step.same_as is None]
    if isinstance(stages, str) or not isinstance(stages, Sequence):
        raise ArgumentTypeError(
            "plot.stages", f"stages must be a list of names, or None; got {stages!r}."
        )
    if not stages:
        raise ArgumentError(
            "plot.stages", "stages must name one stage or more, or be None; got none."
        )
    for each in stages:
        if each not in trace.steps:
            raise SelectionError(
                "trace.stage", f"there is no stage {each!r}; there are {', '.join(trace.steps)}."
            )
    return [trace.steps[each] for each in stages]


def _laid_out(parts: Sequence[Tensor], trace: Trace) -> list[Axes]:
    """Axes as wide as their stages have columns, in as many rows as it takes."""
    margin = 0.5 + 0.08 * max(len(text) for text in [*trace.tokens, *trace.source_tokens])
    sizes = [_size(part) for part in parts]
    rows: list[list[int]] = [[]]
    taken = 0.0
    for place, (wide, _) in enumerate(sizes):
        if rows[-1] and taken + wide + margin > ACROSS:
            rows.append([])
            taken = 0.0
        rows[-1].append(place)
        taken += wide + margin
    highs = [max(sizes[place][1] for place in row) + 1.3 for row in rows]
    width = max(sum(sizes[place][0] + margin for place in row) for row in rows)
    figure = new_figure(width + 0.3, sum(highs))
    spec = figure.add_gridspec(len(rows), 1, height_ratios=highs)
    axes: list[Axes] = []
    for number, row in enumerate(rows):
        ratios = [sizes[place][0] + margin for place in row]
        spare = width - sum(ratios)
        # What is left of the last row stays empty, so that cells are equally large in all rows.
        widths = [*ratios, spare] if spare > 0.1 else ratios
        made = across(figure, spec[number, 0], widths)
        axes += made[: len(row)]
        for rest in made[len(row) :]:
            rest.set_axis_off()
    return axes


def _size(part: Tensor) -> tuple[float, float]:
    rows, columns = part.shape
    if _has_room_for_numbers(part):
        return max(CELL * columns, 1.5), max(CELL * 0.7 * rows, 1.0)
    return PANEL, PANEL


def _has_room_for_numbers(part: Tensor) -> bool:
    return part.shape[0] <= WRITTEN_ROWS and part.shape[1] <= WRITTEN_COLUMNS


def _draw(
    axes: Axes, trace: Trace, step: Step, part: Tensor, hidden: np.ndarray, *, log: bool
) -> None:
    """A stage as an image, with its numbers where there is room for them."""
    numbers = part.detach().cpu().double().numpy()
    is_shares = step.name in SHARES
    blank = hidden if is_shares else numbers == -np.inf
    values = np.ma.MaskedArray(numbers, mask=blank)
    scale: Normalize
    if is_shares:
        scale, extend = scales.upwards([values], log=log)
    else:
        scale, extend = scales.around_zero(values), "neither"
    image = axes.imshow(
        values,
        cmap=scales.WEIGHTS if is_shares else scales.SIGNED,
        norm=scale,
        aspect="auto",
    )
    _label(axes, trace, step)
    wide, high = inches(axes)
    title = textwrap.fill(step.formula, max(16, round(LETTERS_PER_INCH * max(wide, 1.2))))
    axes.set_title(
        drawable(f"{step.name}\n{title}"),
        parse_math=False,
        fontsize="small",
        fontfamily=list(families()),
    )
    fits = min(wide / part.shape[1], 2 * high / part.shape[0]) >= WRITTEN
    if _has_room_for_numbers(part) and fits:
        texts = [
            ["−∞" if value == -np.inf else f"{value:.2f}".replace("-", "−") for value in row]
            for row in numbers.tolist()
        ]
        scales.write_numbers(axes, image, texts, "x-small")
        return
    unit = "share of 1" if is_shares else ""
    white = scales.HIDDEN if bool(blank.any()) else ""
    scales.add_bar(image, [axes], "; ".join(filter(None, [unit, white])), extend)


def _label(axes: Axes, trace: Trace, step: Step) -> None:
    words = {"queries": trace.tokens, "keys": trace.source_tokens}
    for axis, kind, count in zip("yx", step.axes[-2:], step.tensor.shape[-2:], strict=True):
        texts = words[TOKENS_OF[kind]] if kind in TOKENS_OF else None
        tick(axes, axis, count, texts)
        write = axes.set_ylabel if axis == "y" else axes.set_xlabel
        if texts is None:
            write(kind, fontsize="small")
