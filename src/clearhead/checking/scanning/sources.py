"""The classes and functions of a package that could compute an attention, read off its sources.

Nothing is imported here, and nothing run: a definition that multiplies tensors and normalises, in
its own lines or in those of what it names, is worth making and calling; most are not.
"""

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
CLASSES = {name for name in WHOLE if name[0].isupper()}
NORMALISERS = {"softmax", "Softmax", "log_softmax", "exp", "sigmoid", "entmax", "sparsemax"} | WHOLE

ATTENDS = {"multiplies": PRODUCTS, "normalises": NORMALISERS}


@dataclass(frozen=True)
class Definition:
    """A class or function at the top of a module.

    Attributes:
        name: in its module.
        line: where it begins.
        likely: its own lines multiply and normalise, or it is called an attention.
    """

    name: str
    line: int
    likely: bool


@dataclass(frozen=True)
class Source:
    """A module: what imports it (a file or a dotted name), its file, and what is worth trying.

    `error` says why it cannot be read; then nothing is.
    """

    module: str
    file: str
    definitions: tuple[Definition, ...] = ()
    error: str = ""
    line: int = 1


@dataclass(frozen=True, eq=False)
class _Lines:
    """The lines of a definition.

    Attributes:
        names: all that they name.
        known: those of them that are defined in the module, or imported there: the name of each, and
            the last part of the module that it is imported from ("" for its own).
    """

    definition: Definition
    is_class: bool
    names: set[str]
    known: set[tuple[str, str]]


def is_scanned(place: str) -> bool:
    """True of a folder, a file and a module; not of what stands in one."""
    return Path(place).is_dir() or place.endswith(".py") or _module_files(place) is not None


def sources(place: str, progress: Report = lambda doing, done: None) -> list[Source]:
    """The modules of a package, a folder or a file, with what is worth trying in each.

    Raises:
        ModelError: code `check.scan`, for a place that is not there.
    """
    found = _files(place)
    if found is None:
        raise ModelError(
            "check.scan",
            "a scan wants a folder, a file, or a package that can be imported; there is no "
            f"{shown(place)}.",
        )
    read: list[tuple[Source, list[_Lines]]] = []
    for index, (module, file) in enumerate(found):
        read.append(_read(module, file))
        progress("reading", (index + 1) / len(found))
    classes, functions = _reached(read, True), _reached(read, False)
    whole = []
    for source, lines in read:
        kept = (
            each.definition
            for each in lines
            if (does := (classes if each.is_class else functions)[each]) == {*ATTENDS}
            or (ATTENTION.search(each.definition.name) and (each.is_class or "multiplies" in does))
        )
        whole.append(replace(source, definitions=tuple(kept)))
    return [each for each in whole if each.definitions or each.error]


def _files(place: str) -> list[tuple[str, Path]] | None:
    """The modules of a place, each by what imports it, and its file."""
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
    """The files of a folder that hold code; no pipe, which would block, and no link to a folder above."""
    above |= {folder.resolve()}
    for each in sorted(folder.iterdir()):
        if each.is_dir():
            if not FOLDERS.match(each.name) and each.resolve() not in above:
                yield from _within(each, above)
        elif each.suffix == ".py" and not FILES.match(each.name) and each.is_file():
            yield each


def _module_files(place: str) -> list[Path] | None:
    """The files of a module by its dotted name, which nothing imports to find them."""
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


def _read(module: str, file: Path) -> tuple[Source, list[_Lines]]:
    try:
        tree = ast.parse(file.read_bytes(), str(file))
        return Source(module, str(file)), list(_definitions(tree.body, _imported(tree)))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        words = raised_words(error).partition("\n")[0]
        return Source(module, str(file), error=words, line=line), []


def _imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """The names that a module defines or imports: the name there, and the last part of where it is
    from; under "*" that of the module whose names are all imported."""
    found = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.Import | ast.ImportFrom):
            stem = (getattr(each, "module", None) or "").rpartition(".")[2]
            for name in each.names:
                found[name.asname or name.name.partition(".")[0]] = (name.name, stem)
        elif isinstance(each, ast.ClassDef | ast.FunctionDef):
            found[each.name] = (each.name, "")
    return found


def _definitions(body: list[ast.stmt], imported: Mapping[str, tuple[str, str]]) -> Iterator[_Lines]:
    for each in body:
        if isinstance(each, ast.If | ast.Try):
            yield from _definitions([*each.body, *each.orelse], imported)
        if not isinstance(each, ast.ClassDef | ast.FunctionDef):
            continue
        names, known = set(), set()
        for node in ast.walk(each):
            if isinstance(node, ast.Name):
                names.add(node.id)
                if node.id in imported or "*" in imported:
                    known.add(imported.get(node.id) or (node.id, imported["*"][1]))
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
                if isinstance(node.value, ast.Name) and node.value.id in imported:
                    known.add((node.attr, imported[node.value.id][0].rpartition(".")[2]))
            elif isinstance(node, ast.MatMult):
                names.add("matmul")
        likely = bool(ATTENTION.search(each.name) or (names & PRODUCTS and names & NORMALISERS))
        known.discard((each.name, ""))
        made = Definition(each.name, each.lineno, likely)
        yield _Lines(made, isinstance(each, ast.ClassDef), names, known)


def _reached(
    read: list[tuple[Source, list[_Lines]]], through_classes: bool
) -> dict[_Lines, set[str]]:
    """Find what definitions do, in their lines and in those of what they name.

    A function that makes models, to train them say, is none to be called.
    """
    found: dict[_Lines, set[str]] = {}
    places: dict[tuple[str, str], list[_Lines]] = {}
    used: dict[_Lines, list[tuple[str, str]]] = {}
    for source, lines in read:
        path = Path(source.file)
        stem = path.parent.name if path.stem == "__init__" else path.stem
        for each in lines:
            if each.is_class and not through_classes:
                continue
            names = each.names if through_classes else each.names - CLASSES
            found[each] = {word for word, which in ATTENDS.items() if names & which}
            used[each] = [(name, origin or stem) for name, origin in each.known]
            # A package may hand on what its modules define.
            for origin in (stem, ""):
                places.setdefault((each.definition.name, origin), []).append(each)
    users: dict[_Lines, list[_Lines]] = {}
    for each, names in used.items():
        for name, origin in names:
            others = places.get((name, origin)) or places.get((name, ""), ())
            for other in others:
                users.setdefault(other, []).append(each)
            if not others and ATTENTION.search(name) and (through_classes or name.islower()):
                found[each] |= {*ATTENDS}  # another library's
    waiting = list(found)
    while waiting:
        each = waiting.pop()
        for user in users.get(each, ()):
            if not found[each] <= found[user]:
                found[user] |= found[each]
                waiting.append(user)
    return found
