"""Scales: 0 is 0, a logarithm leaves nothing out, and text is read on every colour."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from clearhead.drawing.figures.cells import WEIGHTS, around_zero, upwards, write_numbers


def test_hidden_numbers_do_not_set_the_scale() -> None:
    values = np.ma.MaskedArray([0.25, 9.0], mask=[False, True])
    scale, extend = upwards([values, np.array([0.5, np.nan])], log=False)
    assert (scale.vmin, scale.vmax, extend) == (0.0, 0.5, "neither")


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[0.0, 0.0], [], [np.nan], [0.5]])
def test_scales_of_little(log: bool, values: list[float]) -> None:
    scale, _ = upwards([np.array(values)], log=log)
    assert scale.vmin is not None
    assert 0.0 <= scale.vmin < (scale.vmax or 0.0)
    assert scale.vmax == (0.5 if values == [0.5] else 1.0)


def test_a_logarithmic_scale_ends_four_decades_below() -> None:
    scale, extend = upwards([np.array([1e-9, 1e-3, 1.0])], log=True)
    assert (scale.vmin, scale.vmax, extend) == (1e-4, 1.0, "min")
    assert float(scale(1e-9)) == 0.0
    scale, extend = upwards([np.array([1e-3, 1.0])], log=True)
    assert (scale.vmin, extend) == (1e-3, "neither")


@pytest.mark.parametrize("values", [[-np.inf, 2.0], [0.0], []])
def test_zero_is_in_the_middle(values: list[float]) -> None:
    scale = around_zero(np.array(values))
    assert float(scale(0.0)) == 0.5
    assert scale.vmax == (2.0 if 2.0 in values else 1.0)


def test_numbers_are_black_on_light_and_white_on_dark() -> None:
    axes = Figure().subplots()
    image = axes.imshow(np.ma.masked_invalid([[0.0, 1.0, np.nan]]), cmap=WEIGHTS)
    write_numbers(axes, image, [["0", "1", "none"]], "small")
    assert [text.get_color() for text in axes.texts] == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
