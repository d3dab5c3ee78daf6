"""Changes of loops: what they count, where their totals begin, and which names they give away."""

import ast
import builtins
import copy
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from clearhead.checking.mending.places import (
    Change,
    Spot,
    altered,
    first_line,
    head_of,
    parsed,
    said,
)
from clearhead.checking.mending.tables import given_to

Loop = ast.For | ast.comprehension


def counts(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A loop over what is no row of places: for i in len(query); all such loops at once."""
    for place, function in _functions(places):
        given = given_to(function)
        loops = [each for each in ast.walk(function) if isinstance(each, Loop)]
        ways = {each: _counting(each, given) for each in loops}
        for loop in loops:
            for new in ways[loop]:
                yield Spot(loop.iter, loop, "iter", None), new, "counted", said(loop.iter, new)
        several = [each for each in loops if ways[each]]
        for nth in range(max(map(len, ways.values()), default=0)) if len(several) > 1 else ():
            made = _Iterated({each: ways[each][min(nth, len(ways[each]) - 1)] for each in several})
            first = several[0]
            values = said(first.iter, ways[first][min(nth, len(ways[first]) - 1)])
            yield place._replace(node=first.iter), made.visit(function), "counted-all", values
        turned = _Turned()
        made = turned.visit(copy.deepcopy(function))
        if turned.first is not None:
            yield place._replace(node=turned.first), made, "sides", turned.said
    for place in places:
        if isinstance(place.node, ast.For) and isinstance(place.node.target, ast.Tuple):
            yield from _nested(place, place.node)


def _nested(place: Spot, loop: ast.For) -> Iterator[Change]:
    """A loop in a loop, in the place of one along both at once."""
    over, targets = loop.iter, getattr(loop.target, "elts", [])
    if (
        isinstance(over, ast.Call)
        and ast.unparse(over.func) == "zip"
        and len(targets) == len(over.args)
    ):
        made: list[ast.stmt] = loop.body
        for target, each in reversed(list(zip(targets, over.args, strict=True))):
            made = [ast.For(target, each, made, [])]
        heads = [
            f"for {ast.unparse(target)} in {ast.unparse(each)}"
            for target, each in zip(targets, over.args, strict=True)
        ]
        yield place, made, "nested", {"old": ast.unparse(over), "new": " and ".join(heads)}


class _Turned(ast.NodeTransformer):
    """A function whose loops by enumerate give the place first, and then the thing."""

    def __init__(self) -> None:
        self.first: ast.AST | None = None
        self.said: dict[str, str] = {}

    def visit_For(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        over, target = node.iter, node.target
        by_places = isinstance(over, ast.Call) and ast.unparse(over.func) == "enumerate"
        if by_places and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            turned = altered(target, elts=target.elts[::-1])
            self.first, self.said = target, said(target, turned)
            node.target = turned
        return node

    visit_comprehension = visit_For


def _counting(loop: Loop, given: Sequence[str]) -> list[ast.expr]:
    """What the loop may go over in the place of what it does."""
    over, text, made = loop.iter, ast.unparse(loop.iter), list[str]()
    called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
    inner = over.args[-1] if isinstance(over, ast.Call) and over.args else None
    if called == "range" and inner is not None:
        counted = ast.unparse(inner)
        made = [f"range(len({counted}))"] if counted in given else []
        if len(over.args if isinstance(over, ast.Call) else ()) == 2:
            made = [f"range({counted.removesuffix(' + 1')})"]
        made += [f"range({counted}[0])"] if counted.endswith(".shape") else []
    elif called == "len" or ".shape[" in text:
        made = [f"range({text})"]
    elif called == "enumerate" and isinstance(loop.target, ast.Name) and inner is not None:
        made = [f"range(len({ast.unparse(inner)}))"]
    elif isinstance(loop.target, ast.Tuple) and isinstance(over, ast.Tuple):
        made = [f"zip({', '.join(map(ast.unparse, over.elts))})"]
    elif text.endswith(".shape"):
        made = [f"range({text}[0])"]
    elif isinstance(over, ast.Name | ast.Subscript):
        made = [f"range(len({text}))", *([f"range({text}.shape[-1])"] if text in given else [])]
        made = [f"enumerate({text})"] if isinstance(loop.target, ast.Tuple) else made
    return list(map(parsed, made))


class _Iterated(ast.NodeTransformer):
    """A function whose loops go over something else."""

    def __init__(self, new: dict[Loop, ast.expr]) -> None:
        self.new = new

    def visit(self, node: ast.AST) -> Any:
        made = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(made, name, [self.visit(e) if isinstance(e, ast.AST) else e for e in value])
            elif isinstance(value, ast.AST):
                setattr(made, name, self.visit(value))
        if isinstance(node, Loop) and node in self.new:
            return altered(made, iter=ast.copy_location(self.new[node], node.iter))
        return made


def begins(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A line before a loop that belongs to each of its rounds."""
    for place in places:
        loop, at = place.node, place.nth
        if not isinstance(loop, ast.For | ast.While) or at is None:
            continue
        body = getattr(place.above, place.field)
        for nth in range(at - 1, max(at - 4, -1), -1):
            line = body[nth]
            if not isinstance(line, ast.Assign):
                continue
            for inside in (
                loop,
                *(each for each in loop.body if isinstance(each, ast.For | ast.While)),
            ):
                deeper = altered(inside, body=[line, *inside.body])
                whole = deeper
                if inside is not loop:
                    kept = [deeper if each is inside else each for each in loop.body]
                    whole = altered(loop, body=kept)
                made = [*body[:nth], *body[nth + 1 : at], whole, *body[at + 1 :]]
                values = {"old": first_line(line), "loop": head_of(inside)}
                yield place._replace(node=line, nth=None), made, "begins", values


def taken_names(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A name that is given away, and wanted again: for key in key, sum = 0."""
    for place, function in _functions(places):
        given = given_to(function)
        renamed = _Renamed(given)
        made = renamed.visit(copy.deepcopy(function))
        if renamed.first is not None:
            yield place._replace(node=renamed.first), made, "given-away", renamed.said
        called = {
            each.func.id for each in ast.walk(function)
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and hasattr(builtins, each.func.id)
        }  # fmt: skip
        for name in called:
            stored = [
                each for each in ast.walk(function)
                if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
            ]  # fmt: skip
            if stored:
                made = _Spared(name).visit(copy.deepcopy(function))
                values = {"old": name, "new": f"{name}_"}
                yield place._replace(node=stored[0]), made, "builtin", values


def overwritten(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """Name anew what a matrix puts under the name of what is given, which others still want: x = self.W_query(x)."""
    for place, function in _functions(places):
        for line in function.body:
            target = line.targets[0] if isinstance(line, ast.Assign) else None
            if not isinstance(target, ast.Name) or target.id not in given_to(function):
                continue
            if "self." not in ast.unparse(line):
                continue
            made = copy.copy(function)
            at, other = function.body.index(line), f"one_{target.id}"
            first = altered(line, targets=[ast.Name(other, ast.Store())])
            renamed = _Afterwards(target.id, other)
            rest = [renamed.visit(copy.deepcopy(each)) for each in function.body[at + 1 :]]
            made.body = [*function.body[:at], first, *rest]
            values = {"old": target.id, "new": other, "at": ast.unparse(line)}
            yield place._replace(node=line), made, "overwritten", values


class _Afterwards(ast.NodeTransformer):
    """Lines in which what is given is still given to layers of one's own, and is another name elsewhere."""

    def __init__(self, name: str, new: str) -> None:
        self.name, self.new = name, new

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if ast.unparse(node.func).startswith("self.") else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.new, node.ctx) if node.id == self.name else node


class _Renamed(ast.NodeTransformer):
    """A function whose loops leave the names alone that it is given."""

    def __init__(self, given: Sequence[str]) -> None:
        self.given = given
        self.names: dict[str, str] = {}
        self.first: ast.AST | None = None
        self.said: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)

    def visit_For(self, node: Any) -> ast.AST:
        node.iter = self.visit(node.iter)
        return self._inside(node, node, [node])

    def visit_ListComp(self, node: Any) -> ast.AST:
        for each in node.generators:
            each.iter = self.visit(each.iter)
        return self._inside(node, node.generators[0].target, node.generators)

    visit_GeneratorExp = visit_ListComp  # noqa: N815  as ast calls it

    def _inside(self, node: Any, line: ast.AST, loops: Sequence[Any]) -> ast.AST:
        before = dict(self.names)
        for loop in loops:
            for each in ast.walk(loop.target):
                if isinstance(each, ast.Name) and each.id in self.given:
                    self.names[each.id] = f"one_{each.id}"
                    if self.first is None:
                        self.first = line
                        head = f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
                        self.said = {"loop": head, "old": each.id, "new": self.names[each.id]}
        for loop in loops:
            loop.target = self.visit(loop.target)
            if isinstance(loop, ast.comprehension):
                loop.ifs = [self.visit(each) for each in loop.ifs]
        for field in ("body", "elt"):
            value = getattr(node, field, None)
            if isinstance(value, list):
                setattr(node, field, [self.visit(each) for each in value])
            elif value is not None:
                setattr(node, field, self.visit(value))
        self.names = before
        return node


class _Spared(ast.NodeTransformer):
    """A function whose own name for something leaves that of Python's function alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(each) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == self.name:
            return ast.copy_location(ast.Name(f"{node.id}_", node.ctx), node)
        return node


def undefined(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A name that nothing has, wherever it stands."""
    for place, function in _functions(places):
        names = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
        own = {each.id: None for each in names if not isinstance(each.ctx, ast.Load)}
        own = {**dict.fromkeys(given_to(function)), **own}
        near = {
            each.id: each for each in names
            if each.id not in own and get_close_matches(each.id, own, 1, 0.6) and not hasattr(builtins, each.id)
        }  # fmt: skip
        for name, first in near.items():
            for other in get_close_matches(name, own, 3, 0.6):
                made = copy.deepcopy(function)
                for each in ast.walk(made):
                    if isinstance(each, ast.Name) and each.id == name:
                        each.id = other
                yield place._replace(node=first), made, "undefined", {"old": name, "new": other}


def thrown_away(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A line that works something out, and keeps it nowhere: scores.masked_fill(…)."""
    for place in places:
        node = place.node
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.BinOp):
            for name in dict.fromkeys(
                each.id for each in ast.walk(node.value)
                if isinstance(each, ast.Name) and each.id not in ("torch", "F", "nn", "math")
            ):  # fmt: skip
                new = ast.Assign([ast.Name(name, ast.Store())], node.value)
                yield place, ast.copy_location(new, node), "kept", said(node, new)


def appends(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A list that is lost, or lengthened in another way than is meant."""
    for place in places:
        node = place.node
        if isinstance(node, ast.Assign):
            call, target = node.value, node.targets[0]
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("append", "extend", "insert")
            ):
                yield place, ast.copy_location(ast.Expr(call), node), "appended", said(node, call)
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                new = parsed(f"{target.value.id}.append({ast.unparse(node.value)})")
                yield place, ast.copy_location(ast.Expr(new), node), "nothing-yet", said(node, new)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            new = parsed(f"{node.target.id}.append({ast.unparse(node.value)})")
            yield place, ast.copy_location(ast.Expr(new), node), "operator", said(node, new)


def late(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """Two steps, one line each, in the other order: subtract the largest, and then exp."""
    for place in places:
        one, at = place.node, place.nth
        if not isinstance(one, ast.Assign) or at is None:
            continue
        body = getattr(place.above, place.field)
        two = body[at + 1] if at + 1 < len(body) else None
        if not isinstance(two, ast.Assign) or not isinstance(one.targets[0], ast.Name):
            continue
        call = one.value
        if not isinstance(call, ast.Call):
            continue
        is_method = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in (
            "torch", "F", "math",
        )  # fmt: skip
        if not is_method and not call.args:
            continue
        name = one.targets[0].id
        taken = (
            call.func.value if is_method and isinstance(call.func, ast.Attribute) else call.args[0]
        )
        first = altered(one, value=_Put(name, taken).visit(copy.deepcopy(two.value)))
        outer = ast.Name(name, ast.Load())
        if is_method and isinstance(call.func, ast.Attribute):
            step = altered(call, func=altered(call.func, value=outer))
        else:
            step = altered(call, args=[outer, *call.args[1:]])
        new = [*body[:at], first, altered(two, value=step), *body[at + 2 :]]
        values = {"old": first_line(two), "new": first_line(one)}
        yield place._replace(node=two, nth=None), new, "late", values


class _Put(ast.NodeTransformer):
    """An expression with another in the place of a name."""

    def __init__(self, name: str, new: ast.expr) -> None:
        self.name, self.new = name, new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.new) if node.id == self.name else node


def _functions(places: Sequence[Spot]) -> Iterator[tuple[Spot, ast.FunctionDef]]:
    for place in places:
        if isinstance(place.node, ast.FunctionDef):
            yield place, place.node
