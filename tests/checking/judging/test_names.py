"""A mask and a scale have one name, whichever witness saw them."""

import math

import pytest
import torch

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants import bank
from clearhead.checking.hypotheses.mutants.visibility import MASKS
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, right_visible
from clearhead.checking.judging.names import (
    RIGHT_MASK,
    mask_named,
    scale_named,
    setting_of,
    topic_of,
)

CAUSAL = setting_of(Contract(causal=True), 7)
WINDOW = setting_of(Contract(causal=True, window=(3, 0)), 7)
EVERY = torch.ones(7, 7, dtype=torch.bool)


@pytest.mark.parametrize("at", [CAUSAL, WINDOW])
def test_the_mask_of_the_contract_is_no_mistake(at: Setting) -> None:
    assert mask_named(right_visible(at), at, EVERY) is RIGHT_MASK


@pytest.mark.parametrize("at", [CAUSAL, WINDOW])
def test_every_member_of_the_family_is_named_by_its_mask(at: Setting) -> None:
    for mutant in (each for each in MASKS if each.needs(at.contract) and each.way != "some-heads"):
        seen = mutant.applied(RIGHT).seen(at)
        named = mask_named(seen, at, EVERY)
        assert named is not None
        assert torch.equal(named.applied(RIGHT).seen(at), seen)


def test_a_mask_of_no_name() -> None:
    seen = right_visible(CAUSAL).clone()
    seen[5, 2] = False
    assert mask_named(seen, CAUSAL, EVERY) is None


def test_only_what_is_told_counts() -> None:
    past = EVERY.tril(-1)
    assert mask_named(EVERY, CAUSAL, past) is RIGHT_MASK
    causal, window = mask_named(EVERY, CAUSAL, EVERY), mask_named(EVERY, WINDOW, past)
    assert causal is not None
    assert window is not None
    assert (causal.code, window.way) == ("mask.missing", "window")


@pytest.mark.parametrize(
    ("used", "code", "values"),
    [
        (1.0, "scale.missing", {}),
        (math.sqrt(5), "scale.inverse", {}),
        (5.0, "scale.inverse", {}),
        (1 / 5, "scale.wrong", {"size": "1/head_dim"}),
        (3**-0.5, "scale.wrong", {"size": "1/√num_heads"}),
    ],
)
def test_a_scale_is_named_by_its_number(used: float, code: str, values: dict[str, str]) -> None:
    at = CAUSAL._replace(num_heads=3, head_dim=5, value_head_dim=11, batch=2, d_in=17)
    first = scale_named(used, at)[0]
    assert (first.code, dict(first.values)) == (code, values)


def test_the_right_scale_and_a_number_of_no_size_have_no_name() -> None:
    at = CAUSAL._replace(num_heads=3, head_dim=5, value_head_dim=11, batch=2, d_in=17)
    assert scale_named(0.123, at) == scale_named(5**-0.5, at) == []


def test_every_name_that_numbers_can_have_has_a_topic() -> None:
    found = bank(Contract(causal=True, window=(3, 0)), given=True, masked=True)
    assert {topic_of(each.code) for each in found} <= {
        "mask", "softmax", "scale", "order", "product", "heads", "positions"
    }  # fmt: skip
