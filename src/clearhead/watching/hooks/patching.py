"""Monkeypatching: replace a function under every name that modules have for it.

Searching every name of every loaded module takes tens of milliseconds, so a namespace that was
searched before is searched again only if it had one of the functions, or has more or fewer names
since. The namespaces that a model's own code runs in are always searched, and what its modules hold:
attributes, defaults and closures of their methods.
"""

import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from clearhead._common.torch_internals import compiler_rules
from clearhead._common.undoing import Undo

Function = Callable[..., Any]

_plain: weakref.WeakKeyDictionary[type, frozenset[int]] = weakref.WeakKeyDictionary()
"""The classes that were searched and hold none of these functions."""


class Replacement:
    """Functions and their replacements, and every place where one was replaced.

    Args:
        functions: pairs of a function and its replacement.
        homes: namespaces that have both, and keep them.

    Example:
        >>> import math
        >>> def rounded(x): return 1.0
        >>> replacement, undo = Replacement([(math.cos, rounded)]), []
        >>> replacement.install(undo)
        >>> math.cos(0.5)
        1.0
        >>> undo.pop()()
        >>> round(math.cos(0.5), 2)
        0.88
    """

    def __init__(
        self, functions: Sequence[tuple[Function, Function]], homes: Sequence[Any] = ()
    ) -> None:
        self.pairs = tuple(functions)
        self._new = {id(old): new for old, new in functions}
        self._old = {id(new): old for old, new in functions}
        self._homes = {id(home) for home in homes}
        self._places: list[tuple[Any, Any, Any, Any]] = []
        self._holding: dict[int, dict[str, Any]] = {}
        self._loaded = Loaded()
        self._compiler_knew = True

    def install(self, undo: Undo) -> None:
        """Replace the functions in every loaded module, under any name; `undo` gets the step that restores them."""
        undo.append(self.restore)
        self._compiler_knew = compiler_rules() is not None
        changed = self._loaded.changed()
        for names in [*self._holding.values(), *changed]:
            if id(names) not in self._homes and self._search(names):
                self._holding[id(names)] = names
        # Not before they were searched, which may be interrupted.
        self._loaded.know(changed)

    def hold(self, classes: Iterable[type], instances: Iterable[Any]) -> None:
        """Replace the functions in the code of a model.

        The search covers the modules in which `classes` are defined, and the attributes of `classes` and
        `instances`.
        """
        for name in {kind.__module__ for kind in classes}:
            names = namespace(sys.modules.get(name))
            if names is not None and id(names) not in self._homes:
                self._search(names)
        functions = frozenset(self._new)
        for kind in classes:
            if _plain.get(kind) == functions:
                continue
            before = len(self._places)
            for name, value in list(vars(kind).items()):
                self._put(kind, name, value)
                for holder, key, held in _held_by(value):
                    self._put(holder, key, held)
            if len(self._places) == before:
                _plain[kind] = functions
        for each in instances:
            if not CALLABLE.isdisjoint(map(type, list(vars(each).values()))):
                for name, value in list(vars(each).items()):
                    self._put(vars(each), name, value)

    def restore(self) -> None:
        """Restore the original functions, also in modules that were loaded since.

        Another patch on top of one of these is left alone.
        """
        for holder, name, old, new in reversed(self._places):
            if _get(holder, name) is new:
                _set(holder, name, old)
        for names in [*self._holding.values(), *self._loaded.changed()]:
            if id(names) not in self._homes and _holds(names, self._old):
                for name, value in list(names.items()):
                    if id(value) in self._old:
                        names[name] = self._old[id(value)]
        self._places.clear()
        if not self._compiler_knew and (rules := compiler_rules()) is not None:
            # It has read these functions, and would not know those that are back.
            rules.cache_clear()

    def _search(self, names: dict[str, Any]) -> bool:
        """Replace the functions in a namespace, in place; return False if it has none of them."""
        if not _holds(names, self._new):
            return False
        for name, value in list(names.items()):
            if id(value) in self._new:
                self._put(names, name, value)
        return True

    def _put(self, holder: Any, name: Any, old: Any) -> None:
        """Replace an entry of a holder if it is one of the functions, and note the original for `restore`."""
        new = self._replaced(old)
        if new is not old:
            if isinstance(holder, type) and not isinstance(new, staticmethod):
                new = staticmethod(new)  # the one that was there did not bind
            self._places.append((holder, name, old, new))
            _set(holder, name, new)

    def _replaced(self, value: Any) -> Any:
        """Return a value with the functions in it replaced, or the value itself if there are none.

        Looks into partials, static methods and tuples, which are rebuilt.
        """
        if id(value) in self._new:
            return self._new[id(value)]
        if type(value) is functools.partial and id(value.func) in self._new:
            return functools.partial(self._new[id(value.func)], *value.args, **value.keywords)
        if type(value) is staticmethod and id(value.__func__) in self._new:
            return staticmethod(self._new[id(value.__func__)])
        if type(value) is tuple:  # the defaults of a function
            every = tuple(map(self._replaced, value))
            return value if all(map(operator.is_, every, value)) else every
        return value


CALLABLE = {types.BuiltinFunctionType, types.FunctionType, functools.partial}


def _holds(names: dict[str, Any], functions: dict[int, Function]) -> bool:
    """Return True if a namespace has one of the functions, which are given by id."""
    # `map` takes half of the time of a loop.
    return not functions.keys().isdisjoint(map(id, list(names.values())))


def _held_by(value: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (holder, name, value) for the defaults and closure cells of a method.

    Nothing for what is no Python function.
    """
    function = getattr(value, "__func__", value) if isinstance(value, staticmethod) else value
    if not isinstance(function, types.FunctionType):
        return
    if function.__defaults__:
        yield function, "__defaults__", function.__defaults__
    for name, held in (function.__kwdefaults__ or {}).items():
        yield function.__kwdefaults__, name, held
    for cell in function.__closure__ or ():
        try:
            yield cell, "cell_contents", cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue


def _get(holder: Any, name: Any) -> Any:
    """Return an entry of a dict or a class, or an attribute of an object; None if there is none."""
    if isinstance(holder, dict | type):
        return (holder if isinstance(holder, dict) else vars(holder)).get(name)
    return getattr(holder, name, None)


def _set(holder: Any, name: Any, value: Any) -> None:
    """Set an entry of a dict, or an attribute of any other object."""
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


class Loaded:
    """The namespaces of the loaded modules, and which of them changed since the last search."""

    def __init__(self) -> None:
        self._modules: list[Any] = []
        # Held, so that no other has the id of one of them.
        self._known: dict[int, tuple[dict[str, Any], int]] = {}

    def changed(self) -> list[dict[str, Any]]:
        """Return the namespaces that are new, or have more or fewer names than at the last search; [] if none."""
        modules = list(sys.modules.values())
        same = list(map(id, modules)) == list(map(id, self._modules))
        if same and all(len(names) == size for names, size in self._known.values()):
            return []
        self._modules = modules
        every = [names for each in modules if (names := namespace(each)) is not None]
        self._known = {id(each): self._known.get(id(each), (each, -1)) for each in every}
        return [each for each in every if self._known[id(each)][1] != len(each)]

    def know(self, changed: list[dict[str, Any]]) -> None:
        """Store the sizes of these namespaces as searched."""
        self._known |= {id(each): (each, len(each)) for each in changed}


_OF_MODULES: Any = vars(types.ModuleType)["__dict__"]


def namespace(module: Any) -> dict[str, Any] | None:
    """Return the namespace of an entry of sys.modules, not a copy, without running its code; None if it has none."""
    try:
        # Lazy modules answer with all that they could load.
        is_module = issubclass(type(module), types.ModuleType)
        names = (
            _OF_MODULES.__get__(module)
            if is_module
            else object.__getattribute__(module, "__dict__")
        )
    except AttributeError:
        return None
    return names if isinstance(names, dict) else None
