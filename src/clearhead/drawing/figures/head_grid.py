"""Many heads as small maps, side by side on one scale."""

import math
from collections.abc import Sequence

import numpy as np

from clearhead.drawing.figures.cells import grain, map_of, unit, upwards
from clearhead.drawing.figures.head_map import show
from clearhead.drawing.figures.lettering import families, figure_of, grid_of, tick, wrapped
from clearhead.matrix.head_view import HeadMaps

MOST_CELLS = 64
MAP, CHOSEN = 1.1, 2.0
"""Inches of a side of a small map, and of one with words."""

SIZE = 7
"""Points, as captions of papers have."""

LEAST_WIDE, MOST_WIDE = 4.0, 16.0
LEAST_HIGH, MOST_HIGH = 2.4, 20.0
WIDE = 1.5
"""Columns per row of the grid of the heads of one matrix, about."""


def draw_grid(
    maps: Sequence[tuple[HeadMaps, int] | None],
    titles: Sequence[str],
    columns: int,
    *,
    names: Sequence[str] = (),
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    width: float | None = None,
) -> np.ndarray:
    """Draw maps row by row on one scale, and return an array of their axes.

    Words are written at the outer edges only.

    Args:
        maps: the maps of a layer and the index of one of its heads, for each place; None leaves the place empty.
        titles: the title of each.
        columns: the number of maps in a row.
        names: the name of each row; () for none.
        tokens: a word for each query; None for no words.
        source_tokens: a word for each key; None for no words.
        width: the width of the figure in inches; None chooses it.
    """
    lettered = tokens is not None or source_tokens is not None
    columns = min(columns, len(maps))
    rows = math.ceil(len(maps) / columns)
    wide = max(LEAST_WIDE, (CHOSEN if lettered else MAP) * columns + 1.2)
    wide = width or min(MOST_WIDE, wide)
    side = wide / columns
    # The colour bar is below, where it takes nothing of the width of a column.
    high = min(MOST_HIGH, max(LEAST_HIGH, (side + 0.2) * rows + 0.8))
    axes = grid_of(len(maps), columns, side, high / rows)
    drawn = [map_of(*each) for each in maps if each is not None]
    scale = upwards(drawn, root=True)
    found = np.full(len(maps), None, dtype=object)
    for place, (each, given) in enumerate(zip(axes, maps, strict=True)):
        if given is None:
            each.remove()
            continue
        found[place], head_maps = each, given[0]
        show(each, *given, scale)
        each.set(xticks=[], yticks=[])
        each.set_title(titles[place], fontsize=SIZE, parse_math=False)
        centre = 0.5 if head_maps.pooled else 0.0
        if place % columns == 0 and tokens is not None:
            tick(each, "y", len(tokens), tokens, centre=centre, size=SIZE)
        if place + columns >= len(maps) and source_tokens is not None:
            tick(each, "x", len(source_tokens), source_tokens, centre=centre, size=SIZE)
    style = {"rotation": 0, "ha": "right", "va": "center", "fontfamily": list(families())}
    for row, name in enumerate(names):
        axes[row * columns].set_ylabel(name, fontsize="small", parse_math=False, **style)
    known = [each[0] for each in maps if each is not None]
    grains = {grain(each) for each in known}
    words = [unit(drawn, pooled=any(each.pooled for each in known)), "rows attend to columns"]
    words += grains if len(grains) == 1 and "" not in grains else []
    shown = [each for each in found if each is not None]
    bar = figure_of(axes[0]).colorbar(
        shown[-1].images[0], ax=shown, location="bottom", aspect=40, shrink=0.9, pad=0.02
    )
    bar.set_label(wrapped("; ".join(words), 0.9 * wide, SIZE), fontsize=SIZE)
    bar.ax.tick_params(labelsize=SIZE)
    return found


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
