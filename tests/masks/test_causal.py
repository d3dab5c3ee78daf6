import pytest
import torch
from hypothesis import given

import clearhead as ch
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import Expression, as_tensor, causals, sizes


def test_the_docstring_is_true() -> None:
    drawn = [ch.causal().draw(4, 4), ch.causal().draw(2, 5), ch.causal().draw(5, 2)]
    assert docstring_drawings(ch.causal) == drawn


def test_the_last_query_sits_on_the_last_key() -> None:
    expected = rows(
        "● ● ● · ·",
        "● ● ● ● ·",
        "● ● ● ● ●",
    )
    assert torch.equal(ch.causal().to_dense(3, 5), expected)


def test_an_offset_is_the_position_of_the_first_query() -> None:
    assert torch.equal(ch.causal(offset=0).to_dense(2, 4), rows("● · · ·", "● ● · ·"))
    assert torch.equal(ch.causal(offset=2).to_dense(2, 4), rows("● ● ● ·", "● ● ● ●"))
    assert torch.equal(ch.causal(offset=-1).to_dense(2, 4), rows("· · · ·", "● · · ·"))
    assert torch.equal(ch.causal(offset=9).to_dense(2, 4), rows("● ● ● ●", "● ● ● ●"))


@pytest.mark.parametrize("offset", [[0, 2], torch.tensor([0, 2]), torch.tensor([0, 2]).int()])
def test_each_row_of_the_batch_may_have_its_own_offset(offset: list[int] | torch.Tensor) -> None:
    mask = ch.causal(offset=offset)
    assert mask.batch == 2
    dense = mask.to_dense(2, 4)
    assert dense.shape == (2, 1, 2, 4)
    assert torch.equal(dense[0, 0], rows("● · · ·", "● ● · ·"))
    assert torch.equal(dense[1, 0], rows("● ● ● ·", "● ● ● ●"))


@given(sizes.flatmap(causals))
def test_every_pair(causal: Expression) -> None:
    assert torch.equal(as_tensor(causal.mask, causal.sizes), causal.expected)


def test_it_says_how_it_was_made() -> None:
    assert ch.causal().describe() == "causal()"
    assert ch.causal(offset=3).describe() == "causal(offset=3)"
    assert ch.causal(offset=[1, 2]).describe() == "causal(offset=[1, 2])"
