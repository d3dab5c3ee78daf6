"""A share of one as a colour: viridis, whose lightness grows evenly
(Smith and van der Walt, 2015, https://bids.github.io/colormap)."""

import math

Colour = tuple[int, int, int]

VIRIDIS = (
    0x440154,
    0x481A6C,
    0x472F7D,
    0x414487,
    0x39568C,
    0x31688E,
    0x2A788E,
    0x23888E,
    0x1F988B,
    0x22A884,
    0x35B779,
    0x54C568,
    0x7AD151,
    0xA5DB36,
    0xD2E21B,
    0xFDE725,
)
NOTHING = (128, 128, 128)


def colour(share: float) -> Colour:
    """Red, green and blue, 0 to 255 each, for a share of one; grey for NaN.

    Example:
        >>> colour(0.0), colour(1.0)
        ((68, 1, 84), (253, 231, 37))
    """
    if math.isnan(share):
        return NOTHING
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    below = min(int(place), len(VIRIDIS) - 2)
    low, high = _channels(VIRIDIS[below]), _channels(VIRIDIS[below + 1])
    return _mixed(low, high, place - below)


def ink(paper: Colour) -> Colour:
    """Black or white, whichever reads better on the paper.

    Example:
        >>> ink((253, 231, 37)), ink((68, 1, 84))
        ((0, 0, 0), (255, 255, 255))
    """
    red, green, blue = paper
    # The weights of ITU-R BT.601 for what the eye takes for light.
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else (255, 255, 255)


def _channels(number: int) -> Colour:
    return number >> 16, number >> 8 & 255, number & 255


def _mixed(low: Colour, high: Colour, part: float) -> Colour:
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return red, green, blue
