"""Colours: even in lightness, and legible."""

import math

from clearhead.drawing.colours import HIDDEN, Colour, channels, colour, ink


def lightness(rgb: Colour) -> float:
    """Relative luminance (WCAG 2.2), 0 to 1."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_more_is_lighter() -> None:
    scale = [lightness(colour(step / 100)) for step in range(101)]
    assert scale == sorted(scale)
    assert scale[0] < 0.03
    assert scale[-1] > 0.7


def test_on_paper_more_is_darker() -> None:
    scale = [lightness(colour(step / 100, light=True)) for step in range(101)]
    assert scale == sorted(scale, reverse=True)
    # What is hidden is told from what is nearly zero.
    assert (scale[0] + 0.05) / (lightness(channels(HIDDEN)) + 0.05) > 1.3


def test_outside_of_the_scale() -> None:
    assert colour(-1.0) == colour(0.0)
    assert colour(2.0) == colour(1.0)
    assert colour(math.nan) == (128, 128, 128)


def test_ink_is_legible_on_every_paper() -> None:
    for step in range(101):
        paper = colour(step / 100)
        low, high = sorted([lightness(paper), lightness(ink(paper))])
        # The contrast that WCAG 2.2 asks of large text.
        assert (high + 0.05) / (low + 0.05) > 3.0
