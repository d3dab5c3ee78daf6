"""Matrices, summaries, records and masks as HTML: small maps as inline PNG pictures, and their numbers."""

import base64
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead._text import format_bytes
from clearhead.drawing.colours import MORE, NO_NUMBER, Colour, channels, colour, png
from clearhead.drawing.labels import label
from clearhead.drawing.notebook.inline.markup import frame, line, scrolling, table, title
from clearhead.errors import ClearheadError
from clearhead.masks.base import REPR_TOKENS, Mask
from clearhead.masks.blocks import block_counts
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_view import PAIRS, Glance, HeadView
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary

if TYPE_CHECKING:
    from clearhead.watching.seen import Seen


EMPTY, NAN, LEVELS = 0, 1, 254
"""Of the 256 colours the first is transparent, the second is for NaN, and the rest go from 0 to 1."""

SHADES = [
    colour(0.0),
    channels(NO_NUMBER),
    *(colour(level / (LEVELS - 1), light=True) for level in range(LEVELS)),
]
SEE_THROUGH = bytes([0])

GAP = 4
"""Pixels between maps that stand side by side."""


def shade(shares: Tensor) -> Tensor:
    """Return shares of one as indices of the palette, uint8; darkness grows with the square root.

    Example:
        >>> shade(torch.tensor([0.0, 1.0, torch.nan]))
        tensor([  2, 255,   1], dtype=torch.uint8)
    """
    levels = (shares.clamp(0, 1).sqrt() * (LEVELS - 1)).round() + 2
    return torch.where(shares.isnan(), float(NAN), levels).to(torch.uint8)


def enlarged(places: Tensor, pixels: int) -> Tensor:
    """Return (rows, columns) with each cell repeated as a square of `pixels` by `pixels`."""
    return places.repeat_interleave(pixels, 0).repeat_interleave(pixels, 1)


def side_by_side(maps: Sequence[Tensor]) -> Tensor:
    """Return maps of equal height, uint8 on the CPU, at least one, joined to one, with gaps between them."""
    gap = torch.full((maps[0].shape[0], GAP), EMPTY, dtype=torch.uint8)
    parts = [part for each in maps for part in (each, gap)]
    return torch.cat(parts[:-1], dim=1)


def picture(
    places: Tensor,
    alt: str,
    *,
    colours: Sequence[Colour] = SHADES,
    opacities: bytes = SEE_THROUGH,
    border: bool = False,
) -> Html:
    """Return an image element with its data inside.

    Args:
        places: (height, width), uint8: places in the table of colours.
        alt: what it shows, in words.
        colours: the table.
        opacities: of the first of them, 0 to 255; the others are opaque.
        border: whether a line goes around it.
    """
    height, width = places.shape
    data = base64.b64encode(png(places, colours, opacities)).decode("ascii")
    style = "display:inline-block;margin:0;vertical-align:middle;max-width:none"
    if border:
        style += ";outline:1px solid rgba(128,128,128,0.5)"
    source = f"data:image/png;base64,{data}"
    return element("img", src=source, alt=alt, title=alt, width=width, height=height, style=style)


CELLS, SIDE = 48, 144
"""Rows and columns of the map of a head that has a picture of its own, and its pixels."""

MOST_HEADS, MOST_LAYERS = 16, 48
"""The most heads of a matrix, and layers of a model, that are drawn."""

ALL_CELLS = 160_000
SMALL_CELLS = 24
"""Cells of all small maps together, which keeps the whole below 300 kB, and of a side of one."""

SMALL_SIDE = 48


def matrix_html(thing: "AttentionMatrix | Summary") -> str:
    """Return a matrix as HTML: a description and, for at most 16 heads of sample 0, a map and its numbers.

    A sentence says why if there are no maps or numbers.

    Example:
        >>> drawn = matrix_html(ch.AttentionMatrix(torch.zeros(2, 5, 4), torch.zeros(2, 5, 4)))
        >>> drawn.count("<img "), "1.61 nats" in drawn
        (2, True)
    """
    maps = HeadView(thing).glance(CELLS, PAIRS)
    parts = [title(element("code", repr(thing)))]
    if isinstance(thing, AttentionMatrix):
        size = format_bytes(thing.nbytes)
        parts.append(line(f"{size} if it were in memory; rows are queries, columns are keys"))
    if maps.entropy is None:
        return frame(*parts, line(_why_undrawn(thing), small=True))
    heads = len(maps.entropy)
    numbers = numbers_of_heads(thing)[:MOST_HEADS]
    parts.append(element("div", *(_head(maps, at, number) for at, number in enumerate(numbers))))
    notes = [_legend(maps), *_part_drawn(thing, maps)]
    if heads > MOST_HEADS:
        notes.append(f"{heads - MOST_HEADS} more heads are not drawn.")
    parts.append(line(" ".join(filter(None, notes)), small=True))
    return frame(*parts)


def seen_html(seen: "Seen[Any]") -> str:
    """Return a record as HTML: for each of at most 48 layers, the small maps and numbers of its heads, of sample 0.

    Example:
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.watch(layer) as seen:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> seen_html(seen).count("<img ")
        1
    """
    words = repr(seen).splitlines()[0]
    layers = [(name, seen.calls(name)) for name in seen.layers][:MOST_LAYERS]
    if not layers:
        return frame(title(words))
    # The one matrix that the calls of a layer are rows of, or the first call.
    shown = [seen.parts([name])[0][1] for name, _ in layers]
    heads = sum(each.num_heads for each in shown)
    cells = max(4, min(SMALL_CELLS, int((ALL_CELLS / max(1, heads)) ** 0.5)))
    rows, every = [], []
    for (name, calls), thing in zip(layers, shown, strict=True):
        maps = HeadView(thing).glance(cells, PAIRS // len(layers))
        every.append(maps)
        times = "" if len(calls) == 1 else f", {len(calls)} calls"
        if times and thing is calls[0]:
            times += ", the first is drawn"
        sizes = f"{thing.num_heads} heads, {maps.query_len} × {maps.kv_len}{times}"
        where = element("code", label(name) if name else "(the model)")
        rows.append(
            [
                element("span", where, line(sizes, small=True)),
                _strip(maps, name),
                _range(maps.entropy),
                _range(None if thing.cross else maps.distance),
            ]
        )
    known = {numbers_of_heads(each) for each in shown if each.heads is not None}
    which = ", ".join(map(str, known.pop())) if len(known) == 1 else "from 0 on"
    heading = ["layer", f"heads, {which}", "entropy, nats", "distance, tokens"]
    drawn = next((maps for maps in every if maps.shares is not None), every[0])
    notes = [_legend(drawn) or _why_undrawn(shown[0]), *_part_drawn(shown[0], drawn)]
    if len(seen.layers) > MOST_LAYERS:
        notes.append(f"{len(seen.layers) - MOST_LAYERS} more layers are not drawn.")
    notes += [f"Not seen: {each.brief()}." for each in seen.missing]
    return frame(
        title(words),
        scrolling(table([heading], rows)),
        line(" ".join(filter(None, notes)), small=True),
    )


def _head(maps: Glance, head: int, number: int) -> Html:
    """Return a head as HTML: its map if there is one, its entropy and its distance, with its number in the layer.

    `maps` must have entropy and distance; `head` is the index in them.
    """
    assert maps.entropy is not None
    assert maps.distance is not None
    numbers = f"{maps.entropy[head]:.2f} nats · {maps.distance[head]:.1f} tokens"
    parts = [line(element("b", f"head {number}"))]
    if maps.shares is not None:
        shares = maps.shares[head]
        top = float(shares.nan_to_num().max())
        alt = f"map of head {number}, from 0 to {top:.3g}: entropy and distance {numbers}"
        pixels = max(1, SIDE // max(shares.shape))
        parts.append(picture(enlarged(_shaded(shares), pixels), alt, border=True))
        parts.append(line(f"largest {top:.3g}", small=True))
    parts.append(line(numbers, small=True))
    style = "display:inline-block;vertical-align:top;margin:4px 16px 4px 0"
    return element("div", *parts, style=style)


def _strip(maps: Glance, layer: str) -> Html:
    """Return the maps of all heads of a layer, side by side, as a picture; "—" if there are none."""
    if maps.shares is None:
        return element("span", "—")
    pixels = max(1, SMALL_SIDE // max(maps.shares.shape[-2:]))
    strip = side_by_side([enlarged(_shaded(each), pixels) for each in maps.shares])
    alt = f"maps of {len(maps.shares)} heads of {label(layer) if layer else 'the model'}"
    return picture(strip, alt)


def _shaded(shares: Tensor) -> Tensor:
    """Return the palette indices of a map, uint8, from 0 to its largest share."""
    top = shares.nan_to_num().max().clamp(min=torch.finfo(shares.dtype).tiny)
    return shade(shares / top)


def _range(numbers: Tensor | None) -> str:
    """Return the smallest and the largest of the numbers as "0.10 to 2.00", one if equal; "—" for None."""
    if numbers is None:
        return "—"
    low, high = float(numbers.min()), float(numbers.max())
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"


def _legend(maps: Glance) -> str:
    """Return the sentence that explains the colours; "" if there are no maps."""
    if maps.shares is None:
        return ""
    return (
        f"The colours of each map go from 0 (white) to its own largest share of a row (dark blue); "
        f"{maps.grain}."
    )


def _part_drawn(thing: "AttentionMatrix | Summary", maps: Glance) -> list[str]:
    """Return sentences on the sample and the queries that the numbers are of; [] if that is everything."""
    notes = []
    if thing.batch > 1:
        notes.append(f"Sample 0 of {thing.batch}.")
    if 0 < maps.queries < maps.query_len:
        notes.append("Entropy and distance are averages of these queries; entropy() has all.")
    return notes


def _why_undrawn(thing: "AttentionMatrix | Summary") -> str:
    """Return the sentence that says why a matrix or a summary has no maps; "" for a summary with numbers.

    A matrix with numbers counts as too large: its size is not looked at, so call it only without maps.
    """
    none = "There are no numbers to draw."
    if isinstance(thing, Summary):
        return none if HeadView(thing).is_empty else ""
    if HeadView(thing).is_empty or thing.device.type == "meta":
        return none
    return "It is too large to be looked at in passing; summary() works its numbers out."


GRID_SIDE, LARGEST_CELL, LINED_CELL = 192, 24, 8
"""Pixels: of the longer side of a picture, of a cell at most, and of one that has lines around it."""

GRID_CELLS = 64
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
    block = (-(-query_len // GRID_CELLS), -(-kv_len // GRID_CELLS))
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
    pixels = min(LARGEST_CELL, GRID_SIDE // max(rows, columns))
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
