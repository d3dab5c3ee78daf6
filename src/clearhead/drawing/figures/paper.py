"""Axes to draw on: the user's, or those of a new figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clearhead.errors import ArgumentTypeError, ShapeError


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of `width` by `height` inches.

    It is one of pyplot's, as everywhere in Python: a notebook shows it, `plt.show()` opens it,
    `plt.savefig()` writes it, and it is there until it is closed.
    """
    from matplotlib import pyplot

    return pyplot.figure(figsize=(width, height), layout="constrained")


def grid_of(count: int, columns: int, width: float, height: float) -> list[Axes]:
    """Return a list of `count` axes of a new figure, `columns` in a row, of `width` by `height` inches each."""
    columns = min(columns, count)
    rows = -(-count // columns)
    grid = new_figure(width * columns, height * rows).subplots(rows, columns, squeeze=False)
    axes: list[Axes] = grid.ravel().tolist()
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def one(ax: object, width: float, height: float) -> Axes:
    """Return the given axes, or those of a new figure of `width` by `height` inches.

    Raises:
        ArgumentTypeError: code `plot.axes`, for what is no axes.
    """
    if ax is None:
        return new_figure(width, height).subplots()
    return _an_axes(ax, "one of them")


def given(ax: object, count: int, of: str) -> list[Axes]:
    """Return the given axes as a flat list, from an array of any shape, a list, or axes alone; there must be `count`.

    `of` says in an error what there must be one for.

    Raises:
        ArgumentTypeError: code `plot.axes`, for something in it that is no axes.
        ShapeError: code `plot.axes`, for more or fewer of them.
    """
    if isinstance(ax, np.ndarray):
        flat: Sequence[Any] = ax.ravel().tolist()
    else:
        flat = ax if isinstance(ax, list | tuple) else [ax]
    found = [_an_axes(each, f"{count} of them, {of}") for each in flat]
    if len(found) != count:
        raise ShapeError("plot.axes", f"ax must hold {count} axes, {of}; got {len(found)}.")
    return found


def array(axes: Sequence[Axes]) -> np.ndarray:
    """Return axes as an array of objects, of one dimension."""
    found = np.empty(len(axes), dtype=object)
    found[:] = axes
    return found


def figure_of(axes: Axes) -> Figure:
    """Return the top-level figure of axes."""
    figure = axes.figure.figure  # a figure inside another has that one here, any other itself
    assert isinstance(figure, Figure)
    return figure


def inches(axes: Axes) -> tuple[float, float]:
    """Return the width and height of axes in the present layout, in inches."""
    box = axes.get_window_extent()
    dots = figure_of(axes).dpi
    return box.width / dots, box.height / dots


def _an_axes(ax: object, expected: str) -> Axes:
    """Return `ax`, or raise ArgumentTypeError, code `plot.axes`, if it is not matplotlib axes."""
    if not isinstance(ax, Axes):
        raise ArgumentTypeError(
            "plot.axes",
            f"ax must be matplotlib axes, {expected}, or None for a new figure; got "
            f"{type(ax).__name__}.",
        )
    return ax
