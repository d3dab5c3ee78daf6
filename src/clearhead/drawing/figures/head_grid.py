"""Many heads as small maps, side by side on one scale."""

import math
from collections.abc import Sequence

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
ROUGHLY_SQUARE = 1.5
"""How many times as many columns as rows the heads of one matrix are set in, at most."""


def of_heads(cells: Cells, *, log: bool, ax: object) -> np.ndarray:
    """The heads of one matrix: an array of axes, one for each head."""
    count = len(cells.heads)
    if ax is not None:
        axes = given(ax, count, "one for each head")
    else:
        columns = min(count, math.ceil(math.sqrt(count * ROUGHLY_SQUARE)))
        rows = math.ceil(count / columns)
        grid = _empty(rows, columns)
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
        made = _empty(len(layers), columns)
        for place in np.ndindex(*made.shape):
            if place in places:
                grid[place] = made[place]
            else:
                made[place].remove()
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


def _empty(rows: int, columns: int) -> np.ndarray:
    wide, high = min(MAP * columns + 1.8, MOST_WIDE), min((MAP + 0.2) * rows + 0.8, MOST_HIGH)
    return new_figure(wide, high).subplots(rows, columns, squeeze=False)


def _say_what(axes: Axes, layers: Sequence[Cells]) -> None:
    """What the sides of all the maps are, once, at the edges of the figure."""
    figure = axes.figure
    details = list(dict.fromkeys(cells.detail() for cells in layers))
    detail = f"; {details[0]}" if len(details) == 1 and details[0] else ""
    figure.supxlabel(f"attended to (key){detail}", fontsize="medium")
    figure.supylabel("attends (query)", fontsize="medium")
