"""Each number that a matrix computes is right for long texts, in half precision and under autocast."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.matrix.map_tiles import exact_tile
from clearhead.matrix.rollout import WeightGradients, relevance_of
from tests.matrix.test_reductions import CASES
from tests.memory import LargestTensor

LONG = 8_009


def columns(weights: AttentionMatrix) -> Tensor:
    """One column for each query, of ones, in the dtype of the query."""
    return torch.ones(weights.query_len, 3, dtype=weights.problem.query.dtype)


def relevance(weights: AttentionMatrix) -> Tensor:
    problem = weights.problem
    gradients = WeightGradients(weights, problem.key, problem.query)
    return relevance_of([gradients, gradients], torch.tensor([-1]))


def tile(weights: AttentionMatrix) -> Tensor:
    sums, few = weights.summary().logsumexp, range(31)
    sums = sums[0, 0]
    return exact_tile(weights.problem, sums, 0, 0, few, few).values


ANSWERS: dict[str, Callable[[AttentionMatrix], Any]] = {
    "rows": lambda weights: weights[..., [0, 7, -1], :],
    "pairs": lambda weights: weights.at([1, 5], [0, 4]),
    "column": lambda weights: weights[0, 0, :, 5],
    "diagonal": lambda weights: weights.diagonal(-1),
    "logsumexp": lambda weights: weights.logsumexp,
    "pooled": lambda weights: weights.summary(pool=(8, 8)).pooled,
    "transposed": lambda weights: weights.mT @ columns(weights),
    "norms": lambda weights: weights.norms().total(),
    "shares": lambda weights: weights.norms().shares()[0, 0, 30],
    "rollout": lambda weights: ch.reading.rollout([weights, weights], output=[9, -1]),
    "relevance": relevance,
    "tile": tile,
    "roles": lambda weights: ch.roles(weights, torch.arange(weights.kv_len) % 3).induction,
    **{name: case.ask for name, case in CASES.items()},
}
answers = pytest.mark.parametrize("name", ANSWERS)


def windowed(query: Tensor) -> AttentionMatrix:
    mask = ch.causal() & ch.sliding_window(left=40)
    return AttentionMatrix(query, query.flip(2), mask=mask, value=query)


@answers
@torch.no_grad()
def test_nothing_is_tokens_times_tokens(name: str) -> None:
    weights = windowed(torch.randn(1, 1, LONG, 8))
    with LargestTensor() as memory:
        ANSWERS[name](weights)
    # Two chunks of weights; a bool for each pair would take four times as much.
    assert memory.largest <= 2 * 4 * (1 << 21)


# The logsumexp of 16 bits is that of PyTorch's kernel, which rounds within.
@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "logsumexp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_half_precision_is_computed_in_single(name: str, dtype: torch.dtype) -> None:
    query = torch.randn(1, 2, 67, 5).to(dtype)
    found, expected = (ANSWERS[name](windowed(each)) for each in (query, query.float()))
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


@answers
@torch.no_grad()
def test_autocast_changes_nothing(name: str) -> None:
    weights, again = (windowed(torch.linspace(-2, 2, 670).view(1, 2, 67, 5)) for _ in range(2))
    expected = ANSWERS[name](weights)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ANSWERS[name](again), expected)


@answers
def test_what_was_handed_out_can_be_written_to(name: str) -> None:
    """Later answers, of the same method and of every other one, are those of a new matrix."""
    weights, again = (windowed(torch.linspace(-2, 2, 670).view(1, 2, 67, 5)) for _ in range(2))
    for _ in range(2):
        ANSWERS[name](weights).fill_(7)
    for other, answer in ANSWERS.items():
        torch.testing.assert_close(answer(weights), answer(again), msg=other)
