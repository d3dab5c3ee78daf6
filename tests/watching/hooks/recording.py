"""What a route tells of: the problems that it reads. And what PyTorch runs meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from clearhead.attention.problem import Problem
from clearhead.watching.hooks import tap
from clearhead.watching.recording import matrix_of


@contextmanager
def recorded(*routes: ModuleType) -> Iterator[list[Problem]]:
    """The problems that were told of while these routes were in place."""
    found: list[Problem] = []

    def listener(read: tap.Read, child: str | None) -> None:
        with tap.inside(), torch.no_grad():
            found.append(read())

    tap.listeners.append(listener)
    endings = [route.install() for route in routes]
    try:
        yield found
    finally:
        for end in endings:
            end()
        tap.listeners.remove(listener)


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
