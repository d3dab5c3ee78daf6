"""A mask as a figure: the share of visible pairs in each block, of one pair where the mask is short."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from clearhead._common.checks import check_length
from clearhead.drawing.figures.cells import WEIGHTS, add_bar, check_place, check_words
from clearhead.drawing.figures.head_map import MOST_CELLS, aspect, size
from clearhead.drawing.figures.lettering import axes_or_new, entitle, name_axis, tick
from clearhead.errors import ArgumentError
from clearhead.masks.base import Mask
from clearhead.matrix.head_view import side


def of_mask(
    mask: Mask,
    query_len: int,
    kv_len: int,
    words: tuple[Sequence[str] | None, Sequence[str] | None],
    place: tuple[int, int],
    ax: object,
) -> Axes:
    """Draw a mask, and return the axes; arguments and errors are those of `Mask.plot`.

    `words` are those of queries and keys; `place` is (sample, head).
    """
    query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
    sample, head = place
    batch, heads = mask.leading
    # A mask that is the same for all samples, or heads, has any of them.
    sample = check_place("sample", sample, batch) if mask.batch is not None else 0
    head = check_place("head", head, heads) if mask.heads is not None else 0
    rows, columns = check_words(*words, query_len, kv_len)
    if min(query_len, kv_len) == 0:
        raise ArgumentError(
            "plot.empty", f"there is nothing to draw: query_len={query_len}, kv_len={kv_len}."
        )
    block = (-(-query_len // side(query_len, MOST_CELLS)), -(-kv_len // side(kv_len, MOST_CELLS)))
    shares = mask.blocks(query_len, kv_len, block).share
    if shares.ndim == 4:
        shares = shares[sample, min(head, shares.shape[1] - 1)]
    axes = axes_or_new(ax, *size(query_len, kv_len, rows is not None or columns is not None))
    # A pair is a cell around its numbers; a block begins at its first token, and may reach beyond the last.
    first = -0.5 if block == (1, 1) else 0.0
    bottom, right = shares.shape[0] * block[0] + first, shares.shape[1] * block[1] + first
    image = axes.imshow(
        np.ma.masked_equal(shares.cpu().numpy(), 0.0),
        cmap=WEIGHTS.with_extremes(bad="white"),
        norm=Normalize(-0.25, 1.0),  # so that a little is not white
        extent=(first, right, bottom, first),
        aspect=aspect(query_len, kv_len),
    )
    axes.set(xlim=(first, kv_len + first), ylim=(query_len + first, first))
    bar = add_bar(image, axes, "share of the pairs that are visible; white: none")
    bar.ax.set_ylim(0.0, 1.0)
    tick(axes, "x", kv_len, columns, centre=0.5 + first)
    tick(axes, "y", query_len, rows, centre=0.5 + first)
    detail = "" if block == (1, 1) else f"one cell = {block[0]} × {block[1]} tokens"
    name_axis(axes, "x", "\n".join(filter(None, ["key", detail])))
    name_axis(axes, "y", "query")
    where = [f"sample {sample}"] * (batch > 1) + [f"head {head}"] * (heads > 1)
    title = mask.describe()
    title = title if len(title) <= 60 else title[:59] + "…"
    entitle(axes, "\n".join(filter(None, [title, ", ".join(where)])), size="medium")
    return axes
