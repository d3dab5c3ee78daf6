"""Places in what a learner wrote, and what stands there."""

import ast
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class Spot(NamedTuple):
    """A node in a tree: the node above it, and where it stands in that."""

    node: ast.AST
    above: ast.AST
    field: str
    nth: int | None


Change = tuple[Spot, Any, str, dict[str, str]]


def places_of(top: ast.AST) -> Iterator[Spot]:
    for field, value in ast.iter_fields(top):
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(node, ast.AST):
                yield Spot(node, top, field, index)
                yield from places_of(node)


@contextmanager
def changed(place: Spot, changed: Any) -> Iterator[None]:
    """The tree with something else at a place; a list of statements for a statement, or for all of a body."""
    value = getattr(place.above, place.field)
    if place.nth is None:
        made = changed
    else:
        some = changed if isinstance(changed, list) else [changed]
        made = [*value[: place.nth], *some, *value[place.nth + 1 :]]
    for each in made if isinstance(made, list) else [made]:
        if isinstance(each, ast.AST):
            if not hasattr(each, "lineno"):
                ast.copy_location(each, place.node)
            ast.fix_missing_locations(each)
    setattr(place.above, place.field, made)
    try:
        yield
    finally:
        setattr(place.above, place.field, value)


def expressions(places: Sequence[Spot], *kinds: type[ast.AST]) -> Iterator[tuple[Spot, Any]]:
    for place in places:
        if isinstance(place.node, kinds) and not isinstance(
            getattr(place.node, "ctx", None), ast.Store
        ):
            yield place, place.node


def said(old: ast.AST, new: ast.AST, at: str = "") -> dict[str, str]:
    return {"old": ast.unparse(old), "new": ast.unparse(new), "at": at}


class Replaced(ast.NodeTransformer):
    """A tree with something else wherever a call or an option is written as a text, and how often that is."""

    def __init__(self, old: str, new: ast.expr | ast.keyword) -> None:
        self.old, self.new, self.count = old, new, 0

    def visit_Call(self, node: ast.Call | ast.keyword) -> ast.AST:
        if ast.unparse(node) == self.old:
            self.count += 1
            return ast.copy_location(copy.deepcopy(self.new), node)
        return self.generic_visit(node)

    visit_keyword = visit_Call


def parsed(text: str) -> Any:
    """The expression that a text is."""
    return ast.parse(text, mode="eval").body


def head_of(node: ast.For | ast.While | ast.If) -> str:
    if isinstance(node, ast.For):
        return f"for {ast.unparse(node.target)}"
    if isinstance(node, ast.While):
        return f"while {ast.unparse(node.test)}"
    return f"if {ast.unparse(node.test)}"


def first_line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def altered(node: Any, **fields: Any) -> Any:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def around(place: Spot) -> str:
    """The expression that a number stands in, as it is written."""
    above = place.above
    return (
        ast.unparse(above) if isinstance(above, ast.expr | ast.keyword) else ast.unparse(place.node)
    )


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef):
            yield each


def number_in(node: ast.AST) -> Any:
    """The number that is written, with its sign; None of anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number_in(node.operand)
        return None if inner is None or isinstance(inner, bool) else -inner
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int | float) else None
