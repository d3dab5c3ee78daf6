"""Modules that a function holds on to, and copies that hold on to copies.

`copy.deepcopy` leaves a function as it is, so that a lambda in an attribute, as in minGPT's Block,
still calls the layers that were copied, in their own mode.
"""

import copy
import functools
import types
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Held = TypeVar("Held")


class _OffTheGraph(TorchFunctionMode):
    """In this mode, deepcopy detaches tensors with a gradient graph, which PyTorch refuses to copy."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return what `func` returns; for a copy of a tensor with a graph, a detached clone, once for each tensor."""
        if func is Tensor.__deepcopy__ and args[0].grad_fn is not None:
            tensor, copies = args
            return copies.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


class Enclosing(nn.Module):
    """A function and the modules that it calls, as one module: it has a mode, and can be read."""

    function: Any

    def __init__(self, function: Any, held: dict[str, nn.Module]) -> None:
        """Register the held modules by their names, with "_" after a name that nn.Module has."""
        super().__init__()
        for name, module in held.items():
            self.add_module(f"{name}_" if hasattr(self, name) else name, module)
        self.__dict__["function"] = function

    def forward(self, *tensors: Any) -> Any:
        """Return what the function returns."""
        return self.function(*tensors)


def held_by(function: Any, kind: type[Held] = nn.Module) -> dict[str, Held]:
    """Return the modules, or objects of another kind, that a function, method or partial holds, by their names.

    Of a function these are globals that it or a function of its file reads, closures and defaults; of a method its
    owner; of a partial its arguments, or else what its function holds. {} for none.
    """
    if isinstance(function, types.MethodType):
        owner = function.__self__
        return {type(owner).__name__: owner} if isinstance(owner, kind) else {}
    if isinstance(function, functools.partial):
        given = {"func": function.func, **function.keywords}
        given |= {f"arg{index}": each for index, each in enumerate(function.args)}
        found = {name: each for name, each in given.items() if isinstance(each, kind)}
        return found or held_by(function.func, kind)
    found: dict[str, Held] = {}
    for each in _functions(function, set()):
        held = _around(each) | _cells(each)
        found |= {name: value for name, value in held.items() if isinstance(value, kind)}
    return found


def duplicate(thing: Any) -> Any:
    """Return a deep copy, in which functions refer to the copies of what they hold, and tensors have no graph.

    Raises what deepcopy raises.
    """
    copies: dict[int, Any] = {}
    with _OffTheGraph():
        made = copy.deepcopy(thing, copies)
    for each in list(copies.values()):
        for place in (each, getattr(each, "__dict__", None)):
            if not isinstance(place, dict):
                continue
            for name, value in place.items():
                if isinstance(value, types.FunctionType):
                    place[name] = _rebound(value, copies)
    return made


def _functions(function: Any, seen: set[int]) -> Iterator[types.FunctionType]:
    """Yield a function, and those of the same file that it calls, directly or not, each once.

    Nothing for anything else. `seen` gets their ids.
    """
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    yield function
    for value in (*_around(function).values(), *_cells(function).values()):
        if _near(value, function):
            yield from _functions(value, seen)


def _near(value: Any, function: types.FunctionType) -> bool:
    """Return True if a value is a function of the same file as the given function."""
    return isinstance(value, types.FunctionType) and value.__globals__ is function.__globals__


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object and in the code nested in it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from names_in(each)


def _around(function: types.FunctionType) -> dict[str, Any]:
    """Return the globals of its file that a function names, by name; names of attributes count."""
    around = function.__globals__
    return {name: around[name] for name in sorted(names_in(function.__code__)) if name in around}


def _cells(function: types.FunctionType) -> dict[str, Any]:
    """Return the closure of a function and its defaults, by name; a variable without a value is left out."""
    code, found = function.__code__, dict(function.__kwdefaults__ or {})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it has not been given a value yet
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    return found | dict(zip(names, defaults, strict=True))


def _rebound(function: types.FunctionType, copies: dict[int, Any]) -> types.FunctionType:
    """Return the function with copies instead of the objects that it holds; the function itself if none was copied.

    `copies` is by id of the original, and gets the result.
    """
    if id(function) in copies:
        return copies[id(function)]
    copies[id(function)] = function

    def other(value: Any) -> Any:
        """Return the copy of a held object, or a function of the same file rebound; what has no copy, unchanged."""
        return _rebound(value, copies) if _near(value, function) else copies.get(id(value), value)

    around, kept = _around(function), _cells(function)
    changed = {name: other(value) for name, value in (around | kept).items()}
    if all(changed[name] is value for name, value in (around | kept).items()):
        return function
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    made = types.FunctionType(
        code,
        {**function.__globals__, **{name: other(value) for name, value in around.items()}},
        function.__name__,
        tuple(map(other, function.__defaults__ or ())) or None,
        tuple(types.CellType(changed[name]) if name in kept else cell for name, cell in cells),
    )
    made.__kwdefaults__ = {
        name: other(value) for name, value in (function.__kwdefaults__ or {}).items()
    }
    made.__dict__.update(function.__dict__)
    copies[id(function)] = made
    return made
