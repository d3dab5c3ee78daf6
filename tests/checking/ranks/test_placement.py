"""The places of tokens are those that `across` gives them."""

from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead._common.layouts import LAYOUTS
from clearhead.checking.contract import Contract
from clearhead.checking.ranks.placement import placement

MASKS: list[tuple[dict[str, Any], ch.Mask | None]] = [
    ({}, None),
    ({"causal": True}, ch.causal()),
    ({"causal": True, "window": (4, 0)}, ch.causal() & ch.sliding_window(left=4, right=0)),
    ({"window": (4, 2)}, ch.sliding_window(left=4, right=2)),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("declared", "mask"), MASKS)
def test_the_layout_of_check_is_that_of_across(
    layout: str, declared: dict[str, Any], mask: ch.Mask | None
) -> None:
    for tokens, world in ((20, 2), (23, 3), (64, 4)):
        found = placement(tokens, Contract(world=world, layout=layout, **declared))
        shared = [
            ch.across(world=world, rank=rank, tokens=tokens, layout=layout, mask=mask)
            for rank in range(world)
        ]
        for rank, positions in enumerate(found.positions):
            assert torch.equal(positions, shared[rank].positions_of(rank))
