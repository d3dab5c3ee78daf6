"""A mask as a user gives it."""

import pytest
import torch

import clearhead as ch
from clearhead.masks.coerce import and_masks, as_mask

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
