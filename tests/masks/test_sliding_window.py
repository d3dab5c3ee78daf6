import sys

import pytest
import torch
from hypothesis import given

import clearhead as ch
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import Expression, as_tensor, sizes, windows


def test_the_docstring_is_true() -> None:
    drawn = [
        ch.sliding_window(left=1, right=0).draw(4, 4),
        ch.sliding_window(left=1, right=2).draw(4, 4),
    ]
    assert docstring_drawings(ch.sliding_window) == drawn


def test_both_ends_belong_to_the_window() -> None:
    expected = rows(
        "● ● · · ·",
        "● ● ● · ·",
        "● ● ● ● ·",
        "· ● ● ● ●",
        "· · ● ● ●",
    )
    assert torch.equal(ch.sliding_window(left=2, right=1).to_dense(5, 5), expected)


@pytest.mark.parametrize("left", [0, 3, None])
@pytest.mark.parametrize("right", [0, 3, None])
def test_a_query_always_sees_itself(left: int | None, right: int | None) -> None:
    assert ch.sliding_window(left=left, right=right).to_dense(4, 4).diagonal().all()


def test_none_is_no_limit() -> None:
    assert ch.sliding_window().to_dense(3, 4).all()
    assert torch.equal(ch.sliding_window(right=0).to_dense(3, 5), ch.causal().to_dense(3, 5))


def test_the_last_query_sits_on_the_last_key() -> None:
    window = ch.sliding_window(left=1, right=0)
    assert torch.equal(window.to_dense(2, 4), rows("· ● ● ·", "· · ● ●"))


def test_an_offset_is_the_position_of_the_first_query() -> None:
    window = ch.sliding_window(left=1, right=0, offset=1)
    assert torch.equal(window.to_dense(2, 4), rows("● ● · ·", "· ● ● ·"))
    per_row = ch.sliding_window(left=1, right=0, offset=[1, 2]).to_dense(2, 4)
    assert torch.equal(per_row[0, 0], rows("● ● · ·", "· ● ● ·"))
    assert torch.equal(per_row[1, 0], rows("· ● ● ·", "· · ● ●"))


@pytest.mark.parametrize("far", [sys.maxsize, 2**70])
def test_a_window_of_any_width_does_not_wrap_around(far: int) -> None:
    window = ch.sliding_window(left=far, right=far, offset=[0, 5])
    assert window.to_dense(3, 3).all()
    assert window.blocks(3, 3, 2).full.all()


@given(sizes.flatmap(windows))
def test_every_pair(window: Expression) -> None:
    assert torch.equal(as_tensor(window.mask, window.sizes), window.expected)


def test_it_says_how_it_was_made() -> None:
    assert ch.sliding_window(left=2).describe() == "sliding_window(left=2, right=None)"
    window = ch.sliding_window(left=2, right=0, offset=1)
    assert window.describe() == "sliding_window(left=2, right=0, offset=1)"
