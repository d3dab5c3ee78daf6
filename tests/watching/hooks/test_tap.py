"""A call is told of once, by the outermost."""

from collections.abc import Iterator
from typing import Any

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

    def observer(read: tap.Read, child: str | None, gives: tap.Gives) -> None:
        found.append(child)

    tap.observers.append(observer)
    yield found
    tap.observers.remove(observer)


@pytest.mark.parametrize("is_put", [True, False])
def test_a_context_is_edited_where_it_can_be_put_back(is_put: bool) -> None:
    own, other, told = problem(), problem(), list[Problem]()

    class Editor:
        def is_running(self) -> bool:
            return True

        def edit(self, read: tap.Read, child: str | None) -> tap.Edited:
            return tap.Edited(lambda: other, lambda context: context + 1)

    def put(output: Any, change: tap.Change, read: tap.Read | None) -> Any:
        return change(output)

    def observer(read: tap.Read, child: str | None, gives: tap.Gives) -> None:
        told.append(read())

    attend = tap.reporting(torch.clone, lambda context: own, put=put if is_put else None)
    tap.editors.append(Editor())
    tap.observers.append(observer)
    try:
        found = attend(torch.zeros(2))
    finally:
        tap.observers.remove(observer)
        tap.editors.pop()
    assert found.tolist() == [float(is_put)] * 2
    assert len(told) == 1
    assert told[0] is (other if is_put else own)


def test_an_error_ends_it(heard: list[str | None]) -> None:
    with pytest.raises(RuntimeError, match="mine"), tap.guard():
        raise RuntimeError("mine")
    tap.report(problem)
    assert heard == [None]
