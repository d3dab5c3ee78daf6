"""Many heads as small maps, side by side on one scale."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.image import AxesImage

from clearhead.drawing.figures import scales
from clearhead.drawing.figures.cells import Cells
from clearhead.drawing.figures.head_map import show, show_cells
from clearhead.drawing.figures.lettering import entitle, families, tick, wrapped
from clearhead.drawing.figures.paper import array, given, new_figure

MOST_CELLS = 64
MAP = 1.1
"""Inches of a side of a small map."""

CHOSEN, LETTERED = 2.0, 0.5
"""Inches of a side of a chosen map, and of the words below the last."""

SIZE_OF_PAPER = 7
"""Points, as captions of papers have."""

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
    """Some heads of any layers for a paper: on one scale, with words at the outer edges alone.

    Args:
        maps: one head each, of the same tokens.
        titles: what stands above each.
        tokens, source_tokens: a word for each query and each key; None for none.
        columns: maps side by side; None for as many as look well.
        width: of the figure, in inches; None for what the maps take.
        log: a logarithmic scale.
    """
    count = len(maps)
    columns = min(columns or columns_for(count), count)
    rows = math.ceil(count / columns)
    wide = width or min(MOST_WIDE, CHOSEN * columns + 1.2)
    # The colour bar lies below, where it takes nothing of the width of a column.
    lettered = LETTERED if tokens or source_tokens else 0.0
    side = (wide - (lettered if tokens else 0.1)) / columns
    figure = new_figure(wide, min(MOST_HIGH, (side + 0.25) * rows + lettered + 0.5))
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = grid.ravel().tolist()[:count]
    for spare in grid.ravel().tolist()[count:]:
        spare.remove()
    image = _fill(axes, [(cells, 0) for cells in maps], log=log, bar=False, draw=show_cells)
    for place, (each, title) in enumerate(zip(axes, titles, strict=True)):
        each.set_title(title, fontsize=SIZE_OF_PAPER, parse_math=False)
        centre = 0.5 if maps[place].pooled else 0.0
        if place % columns == 0 and tokens is not None:
            tick(each, "y", len(tokens), tokens, centre=centre, size=SIZE_OF_PAPER)
        if place + columns >= count and source_tokens is not None:
            tick(each, "x", len(source_tokens), source_tokens, centre=centre, size=SIZE_OF_PAPER)
    hiding = next((cells for cells in maps if cells.hides), maps[0])
    bar = figure.colorbar(image, ax=axes, location="bottom", aspect=40, shrink=0.9, pad=0.02)
    bar.set_label(wrapped(hiding.unit(), 0.9 * wide, SIZE_OF_PAPER), fontsize=SIZE_OF_PAPER)
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


def _fill(
    axes: Sequence[Axes],
    maps: Sequence[tuple[Cells, int]],
    *,
    log: bool,
    bar: bool = True,
    draw: Callable[..., AxesImage | QuadMesh] = show,
) -> AxesImage | QuadMesh:
    """Draw the maps, without ticks, on one scale with one colour bar."""
    scale, extend = scales.upwards(
        [cells.shares[place] for cells, place in maps], log=log, root=True
    )
    image = None
    for each, (cells, place) in zip(axes, maps, strict=True):
        image = draw(each, cells, place, scale)
        each.set_xticks([])
        each.set_yticks([])
    assert image is not None
    if bar:
        hiding = next((cells for cells, _ in maps if cells.hides), maps[0][0])
        scales.add_bar(image, axes, hiding.unit(), extend)
    return image


def _empty(rows: int, columns: int, titled: int) -> np.ndarray:
    """Return the axes of a new figure, with space for titles above `titled` rows."""
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
