"""A mask as a figure: visible pairs, or the share of visible pairs in each block."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.patches import Patch
from torch import Tensor

from clearhead._common.checks import check_length
from clearhead.drawing.colours import MORE
from clearhead.drawing.figures.cells import WEIGHTS, add_bar, check_cells, check_place, check_words
from clearhead.drawing.figures.head_map import MOST_CELLS, aspect, size
from clearhead.drawing.figures.lettering import axes_or_new, entitle, name_axis, tick
from clearhead.errors import ArgumentError
from clearhead.masks.base import Mask
from clearhead.matrix.head_view import side

VISIBLE, HIDDEN = MORE[7], "#FFFFFF"
EDGE = "#808080"
LEGEND = 0.6
"""Inches that a legend takes more than a colour bar."""


def of_mask(
    mask: Mask,
    query_len: int,
    kv_len: int,
    words: tuple[Sequence[str] | None, Sequence[str] | None],
    place: tuple[int, int],
    cells: int | None,
    ax: object,
) -> Axes:
    """Draw a mask, and return the axes; arguments and errors are those of `Mask.plot`.

    `words` are those of queries and keys; `place` is (sample, head).
    """
    query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
    sample, head = place
    most = check_cells(cells) or MOST_CELLS
    batch, heads = mask.leading
    # A mask that is the same for all samples, or heads, has any of them.
    sample = check_place("sample", sample, batch) if mask.batch is not None else 0
    head = check_place("head", head, heads) if mask.heads is not None else 0
    rows, columns = check_words(*words, query_len, kv_len)
    if min(query_len, kv_len) == 0:
        raise ArgumentError(
            "plot.empty", f"there is nothing to draw: query_len={query_len}, kv_len={kv_len}."
        )
    lettered = rows is not None or columns is not None
    block = (-(-query_len // side(query_len, most)), -(-kv_len // side(kv_len, most)))
    found = mask.blocks(query_len, kv_len, block)
    shares = found.share
    if shares.ndim == 4:
        shares = shares[sample, min(head, shares.shape[1] - 1)]
    wide, high = size(query_len, kv_len, lettered)
    whole = block == (1, 1)
    axes = axes_or_new(ax, wide + LEGEND * whole, high)
    if whole:
        _draw_pairs(axes, shares)
    else:
        _draw_blocks(axes, shares, block, query_len, kv_len)
    tick(axes, "x", kv_len, columns, centre=0.0 if whole else 0.5)
    tick(axes, "y", query_len, rows, centre=0.0 if whole else 0.5)
    detail = "" if whole else f"one cell = {block[0]} × {block[1]} tokens"
    name_axis(axes, "x", "\n".join(filter(None, ["key", detail])))
    name_axis(axes, "y", "query")
    where = [f"sample {sample}"] * (batch > 1) + [f"head {head}"] * (heads > 1)
    title = mask.describe()
    title = title if len(title) <= 60 else title[:59] + "…"
    entitle(axes, "\n".join(filter(None, [title, ", ".join(where)])), size="medium")
    return axes


def _draw_pairs(axes: Axes, shares: Tensor) -> None:
    """Draw pairs, (queries, keys), 1 if visible and 0 if hidden, in two colours on axes, with a legend."""
    rows, columns = shares.shape
    axes.imshow(
        shares.cpu().numpy(),
        cmap=ListedColormap([HIDDEN, VISIBLE]),
        norm=Normalize(0, 1),
        aspect=aspect(rows, columns),
    )
    kinds = [Patch(facecolor=VISIBLE, edgecolor=EDGE, label="visible")]
    kinds += [Patch(facecolor=HIDDEN, edgecolor=EDGE, label="hidden")]
    axes.legend(handles=kinds, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)


def _draw_blocks(
    axes: Axes, shares: Tensor, block: tuple[int, int], query_len: int, kv_len: int
) -> None:
    """Draw blocks, (rows, columns), by their share of visible pairs, with a colour bar.

    A fully hidden block is white.
    """
    values = np.ma.masked_equal(shares.cpu().numpy(), 0.0)
    # The last block of a row or column may reach beyond the tokens.
    bottom, right = shares.shape[0] * block[0], shares.shape[1] * block[1]
    image = axes.imshow(
        values,
        cmap=WEIGHTS.with_extremes(bad="white"),
        norm=Normalize(-0.25, 1.0),  # so that a little is not white
        extent=(0, right, bottom, 0),
        aspect=aspect(query_len, kv_len),
    )
    axes.set_xlim(0, kv_len)
    axes.set_ylim(query_len, 0)
    bar = add_bar(image, [axes], "share of the pairs that are visible; white: none", "neither")
    bar.ax.set_ylim(0.0, 1.0)
