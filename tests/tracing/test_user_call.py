"""A part of attention that somebody wrote, beside what is right."""

import pytest
import torch
from torch import Tensor

import clearhead as ch

QUERY = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]])
KEY = torch.tensor([[2.0, 0.0], [1.0, 1.0], [-1.0, 0.5], [0.0, 2.0]])


def scores(query: Tensor, key: Tensor) -> Tensor:
    table = torch.zeros(len(query), len(key))
    for i in range(len(query)):
        for j in range(len(key)):
            total = 0.0
            for a, b in zip(query[i], key[j], strict=True):
                total += float(a) * float(b)
            table[i, j] = total
    return table


def carried(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries @ keys.mT).cumsum(-1)


def weights(scores: Tensor) -> Tensor:
    powers = torch.exp(scores)
    return powers / powers.sum(dim=-1, keepdim=True)


def columns(scores: Tensor) -> Tensor:
    return scores.softmax(dim=0)


def short(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)[:, 1:]


def context(weights: Tensor, value: Tensor) -> Tensor:
    return torch.stack([(row[:, None] * value).sum(0) for row in weights])


SHARES = scores(QUERY, KEY).softmax(-1)


@pytest.mark.parametrize(
    ("part", "inputs", "names"),
    [
        (scores, (QUERY, KEY), "query, key, scores"),
        (weights, (QUERY @ KEY.mT,), "scores, weights"),
        (context, (SHARES, KEY), "weights, value, context"),
    ],
)
def test_a_part_that_is_right(part: object, inputs: tuple[Tensor, ...], names: str) -> None:
    steps = ch.trace(part, *inputs)  # type: ignore[arg-type]
    name = names.rpartition(" ")[2]
    assert ", ".join(steps) == names
    assert steps.expected is None
    assert str(steps).endswith(f"{name} by the definition")
    assert f"{name} " in str(steps)
    assert "line " in str(steps)
    assert name in steps.explain(query=-1)
    assert f"<b>{name}</b>" in steps._repr_html_()
    assert len(steps.plot()) == len(steps)


@pytest.mark.parametrize(
    ("part", "inputs", "stage"),
    [
        (carried, (QUERY, KEY), "scores"),
        (columns, (QUERY,), "weights"),
        (short, (KEY.mT,), "weights"),
    ],
)
def test_a_part_that_is_wrong_stands_beside_what_is_right(
    part: object, inputs: tuple[Tensor, ...], stage: str
) -> None:
    steps = ch.trace(part, *inputs)  # type: ignore[arg-type]
    assert steps.expected is not None
    assert steps.expected.stage == stage
    given = [each.double() for each in inputs]
    right = given[0].softmax(-1) if len(given) == 1 else given[0] @ given[1].mT
    assert torch.equal(steps.expected.tensor, right.float())
    assert "not the definition" in str(steps)
    assert f"expected_{stage}" in str(steps)


def test_the_arithmetic_says_what_the_code_gave() -> None:
    lines = ch.trace(carried, QUERY, KEY).explain(query=0).splitlines()
    assert lines[3] == "  0  1·2 + 2·0 = 2.0000"
    assert lines[4] == "  1  1·1 + 2·1 = 3.0000; the code gave 5.0000"


def test_a_scale_is_declared() -> None:
    half = ch.trace(lambda query, key: query @ key.mT / 2, QUERY, KEY, scale=0.5)
    assert half.expected is None
    assert half.steps["scores"].formula == "query · keyᵀ × 0.5"
