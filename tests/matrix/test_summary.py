"""All of the statistics at once, held against each of them alone."""

from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.attention.problem import make_problem
from tests.matrix.test_reductions import close
from tests.matrix.test_sweep import EMPTY, chunks_of
from tests.refusals import refusals
from tests.tolerances import assert_no_worse


def matrix(**options: Any) -> AttentionMatrix:
    query = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    key = torch.randn(2, 3, 11, 5, dtype=torch.float64)
    return AttentionMatrix(query, key, **options)


@pytest.mark.parametrize("name", EMPTY)
def test_empty_axes(name: str) -> None:
    weights = EMPTY[name]()
    batch, heads, query_len, kv_len = weights.shape
    value = torch.randn(batch, weights.problem.num_kv_heads, kv_len, 2, dtype=weights.dtype)
    found = weights.summary(value=value, segments=torch.zeros(kv_len, dtype=torch.bool))
    assert torch.equal(
        found.context if found.context is not None else value,
        value.new_zeros(batch, heads, query_len, 2),
    )
    assert (found.query_len, found.kv_len) == (query_len, kv_len)


def test_what_was_not_asked_for_is_not_there() -> None:
    found = matrix().summary()
    assert found.context is found.top_k is found.mass is found.pooled is found.roles is None


def test_repr() -> None:
    assert repr(matrix().summary()) == "Summary [batch=2, num_heads=6, query_len=7, kv_len=11]"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("mask", [None, ch.causal(), ch.sliding_window(left=1) | ch.prefix(2)])
@pytest.mark.parametrize("heads", [3, 6])
def test_a_value_that_is_not_finite(bad: float, mask: ch.Mask | None, heads: int) -> None:
    weights = matrix(mask=mask)
    value = torch.randn(2, heads, 11, 3, dtype=torch.float64)
    value[0, 1, 7, 2] = bad
    problem = weights.problem
    key = problem.key.repeat_interleave(heads // 3, dim=1)
    truth = eager.compute(make_problem(problem.query, key, value, mask=mask)).context
    with chunks_of(31, 11, 3):
        found = weights.summary(value=value)
    assert found.context is not None
    assert torch.equal(found.context.isnan(), truth.isnan())
    close(found.context, truth, weights)
    close(found.entropy, weights.entropy(), weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_context_is_no_worse_than_plain(dtype: torch.dtype) -> None:
    query, key = torch.randn(1, 4, 151, 16).to(dtype), torch.randn(1, 2, 151, 16).to(dtype)
    value = torch.randn(1, 2, 151, 7).to(dtype)
    found = AttentionMatrix(query, key, mask=ch.causal()).summary(value=value)
    assert found.context is not None
    assert found.context.dtype == dtype
    exact = make_problem(query.double(), key.double(), value.double(), mask=ch.causal())
    plain = eager.compute(make_problem(query, key, value, mask=ch.causal()))
    assert_no_worse(found.context, eager.compute(exact).context, plain.context)


def test_the_logsumexp_is_kept() -> None:
    weights = matrix(mask=ch.causal())
    summary = weights.summary()
    kept = weights._total()
    assert weights._total() is kept
    assert torch.equal(kept, summary.logsumexp)
    close(weights[..., 1:3], eager.compute(weights.problem).weights[..., 1:3], weights)


def test_under_autocast_only_the_context_is_in_its_precision() -> None:
    query, key, value = torch.randn(3, 1, 2, 67, 5).unbind()
    weights = AttentionMatrix(query, key, mask=ch.causal())
    expected = AttentionMatrix(query, key, mask=ch.causal()).summary(value=value)
    with torch.autocast("cpu", torch.bfloat16):
        found = weights.summary(value=value)
    assert found.context is not None
    assert found.context.dtype == torch.bfloat16
    for name in ("logsumexp", "entropy", "max", "distance", "first", "previous", "received"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    # The logsumexp that was kept belongs to the query as it was given.
    torch.testing.assert_close(weights[..., 1:3], weights.dense()[..., 1:3])


test_refusals = refusals(
    lambda options: matrix().summary(**options),
    ({"value": [1.0]}, "value.type", "value // a torch.Tensor // list"),
    ({"value": torch.zeros(11, dtype=torch.float64)}, "shape.dimensions", "4 // 2 // (11,)"),
    ({"top_k": 12}, "top-k.value", "11 // 12"),
    ({"pool": (3, 12)}, "pool.size", "columns // keys // 11 // 12"),
    *(
        ({"pool": pool}, "pool.type", str(got))
        for pool, got in [(3, "3"), ((3,), "(3,)"), ((1, 2, 3), "(1, 2, 3)")]
    ),
    ({"segments": torch.zeros(7, dtype=torch.bool)}, "segments.shape", "11 // (2, 11) // (7,)"),
)
