"""Every public name is documented with an example, and every example in a docstring runs.

`torch` and `ch` (clearhead) are there without an import, as a reader of the docs has them.
"""

import doctest
import importlib
import inspect
import sys

import pytest
import torch

from tests.conftest import manual_seed
from tests.environment import SEED
from tests.surface import MODULES, public_objects

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_TRUE_FOR_1


def package_of(module: str) -> str:
    """The first two names of a module: those of one package run in one test."""
    return ".".join(module.split(".")[:2])


def lacks(value: object) -> str | None:
    """The part that the documentation of a public object lacks, or None."""
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return None
    # Only its own docstring counts: an inherited one is about something else.
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    if not text:
        return "a docstring"
    # An error is shown where it is raised, a package through its members.
    if inspect.ismodule(value) or (inspect.isclass(value) and issubclass(value, BaseException)):
        return None
    return None if ">>> " in text else "an example (>>>)"


def test_every_public_name_has_an_example() -> None:
    found = {path: lacks(value) for path, value in public_objects().items()}
    lacking = [f"{path} lacks {what}" for path, what in found.items() if what]
    assert not lacking, "\n" + "\n".join(lacking)


@pytest.mark.parametrize("package", sorted({package_of(name) for name in MODULES}))
def test_docstring_examples_run(package: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in (each for each in MODULES if package_of(each) == package):
        module = importlib.import_module(name)
        names = {"torch": torch, "ch": importlib.import_module("clearhead"), **vars(module)}
        for example in finder.find(module, name, globs=names):
            manual_seed(SEED)
            runner.run(example, out=report.append)
            if pyplot := sys.modules.get("matplotlib.pyplot"):
                pyplot.close("all")
    assert not report, "\n" + "".join(report)


def documented() -> None:
    """Nothing. >>> 1"""


def undocumented() -> None:
    pass


class Inherits(int):
    pass


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        (documented, None),
        (undocumented, "a docstring"),
        (Inherits, "a docstring"),
        (type("Bare", (), {"__doc__": "Says something."}), "an example (>>>)"),
        (type("OwnError", (ValueError,), {"__doc__": "Says something."}), None),
        (3, None),
    ],
)
def test_what_is_lacking_is_seen(value: object, missing: str | None) -> None:
    assert lacks(value) == missing
