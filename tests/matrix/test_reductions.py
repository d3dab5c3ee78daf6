"""Every statistic, held against its definition on all of the weights."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.kernels import eager
from clearhead.attention.problem import Problem, make_problem
from clearhead.matrix.distances import Distance
from clearhead.matrix.reductions import (
    Context,
    Entropy,
    Largest,
    LogSumExp,
    Mass,
    Maximum,
    MaxScore,
    OnKeys,
    Pooled,
    Received,
    Reduction,
    bins,
)
from clearhead.matrix.sweep import sweep
from clearhead.matrix.transposed import TransposedSum
from tests.matrix.test_sweep import EMPTY, chunks_of
from tests.tolerances import assert_no_worse

EPS = torch.finfo(torch.float64).eps


class Case(NamedTuple):
    """A statistic as it is asked for, and what it is of weights (batch, heads, queries, keys)."""

    ask: Callable[[AttentionMatrix], Tensor]
    define: Callable[[Tensor, int], Tensor]


def largest(weights: Tensor, k: int) -> Tensor:
    return weights.sort(dim=-1, descending=True).values[..., :k]


def tokens_away(weights: Tensor) -> Tensor:
    query_len, kv_len = weights.shape[2:]
    position = torch.arange(query_len)[:, None] + kv_len - query_len
    return (position - torch.arange(kv_len)).abs().to(weights.dtype)


def mapped(weights: Tensor, rows: int, columns: int) -> Tensor:
    """Bin b has the places from b/count to (b + 1)/count of the length, place by place."""
    of_query, of_key = (
        torch.tensor([place * count // length for place in range(length)])
        for count, length in zip((rows, columns), weights.shape[2:], strict=True)
    )
    pooled = [
        weights[:, :, of_query == row][..., of_key == column].sum(dim=(2, 3))
        for row in range(rows)
        for column in range(columns)
    ]
    return torch.stack(pooled, dim=-1).unflatten(-1, (rows, columns))


def sets(kv_len: int) -> Tensor:
    """Three sets of keys, and keys that are in none."""
    return (torch.arange(kv_len) + 1) * 5 % 4 - 1


def of_sets(weights: Tensor) -> Tensor:
    member = sets(weights.shape[3])
    parts = [weights[..., member == place].sum(dim=-1) for place in range(int(member.max()) + 1)]
    return torch.stack(parts, dim=-1)


def weighing(query_len: int) -> Tensor:
    """Vectors of the queries, (query_len, 2), that a sum tells apart."""
    return torch.stack([torch.arange(query_len) + 1.0, torch.arange(query_len) % 3 - 1.0], dim=1)


CASES: dict[str, Case] = {
    "entropy": Case(lambda a: a.entropy(), lambda w, _: torch.special.entr(w).sum(dim=-1)),
    "max": Case(lambda a: a.max(), lambda w, _: w.amax(dim=-1)),
    "received": Case(
        lambda a: a.received(), lambda w, group: w.sum(dim=2).unflatten(1, (-1, group)).sum(dim=2)
    ),
    "distance": Case(lambda a: a.distance(), lambda w, _: (w * tokens_away(w)).sum(dim=-1)),
    "mass of sets": Case(lambda a: a.mass(sets(a.shape[-1])), lambda w, _: of_sets(w)),
    "pool": Case(
        lambda a: a.pool(min(3, a.shape[-2]), min(2, a.shape[-1])),
        lambda w, _: mapped(w, min(3, w.shape[2]), min(2, w.shape[3])),
    ),
    "largest": Case(lambda a: a.top_k(1).weights, lambda w, _: largest(w, 1)),
    "transposed": Case(
        lambda a: a.mT @ weighing(a.shape[-2]).to(a.dtype),
        lambda w, _: w.mT @ weighing(w.shape[2]).to(w.dtype),
    ),
    "first": Case(lambda a: a.summary().first, lambda w, _: w[..., 0]),
    "token before": Case(lambda a: a.summary().previous, lambda w, _: before(w)),
    "diagonal": Case(
        lambda a: a.diagonal(1 - a.shape[-2]), lambda w, _: w.diagonal(1 - w.shape[2], 2, 3)
    ),
}


def before(weights: Tensor) -> Tensor:
    """The weight on the token before by position, 0 where there is none."""
    query_len, kv_len = weights.shape[2:]
    rows = [
        weights[:, :, query, key] if (key := query + kv_len - query_len - 1) >= 0 else None
        for query in range(query_len)
    ]
    nothing = weights.new_zeros(weights.shape[:2])
    return torch.stack([nothing if row is None else row for row in rows], dim=2)


def close(actual: Tensor, expected: Tensor, weights: AttentionMatrix, what: object = "") -> None:
    """As near as sums of so many terms of that size can be."""
    terms = sum(weights.shape) + weights.problem.query.shape[3]
    numbers = expected.detach().nan_to_num(posinf=0.0, neginf=0.0).abs()
    size = max(1.0, float(numbers.amax())) if numbers.numel() else 1.0
    torch.testing.assert_close(
        actual,
        expected,
        rtol=0,
        atol=terms * size * EPS,
        equal_nan=True,
        msg=lambda words: f"{what}: {words}",
    )


# A few queries of one key head at a time, and all of a sample at once.
CHUNKS = [(31, 11, 3), (1 << 21, 64, 128)]


# With segments and without; keys that belong to no segment; and lengths at which segments get larger.
LENGTHS = (1, 2, 5, 7, 8, 9, 17, 31, 45, 46, 63, 64, 65, 90, 95, 96, 97, 127, 128, 129, 331)


@pytest.mark.parametrize("mask", [None, ch.causal(), ch.sliding_window(left=30, right=3)], ids=str)
def test_the_largest_by_segments(mask: ch.Mask | None) -> None:
    for kv_len in LENGTHS:
        query = torch.randn(1, 2, 5, 3, dtype=torch.float64)
        key = torch.randn(1, 2, kv_len, 3, dtype=torch.float64)
        # The largest are neighbours, or all in one segment.
        key[:, 0, : kv_len // 3] *= 4
        key[:, 1, :: max(1, kv_len // 7)] *= 4
        weights = AttentionMatrix(query, key, mask=mask)
        whole = eager.compute(weights.problem).weights
        for k in sorted({min(k, kv_len) for k in (1, 2, 3, 5, kv_len)}):
            found, what = weights.top_k(k), (kv_len, k)
            close(found.weights, largest(whole, k), weights, what)
            assert torch.equal(found.keys == -1, found.weights == 0), what
            seen = found.keys >= 0
            taken = whole.gather(-1, found.keys.clamp(min=0))
            close(taken[seen], found.weights[seen], weights, what)


@pytest.mark.parametrize("name", EMPTY)
def test_empty_axes(name: str) -> None:
    weights = EMPTY[name]()
    batch, heads, query_len, kv_len = weights.shape
    kv_heads = weights.problem.num_kv_heads
    nothing = torch.zeros(batch, heads, query_len, dtype=weights.dtype)
    for found in (weights.entropy(), weights.max(), weights.distance()):
        assert torch.equal(found, nothing)
    assert torch.equal(weights.received(), nothing.new_zeros(batch, kv_heads, kv_len))
    assert torch.equal(weights.mass(torch.ones(kv_len, dtype=torch.bool)), nothing)
    assert weights.mass(torch.full((kv_len,), -1)).shape == (batch, heads, query_len, 0)
    product = weights.mT @ weighing(query_len).to(weights.dtype)
    assert torch.equal(product, nothing.new_zeros(batch, heads, kv_len, 2))
    summary = weights.summary()
    for found in (summary.logsumexp, weights.max_score()):
        assert torch.equal(found, nothing - torch.inf)
    for found in (summary.entropy, summary.distance, summary.first, summary.previous):
        assert torch.equal(found, nothing)
    assert weights.at([], []).shape == (batch, heads, 0)
    assert weights.diagonal().shape == (batch, heads, min(query_len, kv_len))
    if query_len and kv_len:
        pooled = weights.pool(query_len, kv_len)
        assert pooled.shape == weights.shape


@pytest.mark.parametrize(
    ("options", "shift"),
    [
        ({}, 0.0),
        ({"mask": ch.causal(), "sinks": torch.tensor([0.0, 5.0, -3.0, 40.0])}, 30.0),
        (
            {"mask": ch.sliding_window(left=7) | ch.prefix(5), "bias": ch.alibi(4), "softcap": 5.0},
            0.0,
        ),
    ],
    ids=["plain", "sinks", "everything"],
)
def test_no_worse_than_plain(options: dict[str, Any], shift: float) -> None:
    """A shift adds as much to all scores of a query, as keys that have much in common do."""
    exact = dict(options)
    if exact.get("sinks") is not None:
        exact["sinks"] = exact["sinks"].double()
    others = {torch.float32: shift, torch.bfloat16: 30.0 - shift, torch.float16: shift}
    for dtype, added in others.items():
        query, key = torch.randn(1, 4, 151, 16), torch.randn(1, 2, 157, 16) + added
        query, key = query.to(dtype), key.to(dtype)
        weights = AttentionMatrix(query, key, **options)
        doubled = make_problem(query.double(), key.double(), key.double(), **exact)
        truth, plain = eager.compute(doubled).weights, eager.compute(weights.problem).weights
        for name, (ask, define) in CASES.items():
            found = ask(weights)
            assert found.dtype == torch.float32
            assert_no_worse(found, define(truth, 2), define(plain, 2), what=f"{name} in {dtype}")


def test_scores_that_are_all_alike_lose_no_digits() -> None:
    """However large they are: what they have in common is no part of the entropy."""
    for size in (1.0, 1e3, 1e9, 1e14):
        query, key = torch.full((1, 1, 3, 4), size), torch.full((1, 1, 67, 4), size)
        weights = AttentionMatrix(query, key)
        expected = torch.full((1, 1, 3), 67.0).double().log()
        assert_no_worse(weights.entropy(), expected, expected.float())


SEEN = {
    "documents": ch.causal() & ch.documents([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
    "window or prefix": ch.sliding_window(left=1) | ch.prefix(2),
    "no mask": None,
}
# A large number is an ordinary one in a bias.
BROKEN = [
    (where, bad)
    for where in ("query", "key", "bias")
    for bad in (torch.nan, torch.inf, -torch.inf, 1e200)
    if (where, bad) != ("bias", 1e200)
]


@pytest.mark.parametrize(
    ("broken", "mask", "sizes"),
    # Every number in every place; every place under every mask and in both chunks.
    list(zip(BROKEN, itertools.cycle(SEEN), itertools.cycle(CHUNKS), strict=False)),
    ids=str,
)
def test_numbers_that_are_not_finite(
    broken: tuple[str, float], mask: str, sizes: tuple[int, int, int]
) -> None:
    where, bad = broken
    given: dict[str, Tensor] = {
        "query": torch.randn(2, 4, 11, 3, dtype=torch.float64),
        "key": torch.randn(2, 2, 11, 3, dtype=torch.float64),
        "bias": torch.randn(2, 4, 11, 11, dtype=torch.float64),
    }
    seen = SEEN[mask]
    clean = AttentionMatrix(given["query"], given["key"], bias=given["bias"], mask=seen)
    spoilt = {name: tensor.clone() for name, tensor in given.items()}
    # Of two samples and two key heads, one each; the bias is spoilt for one query.
    spoilt[where][0, 1, 5] = 0.5
    spoilt[where][0, 1, 5, 2] = bad
    weights = AttentionMatrix(spoilt["query"], spoilt["key"], bias=spoilt["bias"], mask=seen)
    whole = eager.compute(weights.problem).weights
    with chunks_of(*sizes):
        for name, (ask, define) in CASES.items():
            expected = define(whole, 2)
            found = ask(weights)
            assert torch.equal(found.isnan(), expected.isnan()), name
            close(found, expected, weights, name)
    assert torch.equal(whole[1], eager.compute(clean.problem).weights[1])
    assert torch.equal(weights.entropy()[1].isnan(), torch.zeros(4, 11, dtype=torch.bool))


@given(st.integers(1, 40), st.integers(1, 40))
def test_bins_are_in_order_and_as_equal_as_can_be(length: int, count: int) -> None:
    count = min(count, length)
    found = bins(length, count, torch.device("cpu"))
    sizes = torch.bincount(found, minlength=count)
    assert sizes.shape == (count,)
    assert torch.equal(found, found.sort().values)
    assert int(sizes.max() - sizes.min()) <= 1


def test_sets_of_each_sample() -> None:
    query, key = torch.randn(2, 3, 2, 5, 7, dtype=torch.float64).unbind()
    weights = AttentionMatrix(query, key)
    whole = eager.compute(weights.problem).weights
    segments = torch.tensor([[0, 0, 1, 1, 1], [-1, 2, 2, 0, -1], [0, 0, 0, 0, 0]])
    expected = torch.stack(
        [
            torch.stack([whole[i, :, :, row == place].sum(dim=-1) for place in range(3)], dim=-1)
            for i, row in enumerate(segments)
        ]
    )
    for dtype in (torch.int64, torch.int8):
        close(weights.mass(segments.to(dtype)), expected, weights)
    close(weights.mass(segments == 0), expected[..., 0], weights)
    with chunks_of(7, 5, 2):
        close(weights.mass(segments), expected, weights)


ALL: dict[str, Callable[[Problem], Reduction]] = {
    "logsumexp": LogSumExp,
    "maximum": Maximum,
    "max score": MaxScore,
    "entropy": Entropy,
    "entropy again": Entropy,
    "distance": Distance,
    "first": lambda problem: OnKeys(problem, [torch.arange(3).expand(1, 1, problem.query_len, -1)]),
    "mass": lambda problem: Mass(problem, torch.ones(1, problem.kv_len, 1).to(problem.query.dtype)),
    "largest": lambda problem: Largest(problem, 2),
    "pooled": lambda problem: Pooled(problem, 3, 2),
    "received": Received,
    "context": lambda problem: Context(problem, problem.value),
    "transposed": lambda problem: TransposedSum(problem, problem.query),
}


def gathered(problem: Problem, names: Iterable[str]) -> dict[str, list[Tensor]]:
    """The results of some reductions, asked for in this order, in chunks of a few queries."""
    made: dict[str, Any] = {name: ALL[name](problem) for name in names}
    with chunks_of(31, 11, 3):
        sweep(problem, list(made.values()))
    results = {name: each.result for name, each in made.items()}
    return {
        name: list(each) if isinstance(each, tuple) else [each] for name, each in results.items()
    }


ORDERED = {
    "causal": {"mask": ch.causal()},
    "sinks": {"mask": ch.sliding_window(left=3), "sinks": torch.tensor([0.0, 2.0, -1.0, 9.0])},
    "not finite": {"mask": ch.causal()},
}


# Those that overwrite something or hand something on: what goes with them depends on the order.
OTHERS = ("entropy", "entropy again", "largest", "pooled", "distance")


def orders(random: Random) -> Iterator[list[tuple[str, ...]]]:
    """Sets of reductions, each in several orders: of two every one, of three and of all some and their reverses."""
    for first, second in itertools.combinations(ALL, 2):
        if first in OTHERS or second in OTHERS:
            yield [(first, second), (second, first)]
    for pair in itertools.combinations(OTHERS, 2):
        names = [*pair, random.choice([name for name in ALL if name not in pair])]
        yield list(itertools.permutations(names))
    every = [tuple(random.sample(list(ALL), len(ALL))) for _ in range(3)]
    yield [order for each in every for order in (each, each[::-1])]


@pytest.mark.parametrize("name", ORDERED)
def test_the_order_makes_no_difference(name: str) -> None:
    query, key = torch.randn(1, 4, 5, 3), torch.randn(1, 2, 7, 3)
    if name == "not finite":
        query[0, 1, 4], key[0, 0, 2] = torch.nan, torch.inf
    problem = make_problem(query, key, torch.randn(1, 2, 7, 3), **ORDERED[name])
    for first, *others in orders(Random(name)):
        expected = gathered(problem, first)
        for order in others:
            for of, results in gathered(problem, order).items():
                for mine, theirs in zip(results, expected[of], strict=True):
                    assert torch.equal(mine.isnan(), theirs.isnan()), (of, order)
                    assert torch.equal(mine.nan_to_num(), theirs.nan_to_num()), (of, order)
