"""The mask that recorded stages show has one name, whoever saw it."""

import pytest
import torch

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mask_edits import MASKS
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, right_visible
from clearhead.checking.judging.reading import RIGHT_MASK, mask_named, setting_of

CAUSAL = setting_of(Contract(causal=True), 7)
WINDOW = setting_of(Contract(causal=True, window=(3, 0)), 7)
EVERY = torch.ones(7, 7, dtype=torch.bool)


@pytest.mark.parametrize("at", [CAUSAL, WINDOW])
def test_the_mask_of_the_contract_is_no_mistake(at: Setting) -> None:
    assert mask_named(right_visible(at), at, EVERY) is RIGHT_MASK


@pytest.mark.parametrize("at", [CAUSAL, WINDOW])
def test_every_pattern_of_the_table_is_named_by_its_mask(at: Setting) -> None:
    for edit in (each for each in MASKS if each.needs(at.contract) and each.way != "some-heads"):
        seen = edit.applied(RIGHT).visible(at)
        named = mask_named(seen, at, EVERY)
        assert named is not None
        assert torch.equal(named.applied(RIGHT).visible(at), seen)


def test_a_mask_of_no_name() -> None:
    seen = right_visible(CAUSAL).clone()
    seen[5, 2] = False
    assert mask_named(seen, CAUSAL, EVERY) is None


def test_only_pairs_that_are_compared_count() -> None:
    past = EVERY.tril(-1)
    assert mask_named(EVERY, CAUSAL, past) is RIGHT_MASK
    causal, window = mask_named(EVERY, CAUSAL, EVERY), mask_named(EVERY, WINDOW, past)
    assert causal is not None
    assert window is not None
    assert (causal.code, window.way) == ("mask.missing", "window")
