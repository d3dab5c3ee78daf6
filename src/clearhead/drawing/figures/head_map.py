"""One head as a map, rows attend to columns; also as a PNG file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from clearhead._common.writing import replacing
from clearhead.drawing.figures.cells import (
    HIDDEN,
    NO_NUMBER,
    WEIGHTS,
    Cells,
    add_bar,
    masked,
    upwards,
)
from clearhead.drawing.figures.lettering import (
    MOST_LABELS,
    axes_or_new,
    entitle,
    figure_of,
    name_axis,
    tick,
)

MOST_CELLS = 256
PER_TOKEN = 0.25
LEAST, PLAIN, MOST = 2.2, 4.2, 8.4
"""Inches: of a token with its text; of a side at least, without such texts, and at most."""

STRETCHED = 3
"""Sides that differ more than this are drawn as long as each other."""


def draw(
    cells: Cells,
    *,
    title: str,
    tokens: Sequence[str] | None,
    source_tokens: Sequence[str] | None,
    log: bool,
    ax: object,
) -> Axes:
    """Draw the first head of `cells` with titles and a colour bar, and return the axes.

    On `ax`, or on new axes if it is None; the colours go by roots unless `log`. Raises as `lettering.axes_or_new`.
    """
    lettered = tokens is not None or source_tokens is not None
    axes = axes_or_new(ax, *size(cells.query_len, cells.kv_len, lettered))
    scale, extend = upwards([cells.shares[0]], log=log, root=True)
    image = show(axes, cells, 0, scale)
    centre = 0.5 if cells.pooled else 0.0
    tick(axes, "x", cells.kv_len, source_tokens, centre=centre)
    tick(axes, "y", cells.query_len, tokens, centre=centre)
    entitle(axes, title)
    name_axis(axes, "x", "\n".join(filter(None, ["attended to (key)", cells.detail()])))
    name_axis(axes, "y", "attends (query)")
    add_bar(image, [axes], cells.unit(), extend)
    return axes


def show(axes: Axes, cells: Cells, place: int, scale: Normalize) -> AxesImage:
    """Draw the map at `place` as an image on axes that count tokens, and return it; NaN is drawn over it."""
    # A pair of tokens is a cell around its numbers; a cell of many begins at its first.
    edges = (0, cells.kv_len, cells.query_len, 0) if cells.pooled else None
    shares = cells.shares[place]
    image = axes.imshow(
        shares,
        cmap=WEIGHTS.with_extremes(bad=HIDDEN),
        norm=scale,
        extent=edges,
        aspect=aspect(cells.query_len, cells.kv_len),
    )
    broken = np.ma.filled(np.isnan(shares), False)
    if broken.any():
        # An image has one colour for all that is no number, hidden or not: NaN lies over it.
        axes.imshow(
            np.ma.MaskedArray(broken, mask=~broken),
            cmap=ListedColormap([NO_NUMBER]),
            extent=edges,
            aspect=aspect(cells.query_len, cells.kv_len),
        )
    return image


def show_cells(axes: Axes, cells: Cells, place: int, scale: Normalize) -> QuadMesh:
    """Draw the map at `place` as vector cells, which stay sharp in a PDF, and return them.

    Sets the limits of the axes.
    """
    shares = cells.shares[place]
    first = 0.0 if cells.pooled else -0.5
    lengths = zip((cells.query_len, cells.kv_len), shares.shape, strict=True)
    rows, columns = (first + np.linspace(0, length, count + 1) for length, count in lengths)

    def mesh(values: np.ma.MaskedArray, **colours: Any) -> QuadMesh:
        """Draw a cell for each of the values, (rows, columns), with the options of a colour map, and return them."""
        # Neighbours overlap by a hair, else a viewer lets the ground shine through.
        return axes.pcolormesh(
            columns, rows, values, edgecolors="face", linewidth=0.1, antialiased=True, **colours
        )

    found = mesh(shares, cmap=WEIGHTS.with_extremes(bad=HIDDEN), norm=scale)
    broken = np.ma.filled(np.isnan(shares), False)
    if broken.any():
        over = np.ma.MaskedArray(broken.astype(float), mask=~broken)
        mesh(over, cmap=ListedColormap([NO_NUMBER]))
    axes.set(xlim=(columns[0], columns[-1]), ylim=(rows[-1], rows[0]))
    axes.set_aspect(aspect(cells.query_len, cells.kv_len))
    return found


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


DOTS_PER_INCH = 150


def head_picture(
    weights: Tensor,
    tokens: Sequence[str],
    *,
    title: str,
    visible: Tensor | None = None,
    head: int = 0,
) -> Axes:
    """Draw one head as a map; rows attend to columns.

    Args:
        weights: (tokens, tokens), shares of one; or fewer rows and columns, of a long text: the share of its
            attention that a row gives a column.
        tokens: a word for each query and key, written where there is a cell for each.
        title: the title of the picture.
        visible: (tokens, tokens), bool: the visible pairs, None for all; the others are grey.
        head: the number of the head.

    Returns:
        The axes; `axes.figure` is the figure, of a size that keeps the tokens legible.

    Example:
        >>> axes = head_picture(torch.eye(2), ["to", "be"], title="layer 3, head 5")
        >>> [text.get_text() for text in axes.get_yticklabels()]
        ['to', 'be']
        >>> head_picture(torch.eye(4), ["to", "be"] * 4, title="").get_xlabel().splitlines()[1]
        'one cell = 2 × 2 tokens'
    """
    sides = (len(tokens), len(tokens))
    cells = Cells(
        masked(weights.float()[None], None if visible is None else ~visible), [head], *sides
    )
    words = None if cells.pooled else tokens
    # A figure that pyplot does not know: it is written to a file, and gone.
    figure = Figure(figsize=size(*sides, words is not None), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    return draw(cells, title=title, tokens=words, source_tokens=words, log=False, ax=axes)


def save_png(axes: Axes, path: str | os.PathLike[str]) -> Path:
    """Write the figure of some axes as a PNG, completely or not at all, and return its path.

    The same picture gives the same bytes.

    Raises:
        ArgumentTypeError: code `path.type`, for what is no path.
        FileError: code `file.unwritable`, if the place cannot be written to.

    Example:
        >>> import tempfile
        >>> axes = head_picture(torch.eye(2), ["to", "be"], title="layer 3, head 5")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_png(axes, f"{folder}/head.png").name
        'head.png'
    """
    with replacing(path) as (name, target):
        figure_of(axes).savefig(name, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return target
