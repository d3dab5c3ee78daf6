import torch
from hypothesis import given

import clearhead as ch
from tests.masks.drawn import docstring_drawings
from tests.masks.expressions import Expression, as_tensor, causals, sizes


def test_the_docstring_is_true() -> None:
    drawn = [ch.causal().draw(4, 4), ch.causal().draw(2, 5), ch.causal().draw(5, 2)]
    assert docstring_drawings(ch.causal) == drawn


@given(sizes.flatmap(causals))
def test_every_pair(causal: Expression) -> None:
    assert torch.equal(as_tensor(causal.mask, causal.sizes), causal.expected)


def test_it_says_how_it_was_made() -> None:
    assert ch.causal().describe() == "causal()"
    assert ch.causal(offset=3).describe() == "causal(offset=3)"
    assert ch.causal(offset=[1, 2]).describe() == "causal(offset=[1, 2])"
