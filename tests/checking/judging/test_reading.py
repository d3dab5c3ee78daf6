# pyright: basic
"""The mask that weights show, where there is no softmax."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import Setting
from clearhead.checking.judging.reading import _read_mask

read: Any = _read_mask


@pytest.mark.parametrize(
    ("product", "rectified", "codes"),
    [(0.5, True, ["mask.missing"]), (-0.5, True, []), (-0.5, False, ["mask.missing"])],
)
def test_only_a_score_that_a_weight_may_come_of_tells_of_the_mask(product, rectified, codes):
    """Take nothing from what is below 0 and cut off, however small what is above."""
    setting, empty = Setting(Contract(causal=True), 1, 1, 1, 5, 5, 2, 2), torch.zeros(1, 1, 5, 2)
    facts = SimpleNamespace(
        visible=torch.ones(1, 1, 5, 5, dtype=torch.bool),
        products=torch.full((1, 1, 5, 5), product),
        rectified=rectified,
        weighing=None,
        axis=None,
    )
    evidence = SimpleNamespace(contract=setting.contract)
    claims = read(facts, Trial("", setting, empty, empty, empty, empty), evidence)
    assert [each.code for each in claims] == codes


def _causal(first: int) -> torch.Tensor:
    return torch.ones(1, 1, 4, 6, dtype=torch.bool).tril(first)


@pytest.mark.parametrize(
    ("seen", "causal", "way"),
    [
        (_causal(0), False, "hidden"),
        (_causal(2), False, "hidden"),
        (_causal(1), False, "mask"),
        (_causal(0).flip(-1), False, "mask"),
    ],
)
def test_a_causal_mask_beside_what_is_declared_to_see_everything(seen, causal, way):
    setting, empty = Setting(Contract(causal=causal), 1, 1, 1, 4, 6, 2, 2), torch.zeros(1, 1, 4, 2)
    facts = SimpleNamespace(
        visible=seen,
        products=torch.ones(1, 1, 4, 6),
        rectified=False,
        weighing=None,
        axis=None,
    )
    evidence = SimpleNamespace(contract=setting.contract)
    (claim,) = read(facts, Trial("", setting, empty, empty, empty, empty), evidence)
    assert (claim.code, claim.found.way) == ("differs", way)
