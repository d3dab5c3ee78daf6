"""Read what the names in a learner's classes say: which matrix has made what stands under them."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from clearhead._common.foreign_names import role
from clearhead.checking.mending.mends import LearnersCode
from clearhead.checking.mending.places import functions_of

SIDES = ("q", "k", "v")
ROWS = {"q": "queries", "k": "keys", "v": "values"}
# What makes a matrix.
MAKES = r"\bLinear\(|\bParameter\("
PRODUCTS = ("matmul", "mm", "bmm", "einsum", "dot", "inner")


class Misnamed(NamedTuple):
    """A name of one side that is made by the matrix of another: both, the matrix that is meant, and the place."""

    name: str
    attr: str
    wanted: str
    place: tuple[str, int]


class Chained(NamedTuple):
    """A matrix that is given what another, or it itself, has made.

    Attributes:
        attr: the matrix.
        given: what it is given.
        maker: the matrix that has made that.
        wanted: what comes in.
        at: the line that gives the name of what comes in to what `maker` has made; "" where none does.
        place: of the matrix, or of that line.
    """

    attr: str
    given: str
    maker: str
    wanted: str
    at: str
    place: tuple[str, int]


class FirstSample(NamedTuple):
    """Rows of one sample alone: as they are written, rows of what, and of which sample."""

    text: str
    rows: str
    which: str
    place: tuple[str, int]


def misnamed(thing: Any) -> Misnamed | None:
    """The first name of a class that belongs to another side than the matrix that makes it."""
    for file, function, made_of in _functions(thing):
        own = sorted(_matrices(function, made_of))
        for name, made, line in _bindings(function, made_of):
            wanted = role(name)
            if wanted in SIDES and wanted != role(made):
                other = next((each for each in own if role(each) == wanted), "")
                return Misnamed(name, made, other, (file, line))
    return None


def first_use(thing: Any, sides: str) -> tuple[str, int] | None:
    """File and line of the first product in which stands what the matrices of these sides have made."""
    for file, function, made_of in _functions(thing):
        own = {name: role(made) for name, made, _ in _bindings(function, made_of)}
        for node in ast.walk(function):
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if _is_product(node, made_of) and any(own.get(each) in tuple(sides) for each in names):
                return file, getattr(node, "lineno", 0)
    return None


def read_first(thing: Any, method: str, name: str) -> tuple[str, int] | None:
    """File and line where a method first names what is kept."""
    for file, function, _ in _functions(thing):
        for node in ast.walk(function) if function.name == method else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{name}":
                return file, node.lineno
    return None


def _is_product(node: ast.AST, made_of: frozenset[str]) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in PRODUCTS
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.MatMult)
        and not _matrices(node, made_of)
    )


def chained(thing: Any) -> Chained | None:
    """The first matrix that is given what a matrix has made, and not what comes in."""
    for file, function, made_of in _functions(thing):
        arguments = [each.arg for each in function.args.args if each.arg != "self"]
        own: dict[str, tuple[str, ast.stmt]] = {}
        for line in function.body:
            for node in ast.walk(line):
                applied = _applied(node, made_of)
                if applied is None:
                    continue
                attr, given = applied
                names = [each.id for each in ast.walk(given) if isinstance(each, ast.Name)]
                name = next((each for each in names if each in own), "")
                inner = _applied(given, made_of)
                if not name and inner is None:
                    continue
                maker, bound = own.get(name, ("", line))
                wanted = arguments[0] if arguments else "x"
                text = ast.unparse(bound) if name == wanted else ""
                number = bound.lineno if text else getattr(node, "lineno", line.lineno)
                maker = maker if inner is None else inner[0]
                return Chained(attr, ast.unparse(given), maker, wanted, text, (file, number))
            own |= {name: (made, line) for name, made, _ in _bound(line, made_of)}
    return None


def one_sample(thing: Any) -> FirstSample | None:
    """The first place where rows are taken of the first or the last sample alone."""
    for file, function, made_of in _functions(thing):
        if function.name == "__init__":
            continue
        given = [each.arg for each in function.args.args if each.arg != "self"]
        made = {name: ROWS[str(role(made))] for name, made, _ in _bindings(function, made_of)}
        known = dict.fromkeys(given, "") | made
        sized = {
            id(inner) for each in ast.walk(function)
            if (isinstance(each, ast.Attribute) and each.attr in ("shape", "size"))
            or (isinstance(each, ast.Call) and ast.unparse(each.func) == "len")
            for inner in ast.walk(each)
        }  # fmt: skip
        for node in ast.walk(function):
            if not isinstance(node, ast.Subscript) or id(node) in sized:
                continue
            name, which = ast.unparse(node.value), _sample(node.slice)
            if which is not None and name in known:
                rows = known[name] or "rows"
                return FirstSample(ast.unparse(node), rows, which, (file, node.lineno))
    return None


def _functions(thing: Any) -> Iterator[tuple[str, ast.FunctionDef, frozenset[str]]]:
    """The functions that a learner wrote, each with its file and the matrices that there are."""
    written = LearnersCode.of(thing) if inspect.isclass(thing) or inspect.isroutine(thing) else None
    if written is not None:
        made = frozenset(
            target.attr
            for each in ast.walk(written.tree)
            if isinstance(each, ast.Assign) and re.search(MAKES, ast.unparse(each.value))
            for target in each.targets
            if isinstance(target, ast.Attribute) and role(target.attr) in SIDES
        )
        for function in functions_of(written.tree):
            yield written.file, function, made


def _sample(at: ast.expr) -> str | None:
    """The sample that is taken: [0], [:1], [0, :], [-1]; None of anything else."""
    at = at.elts[0] if isinstance(at, ast.Tuple) else at
    return {"0": "first", ":1": "first", "0:1": "first", "-1": "last", "-1:": "last"}.get(
        ast.unparse(at)
    )


def _matrices(node: ast.AST, made_of: frozenset[str]) -> set[str]:
    """The matrices of query, key and value that stand in an expression."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and ast.unparse(each.value) == "self"
        and each.attr in made_of
    }


def _applied(node: ast.AST, made_of: frozenset[str]) -> tuple[str, ast.expr] | None:
    """A matrix, and what it is given: self.W_key(x), x @ self.W_key."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        matrix, given = node.func, node.args[0]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        matrix, given = node.right, node.left
    else:
        return None
    if not isinstance(matrix, ast.Attribute) or ast.unparse(matrix.value) != "self":
        return None
    return (matrix.attr, given) if matrix.attr in made_of else None


def _bindings(function: ast.FunctionDef, made_of: frozenset[str]) -> Iterator[tuple[str, str, int]]:
    """Names with the matrix that makes each, and its line."""
    for each in ast.walk(function):
        yield from _bound(each, made_of)


def _bound(line: ast.AST, made_of: frozenset[str]) -> Iterator[tuple[str, str, int]]:
    if not isinstance(line, ast.Assign) or len(line.targets) != 1:
        return
    target, value = line.targets[0], line.value
    pairs: Mapping[ast.expr, ast.expr] = {target: value}
    if isinstance(target, ast.Tuple):
        if isinstance(value, ast.ListComp | ast.GeneratorExp):
            value = value.generators[0].iter
        given = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        pairs = dict(zip(target.elts, given, strict=True)) if len(given) == len(target.elts) else {}
    for name, each in pairs.items():
        made = _matrices(each, made_of)
        if isinstance(name, ast.Name) and len(made) == 1:
            yield name.id, made.pop(), name.lineno
