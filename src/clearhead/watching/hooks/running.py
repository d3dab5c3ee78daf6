"""The modules that are running, thread by thread, known from hooks on all modules at once."""

import inspect
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from clearhead._common.torch_internals import private
from clearhead.watching.hooks.patching import Undo


class Follower(Protocol):
    """Is called when a module begins to run, and when it has run or raised."""

    def enter(self, module: nn.Module, inputs: Any) -> None: ...
    def leave(self, module: nn.Module, output: Any) -> None: ...


followers: list[Follower] = []

SOURCES = ("key_value_states", "encoder_hidden_states", "context", "memory", "encoder_states")
"""The arguments by which modules are handed another text to attend to."""

NAMED_CROSS = re.compile(r"cross|^encoder_attn$|^EncDec|^encdec", re.IGNORECASE)
"""In the name of a module: it attends to another text."""

_stacks: dict[int, list[tuple[weakref.ref[nn.Module], bool]]] = {}
"""Of each thread, with True for a module that is handed another text. Without owning the modules: an
exception may leave some on it."""

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
    found = (each() for each, _ in _stacks.get(threading.get_ident(), ()))
    return [module for module in found if module is not None]


def is_cross(name: str) -> bool:
    """Return True if the innermost running module attends to another text: by its arguments, or
    else by its name, the last part of a path.

    Example:
        >>> is_cross("decoder.layers.0.encoder_attn"), is_cross("decoder.layers.0.self_attn")
        (True, False)
    """
    running = _stacks.get(threading.get_ident())
    return bool(running and running[-1][1]) or names_cross(name)


def names_cross(path: str) -> bool:
    """Return True for a path whose last part says that the module attends to another text."""
    return NAMED_CROSS.search(path.rpartition(".")[2]) is not None


def show_arguments(modules: Iterable[nn.Module], undo: Undo) -> None:
    """Hand the hook the arguments that these modules are called with by name. A hook of the modules
    themselves would turn PyTorch's fast paths off; this only says what the one for all of them gets."""
    every: list[dict[Any, bool]] = [each._forward_pre_hooks_with_kwargs for each in modules]
    new = [shown for shown in every if _KEY not in shown]
    undo.append(partial(_hide_arguments, new))
    for shown in new:
        shown[_KEY] = True


def _hide_arguments(every: list[dict[Any, bool]]) -> None:
    for shown in every:
        shown.pop(_KEY, None)


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


def _enter(module: nn.Module, inputs: Any, named: Mapping[str, Any] | None = None) -> None:
    if torch.compiler.is_compiling():
        return
    entry = weakref.ref(module), _has_source(module, inputs, named or {})
    _stacks.setdefault(threading.get_ident(), []).append(entry)
    for each in list(followers):
        each.enter(module, inputs)


def _leave(module: nn.Module, inputs: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    running = _stacks.get(threading.get_ident(), [])
    if any(each() is module for each, _ in running):
        # A module that raised before its hook ran is still on top.
        while running.pop()[0]() is not module:
            pass
    for each in list(followers):
        each.leave(module, output)


def _has_source(module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """True for a module that is called with a text to attend to beside its own."""
    if isinstance(module, nn.MultiheadAttention):
        query, key = (
            inputs[place] if len(inputs) > place else named.get(name)
            for place, name in enumerate(("query", "key"))
        )
        return _differ(query, key)
    for name in SOURCES:
        source = named.get(name)
        if source is None:
            place = _places(type(module)).get(name, len(inputs))
            source = inputs[place] if place < len(inputs) else None
        if isinstance(source, Tensor):
            own = inputs[0] if inputs else named.get("hidden_states")
            return not isinstance(own, Tensor) or _differ(own, source)
    return False


def _differ(own: object, other: object) -> bool:
    """True for two texts; a part of a text is the same one."""
    if not isinstance(own, Tensor) or not isinstance(other, Tensor) or own is other:
        return False
    if own.is_nested or other.is_nested:
        return True
    if own.is_meta:
        return own.shape != other.shape
    if own.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
        return False
    return own.shape != other.shape or not torch.equal(own, other)


@lru_cache(maxsize=1024)
def _places(kind: type[nn.Module]) -> dict[str, int]:
    """The places of `SOURCES` among the arguments of a class of modules."""
    try:
        names = list(inspect.signature(kind.forward).parameters)[1:]
    except (TypeError, ValueError):
        return {}
    return {name: place for place, name in enumerate(names) if name in SOURCES}
