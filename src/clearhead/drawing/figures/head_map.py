"""One head as a map, rows attend to columns."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.image import AxesImage

from clearhead.drawing.colours import HIDDEN, NO_NUMBER
from clearhead.drawing.figures.cells import WEIGHTS, add_bar, grain, map_of, unit, upwards
from clearhead.drawing.figures.lettering import MOST_LABELS, axes_or_new, entitle, name_axis, tick
from clearhead.matrix.head_view import HeadMaps

MOST_CELLS = 256
PER_TOKEN = 0.25
LEAST, PLAIN, MOST = 2.2, 4.2, 8.4
"""Inches: of a token with its text; of a side at least, without such texts, and at most."""

STRETCHED = 3
"""Sides that differ more than this are drawn as long as each other."""


def draw(
    maps: HeadMaps,
    *,
    title: str,
    tokens: Sequence[str] | None,
    source_tokens: Sequence[str] | None,
    ax: object,
) -> Axes:
    """Draw the first of the maps with titles and a colour bar, and return the axes.

    On `ax`, or on new axes if it is None; the colours go by roots. Raises as `lettering.axes_or_new`.
    """
    lettered = tokens is not None or source_tokens is not None
    axes = axes_or_new(ax, *size(maps.query_len, maps.kv_len, lettered))
    shares = map_of(maps, 0)
    image = show(axes, maps, 0, upwards([shares], root=True))
    centre = 0.5 if maps.pooled else 0.0
    tick(axes, "x", maps.kv_len, source_tokens, centre=centre)
    tick(axes, "y", maps.query_len, tokens, centre=centre)
    entitle(axes, title)
    name_axis(axes, "x", "\n".join(filter(None, ["attended to (key)", grain(maps)])))
    name_axis(axes, "y", "attends (query)")
    add_bar(image, axes, unit([shares], pooled=maps.pooled))
    return axes


def show(axes: Axes, maps: HeadMaps, place: int, scale: Normalize) -> AxesImage:
    """Draw the map at `place` as an image on axes that count tokens, and return it; NaN is drawn over it."""
    # A pair of tokens is a cell around its numbers; a cell of many begins at its first.
    edges = (0, maps.kv_len, maps.query_len, 0) if maps.pooled else None
    shares, sides = map_of(maps, place), aspect(maps.query_len, maps.kv_len)
    # In a PDF the cells are as they are, for any resolution.
    style = {"extent": edges, "aspect": sides, "interpolation": "none"}
    image = axes.imshow(shares, cmap=WEIGHTS.with_extremes(bad=HIDDEN), norm=scale, **style)
    broken = np.ma.filled(np.isnan(shares), False)
    if broken.any():
        # An image has one colour for all that is no number, hidden or not: NaN lies over it.
        over = np.ma.MaskedArray(broken, mask=~broken)
        axes.imshow(over, cmap=ListedColormap([NO_NUMBER]), **style)
    return image


def aspect(rows: int, columns: int) -> Literal["equal", "auto"]:
    """Return "equal" for square cells; "auto" if one side of the map is over three times as long as the other."""
    return "equal" if 1 / STRETCHED <= rows / columns <= STRETCHED else "auto"


def size(query_len: int, kv_len: int, lettered: bool) -> tuple[float, float]:
    """Return width and height of a figure, in inches, with room for a label per token if it is `lettered`."""
    counts = (kv_len, query_len)
    if lettered:
        # Where not every token has a label, the figure need not be large.
        most = MOST if max(counts) <= MOST_LABELS else PLAIN
        sides = [min(max(PER_TOKEN * each, LEAST), most) for each in counts]
        return sides[0] + 2.2, sides[1] + 1.6
    sides = [PLAIN * max(0.5, each / max(counts)) for each in counts]
    return sides[0] + 1.8, sides[1] + 1.2
