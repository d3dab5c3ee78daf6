"""Changes of steps, of lines, and of what is counted."""

import ast
import copy
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

from clearhead.checking.mending.places import (
    Change,
    Spot,
    altered,
    around,
    expressions,
    functions_of,
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
        elif node.args and isinstance(place.node, ast.Call):
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
        for side in ("lower", "upper"):
            bound = getattr(node, side)
            for new in (
                None,
                *(
                    ast.BinOp(bound, op, ast.Constant(1))
                    for op in (ast.Add(), ast.Sub())
                    if bound is not None
                ),
            ):
                if bound is not None:
                    made = altered(node, **{side: new})
                    values = {
                        "old": ast.unparse(node),
                        "new": ast.unparse(made),
                        "at": ast.unparse(place.above),
                    }
                    yield place, made, "slice", values


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
        if (
            not isinstance(node, ast.stmt)
            or place.nth is None
            or isinstance(node, ast.FunctionDef | ast.ClassDef)
        ):
            continue
        body = getattr(place.above, place.field)
        if len(body) > 1 and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            yield place, [], "line", {"old": ast.unparse(node).partition("\n")[0]}
        if place.nth + 1 < len(body):
            # moved behind the next one
            after = Spot(node, place.above, place.field, place.nth)
            changed = _swapped(body, place.nth)
            holder = _holder(places, place.above)
            if holder is not None:
                yield (
                    holder._replace(node=node),
                    altered(place.above, **{after.field: changed}),
                    "order",
                    {
                        "old": ast.unparse(node).partition("\n")[0],
                        "new": ast.unparse(body[place.nth + 1]).partition("\n")[0],
                    },
                )
    for place in places:
        node = place.node
        if isinstance(node, ast.For | ast.If) and len(node.body) > 1:
            last = node.body[-1]
            new = [altered(node, body=node.body[:-1]), last]
            yield (
                place._replace(node=last),
                new,
                "deep",
                {"old": ast.unparse(last).partition("\n")[0], "loop": _head(node)},
            )
        if isinstance(node, ast.For | ast.If) and place.nth is not None:
            body = getattr(place.above, place.field)
            if place.nth + 1 < len(body) and (holder := _holder(places, place.above)) is not None:
                following = body[place.nth + 1]
                if isinstance(following, ast.Return):
                    continue
                deeper = altered(node, body=[*node.body, following])
                changed = [*body[: place.nth], deeper, *body[place.nth + 2 :]]
                yield (
                    holder._replace(node=following),
                    altered(place.above, **{place.field: changed}),
                    "flat",
                    {
                        "old": ast.unparse(following).partition("\n")[0],
                        "loop": _head(node),
                    },
                )


def _head(node: ast.For | ast.If) -> str:
    return (
        f"for {ast.unparse(node.target)}"
        if isinstance(node, ast.For)
        else f"if {ast.unparse(node.test)}"
    )


def _swapped(body: list[ast.stmt], at: int) -> list[ast.stmt]:
    return [*body[:at], body[at + 1], body[at], *body[at + 2 :]]


def _holder(places: Sequence[Spot], node: ast.AST) -> Spot | None:
    return next((each for each in places if each.node is node), None)


def sizes(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A plain number in the place of a size: all of a call at once, torch.ones(6, 6)."""
    for function in functions_of(tree):
        given = [each.arg for each in function.args.args if each.arg != "self"]
        sizes = [f"{name}.shape[{axis}]" for name in given for axis in (-2, -1, 0)]
        inside = list(places_of(function))
        for place, node in expressions(inside, ast.Constant):
            if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value > 1:
                for size in sizes:
                    new = ast.parse(size, mode="eval").body
                    yield place, new, "by-heart", {**said(node, new), "at": around(place)}
        for place, node in expressions(inside, ast.Call, ast.Subscript):
            counted = ast.unparse(node)
            for name in given:
                if counted == f"len({name})" or counted.startswith(f"{name}.shape["):
                    for size in (f"{name}.shape[-2]", f"{name}.shape[-1]", f"{name}.shape[0]"):
                        if size != counted:
                            new = ast.parse(size, mode="eval").body
                            yield place, new, "count", said(node, new)
        for place, node in expressions(inside, ast.Call):
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr.endswith("_like")
                and len(given) > 1
            ):
                made = node.func.attr.removesuffix("_like")
                for rows, columns in permutations(given, 2):
                    new = ast.parse(
                        f"torch.{made}(len({rows}), {columns}.shape[-1])", mode="eval"
                    ).body
                    yield place, new, "shape", said(node, new)
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
                for count in counts:
                    if count != ast.unparse(node):
                        new = ast.parse(count, mode="eval").body
                        yield place, new, "reach", said(node, new)
