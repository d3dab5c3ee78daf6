"""A mask as a figure is the mask."""

import pytest
import torch
from matplotlib.axes import Axes

import clearhead as ch
from tests.drawing.figures.drawn import bar_label, blank, numbers, words
from tests.refusals import refusals, run


def shares(axes: Axes) -> torch.Tensor:
    """The share of the visible pairs in each cell."""
    return numbers(axes).nan_to_num(0.0)


@pytest.mark.parametrize(
    "mask", [ch.causal(), ch.sliding_window(left=2, right=1), ~ch.prefix(3), ch.padding(4)]
)
def test_short_masks_are_drawn_pair_by_pair(mask: ch.Mask) -> None:
    dense = mask.to_dense(7, 11)
    axes = mask.plot(7, 11)
    assert shares(axes).equal((dense if dense.ndim == 2 else dense[0, 0]).double())
    assert axes.get_title() == mask.describe()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")


def test_long_masks_are_drawn_by_blocks_of_which_the_last_may_be_smaller() -> None:
    mask = ch.causal() & ch.sliding_window(left=300)
    axes = mask.plot(1_000, 990)
    share = mask.blocks(1_000, 990, 4).share
    assert shares(axes).equal(share.double())
    assert blank(axes).equal(share == 0)
    assert axes.images[0].get_extent() == [0, 992, 1_000, 0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.0, 990.0), (1_000.0, 0.0))
    assert axes.get_xlabel() == "key\none cell = 4 × 4 tokens"
    assert bar_label(axes) == "share of the pairs that are visible white: none"


def test_samples_and_heads() -> None:
    dense = torch.rand(2, 3, 5, 7) > 0.5
    axes = ch.dense(dense).plot(5, 7, sample=1, head=-1)
    assert shares(axes).equal(dense[1, 2].double())
    assert axes.get_title().endswith("\nsample 1, head 2")
    padded = ch.padding([3, 5]).plot(5, 5, sample=1)
    assert shares(padded).equal(torch.ones(5, 5).double())
    # What is the same for all of them has any.
    assert shares(ch.causal().plot(3, 3, sample=9, head=9)).equal(torch.ones(3, 3).tril().double())


def test_tokens() -> None:
    axes = ch.causal().plot(2, 3, tokens=["$a$", "b"], source_tokens=["x", "y", "z"])
    assert (words(axes, "y"), words(axes, "x")) == (["$a$", "b"], ["x", "y", "z"])


test_what_is_refused = refusals(
    run,
    (lambda: ch.causal().plot(0, 3), "plot.empty", "0 // 3"),
    (lambda: ch.padding([3, 5]).plot(5, 5, sample=2), "plot.part", "sample // 1 // 2"),
    (lambda: ch.causal().plot(3, 3, tokens=["a"]), "plot.tokens", "tokens // query // 3 // 1"),
    (lambda: ch.causal().plot(-1, 3), "length.negative", "query_len // -1"),
    (lambda: ch.causal().plot(3, 3, ax=[3]), "plot.axes", "list"),
)
