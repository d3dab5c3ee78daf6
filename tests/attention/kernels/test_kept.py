"""Masks as tensors, for small calls."""

from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead.attention.kernels import _kept
from clearhead.attention.problem import make_problem
from clearhead.masks.base import Mask
from tests.attention.kernels.definition import draw


@pytest.mark.parametrize("queries", [1, 5, 11, 13])
@pytest.mark.parametrize("shortest", [0, 1])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("beside", [None, ch.causal(), ch.causal(offset=-2)])
def test_a_mask_whose_numbers_say_that_each_query_sees_a_key(
    beside: Mask | None, side: Any, shortest: int, queries: int
) -> None:
    """The pairs say the same."""
    mask = ch.padding([shortest, 4, 11], side=side)
    mask = mask if beside is None else beside & mask
    problem = make_problem(**draw(query_len=queries, kv_len=11), mask=mask)
    visible = mask.to_dense(queries, 11)
    empty = ~visible.any(dim=-1, keepdim=True)
    shown, seen = _kept.shown_mask(problem)
    assert torch.equal(shown.expand(3, 1, queries, 11), (visible | empty).expand(3, 1, queries, 11))
    assert (seen is None) == (not empty.any())
