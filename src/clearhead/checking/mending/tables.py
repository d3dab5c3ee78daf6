"""Changes of tables: how they are made, what is taken out of them, and along which axis."""

import ast
import copy
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

from clearhead.checking.mending.places import (
    Change,
    Spot,
    altered,
    expressions,
    functions_of,
    number_in,
    parsed,
    places_of,
    said,
)

MADE = ("zeros", "ones", "empty", "full")
# What a row has one of, and by which name where PyTorch gives the places too.
REDUCED = {"max": "amax", "min": "amin", "sum": "sum", "mean": "mean", "amax": "amax", "amin": "amin",
           "logsumexp": "logsumexp", "softmax": "softmax"}  # fmt: skip
PRODUCTS = ("torch.dot", "torch.mul", "torch.matmul", "torch.mm", "torch.inner")
WHOLE = ("int", "long", "int32", "int64")


def given_to(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in function.args.args if each.arg != "self"]


def shapes(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A table of another shape: torch.zeros(weights.shape)."""
    for function in functions_of(tree):
        given = given_to(function)
        counts = [f"len({name})" for name in given] + [f"{name}.shape[-1]" for name in given]
        for place, node in expressions(list(places_of(function)), ast.Call):
            if not isinstance(node.func, ast.Attribute):
                continue
            made = node.func.attr.removesuffix("_like")
            if made not in MADE or not node.args:
                continue
            top, rest = ast.unparse(node.func.value), ""
            if made == "full" and len(node.args) > 1:
                rest = f", {ast.unparse(node.args[1])}"
            for rows, columns in product(counts[: len(given)], counts):
                size = f"({rows}, {columns}){rest}" if rest else f"{rows}, {columns}"
                new = altered(parsed(f"{top}.{made}({size})"), keywords=node.keywords)
                if ast.unparse(new) != ast.unparse(node):
                    yield place, new, "shape", said(node, new)
            for count in counts if not rest else ():
                new = altered(parsed(f"{top}.{made}({count})"), keywords=node.keywords)
                if ast.unparse(new) != ast.unparse(node):
                    yield place, new, "shape", said(node, new)
            if made == "zeros":
                new = ast.Constant(0.0)
                yield place, new, "one-number", said(node, new)


def anew(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """One row that stands in a list many times: [row] * n, [row for _ in range(n)]."""
    for place, node in expressions(places, ast.ListComp):
        if isinstance(node.elt, ast.Name):
            for each in (f"{node.elt.id}.clone()", f"list({node.elt.id})"):
                new = altered(node, elt=parsed(each))
                yield place, new, "anew", said(node, new)
    for place, node in expressions(places, ast.BinOp):
        sides = (node.left, node.right), (node.right, node.left)
        for row, count in sides:
            if (
                not isinstance(node.op, ast.Mult)
                or not isinstance(row, ast.List)
                or len(row.elts) != 1
            ):
                continue
            held = row.elts[0]
            name, number = ast.unparse(held), ast.unparse(count)
            made = [f"{name}.clone()", f"list({name})"] if isinstance(held, ast.Name) else [name]
            for each in made if not isinstance(held, ast.Constant) else ():
                new = parsed(f"[{each} for _ in range({number})]")
                yield place, new, "anew", said(node, new)


def fractions(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A table that holds whole numbers alone."""
    for place, node in expressions(places, ast.Call):
        for option in node.keywords:
            if option.arg == "dtype" and ast.unparse(option.value).rpartition(".")[2] in WHOLE:
                kept = [each for each in node.keywords if each is not option]
                new = altered(node, keywords=kept)
                yield place, new, "fractions", said(node, new)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("tensor", "full"):
            new = _Floats().visit(copy.deepcopy(node))
            if ast.unparse(new) != ast.unparse(node):
                yield place, new, "fractions", said(node, new)
    for place, node in expressions(places, ast.Constant):
        if type(node.value) is int and node.value == 0 and isinstance(place.above, ast.List):
            yield place, ast.Constant(0.0), "fractions", said(node, ast.Constant(0.0))


class _Floats(ast.NodeTransformer):
    """A call in which the numbers that a table is filled with have a point."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):
            filled = node.args[1:] if node.func.attr == "full" else node.args
            for each in filled:
                for inner in ast.walk(each):
                    for row in inner.elts if isinstance(inner, ast.List) else [inner]:
                        if (
                            isinstance(row, ast.Constant)
                            and type(row.value) is int
                            and (isinstance(inner, ast.List) or node.func.attr == "full")
                        ):
                            row.value = float(row.value)
        return node


def by_rows(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """The largest or the sum of a whole table, where each row has its own."""
    for place, node in expressions(places, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        table: ast.expr | None = node.args[0] if len(node.args) == 1 else None
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if not isinstance(node.func.value, ast.Name) or node.func.value.id not in (
                "torch",
                "F",
            ):
                table = None if node.args else node.func.value
        if name not in REDUCED or node.keywords or isinstance(table, ast.GeneratorExp | None):
            continue
        kept = "" if name == "softmax" else ", keepdim=True"
        new = parsed(f"({ast.unparse(table)}).{REDUCED[name]}(dim=-1{kept})")
        yield place, new, "by-rows", said(node, new)
        if isinstance(node.func, ast.Name) and name != "softmax":
            new = parsed(f"({ast.unparse(table)}).{name}()")
            yield place, new, "by-rows", said(node, new)


def upright(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """Numbers that lie along a row, and are one for each row."""
    for place, node in expressions(places, ast.Name, ast.Subscript, ast.Call, ast.Attribute):
        above = place.above
        if isinstance(above, ast.BinOp) and not isinstance(above.op, ast.MatMult | ast.Pow):
            new = parsed(f"({ast.unparse(node)}).unsqueeze(-1)")
            yield place, new, "upright", said(node, new)
        elif (isinstance(above, ast.Call) and place.field == "args") or isinstance(
            above, ast.UnaryOp
        ):
            new = parsed(f"({ast.unparse(node)}).unsqueeze(1)")
            yield place, new, "one-more", said(node, new)


def products(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """Number by number, where rows meet columns; the wrong side of a product turned."""
    for place, node in expressions(places, ast.Call):
        inside: ast.expr | None = None
        if ast.unparse(node.func) in ("torch.sum", "sum") and node.args:
            inside = node.args[0]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "sum":
            inside = node.func.value
        if isinstance(inside, ast.BinOp) and isinstance(inside.op, ast.Mult):
            for turned in ("", ".mT"):
                new = parsed(f"{ast.unparse(inside.left)} @ ({ast.unparse(inside.right)}){turned}")
                yield place, new, "product", said(node, new)
        if ast.unparse(node.func) in PRODUCTS and len(node.args) == 2:
            for turned in (".mT", ""):
                new = parsed(
                    f"({ast.unparse(node.args[0])}) @ ({ast.unparse(node.args[1])}){turned}"
                )
                yield place, new, "operator", said(node, new)
    for place, node in expressions(places, ast.BinOp):
        if isinstance(node.op, ast.Mult):
            new = parsed(f"({ast.unparse(node)}).sum()")
            yield place, new, "added-up", said(node, new)
        if isinstance(node.op, ast.MatMult):
            left, right = node.left, node.right
            if isinstance(right, ast.Attribute) and right.attr in ("T", "mT"):
                turned = ast.Attribute(left, right.attr, ast.Load())
                new = altered(node, left=right.value, right=turned)
                yield place, new, "sides", said(node, new)
            if isinstance(left, ast.Attribute) and left.attr in ("T", "mT"):
                new = altered(
                    node, left=left.value, right=ast.Attribute(right, left.attr, ast.Load())
                )
                yield place, new, "sides", said(node, new)
            elif not isinstance(right, ast.Name | ast.Attribute):
                new = altered(node, right=ast.Attribute(right, "mT", ast.Load()))
                yield place, new, "turned", said(right, new.right)


def cells(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A row for one of its numbers, a number for its row, a whole table for a row."""
    for function in functions_of(tree):
        inside = list(places_of(function))
        counters = dict.fromkeys(
            name.id for each in inside if isinstance(each.node, ast.For)
            for name in ast.walk(each.node.target) if isinstance(name, ast.Name)
        )  # fmt: skip
        for place in inside:
            node = place.node
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
                plain = not any(isinstance(each, ast.Slice) for each in node.slice.elts)
                for one in node.slice.elts if plain else ():
                    new = altered(node, slice=one)
                    yield place, new, "row", said(node, new)
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
                for other in counters:
                    pair = f"{node.slice.id}, {other}", f"{other}, {node.slice.id}"
                    for both in pair if other != node.slice.id else ():
                        new = altered(node, slice=parsed(both))
                        yield place, new, "cell", said(node, new)
            elif (
                isinstance(node, ast.Name)
                and place.field == "target"
                and isinstance(place.above, ast.AugAssign)
            ):
                for names in (*((each,) for each in counters), *permutations(counters, 2)):
                    one = parsed(f"{node.id}[{', '.join(names)}]")
                    new = altered(one, ctx=ast.Store())
                    yield place, new, "row-of", said(node, new)


def returns(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """A list that is given back, a long row, or nothing."""
    for place in places:
        node = place.node
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            inner = [each for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
            names = [
                each.id for each in ast.walk(node)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            ]  # fmt: skip
            worked_out = node.body[-1]
            if isinstance(worked_out, ast.Expr) and not isinstance(worked_out.value, ast.Constant):
                last = ast.copy_location(ast.Return(worked_out.value), worked_out)
                made, values = altered(node, body=[*node.body[:-1], last]), said(worked_out, last)
                yield place._replace(node=worked_out), made, "given-back", values
            for name in dict.fromkeys(reversed(names)) if not inner else ():
                last = ast.Return(ast.Name(name, ast.Load()))
                made = altered(node, body=[*node.body, ast.copy_location(last, node.body[-1])])
                yield (
                    place._replace(node=node.body[-1]),
                    made,
                    "missing",
                    {"new": ast.unparse(last)},
                )
    for place, name in _unused(places):
        new = parsed(f"self.{name}({ast.unparse(place.node)})")
        yield place, new, "unused", {"new": ast.unparse(new)}
    for function in functions_of(tree):
        given = given_to(function)
        sizes = [f"len({one}), {two}" for one in given for two in
                 (*(f"len({each})" for each in given), *(f"{each}.shape[-1]" for each in given))]  # fmt: skip
        for place in places_of(function):
            if not isinstance(place.above, ast.Return) or not isinstance(place.node, ast.expr):
                continue
            text = ast.unparse(place.node)
            for new in (parsed(f"torch.tensor({text})"), parsed(f"torch.stack({text})")):
                yield place, new, "table", said(place.node, new)
            for size in sizes if len(given) < 3 else ():
                new = parsed(f"({text}).reshape({size})")
                yield place, new, "reshaped", said(place.node, new)


def _unused(places: Sequence[Spot]) -> Iterator[tuple[Spot, str]]:
    """Pair what is given back with each layer that is made and that nothing calls."""
    own = [
        each.node for each in places
        if isinstance(each.node, ast.Attribute) and ast.unparse(each.node.value) == "self"
    ]  # fmt: skip
    called = {each.attr for each in own if isinstance(each.ctx, ast.Load)}
    made = dict.fromkeys(each.attr for each in own if each.attr not in called)
    for place in reversed(places):  # forward is written last
        if isinstance(place.above, ast.Return) and isinstance(place.node, ast.expr):
            for name in made:
                yield place, name


def corners(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """A table for the longest text that is cut at another corner than the first: self.hidden[-n:, :n]."""
    for place, node in expressions(places, ast.Subscript):
        slices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        kept = ast.unparse(node.value).startswith("self.")
        if len(slices) != 2 and not kept:
            continue
        counts = [_count(each) for each in slices]
        first = next(filter(None, counts), None)
        if first is None or None in counts or all(_begins(each) for each in slices):
            continue
        cut: list[ast.expr] = [ast.Slice(None, parsed(first), None) for _ in slices]
        new = altered(node, slice=ast.Tuple(cut, ast.Load()) if len(cut) == 2 else cut[0])
        yield place, new, "corner", said(node, new)


def _begins(node: ast.expr) -> bool:
    """True of a slice that begins with the first."""
    return isinstance(node, ast.Slice) and node.lower is None


def _count(node: ast.expr) -> str | None:
    """The number of rows that a slice takes: n of [:n], [-n:], [a - n:] and [1 : n + 1]; None of any other."""
    if not isinstance(node, ast.Slice) or node.step is not None:
        return None
    lower, upper = node.lower, node.upper
    if lower is None or upper is not None:
        if isinstance(upper, ast.BinOp):
            upper = upper.left
        return None if upper is None else ast.unparse(upper)
    if isinstance(lower, ast.UnaryOp) and isinstance(lower.op, ast.USub):
        return ast.unparse(lower.operand)
    return ast.unparse(lower.right) if isinstance(lower, ast.BinOp) else None


def diagonals(places: Sequence[Spot], *_: Any) -> Iterator[Change]:
    """The diagonal that nobody has moved: torch.triu(ones)."""
    for place, node in expressions(places, ast.Call):
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr.rstrip("_") not in ("triu", "tril"):
            continue
        by_keys = _by_keys(node)
        if by_keys is not None:
            yield place, by_keys, "top-left", said(node, by_keys)
        given = len(node.args) - (isinstance(called.value, ast.Name) and called.value.id == "torch")
        if given or any(each.arg == "diagonal" for each in node.keywords):
            continue
        for by in (1, -1):
            more = ast.keyword("diagonal", parsed(str(by)))
            new = altered(node, keywords=[*node.keywords, more])
            yield place, new, "diagonal", said(node, new)


def _by_keys(node: ast.Call) -> ast.expr | None:
    """The same triangle of a table of n rows and m columns, counted from its last corner; None of any other."""
    sizes = next(
        (each.args for each in ast.walk(node)
         if isinstance(each, ast.Call) and ast.unparse(each.func) == "torch.ones" and len(each.args) == 2),
        None,
    )  # fmt: skip
    moved = [each.value for each in node.keywords if each.arg == "diagonal"]
    moved += [each for each in node.args if number_in(each) is not None]
    by = number_in(moved[0]) if moved else 0
    if sizes is None or not isinstance(by, int) or ast.unparse(sizes[0]) == ast.unparse(sizes[1]):
        return None
    rows, columns = map(ast.unparse, sizes)
    more = parsed(f"{by} + {columns} - {rows}" if by else f"{columns} - {rows}")
    if not moved or any(each.arg == "diagonal" for each in node.keywords):
        return altered(node, keywords=[ast.keyword("diagonal", more)])
    return altered(node, args=[*node.args[:-1], more])


def cut(places: Sequence[Spot], tree: ast.Module, _: Sequence[str]) -> Iterator[Change]:
    """What is kept for the longest text, and not cut to this one."""
    for function in functions_of(tree):
        given = given_to(function)
        if not given or function.name == "__init__":
            continue
        count = f":{given[0]}.shape[-2]"
        for place, node in expressions(list(places_of(function)), ast.Attribute):
            if not ast.unparse(node).startswith("self.") or place.field == "func":
                continue
            if place.field in (
                "args",
                "operand",
                "left",
                "right",
                "values",
                "value",
            ) and not isinstance(place.above, ast.Attribute):
                new = parsed(f"{ast.unparse(node)}[{count}, {count}]")
                yield place, new, "cut", said(node, new)
