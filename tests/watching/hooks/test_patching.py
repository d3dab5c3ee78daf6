"""One function in the place of another, and back."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from clearhead.watching.hooks.patching import Replacement, Undo


def old() -> str:
    return "old"


def new() -> str:
    return "new"


def somebody_elses() -> str:
    return "somebody else's"


@pytest.fixture
def module() -> Iterator[Any]:
    made: Any = types.ModuleType("has_functions_under_names")
    made.first, made.second, made.other = old, old, somebody_elses
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_every_name_in_every_module_but_the_own(module: Any) -> None:
    undo: Undo = []
    Replacement([(old, new)], [globals()]).install(undo)
    assert old() == "old"
    assert (module.first(), module.second(), module.other()) == ("new", "new", "somebody else's")
    undo.pop()()
    assert (module.first(), module.second()) == ("old", "old")


def test_what_came_meanwhile(module: Any) -> None:
    undo: Undo = []
    Replacement([(old, new)], [globals()]).install(undo)
    module.third = module.first
    module.second = somebody_elses
    undo.pop()()
    assert (module.first(), module.third()) == ("old", "old")
    assert module.second is somebody_elses
