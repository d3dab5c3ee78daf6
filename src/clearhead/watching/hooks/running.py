"""The modules that are running, thread by thread, known from hooks on all modules at once."""

import threading
import weakref
from typing import Any, Protocol

import torch
from torch import nn

from clearhead._common.torch_internals import private
from clearhead.watching.hooks.patching import Undo


class Follower(Protocol):
    """Is called when a module begins to run, and when it has run or raised."""

    def enter(self, module: nn.Module, inputs: Any) -> None: ...
    def leave(self, module: nn.Module, output: Any) -> None: ...


followers: list[Follower] = []

_stacks: dict[int, list[weakref.ref[nn.Module]]] = {}
"""Of each thread. Without owning the modules: an exception may leave some on it."""

# A key of their own, the same each time: compiled code asks whether the hooks are the same.
_KEY: Any = "clearhead"
_before: dict[Any, Any] = private("nn.modules.module._global_forward_pre_hooks")
_after: dict[Any, Any] = private("nn.modules.module._global_forward_hooks")
_always: dict[Any, Any] = private("nn.modules.module._global_forward_hooks_always_called")


def stack() -> list[nn.Module]:
    """Return the modules that run in this thread, the innermost last.

    Example:
        >>> stack()
        []
    """
    found = (each() for each in _stacks.get(threading.get_ident(), ()))
    return [module for module in found if module is not None]


def install(undo: Undo) -> None:
    """Follow the modules that run from now on."""
    undo.append(_remove)
    _before[_KEY] = _enter
    _always[_KEY] = True
    _after[_KEY] = _leave


def _remove() -> None:
    for each in (_before, _after, _always):
        each.pop(_KEY, None)
    _stacks.clear()


def _enter(module: nn.Module, inputs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    _stacks.setdefault(threading.get_ident(), []).append(weakref.ref(module))
    for each in list(followers):
        each.enter(module, inputs)


def _leave(module: nn.Module, inputs: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    running = _stacks.get(threading.get_ident(), [])
    if any(each() is module for each in running):
        # A module that raised before its hook ran is still on top.
        while running.pop()() is not module:
            pass
    for each in list(followers):
        each.leave(module, output)
