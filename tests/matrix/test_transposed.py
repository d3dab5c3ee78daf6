"""Products with the transposed weights, and their gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from tests.matrix.test_reductions import close
from tests.matrix.test_sweep import EVERY, chunks_of
from tests.refusals import assert_refused, refusals
from tests.tolerances import assert_no_worse

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM = 2, 6, 3, 7, 11, 5


def matrix(**options: Any) -> AttentionMatrix:
    query = torch.randn(BATCH, HEADS, QUERIES, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KV_HEADS, KEYS, DIM, dtype=torch.float64)
    return AttentionMatrix(query, key, **options)


def test_repr() -> None:
    assert repr(matrix().mT) == "Transposed [2, 6, 11, 7]"


GRADIENTS = [name for name in EVERY if name not in ("no samples", "a bias of one's own")]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_whole(name: str) -> None:
    problem = EVERY[name]().problem
    leaves = [problem.query.clone().requires_grad_(), problem.key.clone().requires_grad_()]
    shape = problem.query.shape[:3]
    leaves.append(torch.randn(*shape, 2, dtype=problem.query.dtype).requires_grad_())
    sinks = None if problem.sinks is None else problem.sinks.clone().requires_grad_()
    leaves += [] if sinks is None else [sinks]
    weights = AttentionMatrix(
        leaves[0],
        leaves[1],
        mask=problem.mask,
        bias=problem.bias,
        scale=problem.scale,
        softcap=problem.softcap,
        sinks=sinks,
    )
    product = weights.mT @ leaves[2]
    pull = torch.randn_like(product)
    actual = torch.autograd.grad(product, leaves, pull)
    whole = eager.compute(weights.problem).weights
    expected = torch.autograd.grad(whole.mT @ leaves[2], leaves, pull)
    for mine, theirs in zip(actual, expected, strict=True):
        close(mine, theirs, weights)


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_by_finite_differences(shared: bool) -> None:
    query = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    shape = (3, 2) if shared else (1, 2, 3, 2)
    vectors = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    # More queries than keys: the first sees nothing.
    def product(query: Tensor, key: Tensor, vectors: Tensor, sinks: Tensor) -> Tensor:
        matrix = AttentionMatrix(query, key, mask=ch.causal(), sinks=sinks, softcap=3.0)
        return matrix.mT @ vectors

    assert torch.autograd.gradcheck(product, (query, key, vectors, sinks))


def test_a_gradient_in_half_precision_has_the_dtype_of_its_tensor() -> None:
    query, key = torch.randn(2, 1, 2, 7, 5).bfloat16().unbind()
    query, key = query.requires_grad_(), key.requires_grad_()
    vectors = torch.randn(7, 3).bfloat16().requires_grad_()
    sinks = torch.zeros(2, requires_grad=True)
    product = AttentionMatrix(query, key, sinks=sinks).mT @ vectors
    found = torch.autograd.grad(product.sum(), (query, key, vectors, sinks))
    dtypes = [each.dtype for each in found]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32]


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
            ((KEYS, 2), "(11, 2)"),
            ((6, 7, 2), "(6, 7, 2)"),
            ((1, 6, 7, 2), "(1, 6, 7, 2)"),
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
        torch.zeros(QUERIES, dtype=torch.int64),
        "vectors.dtype",
        "torch.float64 // torch.float64 // torch.int64",
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
