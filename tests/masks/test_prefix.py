import torch
from hypothesis import given

import clearhead as ch
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import Expression, as_tensor, prefixes, sizes


def test_the_docstring_is_true() -> None:
    drawn = [ch.prefix(2).draw(4, 4), (ch.causal() | ch.prefix(2)).draw(4, 4)]
    assert docstring_drawings(ch.prefix) == drawn


def test_a_prefix_is_of_the_keys_whatever_the_queries() -> None:
    assert torch.equal(ch.prefix(2).to_dense(1, 4), rows("● ● · ·"))
    assert not ch.prefix(0).to_dense(2, 4).any()
    assert ch.prefix(9).to_dense(2, 4).all()


def test_each_row_of_the_batch_may_have_its_own_length() -> None:
    dense = ch.prefix([1, 3]).to_dense(1, 4)
    assert dense.shape == (2, 1, 1, 4)
    assert torch.equal(dense[:, 0, 0], rows("● · · ·", "● ● ● ·"))


@given(sizes.flatmap(prefixes))
def test_every_pair(prefix: Expression) -> None:
    assert torch.equal(as_tensor(prefix.mask, prefix.sizes), prefix.expected)


def test_it_says_how_it_was_made() -> None:
    assert ch.prefix(2).describe() == "prefix(2)"
    assert ch.prefix([2, 3]).describe() == "prefix([2, 3])"
