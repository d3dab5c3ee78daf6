"""Imports by name: public names on first use, by one thread at a time, and upwards the modules that draw."""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import lazy_loader

# One for all packages: imports that meet in a circle from two threads find half a module.
_LOCK = threading.RLock()


def attach(name: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names stand in its stub.

    Args:
        name: `__name__` of the package.
        file: its `__file__`.
    """
    found, names, public = lazy_loader.attach_stub(name, file)

    def first_use(attribute: str) -> Any:
        with _LOCK, _collecting_later():
            try:
                return found(attribute)
            except AttributeError:
                if attribute in public or attribute.startswith("_"):
                    raise
        raise no_name(name, attribute)

    return first_use, names, public


def no_name(package: str, name: str) -> AttributeError:
    """Return the error for a name that a package does not have, with what it is here."""
    return import_module("clearhead._common.foreign_words").no_name(package, name)


@contextlib.contextmanager
def _collecting_later() -> Iterator[None]:
    """Import without a collection of garbage on the way, which goes through all that PyTorch has made, for a tenth
    of a second, where modules that are read leave next to none."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def drawing(module: str) -> Any:
    """Return a module of `clearhead.drawing`.

    Example:
        >>> drawing("labels").label("a\\tb")
        'a⇥b'
    """
    return import_module(f"clearhead.drawing.{module}")


def integration(module: str) -> Any:
    """Return a module of `clearhead.integrations`, which the conversion of another library's model needs.

    Example:
        >>> integration("transformers_adapter").TransformersAdapter.__name__
        'TransformersAdapter'
    """
    return import_module(f"clearhead.integrations.{module}")


def sample(module: str) -> Any:
    """Return a module of `clearhead.samples`, which has the model that is read where none is named.

    Example:
        >>> sample("packages").SAMPLES["minilm"].licence
        'Apache-2.0'
    """
    return import_module(f"clearhead.samples.{module}")
