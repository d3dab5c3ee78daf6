"""The modules that are running in each thread, known from global module hooks."""

import inspect
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.torch_internals import is_concrete, private
from clearhead._common.undoing import Undo

followers: list[Any] = []
"""What is called when a module starts to run, `enter(module, inputs, named)`, with its arguments by name, None unless
`show_arguments` was called for it; and when it has run or raised, `leave(module, output)`."""

SOURCES = ("key_value_states", "encoder_hidden_states", "context", "memory", "encoder_states")
"""The arguments by which modules receive another text to attend to."""

NAMED_CROSS = re.compile(r"cross|^encoder_attn$|^EncDec|^encdec", re.IGNORECASE)
"""In the name of a module: it attends to another text."""

Texts = tuple[weakref.ref[Tensor] | None, weakref.ref[Tensor]]
"""The text of a module, if that is a tensor, and the text that it attends to."""

_stacks: dict[int, list[tuple[weakref.ref[nn.Module], Texts | None]]] = {}
"""Of each thread. Without owning modules and texts: an exception may leave some on it."""

# A key of their own, the same each time: compiled code asks whether the hooks are the same.
_KEY: Any = "clearhead"
_before: dict[Any, Any] = private("nn.modules.module._global_forward_pre_hooks")
_after: dict[Any, Any] = private("nn.modules.module._global_forward_hooks")
_always: dict[Any, Any] = private("nn.modules.module._global_forward_hooks_always_called")


def stack() -> list[nn.Module]:
    """Return the modules that run in this thread, the innermost last, as the hooks of `install` saw them begin.

    [] without these hooks. Modules that began before them, or while PyTorch compiles, are missing.

    Example:
        >>> stack()
        []
    """
    found = (each() for each, _ in _stacks.get(threading.get_ident(), ()))
    return [module for module in found if module is not None]


def is_cross(name: str) -> bool:
    """Return True if the innermost running module attends to another text.

    If its arguments do not show another text, its name, the last part of the path, decides.

    Example:
        >>> is_cross("decoder.layers.0.encoder_attn"), is_cross("decoder.layers.0.self_attn")
        (True, False)
    """
    running = _stacks.get(threading.get_ident())
    texts = running[-1][1] if running else None
    return (texts is not None and _are_two(*texts)) or names_cross(name)


def names_cross(path: str) -> bool:
    """Return True for a path whose last part names cross-attention, such as "crossattention" or "encoder_attn"."""
    return NAMED_CROSS.search(path.rpartition(".")[2]) is not None


def show_arguments(modules: Iterable[nn.Module], undo: Undo) -> None:
    """Have the global hooks get the keyword arguments of these modules, until `undo` is run.

    A hook of the modules themselves would turn PyTorch's fast paths off; this only says what the one for all of them
    gets.
    """
    every: list[dict[Any, bool]] = [each._forward_pre_hooks_with_kwargs for each in modules]
    # Those that show them already as well: a copy of a module that does was not asked to.
    undo.append(partial(_hide_arguments, every))
    for shown in every:
        shown[_KEY] = True


def _hide_arguments(every: list[dict[Any, bool]]) -> None:
    """Undo `show_arguments` for these dicts of hooks, in place."""
    for shown in every:
        shown.pop(_KEY, None)


def install(undo: Undo) -> None:
    """Follow the modules that run from now on, by global hooks, until `undo` is run."""
    undo.append(_remove)
    _before[_KEY] = _enter
    _always[_KEY] = True
    _after[_KEY] = _leave


def _remove() -> None:
    """Remove the hooks on all modules, and clear the stacks of all threads."""
    for each in (_before, _after, _always):
        each.pop(_KEY, None)
    _stacks.clear()


def _enter(module: nn.Module, inputs: Any, named: Mapping[str, Any] | None = None) -> None:
    """Push a module on the stack of its thread, and call `enter` of each follower; no-op while compiling.

    `named` are its keyword arguments; None if the hook does not get them.
    """
    if torch.compiler.is_compiling():
        return
    entry = weakref.ref(module), _texts(module, inputs, named or {})
    _stacks.setdefault(threading.get_ident(), []).append(entry)
    for each in list(followers):
        each.enter(module, inputs, named)


def _leave(module: nn.Module, inputs: Any, output: Any) -> None:
    """Pop a module, and those left above it, from the stack of its thread, and call `leave` of each follower.

    Returns None, so the output is unchanged; no-op while compiling.
    """
    if torch.compiler.is_compiling():
        return
    running = _stacks.get(threading.get_ident(), [])
    if running and running[-1][0]() is module:
        running.pop()
    elif any(each() is module for each, _ in running):
        # A module that raised before its hook ran is still on top.
        while running.pop()[0]() is not module:
            pass
    for each in list(followers):
        each.leave(module, output)


def _texts(module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Texts | None:
    """Return weak references to a module's own text (or None) and the text that it attends to; None without the latter.

    The two are not compared here, because this runs for every call of every module.
    """
    is_torch = isinstance(module, nn.MultiheadAttention)
    own: Any = inputs[0] if inputs else named.get("query" if is_torch else "hidden_states")
    source: Any = None
    places = _places(type(module))
    for name in ("key",) if is_torch else SOURCES if places or named else ():
        place = places.get(name, len(inputs))
        source = named.get(name, inputs[place] if place < len(inputs) else None)
        if isinstance(source, Tensor):
            break
    if not isinstance(source, Tensor):
        return None
    return weakref.ref(own) if isinstance(own, Tensor) else None, weakref.ref(source)


def _are_two(own: weakref.ref[Tensor] | None, source: weakref.ref[Tensor]) -> bool:
    """Return True if `source` is another text than `own`, or `own` is None.

    A part of a text, an equal tensor and one that was freed count as the same text. Nested tensors are two; tensors
    without values are two if their shapes differ.
    """
    mine, other = None if own is None else own(), source()
    if mine is None or other is None:
        return own is None
    if mine is other:
        return False
    if mine.is_nested or other.is_nested:
        return True
    if not is_concrete(mine):
        return mine.shape != other.shape
    if mine.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
        return False
    return mine.shape != other.shape or not torch.equal(mine, other)


@lru_cache(maxsize=1024)
def _places(kind: type[nn.Module]) -> dict[str, int]:
    """Return the places of `SOURCES` and "key" among the arguments of a class's forward, without self, by name; cached.

    {} if the signature is unknown.
    """
    try:
        names = list(inspect.signature(kind.forward).parameters)[1:]
    except (AttributeError, TypeError, ValueError):  # TorchScript has it on instances only
        return {}
    return {name: place for place, name in enumerate(names) if name in (*SOURCES, "key")}
