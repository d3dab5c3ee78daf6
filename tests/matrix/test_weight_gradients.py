"""What gradients of weights pass on, held against dense tensors."""

import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix, stages
from clearhead.attention.kernels import eager
from clearhead.matrix.rollout import WeightGradients, relevance_of
from tests.matrix.test_matrix import inputs

WIDTH = 7


def gradients_of(matrix: AttentionMatrix, *, heads: int | None = None) -> WeightGradients:
    batch, num_heads, query_len, kv_len = matrix.shape
    value = torch.randn(batch, heads or matrix.num_kv_heads, kv_len, WIDTH).to(matrix.dtype)
    context = torch.randn(batch, num_heads, query_len, WIDTH).to(matrix.dtype)
    return WeightGradients(matrix, value, context)


def dense(gradients: WeightGradients) -> Tensor:
    """By autograd, of weights that are there."""
    shape = gradients.matrix.shape
    weights = torch.zeros(shape, dtype=gradients.value.dtype, requires_grad=True)
    context = weights @ stages.repeat_kv_heads(gradients.value, shape[1])
    return torch.autograd.grad((context * gradients.context).sum(), weights)[0]


def test_hidden_numbers_pass_nothing_on() -> None:
    """A value that no query sees may be anything; a visible one that is NaN is not lost."""
    gradients = gradients_of(AttentionMatrix(*inputs(9, 9), mask=ch.causal()))
    whole = gradients.pass_on(rows := torch.randn(2, 9, 1, dtype=torch.float64))
    gradients.value[1, :, 8] = torch.nan
    found = gradients.pass_on(rows)
    assert torch.equal(found[0], whole[0])
    torch.testing.assert_close(found[1, :8], whole[1, :8], rtol=0, atol=1e-14)
    assert bool(found[1, 8].isnan())
    # A gradient that is NaN shows at the keys that its query sees, and at no later one.
    gradients.context[0, :, 2] = torch.nan
    found = gradients.pass_on(rows)
    assert bool(found[0, :3].isnan().all())
    torch.testing.assert_close(found[0, 3:], whole[0, 3:], rtol=0, atol=1e-14)


def test_relevance_follows_a_row_of_the_product() -> None:
    """Layers with fewer queries than keys are those behind a cache: their queries are the last."""
    layers = [
        gradients_of(AttentionMatrix(*inputs(9, 9), mask=ch.causal())),
        gradients_of(AttentionMatrix(*inputs(4, 9, 2), mask=ch.causal())),
        gradients_of(AttentionMatrix(*inputs(4, 9, 1), mask=ch.causal())),
    ]
    whole = torch.eye(9, dtype=torch.float64)
    for layer in layers:
        passed = (eager.compute(layer.matrix.problem).weights * dense(layer)).relu().mean(dim=1)
        passed = torch.nn.functional.pad(passed, (0, 0, 9 - passed.shape[1], 0))
        whole = whole + passed @ whole
    found = relevance_of(layers, torch.tensor([8, 6, 8]))
    torch.testing.assert_close(found, whole[:, [8, 6, 8]], rtol=0, atol=1e-13)
