"""Products with the transposed weights, and their gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from tests.matrix.test_reductions import close
from tests.matrix.test_sweep import EVERY, chunks_of
from tests.memory import LargestTensor
from tests.refusals import assert_refused, refusals
from tests.tolerances import assert_no_worse

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM = 2, 6, 3, 7, 11, 5


def matrix(**options: Any) -> AttentionMatrix:
    query = torch.randn(BATCH, HEADS, QUERIES, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KV_HEADS, KEYS, DIM, dtype=torch.float64)
    return AttentionMatrix(query, key, **options)


@pytest.mark.parametrize("name", EVERY)
def test_products_are_those_of_the_whole(name: str) -> None:
    weights = EVERY[name]()
    batch, heads, query_len, kv_len = weights.shape
    assert weights.mT.shape == (batch, heads, kv_len, query_len)
    whole = eager.compute(weights.problem).weights.mT
    each = torch.randn(batch, heads, query_len, 3, dtype=weights.dtype)
    with chunks_of(31, 11, 3):
        for vectors in (each, torch.randn(query_len, 2, dtype=weights.dtype)):
            close(weights.mT @ vectors, whole @ vectors, weights)
        vector = torch.randn(query_len, dtype=weights.dtype)
        close(weights.mT @ vector, whole @ vector, weights)
        assert (weights.mT @ each[..., :0]).shape == (batch, heads, kv_len, 0)


@pytest.mark.parametrize("dims", [2, 3])
def test_fewer_dimensions(dims: int) -> None:
    query, key = torch.randn(2, 1, 3, 7, 5).unbind()
    drop = (0,) * (4 - dims)
    weights = AttentionMatrix(query[drop], key[drop])
    assert weights.mT.shape == weights.shape
    vectors = torch.randn(*weights.shape[:-1], 2)
    whole = AttentionMatrix(query, key).mT @ vectors.expand(1, 3, 7, 2)
    assert torch.equal(weights.mT @ vectors, whole[drop])
    assert (weights.mT @ vectors[..., 0].flatten()[:7]).shape == weights.shape[:-1]


def test_repr() -> None:
    assert repr(matrix().mT) == "Transposed [2, 6, 11, 7]"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_summed_in_single(dtype: torch.dtype) -> None:
    query, key = torch.randn(2, 1, 2, 67, 5).to(dtype).unbind()
    vectors = torch.randn(67, 3)
    weights = AttentionMatrix(query, key, mask=ch.causal())
    exact = AttentionMatrix(query.double(), key.double(), mask=ch.causal())
    plain = eager.compute(weights.problem).weights.mT
    truth = eager.compute(exact.problem).weights.mT
    for each in (vectors, vectors.to(dtype)):
        product = weights.mT @ each
        assert product.dtype == torch.float32
        assert_no_worse(product, truth @ each.double(), plain @ each.float())


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


def test_autocast_changes_neither_product_nor_gradient() -> None:
    query = torch.randn(1, 2, 7, 5, requires_grad=True)
    key, vectors = torch.randn(1, 2, 7, 5), torch.randn(7, 3)
    weights = AttentionMatrix(query, key, mask=ch.causal())
    product = weights.mT @ vectors
    pull = torch.randn_like(product)
    (gradient,) = torch.autograd.grad(product, query, pull)
    with torch.autocast("cpu", torch.bfloat16):
        again = weights.mT @ vectors
        (under_autocast,) = torch.autograd.grad(again, query, pull)
    assert torch.equal(again, product)
    assert torch.equal(under_autocast, gradient)


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


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-3, 3))
def test_it_is_the_adjoint(query_len: int, kv_len: int, offset: int) -> None:
    query = torch.randn(1, 2, query_len, 3, dtype=torch.float64)
    key = torch.randn(1, 2, kv_len, 3, dtype=torch.float64)
    weights = AttentionMatrix(
        query, key, mask=ch.causal(offset=offset), sinks=torch.zeros(2).double()
    )
    vectors = torch.randn(1, 2, query_len, 2, dtype=torch.float64)
    values = torch.randn(1, 2, kv_len, 2, dtype=torch.float64)
    forth = ((weights @ values) * vectors).sum()
    close((weights.mT @ vectors * values).sum(), forth, weights)


def test_a_long_text_is_never_squared() -> None:
    tokens = 8_009
    query, key = torch.randn(2, 1, 1, tokens, 8).unbind()
    vectors = torch.randn(tokens, 8, requires_grad=True)
    weights = AttentionMatrix(query, key, mask=ch.sliding_window(left=60, right=0))
    with LargestTensor() as memory:
        (weights.mT @ vectors).sum().backward()
    # One chunk of weights.
    assert memory.largest <= 4 * 262 * tokens


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
