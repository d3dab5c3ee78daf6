"""Changes of steps, of lines, and of what is counted."""

import ast
import copy
from collections.abc import Iterator, Sequence
from typing import Any

from clearhead.checking.mending.places import (
    Change,
    Spot,
    altered,
    around,
    expressions,
    first_line,
    functions_of,
    head_of,
    number_in,
    parsed,
    places_of,
    said,
)


def steps(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A step too much inside a line."""
    for place, node in expressions(places, ast.Call):
        if isinstance(node.func, ast.Attribute) and not (
            isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("torch", "nn", "F", "math", "self")
        ):
            yield place, node.func.value, "step", said(node, node.func.value)
        elif node.args:
            yield place, node.args[0], "step", said(node, node.args[0])
    for place, node in expressions(places, ast.BinOp):
        yield place, node.left, "step", said(node, node.left)
        yield place, node.right, "step", said(node, node.right)
    for place, node in expressions(places, ast.Attribute):
        if node.attr in ("T", "mT", "data", "H", "mH"):
            yield place, node.value, "step", said(node, node.value)
    for place, node in expressions(places, ast.Subscript):
        yield place, node.value, "step", said(node, node.value)
    for place, node in expressions(places, ast.Slice):
        if node.lower is None and isinstance(node.upper, ast.Constant):
            made = ast.Slice(ast.UnaryOp(ast.USub(), node.upper), None, None)
            yield place, made, "slice", said(node, made, ast.unparse(place.above))
        lower = node.lower
        if isinstance(lower, ast.UnaryOp) and node.upper is None and number_in(lower) is None:
            made = ast.Slice(None, lower.operand, None)
            yield place, made, "slice", said(node, made, ast.unparse(place.above))
        for side in ("lower", "upper"):
            bound = getattr(node, side)
            if bound is None:
                continue
            for new in (
                None,
                *(ast.BinOp(bound, op, ast.Constant(1)) for op in (ast.Add(), ast.Sub())),
            ):
                made = altered(node, **{side: new})
                yield place, made, "slice", said(node, made, ast.unparse(place.above))


def conditions(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A condition too much."""
    for place in places:
        node = place.node
        if isinstance(node, ast.If) and place.nth is not None and not node.orelse:
            yield place, node.body, "condition", {"old": ast.unparse(node.test)}


def lines(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A line too much; one that stands too deep, or not deep enough; two lines in the other order."""
    for place in places:
        node = place.node
        if not isinstance(node, ast.stmt) or isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        body, at = getattr(place.above, place.field), place.nth
        if at is None:
            continue
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if len(body) > 1 and not is_text:
            yield place, [], "line", {"old": first_line(node)}
        if at + 1 < len(body):
            following = body[at + 1]
            turned = [*body[:at], following, node, *body[at + 2 :]]
            values = {"old": first_line(node), "new": first_line(following)}
            yield place._replace(nth=None), turned, "order", values
    for place in places:
        node, at = place.node, place.nth
        if not isinstance(node, ast.For | ast.While | ast.If):
            continue
        if len(node.body) > 1:
            last = node.body[-1]
            new = [altered(node, body=node.body[:-1]), last]
            yield (
                place._replace(node=last),
                new,
                "deep",
                {"old": first_line(last), "loop": head_of(node)},
            )
        body = getattr(place.above, place.field)
        if at is None or at + 1 == len(body) or isinstance(body[at + 1], ast.Return):
            continue
        following = body[at + 1]
        deeper = [*body[:at], altered(node, body=[*node.body, following]), *body[at + 2 :]]
        values = {"old": first_line(following), "loop": head_of(node)}
        yield place._replace(node=following, nth=None), deeper, "flat", values


def sizes(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A plain number in the place of a size: all of a call at once, torch.ones(6, 6)."""
    for function in functions_of(tree):
        given = [each.arg for each in function.args.args if each.arg != "self"]
        sizes = [f"{name}.shape[{axis}]" for name in given for axis in (-2, -1, 0)]
        inside = list(places_of(function))
        for place, node in expressions(inside, ast.Constant):
            if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value > 1:
                for size in sizes:
                    new = parsed(size)
                    yield place, new, "by-heart", said(node, new, around(place))
        for place, node in expressions(inside, ast.Attribute):
            if node.attr == "shape" and not isinstance(place.above, ast.Subscript):
                for axis in ("-1", "-2", "0", "-2:"):
                    new = parsed(f"{ast.unparse(node)}[{axis}]")
                    yield place, new, "sizes", said(node, new)
        for place, node in expressions(inside, ast.Call, ast.Subscript):
            counted = ast.unparse(node)
            for name in given:
                if counted == f"len({name})" or counted.startswith(f"{name}.shape["):
                    same = [each for each in sizes if each.startswith(f"{name}.")]
                    for size in (*same, *(each for each in sizes if each not in same)):
                        if size != counted:
                            new = parsed(size)
                            yield place, new, "count", said(node, new)
        for place, node in expressions(inside, ast.Call):
            numbers = {
                each.value
                for each in ast.walk(node)
                if isinstance(each, ast.Constant) and isinstance(each.value, int) and each.value > 1
            }
            for number in numbers:
                for size in sizes:
                    new = _Filled(number, size).visit(copy.deepcopy(node))
                    values = {"old": str(number), "new": size, "at": ast.unparse(node)}
                    yield place, new, "by-heart", values


def passed(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """Put a method of one's own around what it is to be asked of first: self.merge(context)."""
    methods = [
        each for each in functions_of(tree) if each.args.args and each.args.args[0].arg == "self"
    ]
    for method in methods:
        if len(method.args.args) != 2 or method.name in ("__init__", "forward"):
            continue
        called = f"self.{method.name}"
        # Asked by what it calls itself, it would call without an end, and what it keeps would grow meanwhile.
        below = _called_by(method.name, methods)
        for function in methods:
            inside = places_of(function) if function.name not in below else ()
            for place, node in expressions(list(inside), ast.Call, ast.BinOp, ast.Name):
                above = place.above
                is_done = isinstance(above, ast.Call) and ast.unparse(above.func) == called
                if place.field not in ("args", "value", "left", "right") or is_done:
                    continue
                if isinstance(node, ast.Name) and node.id in ("self", "torch", "nn", "F", "math"):
                    continue
                new = parsed(f"{called}({ast.unparse(node)})")
                if ast.unparse(node) != ast.unparse(new):
                    yield place, new, "passed", said(node, new)


def _called_by(name: str, methods: Sequence[ast.FunctionDef]) -> set[str]:
    """The name of a method, and of those that it calls, at once or by others."""
    own = {each.name: each for each in methods}
    found, new = set[str](), {name}
    while new:
        found |= new
        called = {
            each.attr
            for method in new
            for each in ast.walk(own[method])
            if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"
        }
        new = (called & own.keys()) - found
    return found


def _compared(node: ast.AST) -> ast.Compare | None:
    """Return what a `while` loop compares, or None."""
    if isinstance(node, ast.While) and isinstance(node.test, ast.Compare):
        return node.test
    return None


class _Filled(ast.NodeTransformer):
    def __init__(self, number: int, size: str) -> None:
        self.number, self.size = number, size

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value == self.number and not isinstance(node.value, bool):
            return ast.parse(self.size, mode="eval").body
        return node


def reaches(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A loop that ends too early, or goes over something else."""
    for function in functions_of(tree):
        given = [each.arg for each in function.args.args if each.arg != "self"]
        for place, node in expressions(list(places_of(function)), ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "range":
                counts = [f"range(len({name}))" for name in given]
                counts += [f"range({name}.shape[-1])" for name in given]
                if len(node.args) == 2 and number_in(node.args[0]) is None:
                    begin, end = map(ast.unparse, node.args)
                    counts += [f"range({begin} + 1, {end})", f"range({begin} - 1, {end})"]
                for count in counts:
                    if count != ast.unparse(node):
                        new = parsed(count)
                        yield place, new, "reach", said(node, new)
    for place in places:
        test = _compared(place.node)
        if test is None:
            continue
        bound = test.comparators[0]
        if isinstance(bound, ast.BinOp):
            shorter = altered(test, comparators=[bound.left])
            yield Spot(bound, test, "comparators", 0), bound.left, "reach", said(test, shorter)
