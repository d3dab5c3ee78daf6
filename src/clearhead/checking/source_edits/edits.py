"""Generic edits of a program: each is one change of its text, and none knows what is wrong.

A node of the tree is replaced by another text: a name, a number, an operator or an axis by another; an argument, a
keyword or a statement is dropped, added, swapped or moved; an expression is unwrapped, or wrapped by a word of PyTorch.
What the solution of a lesson has, and the program lacks, is put in first.
"""

import ast
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, NamedTuple

from clearhead._common.foreign_names import role
from clearhead.checking.source_edits.program import Program, nodes_of

# Words of PyTorch and of Python that are taken for each other.
TWINS = tuple(map(str.split, (
    "triu tril", "mT T", "cos sin", "max amax amin min", "sum mean", "zeros ones empty", "argmax softmax log_softmax",
    "isqrt sqrt", "tensor stack cat", "dot matmul mul", "append extend", "view reshape", "masked_fill masked_fill_",
    "squeeze unsqueeze", "any all", "len sum", "exp exp2", "math torch", "zeros_like ones_like empty_like",
    "permute transpose", "detach clone", "register_buffer register_parameter", "Parameter Linear", "enumerate range",
)))  # fmt: skip
# What wraps an expression: {} stands for it.
WRAPS = (
    "{}.T", "{}.mT", "{}.bool()", "{}.clone()", "{}.sum()", "{}.sum(dim=-1, keepdim=True)", "{}.unsqueeze(-1)",
    "{}.unsqueeze(0)", "{}.unsqueeze(1)", "{}[:, None]", "{}[:, None, :]", "{}[None, :]", "~{}", "-{}", "not {}",
    "range({})", "range(len({}))", "len({})", "torch.stack({})", "torch.tensor({})", "nn.Parameter({})",
    "torch.exp({})", "{}.transpose(1, 2)", "{}.shape[-1]", "{} ** 0.5", "1 / {}", "{}.contiguous()", "{}.float()",
    "self.{}", "torch.{}", "{} + 1", "{} - 1", "{} is not None",
)  # fmt: skip
KEYWORDS = ("keepdim=True", "dim=-1", "dim=1", "bias=False", "persistent=False", "diagonal=1")
BINARY = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.MatMult,
    ast.Pow,
    ast.FloorDiv,
    ast.BitAnd,
    ast.BitOr,
)
SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**", ast.FloorDiv: "//",
    ast.BitAnd: "&", ast.BitOr: "|", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
# The longest text that is put in from elsewhere, and the shortest that says by itself where it is.
LONGEST, SHORT = 60, 12
# How similar the values of two names are that are the same name.
ALIKE = 0.7


class Edit(NamedTuple):
    """One change: its line, the difference in words, and the program with it."""

    line: int
    told: str
    program: Program


class Change(NamedTuple):
    """A piece of the text, from start to end, and what it becomes."""

    start: int
    end: int
    new: str


Family = Callable[[ast.AST, ast.AST], Iterator[str]]


class Edits:
    """The edits of one program.

    Args:
        program: of the learner.
        solution: the text of the lesson's own, or "".
        lines: that are likely wrong; their edits come first.
    """

    def __init__(self, program: Program, solution: str = "", lines: Sequence[int] = ()) -> None:
        assert program.tree is not None
        self.program, self.lines = program, lines
        self.tree = program.tree
        self.pairs = list(nodes_of(self.tree))
        self.above = dict(self.pairs)
        self.solution = ast.parse(solution)
        self.starts = [0, *itertools.accumulate(len(each) + 1 for each in program.text.split("\n"))]

    # The text of nodes.

    def at(self, line: int, column: int) -> int:
        """The place in the text of a column in bytes."""
        text = self.program.line(line)
        if not text.isascii():
            column = len(text.encode()[:column].decode())
        return self.starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.program.text[start:end]

    def function(self, node: ast.AST) -> ast.AST:
        while node in self.above and not isinstance(node, ast.FunctionDef):
            node = self.above[node]
        return node

    @cached_property
    def scopes(self) -> dict[ast.AST, list[str]]:
        """The names of each function, of its arguments and of what it assigns."""
        found: dict[ast.AST, list[str]] = {}
        for function in (each for each, _ in self.pairs if isinstance(each, ast.FunctionDef)):
            names = [each.arg for each in function.args.args if each.arg != "self"]
            names += [
                each.id for each in ast.walk(function)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            ]  # fmt: skip
            found[function] = list(dict.fromkeys(names))
        return found

    @cached_property
    def held(self) -> list[str]:
        """The attributes of self."""
        return _attributes(self.tree)

    # The edits.

    def __iter__(self) -> Iterator[Edit]:
        seen = {self.program.text}
        for changes, node in self.changes():
            text = self.program.text
            for each in sorted(changes, reverse=True):
                text = text[: each.start] + each.new + text[each.end :]
            if text not in seen:
                seen.add(text)
                yield self.told(changes, node, text)

    def changes(self) -> Iterator[tuple[list[Change], ast.AST]]:
        families: tuple[Family, ...] = (
            self.drops, self.unwraps, self.swaps, self.constants, self.operators, self.words, self.names, self.keywords,
        )  # fmt: skip
        likely = [pair for pair in self.pairs if getattr(pair[0], "lineno", 0) in self.lines]
        others = [pair for pair in self.pairs if pair not in likely]
        yield from self.from_solution()
        for pairs in (likely, others):
            yield from self.of_families(families, pairs)
            yield from self.statements({id(node) for node, _ in pairs})
        for pairs in (likely, others):
            yield from self.of_families((self.other_names, self.wraps), pairs)
        yield from self.elsewhere()

    def of_families(
        self, families: Sequence[Family], pairs: Sequence[tuple[ast.AST, ast.AST]]
    ) -> Iterator[tuple[list[Change], ast.AST]]:
        """Each change of each family at one place, and then wherever the same text is."""
        for family in families:
            done = set[tuple[str, str]]()
            for node, above in pairs:
                if not hasattr(node, "col_offset"):
                    continue
                old = self.text(node)
                for new in family(node, above):
                    yield [Change(*self.span(node), new)], node
                    same = self.same[type(node), old]
                    if len(same) > 1 and (old, new) not in done:
                        done.add((old, new))
                        yield [Change(*self.span(each), new) for each in same], node

    @cached_property
    def same(self) -> dict[tuple[type, str], list[ast.AST]]:
        """The nodes of one kind and text."""
        found: dict[tuple[type, str], list[ast.AST]] = {}
        for node, _ in self.pairs:
            if hasattr(node, "col_offset"):
                found.setdefault((type(node), self.text(node)), []).append(node)
        return found

    def told(self, changes: Sequence[Change], node: Any, text: str) -> Edit:
        """The edit of some changes; a short one is shown with what is around it."""
        program, first = self.program.edited(text), min(changes)
        gone = [each for each in changes if not each.new]
        put = [each for each in changes if each.start == each.end]
        if put:
            line = self.program.text.count("\n", 0, put[0].start) + 1
            code = put[0].new.strip()
            if not gone:
                return Edit(line, f"line {line}: `{code}` before it", program)
            indent = len(put[0].new) - len(put[0].new.lstrip())
            where = f"before line {line}, {indent} spaces from the left"
            return Edit(node.lineno, f"line {node.lineno}: `{code}` moved {where}", program)
        if isinstance(node, ast.stmt) and first.end == self.whole(node)[1]:
            return Edit(node.lineno, f"line {node.lineno}: without `{self.text(node)}`", program)
        shown = node
        while len(self.text(shown)) < SHORT and hasattr(self.above[shown], "col_offset"):
            if isinstance(self.above[shown], ast.stmt):
                break
            shown = self.above[shown]
        start, end = self.span(shown)
        inside = [each for each in changes if start <= each.start <= each.end <= end]
        old = new = self.program.text[start:end]
        for each in sorted(inside, reverse=True):
            new = new[: each.start - start] + each.new + new[each.end - start :]
        more = " wherever it is" if len(inside) < len(changes) else ""
        return Edit(
            node.lineno, f"line {node.lineno}: `{_flat(old)}` → `{_flat(new)}`{more}", program
        )

    def words(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """A word of PyTorch by one that is taken for it, or that the solution has."""
        word = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
        if word is None or word == "self" or not _is_read(node):
            return
        others = [other for group in TWINS if word in group for other in group]
        if isinstance(above, ast.Call) and above.func is node:
            others += self.called
        for other in dict.fromkeys(others):
            if other != word:
                yield re.sub(rf"{re.escape(word)}$", other, self.text(node))

    @cached_property
    def called(self) -> list[str]:
        """What the solution calls and the program does not."""
        mine = {each.attr for each in ast.walk(self.tree) if isinstance(each, ast.Attribute)}
        found = [each.func for each in ast.walk(self.solution) if isinstance(each, ast.Call)]
        return [
            each.attr for each in found if isinstance(each, ast.Attribute) and each.attr not in mine
        ]

    def constants(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """A number by others near it, a truth by its opposite."""
        if isinstance(above, ast.UnaryOp) or not isinstance(node, ast.Constant | ast.UnaryOp):
            return
        value = _number(node)
        if isinstance(value, bool):
            yield str(not value)
        elif isinstance(value, int):
            near = (value + 1, value - 1, -value, 0, 1, 2, -1, -2)
            yield from (str(each) for each in dict.fromkeys(near) if each != value)
        elif isinstance(value, float):
            near = ("1.0", "0.0", "0.5", "-torch.inf", "10000.0")
            yield from (each for each in near if each != self.text(node))
            yield f"-{self.text(node)}".replace("--", "")
        elif isinstance(value, str):
            yield from (f'"{each}"' for each in self.held if each != value)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield self.text(node.operand)

    def names(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """A name by another one of the same function, an attribute of self by another one."""
        if isinstance(node, ast.Name) and node.id not in ("torch", "nn", "self", "F", "math"):
            yield from (
                each for each in self.scopes.get(self.function(node), ()) if each != node.id
            )
        if isinstance(node, ast.arg) and isinstance(above, ast.arguments):
            yield from (each for each in self.scopes.get(self.above[above], ()) if each != node.arg)
        if isinstance(node, ast.Attribute) and self.text(node.value) == "self":
            yield from (f"self.{each}" for each in self.held if each != node.attr)

    def other_names(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """A name by an attribute or an element of that name, and the other way."""
        scope = self.scopes.get(self.function(node), [])
        if isinstance(node, ast.Name) and node.id in scope and isinstance(node.ctx, ast.Load):
            yield from (f"self.{each}" for each in self.held)
            yield from (f"{node.id}[{each}]" for each in scope if each != node.id)
        if isinstance(node, ast.Attribute) and self.text(node.value) == "self":
            yield node.attr
            if isinstance(node.ctx, ast.Load):
                yield from (each for each in scope if each != node.attr)

    def operators(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """An operator or a comparison by another one; += by = and the other way."""
        if isinstance(node, ast.BinOp):
            left, right = self.text(node.left), self.text(node.right)
            for kind in BINARY:
                if not isinstance(node.op, kind):
                    yield self.between(node.left, node.right, SIGNS[kind], node)
            if isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Constant):
                yield f"torch.exp({right})"
            del left
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            for kind in COMPARED:
                if not isinstance(node.ops[0], kind):
                    yield self.between(node.left, node.comparators[0], SIGNS[kind], node)
        elif isinstance(node, ast.AugAssign):
            target, value = self.text(node.target), self.text(node.value)
            yield from (
                f"{target} {sign}= {value}" for sign in "+-*/" if sign != SIGNS.get(type(node.op))
            )
            yield f"{target} = {value}"
            yield f"{target} = {target} {SIGNS.get(type(node.op), '+')} {value}"
        elif isinstance(node, ast.Assign):
            target, value = self.text(node.targets[0]), self.text(node.value)
            yield f"{target} += {value}"
            yield f"{target} = {target} + {value}"
            yield f"{target} = {target} @ {value}"

    def between(self, left: ast.AST, right: ast.AST, sign: str, node: ast.AST) -> str:
        """The text of a node with another sign between its sides."""
        start, end = self.span(node)
        before, after = self.span(left)[1], self.span(right)[0]
        text = self.program.text
        gap = text[before:after]
        stripped = gap.strip(" ()\\\n") or gap
        return text[start:before] + gap.replace(stripped, sign, 1) + text[after:end]

    def swaps(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """Two sides, arguments or elements in each other's place."""
        pairs: list[tuple[Any, Any]] = []
        if isinstance(node, ast.BinOp):
            pairs = [(node.left, node.right)]
            if isinstance(node.left, ast.BinOp):
                pairs += [(node.left.right, node.right), (node.left.left, node.right)]
        elif isinstance(node, ast.Call):
            pairs = list(itertools.combinations(node.args, 2))
            if isinstance(node.func, ast.Attribute) and len(node.args) == 1:
                pairs.append((node.func.value, node.args[0]))
        elif isinstance(node, ast.Tuple | ast.List):
            pairs = list(itertools.combinations(node.elts, 2))
        elif isinstance(node, ast.arguments):
            pairs = list(itertools.combinations(node.args, 2))
        elif isinstance(node, ast.IfExp):
            pairs = [(node.body, node.orelse)]
        elif isinstance(node, ast.Assign) and isinstance(
            node.targets[0], ast.Name | ast.Attribute | ast.Subscript
        ):
            pairs = [(node.targets[0], node.value)]
        for one, other in pairs:
            yield self.replaced(node, (one, self.text(other)), (other, self.text(one)))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            lower, upper = node.slice.lower, node.slice.upper
            value = self.text(node.value)
            for one, other in ((lower, upper), (upper, lower)):
                if one is not None and other is None:
                    bare = self.text(one)
                    yield f"{value}[: {bare}]" if one is lower else f"{value}[{bare} :]"
                    yield f"{value}[: {bare} + 1]" if one is upper else f"{value}[{bare} - 1 :]"

    def replaced(self, node: ast.AST, *parts: tuple[ast.AST, str]) -> str:
        """The text of a node with other texts for some of its parts."""
        start, end = self.span(node)
        text = self.program.text[start:end]
        for part, new in sorted(parts, key=lambda each: self.span(each[0]), reverse=True):
            first, last = self.span(part)
            text = text[: first - start] + new + text[last - start :]
        return text

    def keywords(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """A call with one keyword more."""
        if isinstance(node, ast.Call):
            known = {each.arg for each in node.keywords}
            inner = self.text(node).rstrip(")").rstrip()
            inner = self.text(node)[:-1]
            wanted = [*KEYWORDS, *self.new_keywords.get(_word(node.func), ())]
            for each in dict.fromkeys(wanted):
                if each.partition("=")[0] not in known:
                    yield f"{inner}{'' if inner.endswith('(') else ', '}{each})"

    @cached_property
    def new_keywords(self) -> dict[str, list[str]]:
        """The keywords of the solution, by the word that is called."""
        found: dict[str, list[str]] = {}
        for each in ast.walk(self.solution):
            if isinstance(each, ast.Call):
                found.setdefault(_word(each.func), []).extend(map(ast.unparse, each.keywords))
        return found

    def drops(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """Without an argument, a keyword, an element, or one end of a slice."""
        if isinstance(node, ast.Call):
            for each in (*node.args, *node.keywords):
                kept = [
                    self.text(other) for other in (*node.args, *node.keywords) if other is not each
                ]
                yield f"{self.text(node.func)}({', '.join(kept)})"
        elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1:
            for each in node.elts:
                yield self.joined(
                    node, [self.text(other) for other in node.elts if other is not each]
                )
        elif isinstance(node, ast.Slice) and (node.lower is not None or node.upper is not None):
            yield ":"

    def joined(self, node: ast.Tuple | ast.List, parts: Sequence[str]) -> str:
        """A tuple or a list of other elements, in the brackets that it has."""
        whole = self.text(node)
        first, last = (whole[0], whole[-1]) if whole[0] in "([" else ("", "")
        return f"{first}{', '.join(parts)}{',' if len(parts) == 1 and first == '(' else ''}{last}"

    def unwraps(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """A part of an expression for the whole."""
        parts: list[ast.AST] = []
        if isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call):
            parts = [
                *node.args,
                *([node.func.value] if isinstance(node.func, ast.Attribute) else []),
            ]
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif (
            isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Load)
        ) or isinstance(node, ast.Subscript):
            parts = [node.value]
        elif isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = list(node.values)
        elif isinstance(node, ast.If) and not node.orelse and len(node.body) == 1:
            parts = [node.body[0]]
        yield from (self.text(each) for each in parts)

    def wraps(self, node: ast.AST, above: ast.AST) -> Iterator[str]:
        """An expression within a word of PyTorch."""
        if not isinstance(node, ast.expr) or isinstance(
            getattr(node, "ctx", None), ast.Store | ast.Del
        ):
            return
        if isinstance(above, ast.Attribute) and _word(node) in ("torch", "nn", "self", "F", "math"):
            return
        text = self.text(node)
        bound = (
            text
            if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            else f"({text})"
        )
        for each in WRAPS:
            if each.startswith(("self.", "torch.{")) and not isinstance(node, ast.Name):
                continue
            inside = text if "({})" in each else bound
            made = each.format(inside)
            if (
                isinstance(above, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Subscript)
                and made[-1] not in ")]T"
            ):
                made = f"({made})"
            yield made

    def statements(self, chosen: set[int]) -> Iterator[tuple[list[Change], ast.AST]]:
        """A statement dropped, moved, stored or returned."""
        for node, above in self.pairs:
            if (
                id(node) not in chosen
                or not isinstance(node, ast.stmt)
                or isinstance(above, ast.Module)
            ):
                continue
            if isinstance(node, ast.Expr):
                value = self.text(node.value)
                names = dict.fromkeys(
                    each.id for each in ast.walk(node) if isinstance(each, ast.Name)
                )
                yield [Change(*self.span(node), f"return {value}")], node
                for name in (*names, *self.scopes.get(self.function(node), ())):
                    yield [Change(*self.span(node), f"{name} = {value}")], node
            if isinstance(node, SIMPLE):
                yield from self.moved(node, above)
            if isinstance(node, ast.FunctionDef):
                yield from self.returning(node)

    def whole(self, node: Any) -> tuple[int, int]:
        """The lines of a statement."""
        return self.starts[node.lineno - 1], min(
            self.starts[node.end_lineno], len(self.program.text)
        )

    def moved(self, node: Any, above: Any) -> Iterator[tuple[list[Change], ast.AST]]:
        body = next(
            each
            for each in (getattr(above, "body", []), getattr(above, "orelse", []))
            if node in each
        )
        start, end = self.whole(node)
        text = self.program.text[start:end]
        if body[0].lineno == getattr(above, "lineno", 0):
            return
        at = body.index(node)
        gone = Change(start, end, "" if len(body) > 1 else _indented("pass\n", node.col_offset))
        yield [gone], node
        places: list[tuple[int, int]] = []
        if at:
            places.append((self.whole((body[at - 1]))[0], node.col_offset))
            if hasattr(body[at - 1], "body"):
                inner = body[at - 1].body
                places.append((self.whole(inner[-1])[1], inner[0].col_offset))
                if hasattr(inner[-1], "body"):
                    deep = inner[-1].body
                    places.append((self.whole(deep[-1])[1], deep[0].col_offset))
        if at + 1 < len(body):
            places.append((self.whole(body[at + 1])[1], node.col_offset))
            if hasattr(body[at + 1], "body"):
                inner = body[at + 1].body
                places.append((self.whole((inner[0]))[0], inner[0].col_offset))
                if hasattr(inner[0], "body"):
                    deep = inner[0].body
                    places.append((self.whole((deep[0]))[0], deep[0].col_offset))
        for later in body[at + 2 :]:
            places.append((self.whole(later)[1], node.col_offset))
        for earlier in body[: max(at - 1, 0)]:
            places.append((self.whole((earlier))[0], node.col_offset))
        outer: Any = above
        while isinstance(outer, ast.For | ast.While | ast.If | ast.With):
            places.append((self.whole(outer)[1], outer.col_offset))
            places.append((self.whole((outer))[0], outer.col_offset))
            outer = self.above[outer]
        for place, column in places:
            put = Change(place, place, _indented(text, column))
            yield [gone, put], node
            if not isinstance(node, ast.Return):
                yield [put], node

    def returning(self, function: ast.FunctionDef) -> Iterator[tuple[list[Change], ast.AST]]:
        """A return at the end of a function that has none; super().__init__() at its beginning."""
        last = function.body[-1]
        end = self.whole(last)[1]
        if not any(isinstance(each, ast.Return) for each in ast.walk(function)):
            for name in reversed(self.scopes[function]):
                yield (
                    [Change(end, end, _indented(f"return {name}\n", function.body[0].col_offset))],
                    last,
                )
        if function.name == "__init__" and "super()" not in self.text(function):
            first = self.whole(function.body[0])[0]
            line = _indented("super().__init__()\n", function.body[0].col_offset)
            yield [Change(first, first, line)], function.body[0]

    # From elsewhere: the solution of the lesson, and other lines of the program.

    def from_solution(self) -> Iterator[tuple[list[Change], ast.AST]]:
        """Statements and expressions of the solution in the place of similar ones, under the learner's names."""
        theirs = {
            each.name: each for each in ast.walk(self.solution) if isinstance(each, ast.FunctionDef)
        }
        for function in (each for each, _ in self.pairs if isinstance(each, ast.FunctionDef)):
            other = theirs.get(function.name)
            if other is None:
                continue
            renamed = self.renamed(other, function)
            lines = [each for each in ast.walk(renamed) if isinstance(each, SIMPLE)]
            mine = [each for each in ast.walk(function) if isinstance(each, SIMPLE)]
            known = {ast.dump(each) for each in mine}
            lines = [each for each in lines if ast.dump(each) not in known]
            parts = [
                each
                for line in lines
                for each in ast.walk(line)
                if isinstance(
                    each,
                    ast.Call
                    | ast.BinOp
                    | ast.Subscript
                    | ast.Attribute
                    | ast.Compare
                    | ast.Tuple
                    | ast.keyword
                    | ast.UnaryOp,
                )
            ]
            parts += [each.iter for each in ast.walk(renamed) if isinstance(each, ast.For)]
            texts: dict[tuple[type, str], dict[str, None]] = {}
            for part in parts:
                texts.setdefault(_head(part), {})[ast.unparse(part)] = None
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.expr | ast.keyword)
                    and _is_read(node)
                    and not isinstance(node, ast.Constant | ast.Name)
                ):
                    for text in texts.get(_head(node), ()):
                        yield [Change(*self.span(node), text)], node
            for line in lines:
                text = ast.unparse(line)
                for node in mine:
                    if type(node) is type(line) or _targets(node) == _targets(line):
                        yield [Change(*self.span(node), text)], node
                for node in mine if not isinstance(line, ast.Return) else ():
                    start = self.whole(node)[0]
                    yield [Change(start, start, _indented(f"{text}\n", node.col_offset))], node

    def renamed(self, theirs: ast.FunctionDef, mine: ast.FunctionDef) -> ast.FunctionDef:
        """A function of the solution with the names of the learner's."""
        names = {
            one.arg: other.arg for one, other in zip(theirs.args.args, mine.args.args, strict=False)
        }
        scope = self.scopes.get(mine, [])
        for each in ast.walk(theirs):
            if isinstance(each, ast.Name) and each.id not in names and each.id in scope:
                names[each.id] = each.id
        own = [(ast.unparse(each.targets[0]), ast.unparse(each.value)) for each in _assigned(mine)]
        for each in _assigned(theirs):
            if isinstance(each.targets[0], ast.Name) and each.targets[0].id not in names:
                words = re.split(r"\b", ast.unparse(each.value))
                value = "".join(names.get(word, word) for word in words)
                alike = [
                    (SequenceMatcher(None, value, other, autojunk=False).ratio(), name)
                    for name, other in own
                    if name.isidentifier() and name not in names.values()
                ]
                best = max(alike, default=(0.0, ""))
                if best[0] > ALIKE:
                    names[each.targets[0].id] = best[1]
        for each in ast.walk(theirs):
            if isinstance(each, ast.Name) and each.id not in names and role(each.id) is not None:
                same = [name for name in scope if role(name) == role(each.id)]
                names[each.id] = (same or [each.id])[0]
        held = {
            each: next(
                (
                    name
                    for name in self.held
                    if name == each or (role(each) and role(name) == role(each))
                ),
                each,
            )
            for each in _attributes(self.solution)
        }

        class Renamed(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.AST:
                return ast.Name(names.get(node.id, node.id), node.ctx)

            def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
                self.generic_visit(node)
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                return ast.Attribute(
                    node.value, held.get(node.attr, node.attr) if own else node.attr, node.ctx
                )

        return Renamed().visit(ast.parse(ast.unparse(theirs)).body[0])

    def elsewhere(self) -> Iterator[tuple[list[Change], ast.AST]]:
        """An expression by another one of the same function."""
        for function, names in self.scopes.items():
            inside = [
                each
                for each in ast.walk(function)
                if isinstance(each, ast.expr) and hasattr(each, "col_offset")
            ]
            texts = dict.fromkeys(
                self.text(each)
                for each in inside
                if not isinstance(each, ast.Constant)
                and not isinstance(getattr(each, "ctx", None), ast.Store)
            )
            texts = [
                each
                for each in texts
                if 1 < len(each) <= LONGEST and "\n" not in each and each not in names
            ]
            del names
            for node in inside:
                above = self.above[node]
                if isinstance(getattr(node, "ctx", None), ast.Store) or not isinstance(
                    above,
                    ast.Call
                    | ast.Subscript
                    | ast.BinOp
                    | ast.Assign
                    | ast.Return
                    | ast.For
                    | ast.keyword
                    | ast.AugAssign,
                ):
                    continue
                mine = self.text(node)
                for text in texts:
                    if text != mine:
                        yield [Change(*self.span(node), text)], node


def _flat(text: str) -> str:
    """A text in one line."""
    return " ".join(text.split())


def _assigned(function: ast.FunctionDef) -> list[ast.Assign]:
    return [each for each in ast.walk(function) if isinstance(each, ast.Assign)]


def _is_read(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _indented(text: str, column: int) -> str:
    return textwrap.indent(textwrap.dedent(text), " " * column)


def _attributes(tree: ast.AST) -> list[str]:
    found = (
        each.attr for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
    )  # fmt: skip
    return list(dict.fromkeys(found))


def _word(node: ast.AST) -> str:
    """The last word of a name or an attribute."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _head(node: ast.AST) -> tuple[type, str]:
    """What makes two expressions similar: the same word is called, or the same name is indexed."""
    if isinstance(node, ast.Call):
        return ast.Call, _word(node.func)
    if isinstance(node, ast.Subscript):
        return ast.Subscript, _word(node.value)
    if isinstance(node, ast.keyword):
        return ast.keyword, str(node.arg)
    return type(node), ""


def _targets(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, ast.AugAssign) else type(node).__name__


def _number(node: ast.AST) -> Any:
    if isinstance(node, ast.UnaryOp):
        inner = _number(node.operand) if isinstance(node.op, ast.USub) else None
        return -inner if isinstance(inner, int | float) and not isinstance(inner, bool) else None
    return node.value if isinstance(node, ast.Constant) else None
