"""Changes of one place in what a learner wrote, each with what it says in words.

A change is one that a slip of the pen undoes: a name for another, a sign, a number, an axis, `keepdim`, a step too
much, a line that stands too deep."""

import ast
import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from clearhead.checking.mending.loops import (
    appends,
    begins,
    counts,
    late,
    overwritten,
    taken_names,
    thrown_away,
    undefined,
)
from clearhead.checking.mending.places import (
    Change,
    Replaced,
    Spot,
    altered,
    around,
    changed,
    expressions,
    functions_of,
    number_in,
    parsed,
    places_of,
    said,
)
from clearhead.checking.mending.stepping import conditions, lines, passed, reaches, sizes, steps
from clearhead.checking.mending.tables import (
    anew,
    by_rows,
    cells,
    corners,
    cut,
    diagonals,
    fractions,
    products,
    returns,
    shapes,
    upright,
)
from clearhead.checking.words import filled

# What turns one into the other, by attribute or by name.
TWINS = (
    ("triu", "tril"), ("mT", "T"), ("cos", "sin"), ("max", "amax"), ("sum", "mean"), ("masked_fill", "masked_fill_"),
    ("zeros", "ones"), ("argmax", "softmax"), ("min", "max"), ("amin", "amax"), ("isqrt", "sqrt"),
    ("tensor", "stack"), ("cat", "stack"), ("dot", "matmul"), ("mul", "matmul"), ("append", "extend"),
    ("view", "reshape"),
)  # fmt: skip
REDUCES = ("sum", "mean", "max", "amax", "amin", "logsumexp", "min")
ARITHMETIC: tuple[type[ast.operator], ...] = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.MatMult,
    ast.FloorDiv,
)
COMPARED: tuple[type[ast.cmpop], ...] = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
# So many changes are tried.
MOST = 700


class ChangedTree(NamedTuple):
    """A change: its key among the words, what it says with, its line, and the tree with it, until the next."""

    key: str
    values: dict[str, str]
    line: int
    tree: ast.Module


def edits_of(
    tree: ast.Module, names: Sequence[str], *, certain: bool = False
) -> Iterator[ChangedTree]:
    """The changes, those first that a slip of the pen makes most.

    Args:
        tree: of the classes and functions that are graded.
        names: of what self holds.
        certain: only those of which one that mends is the cause, whatever else is seen.
    """
    places = list(places_of(tree))
    ways = (
        _keepdims, _copies, anew, undefined, conditions, reaches, counts, shapes, fractions, begins, taken_names,
        appends, returns, corners, cut, diagonals, overwritten, thrown_away, _everywhere, _cuts, _attributes, _sides,
        _numbers, _names, sizes, by_rows, upright, products, cells, _operators, lines, late, passed, steps, _keywords,
        _signs,
    )  # fmt: skip
    count = 0
    for way in ways[:3] if certain else ways:
        for place, new, key, values in way(places, tree, names):
            with changed(place, new):
                yield ChangedTree(key, values, getattr(place.node, "lineno", 0), tree)
            count += 1
            if count >= MOST:
                return


def _everywhere(places: Sequence[Spot], tree: ast.Module, names: Sequence[str]) -> Iterator[Change]:
    """The same change wherever the same is called: nn.Linear(d_out, d_in) three times."""
    calls = [each for each in places if isinstance(each.node, ast.Call | ast.keyword)]
    texts = Counter(ast.unparse(each.node) for each in calls)
    again = [each for each in calls if texts[ast.unparse(each.node)] > 1]
    done = set[tuple[str, str]]()
    for way in (_sides, _keepdims, by_rows, _axes, steps):
        for place, new, key, values in way(again, tree, names):
            pair = ast.unparse(place.node), ast.unparse(new)
            if texts[pair[0]] < 2 or pair in done:
                continue
            done.add(pair)
            for nth, top in enumerate(tree.body):
                put = Replaced(pair[0], new)
                made = put.visit(copy.deepcopy(top))
                if put.count:
                    spot = Spot(place.node, tree, "body", nth)
                    yield spot, made, "everywhere", {"said": filled("mend", key, values)}


def _cuts(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """The same cut wherever it is made: k[:, -4:], v[:, -4:]."""
    cut = [each.node for each in places if isinstance(each.node, ast.Subscript)]
    cut = [each for each in cut if any(isinstance(e, ast.Slice) for e in ast.walk(each.slice))]
    texts = Counter(ast.unparse(each.slice) for each in cut)
    for text, count in texts.items():
        first = next(each for each in cut if ast.unparse(each.slice) == text)
        lower = first.slice.lower if isinstance(first.slice, ast.Slice) else None
        begun = lower.operand if isinstance(lower, ast.UnaryOp) else None
        for nth, top in enumerate(tree.body if count > 1 else ()):
            spot = Spot(first, tree, "body", nth)
            made = _Recut(text, None).visit(copy.deepcopy(top))
            told = {"said": filled("mend", "step", said(first, first.value))}
            yield spot, made, "everywhere", told
            if begun is not None:
                new = ast.Slice(None, begun, None)
                values = said(first.slice, new, ast.unparse(first))
                told = {"said": filled("mend", "slice", values)}
                yield spot, _Recut(text, new).visit(copy.deepcopy(top)), "everywhere", told


class _Recut(ast.NodeTransformer):
    """A tree with another cut, or with none, wherever one is made."""

    def __init__(self, cut: str, new: ast.expr | None) -> None:
        self.cut, self.new = cut, new

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.slice) != self.cut:
            return node
        return node.value if self.new is None else altered(node, slice=copy.deepcopy(self.new))


def _axes(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    for place in places:
        if isinstance(place.node, ast.keyword) and place.node.arg == "dim":
            for axis in (-1, 0, 1, -2):
                new = altered(place.node, value=parsed(str(axis)))
                if ast.unparse(new) != ast.unparse(place.node):
                    yield place, new, "name", said(place.node, new, ast.unparse(place.above))


def _keepdims(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    for place, node in expressions(places, ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in REDUCES:
            continue
        kept = [each for each in node.keywords if each.arg != "keepdim"]
        if len(kept) < len(node.keywords):
            yield place, altered(node, keywords=kept), "keepdim-more", said(node, node)
        else:
            more = [*kept, ast.keyword("keepdim", ast.Constant(True))]
            yield place, altered(node, keywords=more), "keepdim", said(node, node)


def _keywords(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """An option too much."""
    for place, node in expressions(places, ast.Call):
        for each in node.keywords:
            kept = [other for other in node.keywords if other is not each]
            new = altered(node, keywords=kept)
            yield place, new, "keyword", said(each, new, ast.unparse(node))


def _signs(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    for place, node in expressions(places, ast.UnaryOp):
        key = "inverted" if isinstance(node.op, ast.Invert | ast.Not) else "minus-more"
        yield place, node.operand, key, said(node, node.operand)
    for place, node in expressions(
        places, ast.Name, ast.Attribute, ast.Subscript, ast.Compare, ast.Call, ast.BinOp
    ):
        if place.field == "func" or (
            place.field == "value" and isinstance(place.above, ast.Attribute)
        ):
            continue
        turned = ast.UnaryOp(ast.Invert(), node)
        if place.field in ("args", "slice", "value"):
            yield place, turned, "not-inverted", said(node, turned)
        if place.field in ("args", "left", "right", "value", "elts") and not isinstance(
            place.above, ast.UnaryOp
        ):
            negative = ast.UnaryOp(ast.USub(), node)
            yield place, negative, "minus", said(node, negative)


def _numbers(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    for place, node in expressions(places, ast.Constant, ast.UnaryOp):
        value = number_in(node)
        if isinstance(place.above, ast.UnaryOp) and number_in(place.above) is not None:
            continue
        if isinstance(place.above, ast.Slice):
            continue
        if isinstance(value, bool):
            other = [not value]
        elif isinstance(value, int):
            other = [
                each for each in (value + 1, value - 1, -value, 0, 1, 2, -1, -2, 3) if each != value
            ]
        elif isinstance(value, float):
            other = [each for each in (-value, 0.5, 1.0, 0.0, float("-inf")) if each != value]
        else:
            continue
        for each in dict.fromkeys(other):
            new = (
                ast.Constant(each)
                if each != float("-inf")
                else ast.parse("float('-inf')", mode="eval").body
            )
            yield place, new, "number", said(node, new, around(place))


def _copies(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A copy in the place of another name for the same."""
    for place, node in expressions(places, ast.Name):
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


def _names(places: Sequence[Spot], tree: ast.Module, held: Sequence[str]) -> Iterator[Change]:
    """A name for another of the same function."""
    for function in functions_of(tree):
        inside = list(places_of(function))
        own = [each.arg for each in function.args.args if each.arg != "self"]
        own += [
            place.node.id for place in inside
            if isinstance(place.node, ast.Name) and isinstance(place.node.ctx, ast.Store)
        ]  # fmt: skip
        for place, node in expressions(inside, ast.Name):
            if node.id not in own:
                continue
            for other in dict.fromkeys(own):
                if other != node.id:
                    new = ast.Name(other, ast.Load())
                    yield place, new, "name", said(node, new, around(place))


def _attributes(places: Sequence[Spot], _: ast.Module, held: Sequence[str]) -> Iterator[Change]:
    for place, node in expressions(places, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            for other in held:
                if other != node.attr:
                    new = altered(node, attr=other)
                    yield place, new, "name", said(node, new, around(place))
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "math":
            new = altered(node, value=ast.Name("torch", ast.Load()))
            yield place, new, "name", said(node, new, around(place))
        for pair in TWINS:
            if node.attr in pair:
                new = altered(node, attr=pair[1 - pair.index(node.attr)])
                values = said(node, new, around(place))
                if not isinstance(node.value, ast.Name):  # long enough to be said once
                    values |= {"old": f".{node.attr}", "new": f".{new.attr}"}
                yield place, new, "name", values
    for place, node in expressions(places, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            new = altered(node, func=ast.Name("sum", ast.Load()))
            yield place, new, "name", said(node, new, around(place))
    for place, node in expressions(places, ast.Name):
        if place.field in ("left", "right") and isinstance(place.above, ast.BinOp):
            new = ast.Attribute(node, "mT", ast.Load())
            yield place, new, "turned", said(node, new)


def _operators(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    for place, node in expressions(places, ast.BinOp):
        for kind in ARITHMETIC:
            if not isinstance(node.op, (kind, ast.Pow)):
                new = altered(node, op=kind())
                yield place, new, "operator", said(node, new)
        if isinstance(node.op, ast.Pow) and number_in(node.left) is not None:
            new = parsed(f"torch.exp({ast.unparse(node.right)})")
            yield place, new, "operator", said(node, new)
    for place, node in expressions(places, ast.Call):
        if len(node.args) == 1 and ast.unparse(node.func).rpartition(".")[2] == "sqrt":
            new = ast.BinOp(node.args[0], ast.Pow(), ast.Constant(0.5))
            yield place, new, "operator", said(node, new)
    for place, node in expressions(places, ast.Compare):
        for kind in COMPARED:
            if len(node.ops) == 1 and not isinstance(node.ops[0], kind):
                new = altered(node, ops=[kind()])
                yield place, new, "operator", said(node, new)
    for place in places:
        node = place.node
        if isinstance(node, ast.AugAssign):
            for kind in ARITHMETIC[:4]:
                if not isinstance(node.op, kind):
                    new = altered(node, op=kind())
                    yield place, new, "operator", said(node, new)
            plain = ast.Assign([node.target], node.value)
            yield place, ast.copy_location(plain, node), "operator", said(node, plain)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Subscript):
            more = ast.AugAssign(node.targets[0], ast.Add(), node.value)
            yield place, ast.copy_location(more, node), "operator", said(node, more)


def _sides(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """Two sides that have changed places."""
    for place, node in expressions(places, ast.BinOp):
        if not isinstance(node.op, ast.Add | ast.Mult):
            new = altered(node, left=node.right, right=node.left)
            yield place, new, "sides", said(node, new)
        # a - b + c, in which two of three have changed places
        left = node.left
        if isinstance(left, ast.BinOp):
            new = altered(node, left=altered(left, right=node.right), right=left.right)
            yield place, new, "sides", said(node, new)
            new = altered(node, left=altered(left, left=left.right, right=left.left))
            yield place, new, "sides", said(node, new)
    for place, node in expressions(places, ast.Call, ast.List, ast.Tuple):
        field = "args" if isinstance(node, ast.Call) else "elts"
        given = getattr(node, field)
        for at in range(len(given) - 1):
            turned = [*given[:at], given[at + 1], given[at], *given[at + 2 :]]
            new = altered(node, **{field: turned})
            whole = (node, new)
            if isinstance(place.above, ast.Subscript):
                whole = place.above, altered(place.above, slice=new)
            yield place, new, "sides", said(*whole)
    for place, node in expressions(places, ast.Slice):
        if (node.lower is None) != (node.upper is None):
            new = altered(node, lower=node.upper, upper=node.lower)
            yield place, new, "slice", said(node, new, ast.unparse(place.above))
