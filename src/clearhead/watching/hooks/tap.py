"""The tap: the hooks report calls of attention to it, and observers are handed them.

A call inside another, such as PyTorch's function inside nn.MultiheadAttention, is the same
attention: a re-entrancy guard has it reported once, by the outermost.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from clearhead.attention.problem import Problem

Read = Callable[[], Problem]
"""Reads a call as a problem. Its tensors may be those of the model, which writes to them later."""

Observer = Callable[[Read, str | None], None]

observers: list[Observer] = []

_state = threading.local()


def report(read: Read, child: str | None = None) -> None:
    """Report a call that is about to run to every observer.

    Args:
        read: reads the call, before it runs or never.
        child: where the running module does the attention of one of its parts, the name of that
            part.
    """
    if not is_guarded():
        for each in list(observers):
            each(read, child)


def reporting(
    function: Callable[..., Any],
    read: Callable[..., Problem],
    *,
    child: str | None = None,
    applies: Callable[..., Any] = lambda *args, **kwargs: True,
) -> Callable[..., Any]:
    """Wrap a function so that it reports each call before it runs.

    Args:
        function: attends, or works out weights.
        read: reads its arguments as a problem.
        child: as for `report`.
        applies: False for arguments with which the function calls another one that reports.

    Example:
        >>> query = torch.zeros(1, 1, 2, 3)
        >>> observers.append(lambda read, child: print("reported"))
        >>> attend = reporting(lambda query: print("run"), lambda query: query)
        >>> attend(query)
        reported
        run
        >>> with guard():
        ...     attend(query)
        run
        >>> _ = observers.pop()
    """

    @wraps(function)
    def reported(*args: Any, **kwargs: Any) -> Any:
        if is_guarded() or not applies(*args, **kwargs):
            return function(*args, **kwargs)
        report(lambda: read(*args, **kwargs), child)
        with guard():
            return function(*args, **kwargs)

    return reported


def is_guarded() -> bool:
    """Return True while a reported call runs, and under torch.compile, which reports none."""
    return torch.compiler.is_compiling() or getattr(_state, "depth", 0) > 0


@contextmanager
def guard() -> Iterator[None]:
    """Re-entrancy guard: what runs in this block belongs to a call that was reported."""
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        yield
    finally:
        _state.depth -= 1
