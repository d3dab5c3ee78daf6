"""Slips that can be read in the source of a loop: the cause of a mistake that was measured.

None is a mistake by itself: code is asked for them only when what it gives is wrong.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from clearhead._common.foreign_names import side_of
from clearhead.checking.subject.stubs import reached

# The axes of what goes into a part, by its name: what is counted along each.
COUNTED = {
    "query": ("queries", "numbers of a row"),
    "key": ("keys", "numbers of a row"),
    "value": ("keys", "numbers of a row"),
    "scores": ("queries", "keys"),
    "weights": ("queries", "keys"),
}
# What is the cause of whatever is wrong, where it stands; the others may be beside it.
CERTAIN = ("returned", "unzipped", "whole", "behind", "thrown-away")
# What begins a table with something else than 0.
BEGUN = (
    "clone",
    "ones",
    "rand",
    "randn",
    "full",
    "ones_like",
    "rand_like",
    "randn_like",
    "full_like",
)


class Slip(NamedTuple):
    """A slip: its template among the words, what that is filled with, and where it stands."""

    key: str
    values: Mapping[str, str]
    file: str
    line: int


class _Loop(NamedTuple):
    node: ast.For
    around: tuple[ast.For, ...]


def slip_of(found: Any, *, certain: bool = False) -> Slip | None:
    """The first slip in what is checked, or in the functions of its file that it calls; None where none is read.

    Args:
        found: a function, a class or an instance.
        certain: only what is the cause of whatever is wrong.
    """
    top = found if inspect.isclass(found) or inspect.isroutine(found) else type(found)
    for function in reached(top):
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, SyntaxError, TypeError):
            continue
        file = function.__code__.co_filename
        for key, values, node in _slips(tree):
            if certain and key not in CERTAIN:
                break
            return Slip(key, values, file, first + node.lineno - 1)
    return None


Told = tuple[str, dict[str, str], ast.stmt | ast.expr]


def _slips(tree: ast.Module) -> Iterator[Told]:
    function = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    if function is None:
        return
    loops = list(_loops(function.body, ()))
    names = [each.arg for each in function.args.args]
    for ask in (_returned, _unzipped, _behind, _thrown_away):
        for loop in loops:
            yield from ask(loop, names)
    yield from _miscounted(function, loops, names)
    for loop in loops:
        yield from _by_heart(loop)
    yield from _begun(function)


def _loops(body: Sequence[ast.stmt], around: tuple[ast.For, ...]) -> Iterator[_Loop]:
    for each in body:
        if isinstance(each, ast.For):
            yield _Loop(each, around)
            yield from _loops(each.body, (*around, each))
        else:
            for inner in ("body", "orelse"):
                yield from _loops(getattr(each, inner, []), around)


def _returned(loop: _Loop, _: Sequence[str]) -> Iterator[Told]:
    """Yield a return that the first round of a loop always comes to."""
    for each in loop.node.body:
        if isinstance(each, ast.Return):
            yield "returned", {"loop": _target(loop.node)}, each


def _unzipped(loop: _Loop, names: Sequence[str]) -> Iterator[Told]:
    """Yield pairs that are taken of a tuple of two rows, and rows that are paired as wholes."""
    node = loop.node
    if isinstance(node.iter, ast.Tuple) and isinstance(node.target, ast.Tuple):
        pairs = ", ".join(ast.unparse(each) for each in node.iter.elts)
        yield "unzipped", {"target": _target(node), "pairs": pairs}, node
    if isinstance(node.iter, ast.Call) and _called(node.iter) == "zip" and len(loop.around) > 1:
        given = [each.id for each in node.iter.args if isinstance(each, ast.Name)]
        if len(given) == len(node.iter.args) and set(given) <= set(names):
            outer = [_target(each) for each in loop.around[:2]]
            rows = ", ".join(f"{name}[{place}]" for name, place in zip(given, outer, strict=False))
            yield "whole", {"pairs": ", ".join(given), "rows": rows}, node


def _behind(loop: _Loop, _: Sequence[str]) -> Iterator[Told]:
    """Yield what is stored by the counter of a loop that has ended."""
    for inner in loop.node.body:
        if not isinstance(inner, ast.For) or not isinstance(inner.target, ast.Name):
            continue
        counter = inner.target.id
        for later in loop.node.body[loop.node.body.index(inner) + 1 :]:
            targets = later.targets if isinstance(later, ast.Assign) else []
            targets = [later.target] if isinstance(later, ast.AugAssign) else targets
            for each in targets:
                if isinstance(each, ast.Subscript) and counter in _names(each.slice):
                    yield "behind", {"line": ast.unparse(later), "counter": counter}, later


def _thrown_away(loop: _Loop, _: Sequence[str]) -> Iterator[Told]:
    """Yield a row that is named anew in a loop that keeps nothing."""
    node = loop.node
    if not isinstance(node.target, ast.Name):
        return
    row, again = node.target.id, None
    for each in ast.walk(node):
        if isinstance(each, ast.Assign) and [row] == [ast.unparse(t) for t in each.targets]:
            again = again or each
        stores = isinstance(each, ast.Assign | ast.AugAssign) and isinstance(
            each.targets[0] if isinstance(each, ast.Assign) else each.target, ast.Subscript
        )
        if stores or isinstance(each, ast.AugAssign | ast.Yield | ast.Return):
            return
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            return
    if again is not None:
        yield "thrown-away", {"row": row, "of": ast.unparse(node.iter)}, again


def _miscounted(
    function: ast.FunctionDef, loops: Sequence[_Loop], names: Sequence[str]
) -> Iterator[Told]:
    """Yield a counter that counts one axis and indexes another."""
    of = {name: COUNTED.get(name) or COUNTED.get(side_of(name) or "") for name in names}
    counters: dict[str, str] = {}
    sizes = dict(_sizes(function))
    for loop in loops:
        counted = _counted(loop.node.iter, of, sizes)
        if counted is not None and isinstance(loop.node.target, ast.Name):
            counters[loop.node.target.id] = counted
    for each in ast.walk(function):
        if not isinstance(each, ast.Subscript) or not isinstance(each.value, ast.Name):
            continue
        axes = of.get(each.value.id)
        places = each.slice.elts if isinstance(each.slice, ast.Tuple) else [each.slice]
        for axis, place in zip(axes or (), places, strict=False):
            counted = counters.get(place.id) if isinstance(place, ast.Name) else None
            if counted is not None and counted != axis:
                values = {"counter": ast.unparse(place), "counts": counted, "wanted": axis}
                yield "miscounted", {**values, "at": ast.unparse(each)}, each


def _sizes(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield names of sizes with what they are: n = len(query), n, d = query.shape."""
    for each in ast.walk(function):
        if not isinstance(each, ast.Assign):
            continue
        for target in each.targets:
            if isinstance(target, ast.Name):
                yield target.id, each.value
            elif isinstance(target, ast.Tuple) and isinstance(each.value, ast.Attribute):
                for place, name in enumerate(target.elts):
                    size = ast.Subscript(each.value, ast.Constant(place), ast.Load())
                    yield ast.unparse(name), size


def _counted(
    counts: ast.expr, of: Mapping[str, tuple[str, str] | None], sizes: Mapping[str, ast.expr]
) -> str | None:
    """The axis that a range goes over: range(len(key)), range(query.shape[1])."""
    if not isinstance(counts, ast.Call) or _called(counts) != "range" or len(counts.args) != 1:
        return None
    size = counts.args[0]
    size = sizes.get(size.id, size) if isinstance(size, ast.Name) else size
    if isinstance(size, ast.Call) and _called(size) == "len" and isinstance(size.args[0], ast.Name):
        axes, place = of.get(size.args[0].id), 0
    elif isinstance(size, ast.Subscript) and isinstance(size.value, ast.Attribute):
        owner, at = size.value.value, ast.unparse(size.slice)
        if size.value.attr != "shape" or at not in ("0", "1", "-1", "-2"):
            return None
        axes, place = of.get(ast.unparse(owner)), int(at)
    else:
        return None
    return axes[place] if axes else None


def _by_heart(loop: _Loop) -> Iterator[Told]:
    """Yield a count that is a plain number."""
    counts = loop.node.iter
    if isinstance(counts, ast.Call) and _called(counts) == "range" and counts.args:
        last = counts.args[min(1, len(counts.args) - 1)]
        if isinstance(last, ast.Constant) and isinstance(last.value, int) and last.value > 1:
            yield "by-heart", {"count": ast.unparse(counts)}, loop.node


def _begun(function: ast.FunctionDef) -> Iterator[Told]:
    """Yield a table that begins with other numbers than 0, and is added to."""
    added = {
        ast.unparse(each.target.value if isinstance(each.target, ast.Subscript) else each.target)
        for each in ast.walk(function)
        if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add)
    }
    for each in ast.walk(function):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            name, made = ast.unparse(each.targets[0]), _called(each.value)
            if name in added and made.rpartition(".")[2] in BEGUN:
                yield "begun", {"table": name, "made": made}, each


def _target(loop: ast.For) -> str:
    return ast.unparse(loop.target).strip("()")


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
