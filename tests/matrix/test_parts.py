"""Chosen pairs and rectangles, worked out from query and key, held against all of the weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.matrix import parts
from clearhead.matrix.parts import masked_scores, pairs, weights_from
from tests.matrix.test_reductions import close
from tests.matrix.test_sweep import EVERY

NAMES = [name for name in EVERY if not name.startswith("no ")]


def grid(query_len: int, kv_len: int) -> tuple[Tensor, Tensor]:
    queries, keys = torch.meshgrid(torch.arange(query_len), torch.arange(kv_len), indexing="ij")
    return queries.flatten(), keys.flatten()


@pytest.mark.parametrize("name", NAMES)
def test_every_pair(name: str) -> None:
    weights = EVERY[name]()
    problem = weights.problem
    truth = eager.compute(problem)
    total = eager.logsumexp(problem)
    batch, heads, query_len, kv_len = weights.shape
    queries, keys = grid(query_len, kv_len)
    found = pairs(problem, queries[None], keys[None], total)
    close(found.unflatten(2, (query_len, kv_len)), truth.weights, weights)
    # Other pairs in each sample.
    order = torch.stack([torch.randperm(query_len * kv_len) for _ in range(batch)])
    found = pairs(problem, queries[order], keys[order], total)
    flat = truth.weights.flatten(2)
    close(found, flat.gather(2, order[:, None].expand(-1, heads, -1)), weights)


@pytest.mark.parametrize("name", NAMES)
def test_a_rectangle(name: str) -> None:
    weights = EVERY[name]()
    problem = weights.problem
    truth = eager.compute(problem)
    batch, heads, query_len, kv_len = weights.shape
    samples, chosen = torch.arange(batch).flip(0), torch.arange(heads)[::2]
    rows, columns = torch.arange(query_len)[::2].flip(0), torch.arange(kv_len)[1::2]
    scores = masked_scores(problem, samples, chosen, rows, columns)
    part = (samples[:, None, None, None], chosen[:, None, None], rows[:, None], columns)
    close(scores, truth.masked_scores[part], weights)
    total = eager.logsumexp(problem)[samples][:, chosen][:, :, rows]
    close(weights_from(problem, scores, total, chosen), truth.weights[part], weights)


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


def test_scores_beyond_the_largest_number() -> None:
    query, key = (1e30 * torch.randn(2, 1, 2, 7, 3)).unbind()
    weights = AttentionMatrix(query, key, mask=ch.causal())
    whole = eager.compute(weights.problem).weights
    found = weights.at(*grid(7, 7)).unflatten(-1, (7, 7))
    assert torch.equal(found.isnan(), whole.isnan())
    assert torch.equal(found[~found.isnan()], whole[~whole.isnan()])
