"""A mask as a grid of visible pairs, or, if it is long, of the visible share of each block."""

from itertools import product

import torch
from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead.drawing.colours import MORE, channels
from clearhead.drawing.notebook.inline.markup import frame, line, title
from clearhead.drawing.notebook.inline.pictures import enlarged, picture
from clearhead.errors import ClearheadError
from clearhead.masks.base import REPR_TOKENS, Mask
from clearhead.masks.blocks import block_counts

SIDE, LARGEST_CELL, LINED_CELL = 192, 24, 8
"""Pixels: of the longer side of a picture, of a cell at most, and of one that has lines around it."""

CELLS = 64
"""Rows and columns of a picture at most; a mask of no more tokens is drawn pair by pair."""

MOST_PARTS = 8
"""The most samples and heads that are drawn of a mask in which they differ."""

VISIBLE = channels(MORE[6])
SHARES = [*[(128, 128, 128)] * 2, *[VISIBLE] * 64]
# A hidden pair is a faint grey on any ground, a visible one stands out the more the more is visible.
OPACITIES = bytes([0, 40, *(round(80 + 175 * level / 63) for level in range(64))])


def mask_html(mask: Mask) -> str:
    """Return a mask as HTML, at its own lengths, or at a few tokens if it fits any length.

    Without pictures if it has no numbers or no tokens, or is made for sizes that it does not know.

    Example:
        >>> "21 of 36 pairs visible" in mask_html(ch.causal())
        True
    """
    query_len, kv_len = mask.sizes() or (REPR_TOKENS, REPR_TOKENS)
    heading = title(element("code", mask.describe()))
    unreadable = mask.device is not None and mask.device.type == "meta"
    if unreadable or 0 in (query_len, kv_len):
        return frame(heading)
    try:
        return frame(heading, *_pictures(mask, query_len, kv_len))
    except ClearheadError:  # made for lengths that only the query will tell
        return frame(heading, line("It is made for sizes that only a query will tell.", small=True))


def _pictures(mask: Mask, query_len: int, kv_len: int) -> list[Html]:
    """Return a mask as HTML: a heading, pictures, a legend.

    One for each sample and head in which it differs, at most 8. Raises ClearheadError if the mask does not fit the
    lengths.
    """
    block = (-(-query_len // CELLS), -(-kv_len // CELLS))
    mask.check(mask.extent(query_len, kv_len))
    counts = block_counts(mask, query_len, kv_len, block).expand(*mask.leading, -1, -1).cpu()
    sizes = _sizes(query_len, block[0])[:, None] * _sizes(kv_len, block[1])
    parts = list(product(range(counts.shape[0]), range(counts.shape[1])))
    drawn = [
        _part(_name(sample, head, mask), counts[sample, head], sizes)
        for sample, head in parts[:MOST_PARTS]
    ]
    visible, pairs = int(counts.sum()), int(sizes.sum()) * len(parts)
    same = "" if mask.sizes() else " (it fits any length)"
    words = f"{query_len} queries × {kv_len} keys{same}: {visible:,} of {pairs:,} pairs visible"
    share = f" ({100 * visible / pairs:.3g} %)"
    whole = block == (1, 1)
    cell = "a pair" if whole else f"{block[0]} × {block[1]} pairs"
    colours = (
        "may attend, grey is hidden"
        if whole
        else "is visible, paler where only some of its pairs are; grey is hidden"
    )
    more = len(parts) - len(drawn)
    legend = [
        f"Rows are queries, columns are keys; a cell is {cell}; ",
        element("span", "■", style=f"color:{MORE[6]}"),
        f" {colours}.",
        f" {more} more samples or heads are not drawn." if more else "",
    ]
    heading = line(words.replace(",", " ") + share)
    return [heading, element("div", *drawn), line(*legend, small=True)]


def _part(name: str, counts: Tensor, sizes: Tensor) -> Html:
    """Return the picture of one sample and head as HTML, with its name, if any, below it.

    `counts` are the visible pairs of each block, `sizes` all of its pairs.
    """
    rows, columns = counts.shape
    visible, pairs = int(counts.sum()), int(sizes.sum())
    # A block with a single visible, or hidden, pair does not count as empty, or full.
    share = (counts.double() / sizes * 63).floor()
    places = torch.where(counts == 0, 1, share.long() + 2).to(torch.uint8)
    pixels = min(LARGEST_CELL, SIDE // max(rows, columns))
    places = enlarged(places, pixels)
    if pixels >= LINED_CELL:
        places[pixels - 1 :: pixels] = places[:, pixels - 1 :: pixels] = 0
    alt = f"{name or 'the mask'}: {visible} of {pairs} pairs visible"
    image = picture(places, alt, colours=SHARES, opacities=OPACITIES)
    children = [image, line(name, small=True)] if name else [image]
    return element("div", *children, style="display:inline-block;margin:4px 12px 4px 0")


def _name(sample: int, head: int, mask: Mask) -> str:
    """Return the words for a sample and a head of a mask; "" if it has only one."""
    parts = (("sample", sample, mask.batch), ("head", head, mask.heads))
    return ", ".join(f"{name} {at}" for name, at, count in parts if (count or 1) > 1)


def _sizes(length: int, block: int) -> Tensor:
    """Return the number of positions in each block of a length; the last block may be smaller."""
    starts = torch.arange(0, length, block)
    return (length - starts).clamp(max=block)
