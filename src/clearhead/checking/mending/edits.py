"""Changes of one place in what a learner wrote, each with what it says in words.

A change is one that a slip of the pen undoes: a name for another, a sign, a number, an axis, `keepdim`, a step too
much, a line that stands too deep.
"""

import ast
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

# What turns one into the other, by attribute or by name.
TWINS = (
    ("triu", "tril"), ("mT", "T"), ("cos", "sin"), ("max", "amax"), ("sum", "mean"), ("masked_fill", "masked_fill_"),
    ("zeros", "ones"), ("argmax", "softmax"), ("min", "max"), ("amin", "amax"),
)  # fmt: skip
REDUCES = ("sum", "mean", "max", "amax", "amin", "logsumexp", "min")
ARITHMETIC: tuple[type[ast.operator], ...] = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)
COMPARED: tuple[type[ast.cmpop], ...] = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
# So many changes are tried.
MOST = 700


class Edit(NamedTuple):
    """A change: its key among the words, what it says with, its line, and the changed tree, until the next is asked for."""

    key: str
    values: dict[str, str]
    line: int
    tree: ast.Module


class Place(NamedTuple):
    """A node in a tree: the node above it, and where it stands in that."""

    node: ast.AST
    above: ast.AST
    field: str
    index: int | None


def edits_of(tree: ast.Module, names: Sequence[str]) -> Iterator[Edit]:
    """The changes, those first that a slip of the pen makes most.

    Args:
        tree: of the classes and functions that are graded.
        names: of what self holds.
    """
    places = list(_places(tree))
    ways = (
        _keepdims, _copies, _attributes, _sides, _numbers, _names, _sizes, _operators, _lines, _steps, _signs,
    )  # fmt: skip
    count = 0
    for way in ways:
        for place, changed, key, values in way(places, tree, names):
            with _changed(place, changed):
                yield Edit(key, values, getattr(place.node, "lineno", 0), ast.fix_missing_locations(tree))
            count += 1
            if count >= MOST:
                return


Change = tuple[Place, Any, str, dict[str, str]]


def _places(top: ast.AST) -> Iterator[Place]:
    for field, value in ast.iter_fields(top):
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(node, ast.AST):
                yield Place(node, top, field, index)
                yield from _places(node)


@contextmanager
def _changed(place: Place, changed: Any) -> Iterator[None]:
    """The tree with something else at a place; a list of statements for a statement."""
    value = getattr(place.above, place.field)
    if place.index is None:
        made = changed
    else:
        some = changed if isinstance(changed, list) else [changed]
        made = [*value[: place.index], *some, *value[place.index + 1 :]]
    setattr(place.above, place.field, made)
    try:
        yield
    finally:
        setattr(place.above, place.field, value)


def _expressions(places: Sequence[Place], *kinds: type[ast.AST]) -> Iterator[tuple[Place, Any]]:
    for place in places:
        if isinstance(place.node, kinds) and not isinstance(getattr(place.node, "ctx", None), ast.Store):
            yield place, place.node


def _said(old: ast.AST, new: ast.AST) -> dict[str, str]:
    return {"old": ast.unparse(old), "new": ast.unparse(new)}


def _altered(node: Any, **fields: Any) -> Any:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _keepdims(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    for place, node in _expressions(places, ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in REDUCES:
            continue
        kept = [each for each in node.keywords if each.arg != "keepdim"]
        if len(kept) < len(node.keywords):
            yield place, _altered(node, keywords=kept), "keepdim-more", _said(node, node)
        else:
            more = [*kept, ast.keyword("keepdim", ast.Constant(True))]
            yield place, _altered(node, keywords=more), "keepdim", _said(node, node)


def _signs(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    for place, node in _expressions(places, ast.UnaryOp):
        key = "inverted" if isinstance(node.op, ast.Invert | ast.Not) else "minus-more"
        yield place, node.operand, key, _said(node, node.operand)
    for place, node in _expressions(places, ast.Name, ast.Attribute, ast.Subscript, ast.Compare, ast.Call, ast.BinOp):
        if place.field == "func" or (place.field == "value" and isinstance(place.above, ast.Attribute)):
            continue
        turned = ast.UnaryOp(ast.Invert(), node)
        if place.field in ("args", "slice", "value"):
            yield place, turned, "not-inverted", _said(node, turned)
        if place.field in ("args", "left", "right", "value", "elts") and not isinstance(place.above, ast.UnaryOp):
            yield place, ast.UnaryOp(ast.USub(), node), "minus", _said(node, ast.UnaryOp(ast.USub(), node))


def _numbers(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    for place, node in _expressions(places, ast.Constant, ast.UnaryOp):
        value = _number(node)
        if isinstance(place.above, ast.UnaryOp) and _number(place.above) is not None:
            continue
        if isinstance(place.above, ast.Slice):
            continue
        if isinstance(value, bool):
            other = [not value]
        elif isinstance(value, int):
            other = [each for each in (value + 1, value - 1, -value, 0, 1, 2, -1, -2, 3) if each != value]
        elif isinstance(value, float):
            other = [each for each in (-value, 0.5, 1.0, 0.0, float("-inf")) if each != value]
        else:
            continue
        for each in dict.fromkeys(other):
            new = ast.Constant(each) if each != float("-inf") else ast.parse("float('-inf')", mode="eval").body
            around = _around(place)
            yield place, new, "number", {**_said(node, new), "at": around}


def _number(node: ast.AST) -> Any:
    """The number that is written, with its sign; None of anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None or isinstance(inner, bool) else -inner
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int | float) else None


def _copies(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    """A copy in the place of another name for the same."""
    for place, node in _expressions(places, ast.Name):
        above = place.above
        copied = ast.Call(ast.Attribute(node, "clone", ast.Load()), [], [])
        if isinstance(above, ast.Assign) and place.field == "value":
            yield place, copied, "alias", {"old": node.id, "new": ast.unparse(above.targets[0])}
        elif (
            isinstance(above, ast.Call)
            and isinstance(above.func, ast.Attribute)
            and above.func.attr == "append"
            and place.field == "args"
        ):
            yield place, copied, "same", {"old": node.id}


def _around(place: Place) -> str:
    """What a number stands in, as it is written."""
    above = place.above
    return ast.unparse(above) if isinstance(above, ast.expr | ast.keyword) else ast.unparse(place.node)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef):
            yield each


def _names(places: Sequence[Place], tree: ast.Module, held: Sequence[str]) -> Iterator[Change]:
    """A name for another of the same function."""
    for function in _functions(tree):
        inside = list(_places(function))
        own = [each.arg for each in function.args.args if each.arg != "self"]
        own += [
            place.node.id for place in inside
            if isinstance(place.node, ast.Name) and isinstance(place.node.ctx, ast.Store)
        ]  # fmt: skip
        for place, node in _expressions(inside, ast.Name):
            if node.id not in own:
                continue
            for other in dict.fromkeys(own):
                if other != node.id:
                    new = ast.Name(other, ast.Load())
                    yield place, new, "name", {**_said(node, new), "at": _around(place)}


def _attributes(places: Sequence[Place], _: ast.Module, held: Sequence[str]) -> Iterator[Change]:
    for place, node in _expressions(places, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            for other in held:
                if other != node.attr:
                    new = _altered(node, attr=other)
                    yield place, new, "name", {**_said(node, new), "at": _around(place)}
            continue
        for pair in TWINS:
            if node.attr in pair:
                new = _altered(node, attr=pair[1 - pair.index(node.attr)])
                yield place, new, "name", {**_said(node, new), "at": _around(place)}
    for place, node in _expressions(places, ast.Name):
        for new in (ast.Attribute(node, "mT", ast.Load()),):
            if place.field in ("left", "right") and isinstance(place.above, ast.BinOp):
                yield place, new, "turned", _said(node, new)


def _operators(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    for place, node in _expressions(places, ast.BinOp):
        for kind in ARITHMETIC:
            if not isinstance(node.op, kind) and not isinstance(node.op, ast.Pow):
                new = _altered(node, op=kind())
                yield place, new, "operator", _said(node, new)
        if isinstance(node.op, ast.FloorDiv):
            continue
    for place, node in _expressions(places, ast.Compare):
        for kind in COMPARED:
            if len(node.ops) == 1 and not isinstance(node.ops[0], kind):
                new = _altered(node, ops=[kind()])
                yield place, new, "operator", _said(node, new)
    for place in places:
        node = place.node
        if isinstance(node, ast.AugAssign):
            for kind in ARITHMETIC[:4]:
                if not isinstance(node.op, kind):
                    yield place, _altered(node, op=kind()), "operator", _said(node, _altered(node, op=kind()))
            plain = ast.Assign([node.target], node.value)
            yield place, ast.copy_location(plain, node), "operator", _said(node, plain)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Subscript):
            more = ast.AugAssign(node.targets[0], ast.Add(), node.value)
            yield place, ast.copy_location(more, node), "operator", _said(node, more)


def _sides(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    """Two sides that have changed places."""
    for place, node in _expressions(places, ast.BinOp):
        if not isinstance(node.op, ast.Add | ast.Mult):
            new = _altered(node, left=node.right, right=node.left)
            yield place, new, "sides", _said(node, new)
        # a - b + c, in which two of three have changed places
        left = node.left
        if isinstance(left, ast.BinOp):
            new = _altered(node, left=_altered(left, right=node.right), right=left.right)
            yield place, new, "sides", _said(node, new)
            new = _altered(node, left=_altered(left, left=left.right, right=left.left))
            yield place, new, "sides", _said(node, new)
    for place, node in _expressions(places, ast.Call, ast.List, ast.Tuple):
        field = "args" if isinstance(node, ast.Call) else "elts"
        given = getattr(node, field)
        for at in range(len(given) - 1):
            turned = [*given[:at], given[at + 1], given[at], *given[at + 2 :]]
            new = _altered(node, **{field: turned})
            whole = (node, new)
            if isinstance(place.above, ast.Subscript):
                whole = place.above, _altered(place.above, slice=new)
            yield place, new, "sides", _said(*whole)
    for place, node in _expressions(places, ast.Slice):
        if (node.lower is None) != (node.upper is None):
            yield place, _altered(node, lower=node.upper, upper=node.lower), "slice", {"old": ast.unparse(node), "new": ast.unparse(_altered(node, lower=node.upper, upper=node.lower)), "at": ast.unparse(place.above)}


def _steps(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    """A step too much inside a line."""
    for place, node in _expressions(places, ast.Call):
        if isinstance(node.func, ast.Attribute) and not (
            isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "nn", "F", "math", "self")
        ):
            yield place, node.func.value, "step", _said(node, node.func.value)
        elif node.args and isinstance(place.node, ast.Call):
            yield place, node.args[0], "step", _said(node, node.args[0])
    for place, node in _expressions(places, ast.BinOp):
        yield place, node.left, "step", _said(node, node.left)
        yield place, node.right, "step", _said(node, node.right)
    for place, node in _expressions(places, ast.Attribute):
        if node.attr in ("T", "mT", "data", "H", "mH"):
            yield place, node.value, "step", _said(node, node.value)
    for place, node in _expressions(places, ast.Subscript):
        yield place, node.value, "step", _said(node, node.value)
    for place, node in _expressions(places, ast.Slice):
        for side in ("lower", "upper"):
            bound = getattr(node, side)
            for new in (None, *(ast.BinOp(bound, op, ast.Constant(1)) for op in (ast.Add(), ast.Sub()) if bound is not None)):
                if bound is not None:
                    made = _altered(node, **{side: new})
                    values = {"old": ast.unparse(node), "new": ast.unparse(made), "at": ast.unparse(place.above)}
                    yield place, made, "slice", values


def _lines(places: Sequence[Place], *_: Any) -> Iterator[Change]:
    """A line too much; one that stands too deep, or not deep enough; two lines in the other order."""
    for place in places:
        node = place.node
        if not isinstance(node, ast.stmt) or place.index is None or isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        body = getattr(place.above, place.field)
        if len(body) > 1 and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield place, [], "line", {"old": ast.unparse(node).partition("\n")[0]}
        if place.index + 1 < len(body):
            # moved behind the next one
            after = Place(node, place.above, place.field, place.index)
            changed = _swapped(body, place.index)
            holder = _holder(places, place.above)
            if holder is not None:
                yield holder._replace(node=node), _altered(place.above, **{after.field: changed}), "order", {
                    "old": ast.unparse(node).partition("\n")[0],
                    "new": ast.unparse(body[place.index + 1]).partition("\n")[0],
                }
    for place in places:
        node = place.node
        if isinstance(node, ast.For | ast.If) and len(node.body) > 1:
            last = node.body[-1]
            new = [_altered(node, body=node.body[:-1]), last]
            yield place._replace(node=last), new, "deep", {"old": ast.unparse(last).partition("\n")[0], "loop": _head(node)}
        if isinstance(node, ast.For | ast.If) and place.index is not None:
            body = getattr(place.above, place.field)
            if place.index + 1 < len(body) and (holder := _holder(places, place.above)) is not None:
                following = body[place.index + 1]
                if isinstance(following, ast.Return):
                    continue
                deeper = _altered(node, body=[*node.body, following])
                changed = [*body[: place.index], deeper, *body[place.index + 2 :]]
                yield holder._replace(node=following), _altered(place.above, **{place.field: changed}), "flat", {
                    "old": ast.unparse(following).partition("\n")[0], "loop": _head(node),
                }


def _head(node: ast.For | ast.If) -> str:
    return f"for {ast.unparse(node.target)}" if isinstance(node, ast.For) else f"if {ast.unparse(node.test)}"


def _swapped(body: list[ast.stmt], at: int) -> list[ast.stmt]:
    return [*body[:at], body[at + 1], body[at], *body[at + 2 :]]


def _holder(places: Sequence[Place], node: ast.AST) -> Place | None:
    return next((each for each in places if each.node is node), None)


def _sizes(places: Sequence[Place], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A plain number in the place of a size: all of a call at once, torch.ones(6, 6)."""
    for function in _functions(tree):
        given = [each.arg for each in function.args.args if each.arg != "self"]
        sizes = [f"{name}.shape[{axis}]" for name in given for axis in (-2, -1, 0)]
        inside = list(_places(function))
        for place, node in _expressions(inside, ast.Constant):
            if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value > 1:
                for size in sizes:
                    new = ast.parse(size, mode="eval").body
                    yield place, new, "by-heart", {**_said(node, new), "at": _around(place)}
        for place, node in _expressions(inside, ast.Call, ast.Subscript):
            counted = ast.unparse(node)
            for name in given:
                if counted == f"len({name})" or counted.startswith(f"{name}.shape["):
                    for size in (f"{name}.shape[-2]", f"{name}.shape[-1]", f"{name}.shape[0]"):
                        if size != counted:
                            new = ast.parse(size, mode="eval").body
                            yield place, new, "count", _said(node, new)
        for place, node in _expressions(inside, ast.Call):
            numbers = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, int) and each.value > 1}
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

