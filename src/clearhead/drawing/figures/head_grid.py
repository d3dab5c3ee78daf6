"""Many heads as small maps, side by side on one scale."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.image import AxesImage

from clearhead.drawing.figures.cells import Cells, add_bar, upwards
from clearhead.drawing.figures.head_map import show, show_cells
from clearhead.drawing.figures.lettering import (
    array,
    axes_of,
    entitle,
    families,
    figure_of,
    grid_of,
    tick,
    wrapped,
)

MOST_CELLS = 64
MAP, CHOSEN = 1.1, 2.0
"""Inches of a side of a small map, and of a chosen one."""

SIZE_OF_PAPER = 7
"""Points, as captions of papers have."""

MOST_WIDE, MOST_HIGH = 16.0, 20.0
WIDE = 1.5
"""Columns per row of the grid of the heads of one matrix, about."""


def of_heads(cells: Cells, *, log: bool, ax: object) -> np.ndarray:
    """Draw the heads of one matrix, and return an array of axes, one for each head.

    `ax` holds as many axes; None makes a figure. `log` is a logarithmic scale. Raises as `axes_of`.
    """
    count = len(cells.heads)
    axes = _axes(ax, count, columns_for(count), "one for each head")
    for place, head in zip(axes, cells.heads, strict=True):
        entitle(place, f"head {head}", size="small")
    _fill(axes, [(cells, place) for place in range(count)], log=log)
    if ax is None:
        _name_sides(axes[0], [cells])
    return array(axes)


def of_layers(
    layers: Sequence[Cells], names: Sequence[str], *, log: bool, ax: object
) -> np.ndarray:
    """Draw layers × heads, and return an array of axes, None where a layer has fewer heads.

    `ax` holds one axes for each head of each layer; None makes a figure. `log` is a logarithmic scale. Raises as
    `axes_of`.
    """
    columns = max(len(cells.heads) for cells in layers)
    places = [
        (row, column) for row, cells in enumerate(layers) for column in range(len(cells.heads))
    ]
    grid = np.full((len(layers), columns), None, dtype=object)
    if ax is not None:
        axes = axes_of(ax, len(places), "one for each head of each layer")
    else:
        every = _axes(None, len(layers) * columns, columns, "")
        axes = [every[row * columns + column] for row, column in places]
        for spare in set(every) - set(axes):
            spare.remove()
    for place, each in zip(places, axes, strict=True):
        grid[place] = each
    style = {"rotation": 0, "ha": "right", "va": "center", "fontfamily": list(families())}
    for row, cells in enumerate(layers):
        grid[row, 0].set_ylabel(names[row], fontsize="small", parse_math=False, **style)
        for column, head in enumerate(cells.heads):
            if row == 0 or cells.heads != layers[0].heads:
                title = f"head {head}" if column == 0 else f"{head}"
                entitle(grid[row, column], title, size="small")
    _fill(axes, [(layers[row], column) for row, column in places], log=log)
    if ax is None:
        _name_sides(axes[0], layers)
    return grid


def of_chosen(
    maps: Sequence[Cells],
    titles: Sequence[str],
    *,
    tokens: Sequence[str] | None,
    source_tokens: Sequence[str] | None,
    columns: int | None,
    width: float | None,
    log: bool,
) -> np.ndarray:
    """Draw selected heads of any layers for a paper, on one scale, and return the axes as an array.

    Words are written at the outer edges only.

    Args:
        maps: one head each, of the same tokens.
        titles: the title of each.
        tokens: a word for each query; None for no words.
        source_tokens: a word for each key; None for no words.
        columns: the number of maps in a row; None chooses it.
        width: the width of the figure in inches; None chooses it.
        log: a logarithmic scale.
    """
    count = len(maps)
    columns = min(columns or columns_for(count), count)
    wide = width or min(MOST_WIDE, CHOSEN * columns + 1.2)
    side = wide / columns
    # The colour bar is below, where it takes nothing of the width of a column.
    rows = math.ceil(count / columns)
    axes = grid_of(count, columns, side, min(MOST_HIGH / rows, side + 0.2 + 0.8 / rows))
    image = _fill(axes, [(cells, 0) for cells in maps], log=log, bar=False, draw=show_cells)
    for place, (each, title) in enumerate(zip(axes, titles, strict=True)):
        each.set_title(title, fontsize=SIZE_OF_PAPER, parse_math=False)
        centre = 0.5 if maps[place].pooled else 0.0
        if place % columns == 0 and tokens is not None:
            tick(each, "y", len(tokens), tokens, centre=centre, size=SIZE_OF_PAPER)
        if place + columns >= count and source_tokens is not None:
            tick(each, "x", len(source_tokens), source_tokens, centre=centre, size=SIZE_OF_PAPER)
    figure = figure_of(axes[0])
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, shrink=0.9, pad=0.02)
    bar.set_label(wrapped(_unit(maps), 0.9 * wide, SIZE_OF_PAPER), fontsize=SIZE_OF_PAPER)
    bar.ax.tick_params(labelsize=SIZE_OF_PAPER)
    return array(axes)


def columns_for(count: int) -> int:
    """Return the number of columns for a grid of `count` heads, without a gap in the last row where possible.

    Example:
        >>> [columns_for(count) for count in (1, 4, 7, 8, 12, 32)]
        [1, 2, 4, 4, 4, 8]
    """
    wished = math.sqrt(count * WIDE)
    even = [
        n for n in range(math.ceil(math.sqrt(count)), math.isqrt(4 * count) + 1) if count % n == 0
    ]
    return min(even, key=lambda n: abs(n - wished)) if even else math.ceil(wished)


def _axes(ax: object, count: int, columns: int, of: str) -> list[Axes]:
    """Return the given axes as a list, or `count` of a new figure with room for titles and a colour bar.

    `of` says in an error what there must be one for. Raises as `axes_of`.
    """
    if ax is not None:
        return axes_of(ax, count, of)
    rows = math.ceil(count / columns)
    wide, high = MAP * columns + 1.8, MAP * rows + 0.8
    shrink = min(1.0, MOST_WIDE / wide, MOST_HIGH / high)
    return grid_of(
        count, columns, max(4.0, wide * shrink) / columns, max(2.4, high * shrink) / rows
    )


def _fill(
    axes: Sequence[Axes],
    maps: Sequence[tuple[Cells, int]],
    *,
    log: bool,
    bar: bool = True,
    draw: Callable[..., AxesImage | QuadMesh] = show,
) -> AxesImage | QuadMesh:
    """Draw each map, (cells, index of its head), on its axes, on one scale, and return the last image.

    `log` is a logarithmic scale, else it goes by roots; `bar` adds a colour bar. `draw` is called as `draw(axes, cells,
    place, scale)`. The ticks of the axes are removed.
    """
    shares = [cells.shares[place] for cells, place in maps]
    scale, extend = upwards(shares, log=log, root=True)
    for each, (cells, place) in zip(axes, maps, strict=True):
        draw(each, cells, place, scale)
        each.set(xticks=[], yticks=[])
    image = (axes[-1].images or axes[-1].collections)[0]
    assert isinstance(image, AxesImage | QuadMesh)
    if bar:
        add_bar(image, axes, _unit([cells for cells, _ in maps]), extend)
    return image


def _unit(maps: Sequence[Cells]) -> str:
    """Return the unit of the first of the maps that hides cells, or else of the first."""
    return next((cells for cells in maps if cells.hides), maps[0]).unit()


def _name_sides(axes: Axes, layers: Sequence[Cells]) -> None:
    """Write the names of both axes once, at the edges of the figure of `axes`, with the size of a cell if it is one."""
    details = {cells.detail() for cells in layers}
    detail = f"; {details.pop()}" if len(details) == 1 and "" not in details else ""
    axes.figure.supxlabel(f"attended to (key){detail}", fontsize="medium")
    axes.figure.supylabel("attends (query)", fontsize="medium")
