"""Imports by name: public names on first use, thread-safe, and the drawing modules that lower packages need."""

import ast
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from clearhead.errors import missing_extra

# One for all packages: imports that meet in a circle from two threads find half a module.
_LOCK = threading.RLock()


def attach(name: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose public names are imported in its stub.

    `__getattr__` imports a name at its first use and sets it on the package; AttributeError for any other.

    Args:
        name: `__name__` of the package.
        file: its `__file__`; the stub is `__init__.pyi` in the same folder.
    """
    sources = _sources(name, Path(file).with_name("__init__.pyi"))

    def first_use(attribute: str) -> Any:
        """Return a public name of the package, imported now and set on it; raise the error of `no_name` for others."""
        if attribute not in sources:
            raise no_name(name, attribute)
        module, is_module = sources[attribute]
        with _LOCK, _collecting_later():
            found = import_module(module)
            value = found if is_module else getattr(found, attribute)
            # Kept, so that the next use does not come here; over a module of this name that the import has bound.
            setattr(sys.modules[name], attribute, value)
            return value

    public = sorted(sources)
    return first_use, lambda: list(public), list(public)


def _sources(package: str, stub: Path) -> dict[str, tuple[str, bool]]:
    """Return, by each name of a package's stub, (the module that it is imported from, True if it is that module)."""
    sources = {}
    for line in ast.parse(stub.read_text("utf-8")).body:
        if isinstance(line, ast.ImportFrom):
            module = resolve_name("." * line.level + (line.module or ""), package)
            for alias in line.names:
                own = line.module is None
                sources[alias.name] = (f"{module}.{alias.name}" if own else module, own)
    return sources


def no_name(package: str, name: str) -> AttributeError:
    """Return the AttributeError for a name that a package lacks, with its equivalent here if there is one."""
    return import_module("clearhead._common.foreign_names").no_name(package, name)


@contextlib.contextmanager
def _collecting_later() -> Iterator[None]:
    """Disable garbage collection in the block, and enable it after if it was on.

    A collection takes a tenth of a second because it visits every object of PyTorch, and imports leave little garbage.
    """
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def drawing(module: str) -> Any:
    r"""Return a module of `clearhead.drawing`.

    Example:
        >>> drawing("labels").label("a\tb")
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
        >>> sample("models").SAMPLES["minilm"].licence
        'Apache-2.0'
    """
    return import_module(f"clearhead.samples.{module}")


@contextlib.contextmanager
def importing(*packages: str, extra: str, purpose: str) -> Iterator[None]:
    """Raise a MissingExtraError if an import in the block fails because one of these packages is not installed.

    Args:
        packages: the names of modules, as the ModuleNotFoundError names them; for any other name it passes unchanged.
        extra: the extra that installs them.
        purpose: what needs them, as the subject of a sentence.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise missing_extra(error.name.partition(".")[0], extra, purpose) from error
