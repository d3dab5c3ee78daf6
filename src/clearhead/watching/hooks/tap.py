"""Where the routes tell of a call of attention, and who listens.

A call that runs inside another, as PyTorch's function does inside nn.MultiheadAttention, is the
same attention and is told of once, by the outermost.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from clearhead.attention.problem import Problem

Read = Callable[[], Problem]
"""Reads a call as a problem. Its tensors may be those of the model, which writes to them later."""

Listener = Callable[[Read, str | None], None]

listeners: list[Listener] = []

_state = threading.local()


def tell(read: Read, child: str | None = None) -> None:
    """Tell everybody who listens of a call that is about to run.

    Args:
        read: reads the call; it is asked before the call runs, or never.
        child: where the running module does the attention of one of its parts, the name of that
            part.
    """
    if not is_inside():
        for each in list(listeners):
            each(read, child)


def is_inside() -> bool:
    """Whether a call that has been told of is running; the compiler tells of none."""
    return torch.compiler.is_compiling() or getattr(_state, "depth", 0) > 0


@contextmanager
def inside() -> Iterator[None]:
    """What runs in this block is part of a call that has been told of."""
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        yield
    finally:
        _state.depth -= 1
