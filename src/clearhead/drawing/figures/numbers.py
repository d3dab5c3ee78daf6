"""Numbers as a figure: one per query, key or head, and the effects of heads."""

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
from clearhead.drawing.figures.lettering import axes_or_new, entitle, name_axis, short_paths, tick
from clearhead.editing.effects import Effects
from clearhead.matrix.head_view import side
from clearhead.matrix.pooling import bin_sums

MOST_CELLS = 256
PER_TOKEN, LEAST, MOST = 0.25, 3.2, 10.0

QUANTITIES = {
    "entropy": "entropy (nats)",
    "distance": "distance (tokens)",
    "max": "largest weight (share of 1)",
    "first": "weight on the first key (share of 1)",
    "previous": "weight on the token before (share of 1)",
}
"""The name and the unit of each number that there is for a query."""

RECEIVED = "attention received (sum of weights)"
KEYS = "attended to (key)"


def along(
    values: Tensor,
    quantity: str,
    across: str,
    *,
    title: str,
    tokens: Sequence[str] | None,
    ax: object,
) -> Axes:
    """Draw a number for each query as a line, or for each key as bars, and return the axes.

    Raises as `axes_or_new`.

    Args:
        values: the numbers, of one dimension; NaN is a gap.
        quantity: their name and unit.
        across: the name of the axis: "query", or KEYS for bars.
        title: the title of the axes.
        tokens: a word for each number, or None.
        ax: axes, or None for a new figure.
    """
    means, detail = binned(values[None])
    count, width = len(values), len(values) / means.shape[1]
    axes = axes_or_new(ax, min(max(PER_TOKEN * count, LEAST), MOST) + 1.0, 3.3)
    middles = (np.arange(means.shape[1]) + 0.5) * width - 0.5
    heights = masked(means[0], means[0].isnan())
    if across == KEYS:
        axes.bar(middles, heights, 0.8 * width)
    else:
        axes.plot(middles, heights, marker=".")
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(bottom=0)
    tick(axes, "x", count, tokens)
    name_axis(axes, "x", "\n".join(filter(None, [across, detail])))
    name_axis(axes, "y", quantity)
    entitle(axes, title)
    return axes


def strips(
    values: Tensor,
    names: Sequence[str],
    labels: tuple[str, str, str],
    *,
    tokens: Sequence[str] | None,
    ax: object,
) -> Axes:
    """Draw a strip of numbers for each row of `values`, (rows, columns), and return the axes; NaN is white.

    Args:
        values: the numbers.
        names: the name of each row.
        labels: the name and unit of the numbers, the name of the columns, and the meaning of NaN.
        tokens: a word for each column, or None.
        ax: axes, or None for a new figure.
    """
    label, across, blank = labels
    count = values.shape[1]
    means, detail = binned(values)
    wide = min(max(PER_TOKEN * count, LEAST), MOST)
    axes = axes_or_new(ax, wide + 2.0, min(0.25 * len(names) + 1.6, 14.0))
    array = masked(means, means.isnan())
    edges = (-0.5, count - 0.5, len(names) - 0.5, -0.5)
    image = axes.imshow(array, cmap=WEIGHTS, norm=upwards([array]), aspect="auto", extent=edges)
    tick(axes, "x", count, tokens)
    tick(axes, "y", len(names), names, literal=True)
    name_axis(axes, "x", "\n".join(filter(None, [across, detail])))
    white = f"; white: {blank}" if bool(means.isnan().any()) else ""
    add_bar(image, axes, label + white)
    return axes


def by_layer(
    layers: Sequence[Tensor], names: Sequence[str], heads: Sequence[int], quantity: str, ax: object
) -> Axes:
    """Draw a number for each head of each layer, and return the axes; layers may have fewer heads than others.

    Args:
        layers: the numbers of each, (heads,).
        names: the name of each.
        heads: the numbers of the heads, as many as the longest layer has.
        quantity: the name and unit of the numbers.
        ax: axes, or None for a new figure.
    """
    values = torch.full((len(layers), len(heads)), torch.nan, dtype=torch.float64)
    for row, each in enumerate(layers):
        values[row, : len(each)] = each
    labels = f"mean {quantity}", "head", "there is none"
    axes = strips(values, names, labels, tokens=[str(head) for head in heads], ax=ax)
    write_numbers(axes, axes.images[0])
    return axes


def binned(numbers: Tensor) -> tuple[Tensor, str]:
    """Return means of (rows, tokens) over neighbours, (rows, 256 or fewer), and what a point is, in words.

    The means are float64, on the CPU; NaN does not count, unless there is nothing else. The words are "" if a point is
    one token.
    """
    numbers = numbers.detach().cpu().double()
    count = numbers.shape[1]
    columns = side(count, MOST_CELLS)
    if columns == count:
        return numbers, ""
    sums = bin_sums(numbers.nan_to_num(nan=0.0), 1, columns)
    counts = bin_sums((~numbers.isnan()).double(), 1, columns)
    sign = "=" if count % columns == 0 else "≈"
    return sums / counts, f"one point {sign} the mean of {round(count / columns)} tokens"


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
    columns = [str(at) for at in range(count)] if by_head or by_position else ["all"]
    tick(axes, "x", count, columns)
    tick(axes, "y", len(layers), short_paths(layers), literal=True)
    verb = "ablated" if effects.clean is None else "patched"
    name_axis(axes, "x", f"position, its largest head {verb}" if by_position else f"head {verb}")
    said = "change of the metric" if effects.clean is None else "share of the metric restored"
    add_bar(image, axes, said)
    return axes
