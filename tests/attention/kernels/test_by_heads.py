"""Heads in threads of our own: the numbers of one thread, and when threads are not taken."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.kernels import _by_heads
from clearhead.testing.tolerances import assert_no_worse
from tests.attention.kernels.definition import draw, take_apart

MASKS = {
    "window": ch.sliding_window(left=3, right=0),
    "documents": ch.causal() & ch.documents(lengths=[4, 4, 4, 4, 3]),
    "padding": ch.causal() & ch.padding([19, 7, 0]),
    "causal": ch.causal(),
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads were taken for each call that has taken some, of two that may be."""
    seen: list[int] = []
    side_by_side = _by_heads.side_by_side

    def told(units: Any, start: Any, count: int, tell: Callable[[int], None]) -> None:
        seen.append(count)
        side_by_side(units, start, count, tell)

    monkeypatch.setattr(_by_heads, "WORTH", 0)
    monkeypatch.setattr(_by_heads, "threads_apart", lambda: 2)
    monkeypatch.setattr(_by_heads, "side_by_side", told)
    take_apart(monkeypatch)
    return seen


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kv_heads", [2, 6])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    "options", [{}, {"sinks": torch.linspace(-1, 1, 6)}, {"softcap": 2.0}], ids=str
)
def test_the_numbers_are_those_of_the_definition(
    options: dict[str, Any], name: str, kv_heads: int, inference: bool, counts: list[int]
) -> None:
    tensors, mask = draw(num_kv_heads=kv_heads), MASKS[name]
    exact = {each: tensor.double() for each, tensor in tensors.items()}
    wide: dict[str, Any] = {
        each: value.double() if isinstance(value, Tensor) else value
        for each, value in options.items()
    }
    defined = ch.attend(**exact, mask=mask, kernel="eager", **wide)
    plain = ch.attend(**tensors, mask=mask, kernel="eager", **options)
    with torch.inference_mode(inference):
        found = ch.attend(**tensors, mask=mask, kernel="blockwise", **options)
    assert_no_worse(found, defined, plain)
    assert counts == [2]


def test_threads_are_not_taken_where_they_would_be_wrong_or_wait(counts: list[int]) -> None:
    tensors, mask = draw(), MASKS["window"]
    of_heads = mask & ch.dense(torch.rand(3, 6, 19, 19) < 0.9)
    given: list[dict[str, Any]] = [{"bias": ch.alibi(6)}, {"mask": of_heads}, {"dropout": 0.5}]
    for options in given:
        asked = {"mask": mask, "kernel": "blockwise"} | options
        ch.attend(**tensors, **asked)
    odd = draw(num_heads=3)
    ch.attend(**odd, mask=mask, kernel="blockwise")
    trained = {name: each.requires_grad_() for name, each in draw().items()}
    ch.attend(**trained, mask=mask, kernel="blockwise").sum().backward()
    assert not counts
    with torch.no_grad():
        ch.attend(**trained, mask=mask, kernel="blockwise")
    assert counts == [2]
