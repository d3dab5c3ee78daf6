import torch
from hypothesis import given

import clearhead as ch
from tests.masks.drawn import docstring_drawings
from tests.masks.expressions import Expression, as_tensor, prefixes, sizes


def test_the_docstring_is_true() -> None:
    drawn = [ch.prefix(2).draw(4, 4), (ch.causal() | ch.prefix(2)).draw(4, 4)]
    assert docstring_drawings(ch.prefix) == drawn


@given(sizes.flatmap(prefixes))
def test_every_pair(prefix: Expression) -> None:
    assert torch.equal(as_tensor(prefix.mask, prefix.sizes), prefix.expected)


def test_it_says_how_it_was_made() -> None:
    assert ch.prefix(2).describe() == "prefix(2)"
    assert ch.prefix([2, 3]).describe() == "prefix([2, 3])"
