"""A call is told of once, by the outermost."""

from collections.abc import Iterator

import pytest
import torch

from clearhead.attention.problem import Problem, make_problem
from clearhead.watching.hooks import tap


def problem() -> Problem:
    query = torch.zeros(1, 1, 2, 3)
    return make_problem(query, query, query)


@pytest.fixture
def heard() -> Iterator[list[str | None]]:
    found: list[str | None] = []

    def observer(read: tap.Read, child: str | None) -> None:
        found.append(child)

    tap.observers.append(observer)
    yield found
    tap.observers.remove(observer)


def test_who_listens_hears(heard: list[str | None]) -> None:
    tap.report(problem)
    tap.report(problem, child="self_attn")
    assert heard == [None, "self_attn"]


def test_what_runs_inside_is_not_told(heard: list[str | None]) -> None:
    with tap.guard():
        with tap.guard():
            tap.report(problem)
        assert tap.is_guarded()
        tap.report(problem)
    assert not tap.is_guarded()
    assert heard == []


def test_an_error_ends_it(heard: list[str | None]) -> None:
    with pytest.raises(RuntimeError, match="mine"), tap.guard():
        raise RuntimeError("mine")
    tap.report(problem)
    assert heard == [None]
