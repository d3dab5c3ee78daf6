"""Find what stands at "file.py:Name", "package.module:Name" or "package.module.Name"."""

import importlib
import importlib.util
import inspect
import sys
import types
from pathlib import Path
from typing import Any

from clearhead._text import shown
from clearhead.checking.subject.refusals import raised_with_line
from clearhead.errors import ArgumentError, ModelError
from clearhead.recording.attempt import attempt


def located(place: str) -> Any:
    """Import a module, and return the object at "file.py:Name", "package.module:Name" or a dotted path.

    Raises:
        ArgumentError: code `check.place`, for a text of another form.
        ModelError: code `check.import`, or `check.name` for a file without a name or a name that does not exist.
    """
    module, colon, name = place.rpartition(":")
    if place.endswith(".py"):
        names = ", ".join(defined(imported(place)))
        raise ModelError(
            "check.name", f"say what to check, as {place}:Name; it has {names or 'nothing'}."
        )
    if not colon:
        module, _, name = place.rpartition(".")
    if not module or not name:
        raise ArgumentError(
            "check.place",
            f'a place is "file.py:Name" or a dotted import path; got {shown(place)}.',
        )
    found = imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            own = defined(found) if isinstance(found, types.ModuleType) else []
            names = ", ".join(own or [each for each in dir(found) if each[0] != "_"])
            raise ModelError("check.name", f"{module} has no {part}; it has {names or 'nothing'}.")
        found = getattr(found, part)
    return found


def imported(module: str) -> types.ModuleType:
    """Import a module by its file or its dotted name, and return it.

    A file is run at each call unless it is in a package. For a file, its folder and the folder above its packages are
    put first on `sys.path`.

    Raises:
        ModelError: code `check.import`, with the line that failed, also for code that exits.
    """
    try:
        return (
            _from_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
        )
    except (Exception, SystemExit) as error:  # a script that ends itself would end this one
        raise ModelError(
            "check.import", f"{module} could not be imported: {raised_with_line(error)}"
        ) from error


def defined(module: types.ModuleType) -> list[str]:
    """Return the public names of the classes and functions that a module defines itself, classes first, each sorted.

    Other objects of its own classes that can be called, such as instances of nn.Module, are among the functions.
    """
    made = {name: each for name, each in vars(module).items() if callable(each) and name[0] != "_"}
    own = (name for name in made if getattr(made[name], "__module__", None) == module.__name__)
    return sorted(own, key=lambda name: (not inspect.isclass(made[name]), name))


def _from_file(path: Path) -> types.ModuleType:
    """Import a file and return its module, as a part of its package if it is in one, for its relative imports.

    If that raises, the file is run once more without the package's own code. `sys.path` and `sys.modules` are extended.
    Errors of the code are raised.
    """
    path = path.resolve()
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    # Next to it may lie what it imports.
    for place in (str(path.parent), str(root)):
        if place not in sys.path:
            sys.path.insert(0, place)
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    if len(parts) > 1:
        module, error = attempt(importlib.import_module, name)
        if module is not None:
            return module
        # What its package imports may be missing, and not be needed here.
        _hollow(root, parts[:-1])
        return _executed(name, path)
    try:
        return _executed(f"_checked_{path.stem}", path)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        _hollow(root.parent, (root.name,))
        return _executed(f"{root.name}.{path.stem}", path)


def _hollow(root: Path, names: tuple[str, ...]) -> None:
    """Put empty packages of these nested names into sys.modules, unless they are there, without running their code."""
    for count in range(1, len(names) + 1):
        name = ".".join(names[:count])
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*names[:count]))]
        sys.modules.setdefault(name, package)


def _executed(name: str, path: Path) -> types.ModuleType:
    """Return a file as a module, run under this name in sys.modules; errors of its code are raised."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
