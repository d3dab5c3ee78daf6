"""The classes and functions of a package that could compute an attention, read off its sources.

Nothing is imported here, and nothing run: a definition whose own lines multiply tensors and normalise, or that is
called an attention, is worth making and calling; most are not.
"""

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clearhead._text import raised_words, shown
from clearhead.errors import ModelError

Report = Callable[[str, float], None]

# What these hold is run by other tools, or is no code of the package.
FOLDERS = re.compile(r"^(\..*|__pycache__|tests?|venv|env|node_modules|site-packages|build|dist)$")
FILES = re.compile(r"^(test_.*|.*_tests?|conftest|setup|__main__|noxfile|manage)\.py$")
ATTENTION = re.compile(r"attention|attend|attn|transformer", re.IGNORECASE)
# Attention whole; a class of PyTorch that holds one is no part of the package that is scanned.
WHOLE = {
    "scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention",
    "MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer",
    "TransformerEncoder", "TransformerDecoder", "Transformer",
}  # fmt: skip
PRODUCTS = {"matmul", "bmm", "mm", "einsum", "baddbmm", "tensordot"} | WHOLE
NORMALISERS = {"softmax", "Softmax", "log_softmax", "exp", "sigmoid", "entmax", "sparsemax"} | WHOLE


@dataclass(frozen=True)
class Definition:
    """A class or function at the top of a module.

    Attributes:
        name: in its module.
        line: where it begins.
    """

    name: str
    line: int


@dataclass(frozen=True)
class Source:
    """A module: the file or dotted name that imports it, its file, and the definitions to try.

    `error` says why it cannot be read, at `line`; `definitions` is then empty.
    """

    module: str
    file: str
    definitions: tuple[Definition, ...] = ()
    error: str = ""
    line: int = 1


def is_scanned(place: str) -> bool:
    """Return True if a place is a folder, ends in .py (such a file need not exist), or is a module that can be found.

    False for an object in a module or a file.
    """
    return Path(place).is_dir() or place.endswith(".py") or _module_files(place) is not None


def sources(place: str, progress: Report = lambda doing, done: None) -> list[Source]:
    """Return the modules of a package, a folder or a file, with the definitions to try; modules with none are left out.

    `progress` is called after each module with "reading" and the share that is done. A file that cannot be read is a
    source with an error.

    Raises:
        ModelError: code `check.scan`, for a place that does not exist.
    """
    found = _files(place)
    if found is None:
        raise ModelError(
            "check.scan",
            "a scan wants a folder, a file, or a package that can be imported; there is no "
            f"{shown(place)}.",
        )
    read = []
    for index, (module, file) in enumerate(found):
        read.append(_read(module, file))
        progress("reading", (index + 1) / len(found))
    return [source for source in read if source.definitions or source.error]


def _files(place: str) -> list[tuple[str, Path]] | None:
    """Return (module, file) of each module of a place; the module is a path for a folder or file, else a dotted name.

    None if the place does not exist.
    """
    path = Path(place)
    if path.is_dir():
        return [(str(each), each) for each in _within(path)]
    if place.endswith(".py"):
        return [(place, path)] if path.is_file() else None
    found = _module_files(place)
    if found is None or found[0].name != "__init__.py":
        return None if found is None else [(place, found[0])]
    listed: dict[str, Path] = {}
    for each in found:
        for file in _within(each.parent):
            inner = file.relative_to(each.parent).with_suffix("").parts
            listed[".".join((place, *(part for part in inner if part != "__init__")))] = file
    return list(listed.items())


def _within(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield the .py files below a folder in order, without links upwards and the names of FOLDERS and FILES.

    These are tests, environments, builds, hidden folders, and setup and `__main__` files. `above` are the folders that
    lead here. Raises OSError for a folder that cannot be read.
    """
    above |= {folder.resolve()}
    for each in sorted(folder.iterdir()):
        if each.is_dir():
            if not FOLDERS.match(each.name) and each.resolve() not in above:
                yield from _within(each, above)
        elif each.suffix == ".py" and not FILES.match(each.name) and each.is_file():
            yield each


def _module_files(place: str) -> list[Path] | None:
    """Return the files of a module by its dotted name, without importing it; None if it is not found or not Python.

    A package is its __init__.py, a namespace package one for each of its folders, which may not exist.
    """
    if not all(part.isidentifier() for part in place.split(".")):
        return None
    importlib.invalidate_caches()
    path, spec, name = None, None, ""
    for part in place.split("."):
        name = f"{name}.{part}" if name else part
        finders = (each for each in sys.meta_path if hasattr(each, "find_spec"))
        spec = next((s for each in finders if (s := each.find_spec(name, path))), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    assert spec is not None
    if spec.submodule_search_locations is not None:
        # A namespace package has no file of its own; its folders are read as if they had one.
        return [Path(each, "__init__.py") for each in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else None


def _read(module: str, file: Path) -> Source:
    """Return a module with its definitions that could attend, or with the reason why it cannot be read."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
        return Source(module, str(file), tuple(_definitions(tree.body)))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        words = raised_words(error).partition("\n")[0]
        return Source(module, str(file), error=words, line=line)


def _definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield the classes and functions that multiply tensors and normalise, or are called an attention.

    Those in the body and the else of if and try statements too. A function that is called an attention must multiply.
    """
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _definitions([*node.body, *node.orelse])
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        names |= {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        if any(isinstance(inner, ast.MatMult) for inner in ast.walk(node)):
            names.add("matmul")
        is_class = isinstance(node, ast.ClassDef)
        is_called_so = ATTENTION.search(node.name) and (is_class or names & PRODUCTS)
        if is_called_so or (names & PRODUCTS and names & NORMALISERS):
            yield Definition(node.name, node.lineno)
