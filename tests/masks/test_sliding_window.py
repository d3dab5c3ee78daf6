import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from tests.masks.drawn import docstring_drawings
from tests.masks.expressions import Sizes, as_tensor, sizes


def test_the_docstring_is_true() -> None:
    drawn = [
        ch.sliding_window(left=1, right=0).draw(4, 4),
        ch.sliding_window(left=1, right=2).draw(4, 4),
    ]
    assert docstring_drawings(ch.sliding_window) == drawn


@pytest.mark.parametrize("far", [sys.maxsize, 2**70])
def test_a_window_of_any_width_does_not_wrap_around(far: int) -> None:
    window = ch.sliding_window(left=far, right=far, offset=[0, 5])
    assert window.to_dense(3, 3).all()
    assert window.blocks(3, 3, 2).full.all()


SIDES = st.none() | st.integers(0, 31)


@given(sizes, SIDES, SIDES, st.none() | st.integers(-4, 31))
def test_a_window_is_what_its_two_sides_allow(
    sizes: Sizes, left: int | None, right: int | None, offset: int | None
) -> None:
    """And its right side alone, if that is the query itself, is the causal mask."""

    def of(mask: ch.Mask) -> Tensor:
        return as_tensor(mask, sizes)

    sides = (
        ch.sliding_window(left=left, offset=offset),
        ch.sliding_window(right=right, offset=offset),
    )
    both = ch.sliding_window(left=left, right=right, offset=offset)
    assert torch.equal(of(both), of(sides[0]) & of(sides[1]))
    ahead = ch.sliding_window(right=0, offset=offset)
    assert torch.equal(of(ahead), of(ch.causal(offset=offset)))


def test_it_says_how_it_was_made() -> None:
    assert ch.sliding_window(left=2).describe() == "sliding_window(left=2, right=None)"
    window = ch.sliding_window(left=2, right=0, offset=1)
    assert window.describe() == "sliding_window(left=2, right=0, offset=1)"
