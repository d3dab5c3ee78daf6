"""Numbers as a figure: one per query or head, what each token receives, and the effects of heads."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from clearhead.drawing.figures.cells import (
    SIGNED,
    WEIGHTS,
    add_bar,
    around_zero,
    masked,
    upwards,
    write_numbers,
)
from clearhead.drawing.figures.lettering import (
    LINE,
    MOST_LABELS,
    axes_or_new,
    entitle,
    families,
    inches,
    name_axis,
    short_paths,
    tick,
    written,
)
from clearhead.editing.effects import Effects
from clearhead.matrix.head_view import HeadView, side
from clearhead.matrix.pooling import bin_sums

MOST_CELLS = 256
PER_TOKEN, LEAST, MOST = 0.25, 3.2, 10.0
WRITTEN = 0.36
"""Width of a cell in inches from which its number is written into it."""


QUANTITIES = {
    "entropy": "entropy (nats)",
    "distance": "distance (tokens)",
    "max": "largest weight (share of 1)",
    "first": "weight on the first key (share of 1)",
    "previous": "weight on the token before (share of 1)",
}
"""The name and the unit of each number that there is for a query."""


def line(
    view: HeadView,
    kind: str,
    *,
    title: str,
    tokens: Sequence[str] | None,
    log: bool,
    most: int,
    ax: object,
) -> Axes:
    """Draw a number for each query of the first head of a view as a line, with gaps at NaN, and return the axes.

    `kind` is a key of QUANTITIES, `most` the largest number of points: neighbours are averaged. `log` is a logarithmic
    scale; `ax` of None makes a figure. Raises as `axes_or_new`.
    """
    count, quantity = view.weights.query_len, QUANTITIES[kind]
    means, detail = binned(view.statistic(kind), most)
    axes = axes_or_new(ax, min(max(PER_TOKEN * count, LEAST), MOST) + 1.0, 3.2)
    width = count / means.shape[1]
    middles = (np.arange(means.shape[1]) + 0.5) * width - 0.5
    few = count <= 2 * LEAST / PER_TOKEN
    axes.plot(middles, masked(means[0], means[0].isnan()), marker="o" if few else "", markersize=4)
    axes.set_xlim(-0.5, count - 0.5)
    if log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    tick(axes, "x", count, tokens)
    name_axis(axes, "x", "\n".join(filter(None, ["query", detail])))
    name_axis(axes, "y", quantity)
    entitle(axes, title)
    return axes


def strips(
    values: Tensor,
    names: Sequence[str],
    labels: tuple[str, str, str],
    *,
    tokens: Sequence[str] | None,
    log: bool,
    most: int,
    ax: object,
) -> Axes:
    """Draw a strip of numbers for each row of `values`, (rows, queries or keys), and return the axes; NaN is white.

    Args:
        values: the numbers.
        names: the name of each row.
        labels: the name and unit of the numbers, the name of the columns, and the meaning of NaN.
        tokens: a word for each column, or None.
        log: a logarithmic scale.
        most: the most cells of a strip; neighbours are averaged.
        ax: axes, or None for a new figure.
    """
    label, across, blank = labels
    count = values.shape[1]
    means, detail = binned(values, most)
    wide = min(max(PER_TOKEN * count, LEAST), MOST)
    axes = axes_or_new(ax, wide + 2.0, min(0.25 * len(names) + 1.6, 14.0))
    array = masked(means, means.isnan())
    scale, extend = upwards([array], log=log)
    edges = (-0.5, count - 0.5, len(names) - 0.5, -0.5)
    image = axes.imshow(array, cmap=WEIGHTS, norm=scale, aspect="auto", extent=edges)
    tick(axes, "x", count, tokens)
    write_names(axes, "y", names)
    name_axis(axes, "x", "\n".join(filter(None, [across, detail])))
    white = f"; white: {blank}" if bool(means.isnan().any()) else ""
    add_bar(image, [axes], label + white, extend)
    return axes


def by_layer(
    layers: Sequence[Tensor],
    names: Sequence[str],
    heads: Sequence[int],
    quantity: str,
    *,
    log: bool,
    ax: object,
) -> Axes:
    """Draw a number for each head of each layer, and return the axes; layers may have fewer heads than others.

    Args:
        layers: the numbers of each, (heads,).
        names: the name of each.
        heads: the numbers of the heads, as many as the longest layer has.
        quantity: the name and unit of the numbers.
        log: a logarithmic scale.
        ax: axes, or None for a new figure.
    """
    values = torch.full((len(layers), len(heads)), torch.nan, dtype=torch.float64)
    for row, each in enumerate(layers):
        values[row, : len(each)] = each
    axes = strips(
        values,
        names,
        (f"mean {quantity}", "head", "there is none"),
        tokens=[str(head) for head in heads],
        log=log,
        most=len(heads),
        ax=ax,
    )
    wide, high = inches(axes)
    if wide / len(heads) >= WRITTEN and high / len(layers) >= WRITTEN / 2:
        texts = [["" if np.isnan(v) else _brief(v) for v in line] for line in values.tolist()]
        write_numbers(axes, axes.images[0], texts, "x-small")
    return axes


def _brief(value: float) -> str:
    """Return a number with about three digits.

    Example:
        >>> _brief(0.123), _brief(4.56), _brief(123.4)
        ('0.12', '4.6', '123')
    """
    return (
        f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"
    )


def binned(numbers: Tensor, most: int) -> tuple[Tensor, str]:
    """Return means of (rows, queries) over neighbouring queries, (rows, most or fewer), and what a point is, in words.

    The means are float64, on the CPU; NaN does not count, unless there is nothing else. The words are "" if a point is
    one query.
    """
    numbers = numbers.detach().cpu().double()
    count = numbers.shape[1]
    columns = side(count, most)
    if columns == count:
        return numbers, ""
    sums = bin_sums(numbers.nan_to_num(nan=0.0), 1, columns)
    counts = bin_sums((~numbers.isnan()).double(), 1, columns)
    sign = "=" if count % columns == 0 else "≈"
    return sums / counts, f"one point {sign} the mean of {round(count / columns)} queries"


def write_names(axes: Axes, axis: str, names: Sequence[str]) -> None:
    """Write the names of rows ("y") or columns ("x") at the axis: each, or every n-th if they do not fit."""
    room = inches(axes)[axis == "y"] * 72 / (10 * LINE)
    every = max(1, -(-len(names) // max(1, int(room))))
    places = list(range(0, len(names), every))
    style = {"fontsize": "small", "parse_math": False, "fontfamily": list(families())}
    set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    set_ticks(places, [names[place] for place in places], **style)


def of_effects(effects: Effects, *, ax: object = None) -> Axes:
    """Draw effects, at least one, as layers × heads, layers alone or layers × positions, and return the axes.

    Where effects have restored shares these are drawn instead of changes. Several heads of one position are drawn as
    the one that changes most. `ax` of None makes a figure. Raises as `axes_or_new`.
    """
    names = [row.layer if row.call is None else f"{row.layer}, call {row.call}" for row in effects]
    layers = list(dict.fromkeys(names))
    by_position = any(row.position is not None for row in effects)
    by_head = not by_position and any(row.head is not None for row in effects)
    places = [(row.position if by_position else row.head) or 0 for row in effects]
    count = 1 + max(places)
    values = np.full((len(layers), count), np.nan)
    for row, name, place in zip(effects, names, places, strict=True):
        value = row.change if row.restored is None else row.restored
        # Of the heads of one position the one that changes most.
        if not abs(values[layers.index(name), place]) >= abs(value):
            values[layers.index(name), place] = value
    axes = axes_or_new(
        ax, min(0.42 * count + 2.8, 14.0), min(max(0.32 * len(layers) + 1.2, 2.4), 14.0)
    )
    shown, scale = np.ma.masked_invalid(values), around_zero(values)
    image = axes.imshow(shown, cmap=SIGNED, norm=scale, aspect="auto")
    write_names(axes, "x", [str(at) for at in range(count)] if by_head or by_position else ["all"])
    write_names(axes, "y", short_paths(layers))
    verb = "ablated" if effects.clean is None else "patched"
    name_axis(axes, "x", f"position, its largest head {verb}" if by_position else f"head {verb}")
    said = "change of the metric" if effects.clean is None else "share of the metric restored"
    add_bar(image, [axes], said, "neither")
    return axes


MOST_BARS = 24
UNIT = "attention received (sum of weights)"


def bars(
    received: Tensor, *, title: str, tokens: Sequence[str] | None, log: bool, ax: object
) -> Axes:
    """Draw what each key receives, (kv_len,), as bars, and return the axes; of more than 64 keys the largest only.

    `ax` of None makes a figure; `tokens` of None writes positions; `log` is a logarithmic scale. Raises as
    `axes_or_new`.
    """
    count = len(received)
    values = received.detach().cpu().double()
    if count <= MOST_LABELS:
        axes = axes_or_new(ax, min(max(0.22 * count, 3.2), 12.0) + 0.8, 3.4)
        axes.bar(range(count), values.tolist())
        axes.set_xlim(-0.7, count - 0.3)
        tick(axes, "x", count, tokens)
        name_axis(axes, "x", "attended to (key)")
        name_axis(axes, "y", UNIT)
        if log:
            axes.set_yscale("log")
    else:
        # What is no number is among the largest for `topk`, and would hide them.
        most, places = values.nan_to_num(nan=0.0).topk(MOST_BARS)
        axes = axes_or_new(ax, 5.0, 0.2 * MOST_BARS + 1.0)
        axes.barh(range(MOST_BARS), most.tolist())
        top: list[int] = places.tolist()
        words = None if tokens is None else written([tokens[each] for each in top])
        names = [f"{each} {words[at]}" if words else str(each) for at, each in enumerate(top)]
        style = {"fontsize": "small", "parse_math": False, "fontfamily": list(families())}
        axes.set_yticks(range(MOST_BARS), names, **style)
        axes.set_ylim(MOST_BARS - 0.3, -0.7)
        name_axis(axes, "y", f"the {MOST_BARS} keys of {count} that receive most")
        name_axis(axes, "x", UNIT)
        if log:
            axes.set_xscale("log")
    entitle(axes, title)
    return axes
