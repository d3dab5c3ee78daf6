import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearhead as ch
from clearhead.masks.dense import and_masks, as_mask
from clearhead.masks.spans import Extent
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import (
    BLOCKS,
    Expression,
    Sizes,
    as_tensor,
    expressions,
    expressions_for,
)


def test_the_docstring_is_true() -> None:
    tensor = torch.tensor([[True, False], [True, True]])
    assert docstring_drawings(ch.dense) == [ch.dense(tensor).draw(2, 2)]


@pytest.mark.parametrize(
    ("shape", "batch", "heads"),
    [
        ((3, 5), None, None),
        ((1, 5), None, None),
        ((1, 1, 3, 5), None, None),
        ((2, 1, 3, 5), 2, None),
        ((1, 7, 3, 5), None, 7),
        ((2, 7, 3, 5), 2, 7),
        ((2, 1, 1, 5), 2, None),
        ((3, 1), None, None),
        ((1, 7, 3, 1), None, 7),
        ((2, 1, 1, 1), 2, None),
    ],
)
def test_a_size_of_one_stands_for_all(
    shape: tuple[int, ...], batch: int | None, heads: int | None
) -> None:
    tensor = torch.rand(shape) > 0.5
    mask = ch.dense(tensor)
    assert (mask.batch, mask.heads) == (batch, heads)
    full = torch.broadcast_to(tensor, (batch or 1, heads or 1, 3, 5))
    dense = mask.to_dense(3, 5)
    assert torch.equal(dense, full if batch or heads else full[0, 0])
    assert torch.equal((~mask).to_dense(3, 5), ~dense)


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
@given(expressions, BLOCKS)
def test_a_mask_as_a_tensor_is_the_mask(
    expression: Expression, block: int | tuple[int, int]
) -> None:
    """Whatever it is made of: its pairs, its blocks, and its opposite."""
    mask, sizes, expected = expression
    lengths = sizes.query_len, sizes.kv_len
    dense = ch.dense(mask.to_dense(*lengths))
    for one, other in ((dense, mask), (~dense, ~mask)):
        assert torch.equal(as_tensor(one, sizes), as_tensor(other, sizes))
        kinds = [each.blocks(*lengths, block).kinds for each in (one, other)]
        assert torch.equal(*torch.broadcast_tensors(*kinds))
    assert torch.equal(as_tensor(dense, sizes), expected)


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


DRAWN = torch.tensor([[True, False, True], [True, True, False]])


def test_a_description_is_taken_as_it_is() -> None:
    mask = ch.causal()
    assert as_mask(mask) is mask


def test_nothing_given_hides_nothing() -> None:
    assert as_mask(None) is None


def test_a_bool_tensor_is_the_mask_that_it_draws() -> None:
    mask = as_mask(DRAWN)
    assert mask is not None
    assert mask.to_dense(2, 3).equal(DRAWN)


def test_a_float_tensor_is_refused() -> None:
    with pytest.raises(ch.errors.MaskError, match="bool"):
        as_mask(DRAWN.float())
