"""Many heads as small maps, side by side on one scale."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from clearhead.drawing.figures import scales
from clearhead.drawing.figures.cells import Cells
from clearhead.drawing.figures.head_map import show
from clearhead.drawing.figures.lettering import entitle, families
from clearhead.drawing.figures.paper import array, given, new_figure

MOST_CELLS = 64
MAP = 1.1
"""Inches of a side of a small map."""

MOST_WIDE, MOST_HIGH = 16.0, 20.0
WIDE = 1.5
"""Columns per row of the grid of the heads of one matrix, about."""


def of_heads(cells: Cells, *, log: bool, ax: object) -> np.ndarray:
    """The heads of one matrix: an array of axes, one for each head."""
    count = len(cells.heads)
    if ax is not None:
        axes = given(ax, count, "one for each head")
    else:
        columns = columns_for(count)
        rows = math.ceil(count / columns)
        grid = _empty(rows, columns, rows)
        axes = grid.ravel().tolist()[:count]
        for spare in grid.ravel().tolist()[count:]:
            spare.remove()
    for place, each in enumerate(axes):
        entitle(each, f"head {cells.heads[place]}", size="small")
    _fill(axes, [(cells, place) for place in range(count)], log=log)
    if ax is None:
        _say_what(axes[0], [cells])
    return array(axes)


def of_layers(
    layers: Sequence[Cells], names: Sequence[str], *, log: bool, ax: object
) -> np.ndarray:
    """Layers × heads: an array of axes, None where a layer has fewer heads than another."""
    columns = max(len(cells.heads) for cells in layers)
    places = [
        (row, column) for row, cells in enumerate(layers) for column in range(len(cells.heads))
    ]
    grid = np.full((len(layers), columns), None, dtype=object)
    if ax is not None:
        found = given(ax, len(places), "one for each head of each layer")
        for place, each in zip(places, found, strict=True):
            grid[place] = each
    else:
        titled = len(layers) if len({tuple(cells.heads) for cells in layers}) > 1 else 1
        made = _empty(len(layers), columns, titled)
        for place in np.ndindex(*made.shape):
            if place in places:
                grid[place] = made[place]
            else:
                spare: Any = made[place]
                spare.remove()
    for row, cells in enumerate(layers):
        grid[row, 0].set_ylabel(
            names[row],
            rotation=0,
            ha="right",
            va="center",
            fontsize="small",
            parse_math=False,
            fontfamily=list(families()),
        )
        for column, head in enumerate(cells.heads):
            if row == 0 or cells.heads != layers[0].heads:
                entitle(
                    grid[row, column], f"head {head}" if column == 0 else f"{head}", size="small"
                )
    flat = [grid[place] for place in places]
    _fill(flat, [(layers[row], column) for row, column in places], log=log)
    if ax is None:
        _say_what(flat[0], layers)
    return grid


def columns_for(count: int) -> int:
    """The columns of a grid of so many heads: without a gap at the end, if that looks well.

    Example:
        >>> [columns_for(count) for count in (1, 4, 7, 8, 12, 32)]
        [1, 2, 4, 4, 4, 8]
    """
    wished = math.sqrt(count * WIDE)
    even = [
        n for n in range(math.ceil(math.sqrt(count)), math.isqrt(4 * count) + 1) if count % n == 0
    ]
    return min(even, key=lambda n: abs(n - wished)) if even else math.ceil(wished)


def _fill(axes: Sequence[Axes], maps: Sequence[tuple[Cells, int]], *, log: bool) -> None:
    """Draw the maps, without ticks, on one scale with one colour bar."""
    scale, extend = scales.upwards([cells.shares[place] for cells, place in maps], log=log)
    image = None
    for each, (cells, place) in zip(axes, maps, strict=True):
        image = show(each, cells, place, scale)
        each.set_xticks([])
        each.set_yticks([])
    assert image is not None
    hiding = next((cells for cells, _ in maps if cells.hides), maps[0][0])
    scales.add_bar(image, axes, hiding.unit(), extend)


def _empty(rows: int, columns: int, titled: int) -> np.ndarray:
    """Axes of a new figure, with titles above so many rows of them."""
    wide, high = MAP * columns + 1.8, MAP * rows + 0.2 * titled + 0.6
    shrink = min(1.0, MOST_WIDE / wide, MOST_HIGH / high)
    wide, high = max(4.0, wide * shrink), max(2.4, high * shrink)
    return new_figure(wide, high).subplots(rows, columns, squeeze=False)


def _say_what(axes: Axes, layers: Sequence[Cells]) -> None:
    """Name the sides of all the maps, once, at the edges of the figure."""
    figure = axes.figure
    details = list(dict.fromkeys(cells.detail() for cells in layers))
    detail = f"; {details[0]}" if len(details) == 1 and details[0] else ""
    figure.supxlabel(f"attended to (key){detail}", fontsize="medium")
    figure.supylabel("attends (query)", fontsize="medium")
