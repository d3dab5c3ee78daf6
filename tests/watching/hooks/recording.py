"""The problems that hooks report, and what PyTorch runs meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from clearhead._common.undoing import Undo
from clearhead.attention.problem import Problem
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.patching import Replacement
from clearhead.watching.recording import matrix_of


@contextmanager
def recorded(*routes: ModuleType) -> Iterator[list[Problem]]:
    """The problems that were told of while these hooks were in place."""
    found: list[Problem] = []

    def observer(read: tap.Read, child: str | None, gives: tap.Gives) -> None:
        with tap.guard(), torch.no_grad():
            found.append(read())

    tap.observers.append(observer)
    undo: Undo = []
    for route in routes:
        if hasattr(route, "FUNCTIONS"):
            Replacement(route.FUNCTIONS, [vars(route)]).install(undo)
        if hasattr(route, "install"):
            route.install(undo)
    try:
        yield found
    finally:
        while undo:
            undo.pop()()
        tap.observers.remove(observer)


def weights_of(problem: Problem) -> Tensor:
    """The weights of a problem that was read, (batch, num_heads, query_len, kv_len)."""
    return matrix_of(problem).dense()


@contextmanager
def operations() -> Iterator[list[str]]:
    """The names of the operations that PyTorch ran, to be read when the block has ended."""
    names: list[str] = []
    with profile() as ran:
        yield names
    assert ran is not None
    names += [event.name for event in ran.function_events or ()]
