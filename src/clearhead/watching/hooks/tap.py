"""The tap: the hooks report calls of attention to it, and it passes them to observers.

A call inside another, such as PyTorch's function inside nn.MultiheadAttention, is the same
attention: a re-entrancy guard has it reported once, by the outermost.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.undoing import Undo
from clearhead.attention.problem import Problem

Read = Callable[[], Problem]
"""Reads a call as a problem. Its tensors may be those of the model, which writes to them later."""

Change = Callable[[Tensor], Tensor]
"""Makes the context that the model uses, (batch, num_heads, query_len, value_head_dim), from that
of the call, as it is or edited."""

Witness = Callable[[str, tuple[int, ...]], None]

witnesses: list[Witness] = []
"""Called with what attended and cannot be read, "softmax" or "flex_attention", and the shape of the
scores, () if that is not known."""


class Edited(NamedTuple):
    """A call whose context is edited.

    Attributes:
        read: reads the edited call, which observers get.
        context: makes the edited context from that of the model's own kernel.
        ablated: True where a part of it is not the product of the weights and the value, so that nothing takes
            its gradient for theirs.
    """

    read: Read
    context: Change
    ablated: bool = False


class Gives(NamedTuple):
    """The context that a call returns.

    Attributes:
        context: False where the implementation has no context of its heads.
        ablated: as in `Edited`.
    """

    context: bool = True
    ablated: bool = False


WHOLE = Gives()

Observer = Callable[[Read, str | None, Gives], Sequence[Change] | None]

observers: list[Observer] = []
"""Functions that get each call; the function that they return gets its context, if that is available."""

Put = Callable[[Any, Change, Read | None], Any]
"""Makes the output with the changed context from that of a function; next to it what reads the edited call,
None for one that is not."""


editors: list[Any] = []
"""One at most. `edit(read, child)` returns what edits a call before it is reported, `Edited` or None; `is_running()` is
True while a model runs that is edited."""

value_readers: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that read the value of a call as well; without any, a hook need not work it out."""

_state = threading.local()


def install(undo: Undo) -> None:
    """Start with no active guard, even after an interrupt, and return to that state when undone."""
    undo.append(_outside)
    _outside()


def register(undo: Undo, listeners: list[Any], listener: Any) -> None:
    """Append a listener to a list, and note how to remove it.

    Example:
        >>> listeners = []
        >>> undo = []
        >>> register(undo, listeners, print)
        >>> undo.pop()()
        >>> listeners
        []
    """
    undo.append(lambda: _remove(listeners, listener))
    listeners.append(listener)


def _remove(listeners: list[Any], listener: Any) -> None:
    """Remove a listener from a list of listeners, in place."""
    listeners[:] = [each for each in listeners if each is not listener]


def _outside() -> None:
    """Give every thread a new state, in which no guard is active."""
    global _state
    _state = threading.local()


def witness(kind: str, shape: tuple[int, ...]) -> None:
    """Call every witness with attention that cannot be read: its kind and the shape of its scores."""
    for each in list(witnesses):
        each(kind, shape)


def report(read: Read, child: str | None = None, gives: Gives = WHOLE) -> list[Change]:
    """Report a call that is about to run to every observer; return the functions that take its context, [] if guarded.

    Args:
        read: reads the call, before it runs or never.
        child: where the running module does the attention of one of its parts, the name of that part; None for its
            own attention.
        gives: the context that it returns.
    """
    if is_guarded():
        return []
    return [take for each in list(observers) for take in each(read, child, gives) or ()]


def change_of(edited: Edited | None, takes: Sequence[Change]) -> Change | None:
    """Return a function that edits the context and passes it on from taker to taker; None if there is nothing to do."""
    steps = takes if edited is None else [edited.context, *takes]
    return (
        (lambda context: reduce(lambda made, step: step(made), steps, context)) if steps else None
    )


def edit(read: Read, child: str | None = None) -> Edited | None:
    """Return the edit of a call that is about to run; None without an editor, if it edits nothing, and if guarded."""
    return editors[-1].edit(read, child) if editors and not is_guarded() else None


def is_edited() -> bool:
    """Return True while an edited model runs."""
    return bool(editors) and editors[-1].is_running()


def reporting(
    function: Callable[..., Any],
    read: Callable[..., Problem],
    *,
    child: str | None = None,
    applies: Callable[..., Any] = lambda *args, **kwargs: True,
    put: Put | None = None,
) -> Callable[..., Any]:
    """Wrap a function so that it reports each call before it runs, except inside a reported call.

    Args:
        function: computes attention, or weights.
        read: called with its arguments; returns the problem.
        child: as for `report`.
        applies: called with its arguments; False, if it then calls another function that reports, reports nothing.
        put: called as `put(output, change, read)` if the context is changed or stored, `read` being that of the edited
            call or None; its result is returned. None if the output has no context: then nothing is edited.

    Example:
        >>> query = torch.zeros(1, 1, 2, 3)
        >>> observers.append(lambda read, child, gives: print("reported"))
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
        """Report the call, and return the function's output, with the changed context if `put` is given."""
        inside = getattr(_state, "inside", None)
        if inside is not None:
            inside.append(read(*args, **kwargs))
        if is_guarded() or not applies(*args, **kwargs):
            return function(*args, **kwargs)
        call: Read = lambda: read(*args, **kwargs)  # noqa: E731
        edited = None if put is None else edit(call, child)
        gives = Gives(put is not None, edited is not None and edited.ablated)
        takes = report(call if edited is None else edited.read, child, gives)
        change = change_of(edited, takes)
        state, depth = _state, getattr(_state, "depth", 0)
        try:
            state.depth = depth + 1
            output = function(*args, **kwargs)
            if put is None or change is None:
                return output
            return put(output, change, None if edited is None else edited.read)
        finally:
            state.depth = depth  # an interrupt cannot come before it, as in `guard`

    return reported


def is_guarded() -> bool:
    """Return True while a reported call runs, and under torch.compile, which reports none."""
    return torch.compiler.is_compiling() or getattr(_state, "depth", 0) > 0


def read_inside(function: Callable[[], Any]) -> Problem:
    """Run a function, unreported, and return the problem of its first call of attention; IndexError if it has none."""
    state, _state.inside = _state, []
    try:
        with guard():
            function()
        return state.inside[0]
    finally:
        state.inside = None


@contextmanager
def appending(keys: int) -> Iterator[None]:
    """Mark the calls in this block, in this thread, as having `keys` extra keys at the end that are not tokens."""
    state = _state
    try:
        state.appended = keys
        yield
    finally:
        state.appended = 0


def appended() -> int:
    """Return the number of extra non-token keys at the end of the reported call; 0 outside of `appending`.

    Example:
        >>> with appending(1):
        ...     appended()
        1
    """
    return getattr(_state, "appended", 0)


@contextmanager
def guard() -> Iterator[None]:
    """Re-entrancy guard of this thread: what runs in the block belongs to a reported call, and is not reported."""
    state, depth = _state, getattr(_state, "depth", 0)
    try:
        state.depth = depth + 1
        yield
    finally:
        state.depth = depth
