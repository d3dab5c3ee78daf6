"""Axes: given ones are drawn in, others are pyplot's, and what is none is refused."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import clearhead as ch
from tests.drawing.figures.drawn import matrix, numbers


def test_a_figure_of_its_own_is_one_of_pyplot() -> None:
    axes = matrix().plot(head=0)
    assert plt.gcf() is axes.figure
    other = matrix().plot(head=0)
    assert other.figure is not axes.figure
    assert plt.get_fignums() == [1, 2]


def test_with_axes_nothing_of_pyplot_is_touched() -> None:
    figure = Figure()
    several = figure.subplots(2, 3)
    found = matrix().plot(ax=several)
    assert found.tolist() == several.ravel().tolist()
    one = figure.add_subplot()
    assert matrix().plot(head=0, ax=one) is one
    assert ch.causal().plot(3, 5, ax=one) is one
    assert matrix().plot("received", ax=one) is one
    assert plt.get_fignums() == []


def test_a_list_of_axes_will_do() -> None:
    weights = matrix()
    several = Figure().subplots(2, 3).ravel().tolist()
    found = weights.plot(sample=1, ax=several)
    assert numbers(found[4]).equal(weights[1, 4].double())


@pytest.mark.parametrize("ax", [3, "axes", Figure()])
def test_what_is_no_axes(ax: object) -> None:
    kind = type(ax).__name__
    words = rf"ax must be matplotlib axes, one of them, or None for a new figure; got {kind}\."
    with pytest.raises(ch.errors.ArgumentTypeError, match=words) as refusal:
        matrix().plot(head=0, ax=ax)
    assert refusal.value.code == "plot.axes"
    with pytest.raises(ch.errors.ArgumentTypeError, match="6 of them, one for each head, or None"):
        matrix().plot(ax=ax)
    with pytest.raises(ch.errors.ArgumentTypeError, match="one of them"):
        ch.causal().plot(3, 3, ax=np.array([ax]))


@pytest.mark.parametrize("rows", [1, 3])
def test_another_number_of_axes(rows: int) -> None:
    several = Figure().subplots(rows, 3)
    words = f"ax must hold 6 axes, one for each head; got {rows * 3}"
    with pytest.raises(ch.errors.ShapeError, match=words) as refusal:
        matrix().plot(ax=several)
    assert refusal.value.code == "plot.axes"
    assert not any(each.images for each in np.ravel(several) if isinstance(each, Axes))
