"""Any part of the weights, held against all of them."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.errors import (
    ShapeError,
    TooLargeError,
)
from clearhead.matrix import parts
from tests.memory import LargestTensor
from tests.refusals import refusals, wrong
from tests.tensors import drawn

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 6, 9, 3


def inputs(
    query_len: int = QUERIES, kv_len: int = KEYS, kv_heads: int = HEADS
) -> tuple[Tensor, Tensor]:
    return drawn(BATCH, HEADS, query_len, DIM), drawn(BATCH, kv_heads, kv_len, DIM)


def matrix(**options: Any) -> AttentionMatrix:
    return AttentionMatrix(*inputs(), **options)


def plain(weights: AttentionMatrix) -> Tensor:
    """All of the weights, by the definition."""
    return weights.problem.restore(eager.compute(weights.problem).weights)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)


def test_repr() -> None:
    query, key = inputs()
    sizes = "batch=2, num_heads=4, query_len=6, kv_len=9"
    assert repr(AttentionMatrix(query, key)) == f"AttentionMatrix [{sizes}]"
    masked = AttentionMatrix(query, key, mask=ch.causal() & ch.padding([3, 9]))
    assert repr(masked) == f"AttentionMatrix [{sizes}] mask=causal() & padding([3, 9])"
    flat = AttentionMatrix(query[0, 0], key[0, 0])
    assert repr(flat) == "AttentionMatrix [query_len=6, kv_len=9]"
    biased = matrix(mask=ch.causal(), bias=ch.alibi(4))
    assert repr(biased).endswith("kv_len=9] mask=causal() bias=alibi(4)")
    assert repr(matrix(bias=torch.zeros(6, 9))).endswith(" bias=<1 × 1 × 6 × 9>")


@pytest.mark.parametrize("known", [False, True])
def test_gradients_by_finite_differences(known: bool) -> None:
    """Of a trained bias as well; there are more queries than keys, and the first sees nothing."""
    shapes = (1, 2, 3, 2), (1, 1, 2, 2), (2,), (1, 2, 3, 2), (1, 2, 2, 1)
    given = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)

    def numbers(*given: Tensor) -> tuple[Tensor, ...]:
        query, key, sinks, bias, value = given
        a = AttentionMatrix(query, key, mask=ch.causal(), sinks=sinks, bias=bias)
        if known:
            with torch.no_grad():
                assert not a.logsumexp.requires_grad
        read = a[..., 1:, [0, 1]], a.at([0, 1, 2], [0, 0, 1]), a.diagonal(-1)
        return *read, a.logsumexp[..., 1:], a @ value

    assert torch.autograd.gradcheck(numbers, given)


INDEX = "an int, a slice or one dimension of ints"
test_refused_indices = refusals(
    lambda index: matrix()[index],
    ((0, 4), "matrix.range", "4 // 1 // 4"),
    (-3, "matrix.range", "-3 // 0 // 2"),
    ((..., [0, 9, 1]), "matrix.range", "9 // 3 // 9"),
    ((..., torch.tensor([0, -7]), 0), "matrix.range", "-7 // 2 // 6"),
    ((0, 0, 0, 0, 0), "matrix.index", "4 // 4 // 5"),
    ((..., 0, ...), "matrix.index", "4 // 4 // 3"),
    ((0, 1.5), "matrix.index", "1 // 1.5"),
    (None, "matrix.index", "0 // None"),
    (True, "matrix.index", "0 // True"),
    ("ab", "matrix.index", "0 // 'ab'"),
    ([0, "a"], "matrix.index", "0 // [0, 'a']"),
    (torch.ones(2, dtype=torch.bool), "matrix.index", f"0 // {INDEX} // torch.bool // (2,)"),
    ((0, torch.tensor(1.0)), "matrix.index", f"1 // {INDEX} // torch.float32 // ()"),
    (
        torch.zeros(1, 2, dtype=torch.int64),
        "matrix.index",
        f"0 // {INDEX} // torch.int64 // (1, 2)",
    ),
    (slice("a", None), "matrix.index", "slice('a', None, None)"),
    (slice(None, None, 0), "matrix.index", "slice(None, None, 0)"),
)


test_refused_values = refusals(
    lambda value: matrix() @ value,
    ([1.0], "value.type", "value // a torch.Tensor // list"),
    (
        torch.zeros(4, KEYS, 2, dtype=torch.float64),
        "shape.dimensions",
        "4 // 2 or 1 // (4, 9, 2)",
    ),
    (torch.zeros((), dtype=torch.float64), "shape.dimensions", "4 // 2 or 1 // ()"),
)


def test_what_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "free_bytes", lambda device: 8_000_000_000)
    long = torch.zeros(1, 1, 1, 4).expand(1, 8, 200_000, 4)
    weights = AttentionMatrix(long, long)
    text = (
        "[matrix.too-large] 1 × 8 × 200000 × 200000 weights take 1,280.0 GB, and twice that while "
        "they are put together; 8.0 GB are free on cpu. Index the rows, keys or heads that you "
        "need."
    )
    for ask in (weights.dense, lambda: weights[...]):
        expected = pytest.raises(TooLargeError, match=f"^{re.escape(text)}$")
        with LargestTensor() as memory, expected:
            ask()
        assert memory.largest <= 8 * 200_000
    assert weights.nbytes == 8 * 200_000**2 * 4
    assert weights[0, 3, 7, :2].tolist() == pytest.approx([1 / 200_000] * 2)


def test_what_is_free_is_asked_of_the_system() -> None:
    long = torch.zeros(1, 1).expand(1_000_000, 1)
    with pytest.raises(TooLargeError, match=r"1000000 × 1000000 weights take 4,000\.0 GB"):
        AttentionMatrix(long, long).dense()


def test_diagonals_beyond_the_matrix() -> None:
    weights = matrix()
    for offset in (10**21, -(10**21), 2**63 - 1, -(2**63)):
        assert weights.diagonal(offset).shape == (BATCH, HEADS, 0)
    offset: Any = np.int64(-1)
    close(weights.diagonal(offset), weights.dense().diagonal(-1, 2, 3))


Q = torch.zeros(3, 4)
test_refused_pairs_and_diagonals = refusals(
    lambda ask: ask(matrix()),
    (lambda a: AttentionMatrix(Q, Q, value=Q, across=wrong(1)), "across.value"),
    (lambda a: a.diagonal(1.0), "diagonal.type", "float"),
    (lambda a: a.diagonal(True), "diagonal.type", "bool"),
    (lambda a: a.at([0, 1], [0, 1, 2]), "matrix.pairs", "(2,) // (3,)"),
    (lambda a: a.at(0, 9), "matrix.range", "9 // -1 // 9"),
    (lambda a: a.at(slice(2), 0), "matrix.index", "-2 // slice(None, 2, None)"),
    (lambda a: a.divergence("b"), "divergence.type", "'b'"),
    (
        lambda a: a.divergence(AttentionMatrix(*inputs(5))),
        "divergence.shape",
        "(2, 4, 6, 9) // (2, 4, 5, 9)",
    ),
    (lambda a: a.divergence(a, kind="l2"), "kind.value", 'kind // "kl", "js" // \'l2\''),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_of_any_precision_and_length(dtype: torch.dtype) -> None:
    weights = torch.randn(2, 3, 131, 257).softmax(dim=-1)
    found = AttentionMatrix.from_weights(weights.to(dtype)).dense()
    torch.testing.assert_close(found, weights, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    for shape in ((0, 3), (3, 0), (1, 1), (0, 2, 3, 3), (2, 0, 3)):
        some = torch.ones(shape, dtype=dtype) / max(1, shape[-1])
        found = AttentionMatrix.from_weights(some)
        assert found.shape == shape
        assert found.entropy().shape == shape[:-1]


test_what_are_no_weights = refusals(
    AttentionMatrix.from_weights,
    ([[1.0]], "weights.type", "weights // a torch.Tensor // list"),
    (torch.ones(1), "weights.shape", "(1,)"),
    (torch.eye(2, dtype=torch.int64), "weights.dtype", "torch.int64"),
    (torch.eye(2)[None] * 1.01, "weights.value", "(0, 0) // 1.01"),
    (torch.tensor([[1.0, 0.0], [-0.5, 1.5]]), "weights.value", "(1,) // 1"),
    (torch.eye(2) * math.nan, "weights.value", "(0,) // nan"),
)


@pytest.mark.parametrize("dims", [2, 3, 4])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_value_is_that_which_was_given(dims: int, autocast: bool) -> None:
    lead = (2, 3)[4 - dims :]
    query, key, value = torch.randn(*lead, 5, 4), torch.randn(*lead, 7, 4), torch.randn(*lead, 7, 2)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        valued, bare = AttentionMatrix(query, key, value=value), ch.AttentionMatrix(query, key)
    assert bare.value is None
    assert valued.value is not None
    assert valued.value.equal(value.bfloat16() if autocast else value)
    assert valued.dense().equal(bare.dense())
    with pytest.raises(ShapeError, match=r"value .*kv_len=6"):
        ch.AttentionMatrix(query, key, value=value[..., :6, :])
