import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead.masks.dense import and_masks
from clearhead.masks.spans import Extent
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import (
    Expression,
    Sizes,
    as_tensor,
    expressions,
    expressions_for,
)


def test_the_docstring_is_true() -> None:
    tensor = torch.tensor([[True, False], [True, True]])
    assert docstring_drawings(ch.dense) == [ch.dense(tensor).draw(2, 2)]


def test_a_rectangle_is_a_view_of_the_tensor() -> None:
    tensor = torch.rand(2, 1, 5, 7) > 0.5
    part = ch.dense(tensor).block(slice(1, 3), slice(2, 6), Extent(2, 1, 5, 7, torch.device("cpu")))
    assert torch.equal(part, tensor[:, :, 1:3, 2:6])
    assert part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_columns_of_one_are_not_copied() -> None:
    tensor = torch.rand(2, 1, 5, 1) > 0.5
    part = ch.dense(tensor).block(slice(1, 3), slice(2, 6), Extent(2, 1, 5, 7, torch.device("cpu")))
    assert torch.equal(part, tensor[:, :, 1:3].expand(2, 1, 2, 4))
    assert part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


@settings(max_examples=30)
@given(st.none() | expressions, st.data())
def test_both_shows_what_each_that_is_there_shows(
    one: Expression | None, data: st.DataObject
) -> None:
    sizes = Sizes(1, 1, 3, 2) if one is None else one.sizes
    other = data.draw(st.none() | expressions_for(sizes))
    there = [each for each in (one, other) if each is not None]
    mask = and_masks(one and one.mask, other and other.mask)
    if not there:
        assert mask is None
        return
    assert mask is not None
    expected = torch.stack([each.expected for each in there]).all(0)
    assert torch.equal(as_tensor(mask, sizes), expected)


def test_it_shows_itself_at_its_own_size() -> None:
    assert repr(ch.dense(rows("● ·", "● ●"))) == "dense(<1 × 1 × 2 × 2>)\n● ·\n● ●"
    assert repr(ch.dense(torch.ones(3, 50).bool())) == "dense(<1 × 1 × 3 × 50>)"
