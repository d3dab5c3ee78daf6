"""Maps as inline PNG pictures, with one byte per pixel and a palette."""

import base64
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead._common.elements import Html, element
from clearhead.drawing.colours import NO_NUMBER, Colour, channels, colour
from clearhead.drawing.png import png

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
