"""Chosen pairs and rectangles, worked out from query and key, held against all of the weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.matrix import parts
from tests.matrix.test_reductions import close


def grid(query_len: int, kv_len: int) -> tuple[Tensor, Tensor]:
    queries, keys = torch.meshgrid(torch.arange(query_len), torch.arange(kv_len), indexing="ij")
    return queries.flatten(), keys.flatten()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e200])
@pytest.mark.parametrize("where", ["query", "key", "bias", "sinks"])
@pytest.mark.parametrize("narrow", [False, True])
def test_what_is_not_finite_is_as_in_the_stages(
    where: str, bad: float, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the weights, and in the gradients: a query or a key that is no number sends none, nor one
    whose scores may overflow."""
    if bad == 1e200 and where in ("bias", "sinks"):
        pytest.skip("a large number is an ordinary one there")
    given: dict[str, Tensor] = {
        "query": torch.randn(1, 4, 7, 3, dtype=torch.float64),
        "key": torch.randn(1, 2, 7, 3, dtype=torch.float64),
        "bias": torch.randn(1, 1, 7, 7, dtype=torch.float64),
        "sinks": torch.randn(4, dtype=torch.float64),
    }
    place = (0, slice(None), 3) if given[where].ndim == 4 else 3
    given[where][place] = bad
    leaves = [given[name].requires_grad_() for name in ("query", "key")]
    options: dict[str, Any] = {name: given[name] for name in ("bias", "sinks")}
    weights = AttentionMatrix(*leaves, mask=ch.causal(), **options)
    whole = eager.compute(weights.problem).weights
    if narrow:
        # More queries than fit in a portion: by their logsumexp.
        monkeypatch.setattr(parts, "PORTION", 1)
        found = torch.cat([weights[..., :4], weights[..., 4:]], dim=-1)
    else:
        found = weights.at(*grid(7, 7)).unflatten(-1, (7, 7))
    assert torch.equal(found.isnan(), whole.isnan())
    close(found, whole, weights)
    if where in ("bias", "sinks"):
        return
    pull = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad(found, leaves, pull),
        torch.autograd.grad(whole, leaves, pull),
        strict=True,
    ):
        assert torch.equal(mine.isnan(), theirs.isnan())
        close(mine, theirs, weights)
