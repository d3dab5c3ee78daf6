"""Any part of the weights, held against all of them."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.errors import (
    ArgumentError,
    SelectionError,
    ShapeError,
    TooLargeError,
    UnsupportedError,
)
from clearhead.matrix import parts
from tests.matrix.tensors import tensors_of
from tests.memory import LargestTensor
from tests.refusals import assert_refused, refusals
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


def holes() -> Tensor:
    valid = torch.ones(BATCH, KEYS, dtype=torch.bool)
    valid[0, [0, 3, 4, 8]] = False
    valid[1, 1:] = False
    return valid


def scattered() -> Tensor:
    return torch.rand(BATCH, HEADS, QUERIES, KEYS) < 0.4


PROBLEMS: dict[str, Callable[[], AttentionMatrix]] = {
    "plain": lambda: matrix(),
    "scale": lambda: matrix(scale=-2.5),
    "causal": lambda: matrix(mask=ch.causal()),
    "window": lambda: matrix(mask=ch.sliding_window(left=2, right=1)),
    "padding on the right": lambda: matrix(mask=ch.padding([4, 9])),
    "padding on the left": lambda: matrix(mask=ch.causal() & ch.padding([0, 5], side="left")),
    "padding with holes": lambda: matrix(mask=ch.padding(holes())),
    "documents": lambda: AttentionMatrix(
        *inputs(KEYS, KEYS), mask=ch.causal() & ch.documents([0, 0, 0, 1, 1, 2, 2, 2, 2])
    ),
    "dense per head": lambda: matrix(mask=scattered()),
    "dense for all samples": lambda: matrix(mask=scattered()[:1]),
    "dense for all keys": lambda: matrix(mask=scattered()[..., :1]),
    "offsets per row": lambda: matrix(mask=ch.causal(offset=[-2, 4])),
    "bias per head": lambda: matrix(bias=drawn(1, HEADS, 1, KEYS)),
    "bias per sample": lambda: matrix(bias=drawn(BATCH, 1, QUERIES, KEYS)),
    "bias that hides": lambda: matrix(
        bias=torch.zeros(scattered().shape).masked_fill(scattered(), -torch.inf).double()
    ),
    "alibi": lambda: matrix(mask=ch.causal(), bias=ch.alibi(HEADS)),
    "relative": lambda: matrix(bias=ch.relative(torch.randn(HEADS, 9))),
    "sinks": lambda: matrix(mask=scattered(), sinks=torch.tensor([0.0, 3.0, -1.0, 9.0]).double()),
    "softcap": lambda: matrix(softcap=0.7, mask=ch.causal()),
    "grouped heads": lambda: AttentionMatrix(
        *inputs(kv_heads=2), mask=scattered(), bias=ch.alibi(HEADS)
    ),
    "one key head": lambda: AttentionMatrix(*inputs(kv_heads=1)),
    "empty rows": lambda: AttentionMatrix(*inputs(8, 3), mask=ch.causal()),
    "nothing visible": lambda: matrix(mask=~ch.full()),
    "everything at once": lambda: AttentionMatrix(
        *inputs(kv_heads=2),
        mask=ch.causal(offset=[-1, 2]) | ch.dense(scattered()),
        bias=drawn(BATCH, HEADS, QUERIES, KEYS),
        scale=1.5,
        softcap=3.0,
        sinks=drawn(HEADS),
    ),
}


def test_few_pairs_are_read_in_the_rows_of_their_queries() -> None:
    weights = PROBLEMS["everything at once"]()
    expected = weights[..., [1, 3], :][..., [0, 1], [2, 0]]
    torch.testing.assert_close(weights.at([1, 3], [2, 0]), expected, rtol=0, atol=0, equal_nan=True)
    assert weights._logsumexp is None


def test_no_samples_and_no_keys() -> None:
    nothing = AttentionMatrix(torch.randn(0, 2, 3, 4), torch.randn(0, 2, 5, 4))
    assert nothing[:, 1, [0, 2]].shape == (0, 2, 5)
    keyless = AttentionMatrix(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4))
    assert keyless[0, 1].shape == (3, 0)
    assert torch.equal(keyless.logsumexp, torch.full((1, 2, 3), -torch.inf))
    queryless = AttentionMatrix(torch.randn(1, 2, 0, 4), torch.randn(1, 2, 5, 4))
    assert queryless[0, 1, :, 2].shape == (0,)


def test_logsumexp_of_nothing() -> None:
    weights = AttentionMatrix(*inputs(5, 3), mask=ch.causal())
    total = weights.logsumexp
    assert bool((total[:, :, :2] == -torch.inf).all())
    assert bool(total[:, :, 2:].isfinite().all())
    assert bool((weights[:, :, :2, 1] == 0).all())
    assert weights._total() is weights._total()  # computed once


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


Read = Callable[[AttentionMatrix], Tensor]

READ: dict[str, tuple[Read, Callable[[Tensor], Tensor]]] = {
    "rows": (
        lambda a: a[0, 1:3, [1, -1], [0, 2]],
        lambda whole: whole[0, 1:3][:, [1, -1]][..., [0, 2]],
    ),
    "pairs": (
        lambda a: a.at([0, 3, -1, 3], [1, 2, 0, 2]),
        lambda whole: whole[:, :, [0, 3, -1, 3], [1, 2, 0, 2]],
    ),
    "diagonal": (lambda a: a.diagonal(-1), lambda whole: whole.diagonal(-1, 2, 3)),
}


@pytest.mark.parametrize("name", ["everything at once", "causal", "empty rows", "grouped heads"])
@pytest.mark.parametrize("part", READ)
@pytest.mark.parametrize("narrow", [False, True])
def test_gradients(part: str, name: str, narrow: bool) -> None:
    example = PROBLEMS[name]().problem
    query, key = (t.clone().requires_grad_() for t in (example.query, example.key))
    sinks = None if example.sinks is None else example.sinks.clone().requires_grad_()
    leaves = [t for t in (query, key, sinks) if t is not None]
    weights = AttentionMatrix(
        query,
        key,
        mask=example.mask,
        bias=example.bias,
        scale=example.scale,
        softcap=example.softcap,
        sinks=sinks,
    )
    if narrow:
        with torch.no_grad():
            assert not weights.logsumexp.requires_grad
    read, of_whole = READ[part]
    expected = of_whole(plain(weights))
    pull = torch.randn_like(expected)
    truth = torch.autograd.grad(expected, leaves, pull)
    # A second time: nothing that was kept hangs on the first graph.
    for _ in range(2):
        for mine, theirs in zip(
            torch.autograd.grad(read(weights), leaves, pull), truth, strict=True
        ):
            close(mine, theirs)


def test_gradients_by_finite_differences() -> None:
    """Of a trained bias as well; there are more queries than keys, and the first sees nothing."""
    shapes = (1, 2, 3, 2), (1, 1, 2, 2), (2,), (1, 2, 3, 2), (1, 2, 2, 1)
    given = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)

    def numbers(*given: Tensor) -> tuple[Tensor, ...]:
        query, key, sinks, bias, value = given
        a = AttentionMatrix(query, key, mask=ch.causal(), sinks=sinks, bias=bias)
        read = a[..., 1:, [0, 1]], a.at([0, 1, 2], [0, 0, 1]), a.diagonal(-1)
        return *read, a.logsumexp[..., 1:], a @ value

    assert torch.autograd.gradcheck(numbers, given)


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
    (torch.ones(2, dtype=torch.bool), "matrix.index", "0 // torch.bool // (2,)"),
    ((0, torch.tensor(1.0)), "matrix.index", "1 // torch.float32 // ()"),
    (torch.zeros(1, 2, dtype=torch.int64), "matrix.index", "0 // torch.int64 // (1, 2)"),
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


def test_values_that_attend_refuses() -> None:
    weights = matrix()
    with pytest.raises(ShapeError, match=r"^\[shape.kv-len\] key and value must have the same"):
        _ = weights @ torch.zeros(KEYS + 1, 2, dtype=torch.float64)
    with pytest.raises(ch.errors.DtypeError, match=r"^\[dtype.mixed\]"):
        _ = weights @ torch.zeros(KEYS, 2)
    with pytest.raises(ShapeError, match=r"^\[shape.batch\]"):
        _ = weights @ torch.zeros(1, HEADS, KEYS, 2, dtype=torch.float64)


def test_input_that_attend_refuses() -> None:
    query, key = inputs()
    with pytest.raises(ShapeError, match=r"^\[shape.head-dim\]"):
        AttentionMatrix(query, key[..., :2])
    with pytest.raises(ch.errors.MaskError, match=r"^\[mask"):
        AttentionMatrix(query, key, mask=ch.padding([1, 2, 3]))


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


@pytest.mark.parametrize("where", ["query", "key"])
def test_a_nan_stays_behind_the_mask_and_shows_before_it(where: str) -> None:
    query, key = inputs(KEYS, KEYS)
    spoilt: dict[str, Any] = {"query": query.clone(), "key": key.clone()}
    spoilt[where][0, 1, 4, 0] = torch.nan
    mask = ch.causal() & ch.documents([0, 0, 0, 1, 1, 1, 2, 2, 2])
    clean = AttentionMatrix(query, key, mask=mask)
    weights = AttentionMatrix(**spoilt, mask=mask)
    touched = torch.zeros(BATCH, HEADS, KEYS, dtype=torch.bool)
    touched[0, 1, [4, 5] if where == "key" else [4]] = True
    total = weights.logsumexp
    assert torch.equal(total.isnan(), touched)
    close(total[~touched], clean.logsumexp[~touched])
    seen = mask.to_dense(KEYS, KEYS)
    for part in (weights.dense(), torch.cat([weights[..., :4], weights[..., 4:]], dim=-1)):
        assert torch.equal(part.isnan(), touched[..., None] & seen)
        close(part[~touched], clean.dense()[~touched])


@pytest.mark.parametrize("bias", [ch.alibi(8), None])
def test_a_column_of_a_long_text_is_never_squared(bias: ch.Bias | None) -> None:
    """One key, every query: with a bias, whose rows are made for all keys and all heads."""
    tokens, heads = 4_000, 8
    query, key = (torch.randn(1, heads, tokens, 4) for _ in range(2))
    weights = AttentionMatrix(query, key, mask=ch.causal(), bias=bias)
    with LargestTensor() as memory, torch.no_grad():
        column = weights[0, 3, :, 5]
    assert memory.largest < tokens * tokens * 4 / 2
    assert column.shape == (tokens,)
    close(column[4], torch.zeros(()))
    torch.testing.assert_close(column[[5, 77]], weights[0, 3, [5, 77], 5])


def test_numbers_of_other_kinds_and_sizes() -> None:
    weights = matrix()
    index: Any = np.int64(2)
    close(weights[..., index, :], weights[..., 2, :])
    close(weights[..., [index, 1], :], weights[..., [2, 1], :])
    assert_refused(lambda: weights[10**21], "matrix.range", "1000000000000000000000 // 0 // 2")
    assert_refused(lambda: weights[[0, 10**21]], "matrix.range", "1000000000000000000000 // 0 // 2")
    close(weights[..., slice(0, 10**21), 0], weights[..., 0])


def test_a_long_list_is_not_repeated_in_the_error() -> None:
    index: Any = [0.5] * 100_000
    with pytest.raises(SelectionError) as caught:
        matrix()[index]
    assert len(str(caught.value)) < 200


def test_diagonals_beyond_the_matrix() -> None:
    weights = matrix()
    for offset in (10**21, -(10**21), 2**63 - 1, -(2**63)):
        assert weights.diagonal(offset).shape == (BATCH, HEADS, 0)
    offset: Any = np.int64(-1)
    close(weights.diagonal(offset), weights.dense().diagonal(-1, 2, 3))


test_refused_pairs_and_diagonals = refusals(
    lambda ask: ask(matrix()),
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


def test_a_page_of_a_matrix(tmp_path: Path) -> None:
    weights = ch.AttentionMatrix(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4))
    path = weights.to_html(
        tmp_path / "a.html", source_tokens=["a", "b", "c", "d", "e"], title="<b>"
    )
    assert "<title>&lt;b&gt;</title>" in path.read_text(encoding="utf-8")


METHODS: dict[str, Callable[[AttentionMatrix], Any]] = {
    "logsumexp": lambda a: a.logsumexp,
    "entropy": lambda a: a.entropy(),
    "max": lambda a: a.max(),
    "distance": lambda a: a.distance(),
    "received": lambda a: a.received(),
    "top_k": lambda a: a.top_k(2),
    "mass": lambda a: a.mass(torch.arange(KEYS) < 3),
    "pool": lambda a: a.pool(2, 3),
    "summary": lambda a: a.summary(value=torch.ones(KEYS, 2).double(), top_k=2, pool=(2, 3)),
    "rows": lambda a: a[..., 2, :],
    "narrow": lambda a: a[..., 1:3],
    "dense": lambda a: a.dense(),
    "at": lambda a: a.at([1, 5], [0, 3]),
    "diagonal": lambda a: a.diagonal(1),
    "product": lambda a: a @ torch.ones(KEYS, 2).double(),
    "transposed product": lambda a: a.mT @ torch.ones(QUERIES).double(),
}


@pytest.mark.parametrize("edited", METHODS)
def test_what_was_handed_out_can_be_written_to(edited: str) -> None:
    """Later answers, of the same method and of every other one, are those of a new matrix."""
    query, key = inputs()
    weights = AttentionMatrix(query, key, mask=ch.causal())
    expected = AttentionMatrix(query.clone(), key.clone(), mask=ch.causal())
    for _ in range(2):
        for tensor in tensors_of(METHODS[edited](weights)):
            tensor.fill_(7)
    for name, ask in METHODS.items():
        for mine, theirs in zip(tensors_of(ask(weights)), tensors_of(ask(expected)), strict=True):
            torch.testing.assert_close(mine, theirs, msg=lambda text, name=name: f"{name}: {text}")


def test_weights_that_sum_to_less_are_refused() -> None:
    weights = plain(PROBLEMS["sinks"]())
    with pytest.raises(ArgumentError, match=r"^\[weights\.value] "):
        AttentionMatrix.from_weights(weights)


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


def test_a_value_of_tokens_that_ranks_share() -> None:
    text = r"^\[across.value\] a matrix with across= keeps no value; leave value out.$"
    shared: Any = object()
    with pytest.raises(UnsupportedError, match=text):
        AttentionMatrix(*torch.zeros(2, 3, 4), value=torch.zeros(3, 4), across=shared)
