"""Products with the transposed weights, and their gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given as given_
from hypothesis import settings

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from tests.attention.kernels.definition import Tensors
from tests.matrix.test_laws import any_problem
from tests.matrix.test_reductions import close
from tests.matrix.test_sweep import chunks_of
from tests.refusals import assert_refused, refusals
from tests.tolerances import assert_no_worse

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM = 2, 6, 3, 7, 11, 5


def matrix(**options: Any) -> AttentionMatrix:
    query = torch.randn(BATCH, HEADS, QUERIES, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KV_HEADS, KEYS, DIM, dtype=torch.float64)
    return AttentionMatrix(query, key, **options)


def test_repr() -> None:
    assert repr(matrix().mT) == "Transposed [2, 6, 11, 7]"


@settings(max_examples=40)
@given_(any_problem)
def test_gradients_are_those_of_the_whole(problem: tuple[Tensors, dict[str, Any]]) -> None:
    tensors, options = problem
    given = {
        name: each.detach().requires_grad_() for name, each in tensors.items() if name != "value"
    }
    weights = AttentionMatrix(**given, **options)
    batch, heads, query_len, kv_len = weights.shape
    vectors = torch.randn(batch, heads, query_len, 2, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(batch, heads, kv_len, 2, dtype=torch.float64)
    actual, expected = (
        torch.autograd.grad(matrix @ vectors, [*given.values(), vectors], pull)
        for matrix in (weights.mT, eager.compute(weights.problem).weights.mT)
    )
    for mine, theirs in zip(actual, expected, strict=True):
        close(mine, theirs, weights)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("buffer", [1, 1 << 21])
def test_vectors_that_are_not_finite(bad: float, buffer: int) -> None:
    """Keys that are seen by the query of a NaN get it, and no others, however chunks fall."""
    mask = ch.causal() & ch.documents([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
    weights = matrix(mask=mask)
    vectors = torch.randn(QUERIES, 3, dtype=torch.float64)
    clean = weights.mT @ vectors
    vectors[1, 2] = bad
    with chunks_of(buffer, 3, 3):
        product = weights.mT @ vectors
    visible = mask.to_dense(QUERIES, KEYS)[1]
    assert 0 < int(visible.sum()) < KEYS
    expected = torch.zeros(KEYS, 3, dtype=torch.bool)
    expected[visible, 2] = True
    assert torch.equal(product.isnan(), expected.expand_as(product))
    close(product[~product.isnan()], clean[~product.isnan()], weights)


@pytest.mark.parametrize("where", ["query", "key"])
def test_a_nan_sends_no_gradient(where: str) -> None:
    problem = matrix(mask=ch.causal()).problem
    spoilt = {"query": problem.query.clone(), "key": problem.key.clone()}
    spoilt[where][0, 0, 5] = torch.nan
    leaves = [each.requires_grad_() for each in spoilt.values()]
    weights = AttentionMatrix(*leaves, mask=ch.causal())
    vectors = torch.randn(QUERIES, 3, dtype=torch.float64)
    product = weights.mT @ vectors
    whole = eager.compute(weights.problem).weights
    pull = torch.randn_like(product)
    for mine, theirs in zip(
        torch.autograd.grad(product, leaves, pull),
        torch.autograd.grad(whole.mT @ vectors, leaves, pull),
        strict=True,
    ):
        assert bool(mine.isfinite().all())
        close(mine, theirs, weights)


test_refused_vectors = refusals(
    lambda vectors: matrix().mT @ vectors,
    ([1.0], "vectors.type", "vectors // a torch.Tensor // list"),
    (torch.zeros(QUERIES, 2).to_sparse(), "vectors.layout", "vectors // torch.sparse_coo"),
    *(
        (torch.zeros(shape, dtype=torch.float64), "vectors.shape", f"(2, 6, 7) // 7 // {got}")
        for shape, got in [
            ((), "()"),
            ((6, 7, 2), "(6, 7, 2)"),
            ((2, 3, 7, 2), "(2, 3, 7, 2)"),
            ((1, 2, 6, 7, 2), "(1, 2, 6, 7, 2)"),
        ]
    ),
    (torch.zeros(KEYS, dtype=torch.float64), "vectors.shape", "(2, 6, 7) // 7 // (11, 1)"),
    (
        torch.zeros(QUERIES, 2),
        "vectors.dtype",
        "torch.float64 // torch.float64 // torch.float32",
    ),
    (
        torch.zeros(QUERIES, 2, dtype=torch.float64, device="meta"),
        "vectors.device",
        "meta // cpu",
    ),
)


def test_a_bias_that_is_trained_is_refused() -> None:
    bias = torch.zeros(1, HEADS, QUERIES, KEYS, dtype=torch.float64, requires_grad=True)
    weights = matrix(bias=bias)
    vectors = torch.randn(QUERIES, dtype=torch.float64)
    assert_refused(lambda: weights.mT @ vectors, "matrix.gradient")
    with torch.no_grad():
        product = weights.mT @ vectors
    close(product, eager.compute(weights.problem).weights.detach().mT @ vectors, weights)


def test_inside_a_transformation_it_is_refused() -> None:
    weights, vectors = matrix(), torch.randn(QUERIES, dtype=torch.float64)
    assert_refused(
        lambda: torch.func.grad(lambda vectors: (weights.mT @ vectors).sum())(vectors),
        "matrix.transformed",
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_beside_a_bias_of_16_bits(dtype: torch.dtype) -> None:
    """Sums are upcast for the gradient, and the bias stays what it is."""
    query = torch.randn(1, 2, 7, 5, dtype=dtype, requires_grad=True)
    key, bias = torch.randn(1, 2, 7, 5, dtype=dtype), torch.randn(7, 7, dtype=dtype)
    found = AttentionMatrix(query, key, bias=bias).mT @ torch.ones(7, dtype=dtype)
    pull = torch.randn_like(found)
    (mine,) = torch.autograd.grad(found, query, pull)
    truth = query.detach().double().requires_grad_()
    exact = AttentionMatrix(truth, key.double(), bias=bias.double()).mT @ torch.ones(7).double()
    (expected,) = torch.autograd.grad(exact, truth, pull.double())
    assert_no_worse(mine, expected, expected.to(dtype))
