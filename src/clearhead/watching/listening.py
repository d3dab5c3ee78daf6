"""Passing of reported calls to the open watches: each gets the calls of its own model."""

from contextlib import nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import nn

from clearhead._common.torch_internals import in_backward, set_grad_enabled
from clearhead._common.undoing import Undo
from clearhead.watching.hooks import installing, running, tap

_entered: ContextVar[tuple[object, ...]] = ContextVar("clearhead.watches", default=())
"""The entries of this context; those that are over may still be here."""


def enter_context(listener: Any) -> None:
    """Have a watch listen to this context, and to the contexts that are copied from it; sets its `entry`."""
    listener.entry = object()
    entries = [each.entry for each in _every()]
    _entered.set((*(each for each in _entered.get() if each in entries), listener.entry))


def listen(undo: Undo) -> None:
    """Pass the reports of the hooks to the watches, until `undo` is run."""
    tap.register(undo, tap.observers, _record)
    tap.register(undo, tap.witnesses, _witness)
    tap.register(undo, running.followers, _following)


def _listeners() -> list[Any]:
    """Return the open watches that listen to this context: those entered in it, and those with threads="all"."""
    here = _entered.get()
    return [each for each in _every() if each.every_thread or each.entry in here]


def _every() -> list[Any]:
    """Return the open watches of all threads."""
    return [each for each in installing.users() if hasattr(each, "every_thread")]


def _record(read: tap.Read, child: str | None, gives: tap.Gives) -> list[tap.Change]:
    """Record a call in each watch; return the functions that take its context, [] in a backward pass.

    `read` is called at most once, under a guard, and without gradients unless one of the watches keeps graphs.
    """
    if in_backward():
        return []  # the recomputation of a checkpoint, which was seen in the forward pass
    stack = running.stack()
    # Read once for every watch; the guard is for what the reading and the summary call.
    read_once = cache(read)
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    try:
        watches = _watching(stack, child)
        set_grad_enabled(gradients and any(each.has_graphs for each, _ in watches))
        # What is kept outlives inference mode.
        with tap.guard(), torch.inference_mode(False) if inference else nullcontext():
            takes = [each.record(name, read_once, gives) for each, name in watches]
            return [take for take in takes if take is not None]
    finally:
        set_grad_enabled(gradients)


def _witness(kind: str, shape: tuple[int, ...]) -> None:
    """Report a call of softmax or FlexAttention to the watches of its module; no-op in a backward pass."""
    if not in_backward():
        stack = running.stack()
        for each, _ in _watching(stack, None):
            each.witness(stack, kind, shape)


def _watching(stack: list[nn.Module], child: str | None) -> list[tuple[Any, str]]:
    """Return the watches of this context that know the running module, each with its path there; [] if none."""
    return [
        (each, name) for each in _listeners() if (name := each.path_of(stack, child)) is not None
    ]


class _Following:
    """Listener of the hooks that passes running modules to the watches."""

    def enter(self, module: nn.Module, inputs: Any, named: Any) -> None:
        """Pass a module that starts to run to the watches of this context, and to those with threads="all".

        Each gets the module, and a tuple of the values of all its arguments.
        """
        every = (*inputs, *(named or {}).values())
        for each in _listeners():
            each.enter(module, every)

    def leave(self, module: nn.Module, output: Any) -> None:
        """Pass a module that has run to the watches of this context; returns None, so its output is unchanged."""
        for each in _listeners():
            each.leave(module, output)


_following = _Following()
