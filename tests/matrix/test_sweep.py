"""One pass over the weights, held against all of them, in chunks of any size."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix, stages
from clearhead.attention.kernels import eager
from clearhead.attention.problem import Problem, make_problem
from clearhead.masks import tiles
from clearhead.masks.spans import Extent
from clearhead.matrix import sweep
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.distances import Distance
from clearhead.matrix.reductions import (
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
)
from tests.on_device import DEVICE, Recorded, empty
from tests.tolerances import assert_no_worse

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM = 2, 6, 3, 11, 13, 5

# BUFFER, LEAST_ROWS and MOST_QUERIES: a query at a time, a few of them and of the heads, all heads.
SIZES = [(1, 1, 1), (7, 5, 3), (97, 17, 2)]


@contextmanager
def chunks_of(buffer: int, rows: int, queries: int) -> Iterator[None]:
    """Small chunks, so that there are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "BUFFER", buffer)
        patch.setattr(sweep, "LEAST_ROWS", rows)
        patch.setattr(sweep, "MOST_QUERIES", queries)
        patch.setattr(tiles, "TILE", 2)
        patch.setattr(tiles, "LEAST_TILES", 2)
        yield


class First(ch.Bias):
    """A bias of one's own: a bonus for the first key, and −∞ for the last."""

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        bonus = (key_index == 0).double() * 2
        return bonus.masked_fill(key_index == extent.kv_len - 1, -torch.inf)

    def describe(self) -> str:
        return "first"


def grouped(query_len: int = QUERIES, kv_len: int = KEYS, **options: Any) -> AttentionMatrix:
    query = torch.randn(BATCH, HEADS, query_len, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KV_HEADS, kv_len, DIM, dtype=torch.float64)
    return AttentionMatrix(query, key, **options)


def sinks() -> Tensor:
    return torch.randn(HEADS, dtype=torch.float64)


EMPTY: dict[str, Callable[[], AttentionMatrix]] = {
    "no queries": lambda: grouped(0, KEYS, mask=ch.causal()),
    "no keys": lambda: grouped(QUERIES, 0),
    "no keys behind a mask": lambda: grouped(QUERIES, 0, mask=ch.causal(), sinks=sinks()),
    "no samples": lambda: AttentionMatrix(torch.zeros(0, 2, 3, 5), torch.zeros(0, 1, 7, 5)),
}


class Whole(Reduction):
    """All weights, and how often each query came by."""

    reads = frozenset({"scores", "weights", "logsumexp", "column_sums", "total"})

    def __init__(self, problem: Problem) -> None:
        shape = (*problem.query.shape[:3], problem.kv_len)
        like = stages.upcast(problem.query[:0])
        self.weights, self.times = like.new_zeros(shape), torch.zeros(shape[:3])
        self.total = like.new_full(shape[:3], -torch.inf)
        self.ordinary = True

    def update(self, chunk: Chunk) -> None:
        self.weights[(*chunk.place, chunk.keys)] = chunk.weights
        self.times[chunk.place] += 1
        self.total[chunk.place] = chunk.logsumexp
        self.ordinary = self.ordinary and chunk.visible is None
        if chunk.scores.shape[-1]:
            expected = chunk.weights.sum(dim=1)
            assert torch.allclose(chunk.column_sums, expected, rtol=1e-6, equal_nan=True)
        assert torch.allclose(chunk.total, chunk.weights.sum(-1), rtol=1e-6, equal_nan=True)


def swept(problem: Problem) -> Whole:
    whole = Whole(problem)
    sweep.sweep(problem, [whole])
    return whole


def test_a_bias_of_ones_own_is_what_it_gives() -> None:
    problem = grouped(bias=First(), mask=ch.causal()).problem
    for sizes in SIZES:
        with chunks_of(*sizes):
            whole, truth = swept(problem), eager.compute(problem).weights
        torch.testing.assert_close(whole.weights, truth)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sweeps in so many threads, however small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "threads_apart", lambda: count)
        patch.setattr(sweep, "WORTH_THREADS", 0)
        yield


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "mask", [None, ch.causal(), ch.padding([3, 5]), ch.dense(torch.eye(11, 13).bool())], ids=str
)
@pytest.mark.parametrize("count", [2, 3, 6])
def test_in_threads_the_numbers_are_the_same(
    count: int, mask: ch.Mask | None, inference: bool
) -> None:
    # One query a chunk, so that threads tell the same in whatever order they come.
    with torch.inference_mode(inference), chunks_of(97 // count, 1, 1):
        weights = grouped(mask=mask, softcap=2.0)
        value = torch.randn(BATCH, KV_HEADS, KEYS, DIM, dtype=torch.float64)
        options: dict[str, Any] = {"value": value, "top_k": 3, "pool": (3, 4)}
        alone = weights.summary(**options)
        with threads(count):
            told: list[float] = []
            for _ in range(3):
                together = weights.summary(**options, progress=told.append)
                torch.testing.assert_close(vars(together), vars(alone))
            assert told == sorted(told[: len(told) // 3]) * 3
            assert told[-1] == 1.0


def test_threads_that_would_wait_are_not_taken() -> None:
    seen: list[int] = []
    side_by_side = sweep.side_by_side

    def told(units: Any, start: Any, count: int, tell: Any) -> None:
        seen.append(count)
        side_by_side(units, start, count, tell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "side_by_side", told)
        for count in (1, 2, 3, 4, 6, 7):
            with threads(count):
                grouped().entropy()
        with threads(2):
            gradients = AttentionMatrix(torch.ones(2, 3, 2), torch.ones(2, 3, 2))
            sweep.sweep(gradients.problem, [OfAllHeads(gradients.problem)])
        with patch.context() as small:
            small.setattr(sweep, "threads_apart", lambda: 2)
            grouped().entropy()
    assert seen == [2, 3, 6]  # of 2 · 3 key heads


class OfAllHeads(Reduction):
    """The sum of all weights of all heads."""

    by_head = False

    def __init__(self, problem: Problem) -> None:
        self.result = 0.0

    def update(self, chunk: Chunk) -> None:
        self.result += float(chunk.weights.sum())


def test_an_interrupt_ends_threads() -> None:
    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with threads(2), chunks_of(97, 1, 2), pytest.raises(KeyboardInterrupt):
        grouped().summary(progress=interrupt)
    torch.testing.assert_close(
        grouped().dense().sum(-1), torch.ones(BATCH, HEADS, QUERIES).double()
    )


@pytest.mark.parametrize("mask", [None, ch.causal(), ch.prefix(2), ch.padding([3, 5])], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_progress_grows_to_one(mask: ch.Mask | None, sizes: tuple[int, int, int]) -> None:
    shares: list[float] = []
    problem = grouped(QUERIES, 5, mask=mask).problem
    with chunks_of(*sizes):
        sweep.sweep(problem, [Whole(problem)], shares.append)
    assert len(shares) > 1
    assert shares[0] > 0
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0


def test_a_trained_problem_leaves_no_graph() -> None:
    query, key = torch.randn(2, 1, 2, 3, 5, requires_grad=True).unbind()
    whole = swept(make_problem(query, key, key))
    assert not whole.weights.requires_grad


# Numbers of query and key, scale, and slope.
HUGE = [
    (1e30, 1.0, 1.0, 0.1),
    (1e15, 1e15, 1.0, 0.1),
    (1e30, 1e30, 1.0, 0.1),  # beyond float32
    (1e20, 1e-20, 1e20, 0.1),  # query · scale is beyond it, the score is not
    (1e20, 1e20, 1e-20, 0.1),  # the score is, before it is scaled
    (1.0, 1.0, 1.0, 1e30),
]


@pytest.mark.parametrize(("of_query", "of_key", "scale", "slope"), HUGE)
def test_huge_numbers_go_by_the_stages(
    of_query: float, of_key: float, scale: float, slope: float
) -> None:
    query = of_query * torch.randn(1, 2, 7, 3)
    key = of_key * torch.randn(1, 2, 7, 3)
    problem = make_problem(
        query,
        key,
        key,
        scale=scale,
        bias=ch.alibi(slopes=torch.tensor([slope, 0.1])),
        # Nobody sees the nearest key, so that all scores of a row may be huge.
        mask=~ch.sliding_window(left=0),
    )
    whole = swept(problem)
    assert not whole.ordinary
    truth = eager.compute(problem)
    assert_no_worse(whole.weights, truth.weights.double(), truth.weights)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e24])
def test_large_numbers_that_are_no_trouble(size: float) -> None:
    """All scores are below 0, as far as they can be; what is hidden is farther."""
    query, key = size**0.5 * torch.rand(1, 2, 7, 3), -(size**0.5) * torch.rand(1, 2, 7, 3)
    for mask in (None, ch.causal()):
        problem = make_problem(query, key, key, mask=mask)
        whole = swept(problem)
        assert whole.ordinary
        exact = eager.compute(make_problem(query.double(), key.double(), key.double(), mask=mask))
        assert_no_worse(whole.weights, exact.weights, eager.compute(problem).weights)


ON_DEVICE: dict[str, dict[str, Any]] = {
    "all pairs": {},
    "causal": {"mask": ch.causal()},
    "a window": {"mask": ch.causal() & ch.sliding_window(left=40)},
    "two runs": {"mask": ch.sliding_window(left=2) | ch.prefix(3)},
    "padding": {"mask": ch.causal() & ch.padding([300, 0])},
    "documents": {"mask": ch.causal() & ch.documents(lengths=[100, 200, 1])},
    "a tensor": {"mask": torch.empty(300, 301, dtype=torch.bool, device=DEVICE)},
    "everything": {"mask": ch.causal(), "bias": ch.alibi(4), "softcap": 3.0},
}


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("name", ON_DEVICE)
def test_nothing_waits_for_a_device(
    name: str, ordinary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether numbers are ordinary is read once, before; what chunks do is known to the host. By the stages, a mask
    may bring its own few numbers along for each chunk."""
    monkeypatch.setattr(sweep, "_is_ordinary", lambda problem: ordinary)
    monkeypatch.setattr(sweep, "DEVICE_BUFFER", 120_000)
    options = ON_DEVICE[name] | {"sinks": empty(4)}
    problem = make_problem(
        empty(2, 4, 300, 16), *(empty(2, 2, 301, 16) for _ in range(2)), **options
    )
    member = empty(1, 301, 3, dtype=torch.float32)
    # Slopes of the paper go there once.
    with Recorded() as recorded:
        if problem.bias is not None:
            problem.bias.on(problem.device)
    once = recorded.waits
    reductions = [
        *(kind(problem) for kind in (LogSumExp, Maximum, MaxScore, Entropy, Distance, Received)),
        OnKeys(problem, [problem.query_positions[None, None, :, None] - 1]),
        Largest(problem, 4),
        Mass(problem, member),
        Pooled(problem, 7, 5),
        Pooled(problem, 10, 5),
    ]
    with Recorded() as recorded:
        sweep.sweep(problem, reductions)
    assert recorded.waits == once or not ordinary
    assert sum("softmax" in operation for operation, _ in recorded.operations) > 3


def test_chunks_of_a_device_are_large() -> None:
    """At 32 768 tokens and 32 heads, 256 queries of 8 heads are a chunk, where the CPU has 64 queries of one."""
    query, key = empty(1, 32, 2**15, 16), empty(1, 32, 2**15, 16)
    assert sweep._sizes(make_problem(query, key, key), 1, 2**15) == (8, 256)
    host = make_problem(*(torch.empty(1, 1, 1, 1).expand(1, 32, 2**15, 16) for _ in range(3)))
    assert sweep._sizes(host, 1, 2**15) == (1, 64)
