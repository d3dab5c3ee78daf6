"""Documents of unequal length: the numbers of the definition, and how they are called together."""

from itertools import accumulate

import pytest
import torch

import clearhead as ch
from clearhead.attention.kernels._fused_calls import MOST_PAIRS, documents_by_length
from clearhead.attention.kernels._lowering import Piece
from clearhead.attention.kernels._nonfinite import SMALL
from clearhead.attention.problem import make_problem
from clearhead.masks import tiles
from tests.attention.kernels.definition import assert_agrees, context, draw, take_apart
from tests.turns import in_turn

LENGTHS = [
    [2, 3, 5, 7, 11, 13],
    [1, 1, 17, 1, 13, 1, 7],
    [19, 0, 0, 3, 19],
    [1] * 41,
    [23, 2, 2, 2, 2, 2, 2, 2, 2, 2],
]
CASES = [
    (lengths, causal, sinks)
    for lengths in LENGTHS
    for causal in (True, False)
    for sinks in (True, False)
]


def documents(lengths: list[int], causal: bool) -> ch.Mask:
    mask = ch.documents(lengths=[n for n in lengths if n])
    return ch.causal() & mask if causal else mask


@pytest.fixture(params=["in slices", "together"])
def called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take_apart(monkeypatch)
    monkeypatch.setattr(tiles, "LEAST_TILES", 100)
    if request.param == "together":
        monkeypatch.setattr("clearhead.attention.kernels.fused.MOST_CALLS", 0)
    return request.param


@pytest.mark.parametrize(
    ("lengths", "causal", "sinks", "heads"),
    [(*case, heads) for case, heads in in_turn(CASES, [(6, 6), (6, 2), (5, 1)])],
)
def test_numbers_of_the_definition(
    lengths: list[int], causal: bool, sinks: bool, heads: tuple[int, int], called: str
) -> None:
    tensors = draw(2, *heads, sum(lengths), None, 5, 3, torch.float64)
    if sinks:
        tensors["sinks"] = torch.randn(heads[0], dtype=torch.float64)
    mask = documents(lengths, causal)
    assert_agrees("fused", tensors, mask=mask)
    torch.testing.assert_close(
        ch.attend(**tensors, mask=mask, kernel="fused"), context(**tensors, mask=mask)
    )


def test_samples_of_other_documents_and_tokens_of_none(called: str) -> None:
    ids = torch.tensor([[0] * 5 + [1] * 11 + [2] * 7, [0] * 13 + [1] * 3 + [2] * 7])
    real = torch.arange(23) < torch.tensor([[23], [19]])
    for mask in (
        ch.documents(ids),
        ch.causal() & ch.documents(ids),
        ch.causal() & ch.documents(ids) & ch.padding(real),
    ):
        assert_agrees("fused", draw(2, 4, 2, 23, dtype=torch.float64), mask=mask)


def test_keys_that_two_runs_of_queries_see(called: str) -> None:
    mask = ch.dense(torch.tensor([[True] * 3 + [False] * 5] * 6 + [[False] * 3 + [True] * 5] * 5))
    assert_agrees("fused", draw(2, 4, 2, 11, 8, dtype=torch.float64), mask=mask)


@pytest.mark.parametrize(
    ("causal", "width", "calls"), [(True, 1, 8), (True, 512, 10), (False, 1, 11)]
)
def test_a_call_computes_few_pairs_more(causal: bool, width: int, calls: int) -> None:
    lengths = [3, 97, 89, 11, 90, 13, 2, 88, 50, 1, 12]
    ends = [*accumulate(lengths)]
    runs = [slice(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    pieces = [Piece(slice(0, 1), run, run, causal, False) for run in runs]
    groups = documents_by_length(make_problem(*torch.zeros(3, 1, 1, ends[-1], width)), pieces)
    assert sorted(place for group in groups for place in group) == [*range(len(lengths))]
    most = MOST_PAIRS if causal else 1
    for group in groups:
        sizes = [lengths[place] for place in group]
        assert len(sizes) == 1 or max(sizes) * width <= SMALL
        assert max(sizes) ** 2 <= most * min(sizes) ** 2
    assert len(groups) == calls


def test_the_plan_counts_calls_and_documents() -> None:
    tensors = draw(1, 4, 4, 1500, head_dim=16)
    mask = ch.causal() & ch.documents(lengths=[50, 100] * 10)
    assert ch.plan(**tensors, mask=mask).how == "2 fused calls on cpu, over 20 documents by length"
    few = ch.causal() & ch.documents(lengths=[500, 700, 300])
    assert ch.plan(**tensors, mask=few).how.startswith(
        "3 fused calls on cpu, 3 with the causal flag"
    )
