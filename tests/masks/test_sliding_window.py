import sys

import pytest

import clearhead as ch
from tests.masks.drawn import docstring_drawings


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


def test_it_says_how_it_was_made() -> None:
    assert ch.sliding_window(left=2).describe() == "sliding_window(left=2, right=None)"
    window = ch.sliding_window(left=2, right=0, offset=1)
    assert window.describe() == "sliding_window(left=2, right=0, offset=1)"
