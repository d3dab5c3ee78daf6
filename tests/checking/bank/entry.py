"""One piece of somebody's attention code, and what is true of it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Entry:
    """A piece of code, how it is called, what its author declares, and its mistake.

    Args:
        name: file and object, with a label where an object stands twice; unique in the bank.
        make: gives the object, the same one every time: a function, a module, or a class.
        takes: the calling convention.
        declared: what its author would declare.
        code: the name of the mistake; None is correct code.
        also: other names that are just as right.
        facts: what is true besides and not declared; the definition is told, `check` is not.
        unproved: why the definition cannot show what the code does; empty where it does.
    """

    name: str
    make: Callable[[], object]
    takes: str
    declared: dict[str, Any]
    code: str | None
    also: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    unproved: str = ""

    def told(self) -> "Entry":
        """The same with its facts among what is declared."""
        sizes = {**self.facts.get("sizes", {}), **self.declared.get("sizes", {})}
        declared = {**self.facts, **self.declared}
        return replace(self, declared={**declared, "sizes": sizes} if sizes else declared)


class Built:
    """An object made with a fixed seed, which leaves the caller's random numbers alone."""

    def __init__(self, maker: Callable[..., object], *args: object, **kwargs: object) -> None:
        self.maker = maker
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> object:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.maker(*self.args, **self.kwargs)


def _name(thing: Any, label: str) -> str:
    maker = thing.maker if isinstance(thing, Built) else thing
    name = f"{maker.__module__.rpartition('.')[2]}.{maker.__qualname__}"
    return f"{name} ({label})" if label else name


def _entry(
    thing: Any,
    takes: str,
    code: str | None,
    also: Any,
    label: str,
    facts: dict[str, Any] | None,
    unproved: str,
    declared: dict[str, Any],
) -> Entry:
    make = thing if isinstance(thing, Built) else lambda: thing
    return Entry(
        _name(thing, label), make, takes, declared, code, tuple(also), facts or {}, unproved
    )


def wrong(
    code: str,
    thing: object,
    takes: str,
    also: Any = (),
    *,
    label: str = "",
    facts: dict[str, Any] | None = None,
    unproved: str = "",
    **declared: Any,
) -> Entry:
    """An entry whose mistake has this name; `thing` is the object itself, or a `Built`."""
    return _entry(thing, takes, code, also, label, facts, unproved, declared)


def right(
    thing: object,
    takes: str,
    *,
    label: str = "",
    facts: dict[str, Any] | None = None,
    unproved: str = "",
    **declared: Any,
) -> Entry:
    """An entry without a mistake."""
    return _entry(thing, takes, None, (), label, facts, unproved, declared)
