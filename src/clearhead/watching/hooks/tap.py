"""The tap: the hooks report calls of attention to it, and observers are handed them.

A call inside another, such as PyTorch's function inside nn.MultiheadAttention, is the same
attention: a re-entrancy guard has it reported once, by the outermost.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.attention.problem import Problem
from clearhead.watching.hooks.patching import Undo

Read = Callable[[], Problem]
"""Reads a call as a problem. Its tensors may be those of the model, which writes to them later."""

Observer = Callable[[Read, str | None], None]

observers: list[Observer] = []

Witness = Callable[[str, tuple[int, ...]], None]

witnesses: list[Witness] = []
"""Called with what attended and cannot be read, "softmax" or "flex_attention", and the shape of the
scores, () if that is not known."""


class Edited(NamedTuple):
    """A call whose context is edited.

    Attributes:
        read: reads the edited call, which observers are handed.
        context: makes the edited context, (batch, num_heads, query_len, value_head_dim), from that
            of the model's own kernel.
    """

    read: Read
    context: Callable[[Tensor], Tensor]


Editor = Callable[[Read, str | None], Edited | None]

editors: list[Editor] = []
"""Asked about each call before it is reported; one at most."""

value_readers: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that read the value of a call as well; without any, a hook need not work it out."""

_state = threading.local()


def install(undo: Undo) -> None:
    """Begin outside of every call, whatever an interrupt may have left; and end so."""
    undo.append(_outside)
    _outside()


def _outside() -> None:
    global _state
    _state = threading.local()


def witness(kind: str, shape: tuple[int, ...]) -> None:
    """Say what attended and cannot be read; arguments as `witnesses` have them."""
    for each in list(witnesses):
        each(kind, shape)


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


def edit(read: Read, child: str | None = None) -> Edited | None:
    """Return the edit of a call that is about to run, or None; arguments as for `report`."""
    return editors[-1](read, child) if editors and not is_guarded() else None


def reporting(
    function: Callable[..., Any],
    read: Callable[..., Problem],
    *,
    child: str | None = None,
    applies: Callable[..., Any] = lambda *args, **kwargs: True,
    put: Callable[[Any, Edited], Any] | None = None,
) -> Callable[..., Any]:
    """Wrap a function so that it reports each call before it runs.

    Args:
        function: attends, or works out weights.
        read: reads its arguments as a problem.
        child: as for `report`.
        applies: False for arguments with which the function calls another one that reports.
        put: makes the edited output from that of the function; None where nothing is edited.

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
        call: Read = lambda: read(*args, **kwargs)  # noqa: E731
        edited = None if put is None else edit(call, child)
        report(call if edited is None else edited.read, child)
        state, depth = _state, getattr(_state, "depth", 0)
        try:
            state.depth = depth + 1
            output = function(*args, **kwargs)
            return output if put is None or edited is None else put(output, edited)
        finally:
            state.depth = depth  # an interrupt cannot come before it, as in `guard`

    return reported


def is_guarded() -> bool:
    """Return True while a reported call runs, and under torch.compile, which reports none."""
    return torch.compiler.is_compiling() or getattr(_state, "depth", 0) > 0


@contextmanager
def guard() -> Iterator[None]:
    """Re-entrancy guard: what runs in this block belongs to a call that was reported."""
    state, depth = _state, getattr(_state, "depth", 0)
    try:
        state.depth = depth + 1
        yield
    finally:
        state.depth = depth
