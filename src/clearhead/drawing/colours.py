"""The colour scale of pages, figures, notebooks and terminals, blue for more and orange for less; pixels as PNG files.

Lightness changes in even steps of Oklab (Ottosson, 2020), away from the ground, so that the scale reads alike in grey
and for the colour-blind. `frontend/src/shared/colour.ts` computes the same colours; a test compares them.
"""

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead._common.memory import bytes_of

Colour = tuple[int, int, int]

# fmt: off
MORE = ("#F8FAFD", "#D6EDF9", "#B1E0F3", "#8DCDEA", "#67B9E2", "#47A2D8", "#2A89CE", "#2471BB", "#2158A7", "#21438A",
        "#1E2F6D", "#17204E", "#0F1231")
LESS = ("#FCF9F7", "#FBE6D5", "#F7D3B2", "#F2BB8A", "#ECA161", "#DF8745", "#D26C28", "#BA561D", "#A24112", "#843312",
        "#672510", "#4D1A0C", "#341008")
DARK = ("#111419", "#172135", "#1F2F54", "#243F72", "#265191", "#2367A6", "#1D7EBA", "#2896C5", "#3DADCF", "#5EC3D6",
        "#81D8DD", "#AFECE3", "#DCFEF1")
# fmt: on
"""Shares from 0 to 1, differences from 0 to -1, and shares on a dark ground."""

HIDDEN, NO_NUMBER = "#D5D8DA", "#E99355"
"""The colours of what is hidden and of NaN."""

NOTHING = (128, 128, 128)
"""NaN where the ground may be light or dark."""


def colour(share: float, *, light: bool = False) -> Colour:
    """Return red, green and blue, 0 to 255 each, of a share of one; grey for NaN.

    Args:
        share: from 0 to 1; others are clamped.
        light: True for a light ground, as on paper; False for a dark one, as in most terminals.

    Example:
        >>> colour(0.0), colour(1.0), colour(0.0, light=True)
        ((17, 20, 25), (220, 254, 241), (248, 250, 253))
    """
    if math.isnan(share):
        return NOTHING
    scale = MORE if light else DARK
    place = min(max(share, 0.0), 1.0) * (len(scale) - 1)
    below = min(int(place), len(scale) - 2)
    part = place - below
    low, high = channels(scale[below]), channels(scale[below + 1])
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return red, green, blue


def ink(paper: Colour) -> Colour:
    """Return black or white, whichever has more contrast to the background.

    Example:
        >>> ink((220, 254, 241)), ink((17, 20, 25))
        ((0, 0, 0), (255, 255, 255))
    """
    red, green, blue = paper
    # The weights of ITU-R BT.601 for perceived brightness.
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else (255, 255, 255)


def channels(colour: str) -> Colour:
    """Return red, green and blue of a colour such as "#F8FAFD"."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def png(pixels: Tensor, colours: Sequence[Colour] = (), opacities: bytes = b"") -> bytes:
    r"""Return a picture as the bytes of a PNG file.

    Args:
        pixels: uint8, (height, width, 3) of red, green and blue; or (height, width), places in `colours`.
        colours: the table of colours.
        opacities: of the first of them, 0 to 255; the others are opaque.

    Example:
        >>> png(torch.zeros(2, 3, dtype=torch.uint8), [(0, 0, 0)])[:4]
        b'\x89PNG'
    """
    height, width = pixels.shape[:2]
    # Each line begins with how it was filtered: not at all.
    lines = torch.cat([pixels.new_zeros(height, 1), pixels.flatten(1)], dim=1)
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    chunks = [
        (b"IHDR", size + bytes([8, 3 if colours else 2, 0, 0, 0])),
        (b"PLTE", b"".join(bytes(each) for each in colours)),
        (b"tRNS", opacities),
        (b"IDAT", zlib.compress(bytes_of(lines), 9 if colours else 6)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
        for name, data in chunks
        if data or name == b"IEND"
    )
