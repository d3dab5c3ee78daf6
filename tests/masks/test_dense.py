import pytest
import torch
from hypothesis import given

import clearhead as ch
from clearhead.masks.dense import and_masks, as_mask
from clearhead.masks.spans import Extent
from tests.masks.drawn import docstring_drawings, rows
from tests.masks.expressions import Expression, as_tensor, sizes, tensors


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


@given(sizes.flatmap(tensors))
def test_every_pair(dense: Expression) -> None:
    assert torch.equal(as_tensor(dense.mask, dense.sizes), dense.expected)


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
    with pytest.raises(ch.MaskError, match="bool"):
        as_mask(DRAWN.float())


@pytest.mark.parametrize(("left", "right"), [(True, True), (True, False), (False, True)])
def test_both_shows_what_each_that_is_there_shows(left: bool, right: bool) -> None:
    drawn, causal = ch.dense(DRAWN), ch.causal()
    mask = and_masks(drawn if left else None, causal if right else None)
    assert mask is not None
    want = torch.ones(2, 3, dtype=torch.bool)
    want = want & DRAWN if left else want
    want = want & causal.to_dense(2, 3) if right else want
    assert mask.to_dense(2, 3).equal(want)


def test_both_of_nothing_is_nothing() -> None:
    assert and_masks(None, None) is None
