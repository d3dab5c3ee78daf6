"""Masks as tensors, for small calls."""

import pytest
import torch

import clearhead as ch
from clearhead.attention.kernels import _kept
from clearhead.attention.problem import make_problem
from tests.attention.kernels.definition import draw


@pytest.mark.parametrize("queries", [1, 5, 11, 13])
@pytest.mark.parametrize("shortest", [0, 1])
@pytest.mark.parametrize("offset", [None, -2, 11])
def test_an_empty_row_is_shown_all(offset: int | None, shortest: int, queries: int) -> None:
    mask = ch.causal(offset=offset) & ch.padding([shortest, 4, 11], side="left")
    visible = mask.to_dense(queries, 11)
    empty = ~visible.any(dim=-1, keepdim=True)
    shown, seen = _kept.shown_mask(make_problem(**draw(query_len=queries, kv_len=11), mask=mask))
    assert torch.equal(shown, visible | empty)
    assert (seen is None) == (not empty.any())
