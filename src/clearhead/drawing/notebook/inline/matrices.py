"""Matrices, summaries and records as HTML: small maps of the heads, and their numbers."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead._text import format_bytes
from clearhead.drawing.labels import label
from clearhead.drawing.notebook.inline.markup import frame, line, scrolling, table, title
from clearhead.drawing.notebook.inline.pictures import enlarged, picture, shade, side_by_side
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.head_view import PAIRS, Glance, HeadView
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary

if TYPE_CHECKING:
    from clearhead.watching.seen import Seen

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
    """Return in words why a thing that was not drawn was not; "" for a summary with numbers.

    A matrix with numbers counts as too large: its size is not looked at, so call it only without maps.
    """
    none = "There are no numbers to draw."
    if isinstance(thing, Summary):
        return none if HeadView(thing).is_empty else ""
    if HeadView(thing).is_empty or thing.device.type == "meta":
        return none
    return "It is too large to be looked at in passing; summary() works its numbers out."
