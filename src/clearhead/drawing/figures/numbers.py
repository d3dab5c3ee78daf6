"""A number for each query or head, as a line, a strip per head, or layers × heads."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from clearhead.drawing.figures import scales
from clearhead.drawing.figures.cells import masked
from clearhead.drawing.figures.lettering import LINE, entitle, families, name_axis, tick
from clearhead.drawing.figures.paper import inches, one
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

    `most` is the largest number of points; neighbours are averaged. `log` is a logarithmic scale; `ax` of None makes a
    figure.
    """
    count, quantity = view.weights.query_len, QUANTITIES[kind]
    means, detail = binned(view.statistic(kind), most)
    axes = one(ax, min(max(PER_TOKEN * count, LEAST), MOST) + 1.0, 3.2)
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
    axes = one(ax, wide + 2.0, min(0.25 * len(names) + 1.6, 14.0))
    array = masked(means, means.isnan())
    scale, extend = scales.upwards([array], log=log)
    edges = (-0.5, count - 0.5, len(names) - 0.5, -0.5)
    image = axes.imshow(array, cmap=scales.WEIGHTS, norm=scale, aspect="auto", extent=edges)
    tick(axes, "x", count, tokens)
    number(axes, "y", names)
    name_axis(axes, "x", "\n".join(filter(None, [across, detail])))
    white = f"; white: {blank}" if bool(means.isnan().any()) else ""
    scales.add_bar(image, [axes], label + white, extend)
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
        scales.write_numbers(axes, axes.images[0], texts, "x-small")
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
    """Return means over neighbouring queries, (rows, most or fewer), float64 on the CPU, and what a point is, in words.

    The words are "" if a point is one query. NaN does not count, unless there is nothing else.
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


def number(axes: Axes, axis: str, names: Sequence[str]) -> None:
    """Write the names of rows ("y") or columns ("x") at the axis: each, or every n-th if they do not fit."""
    room = inches(axes)[axis == "y"] * 72 / (10 * LINE)
    every = max(1, -(-len(names) // max(1, int(room))))
    places = list(range(0, len(names), every))
    style = {"fontsize": "small", "parse_math": False, "fontfamily": list(families())}
    set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    set_ticks(places, [names[place] for place in places], **style)
