"""Generic edits of a program: each is one change of its text, and none knows what is wrong."""

import ast
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from clearhead.checking.source_edits.program import Program, nodes_of
from clearhead.checking.source_edits.solution import attributes, is_of_self, scope

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
# The signs between the first two parts of a node.
SIGNS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.BinOp: ("+", "-", "*", "/", "@", "**", "//", "&", "|"),
    ast.Compare: ("<", "<=", ">", ">=", "==", "!=", "is", "is not"),
    ast.AugAssign: ("=", "+=", "-=", "*=", "/="),
    ast.Assign: ("=", "+="),
}
NUMBERS = (0, 1, 2, -1, -2, 1.0, 0.0, 0.5, 10000.0, "torch.e", "-torch.inf")
MODULES = ("torch", "nn", "F", "math", "self")
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
# Where an expression may be any other one of the function.
HOLDERS = (*SIMPLE[:2], ast.Return, ast.Call, ast.Subscript, ast.BinOp, ast.For, ast.keyword)
# What a short text is shown with.
SHOWN = (ast.expr, ast.keyword)
# The longest text to insert from elsewhere, and the shortest that identifies its own place.
LONGEST, SHORT = 60, 12


class SourceEdit(NamedTuple):
    """One change: its line, the difference in words, and the program with it."""

    line: int
    told: str
    program: Program


class TextChange(NamedTuple):
    """The text from index start to end, and the text that replaces it."""

    start: int
    end: int
    new: str


# New texts of a node, or changes around it.
Family = Callable[[Any, Any], Iterator[str | list[TextChange]]]


class Edits:
    """The edits of a program, each new text once; those from the solution come first, then those of likely lines."""

    def __init__(self, program: Program, solution: ast.Module, lines: Sequence[int] = ()) -> None:
        assert program.tree is not None
        self.program, self.solution, self.lines = program, solution, lines
        self.tree = program.tree
        self.pairs: list[tuple[Any, Any]] = [
            pair for pair in nodes_of(self.tree) if hasattr(pair[0], "col_offset")
        ]
        self.above = dict(nodes_of(self.tree))
        self.rows = program.text.split("\n")
        self.starts = [0, *itertools.accumulate(len(each) + 1 for each in self.rows)]
        self.held = attributes(self.tree)
        self.functions, theirs = (
            [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
            for tree in (self.tree, solution)
        )
        self.theirs = {each.name: each for each in theirs}
        self.scopes: dict[Any, list[str]] = {each: scope(each) for each in self.functions}
        self.same: dict[tuple[type, str], list[Any]] = {}
        for node, _ in self.pairs:
            self.same.setdefault((type(node), self.text(node)), []).append(node)

    def at(self, line: int, column: int) -> int:
        """Return the index in the text of a line, from 1, and a column in bytes."""
        return self.starts[line - 1] + len(self.rows[line - 1].encode()[:column].decode())

    def span(self, node: Any) -> tuple[int, int]:
        """Return the indices in the text where a node starts and ends."""
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def whole(self, node: Any) -> tuple[int, int]:
        """Return the indices where the lines of a statement start and end."""
        end = self.starts[node.end_lineno]
        return self.starts[node.lineno - 1], min(end, len(self.program.text))

    def text(self, node: ast.AST) -> str:
        """Return the text of a node."""
        return self.program.text[slice(*self.span(node))]

    def function(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the module; a function is its own."""
        while node in self.above and not isinstance(node, ast.FunctionDef):
            node = self.above[node]
        return node

    def __iter__(self) -> Iterator[tuple[Sequence[TextChange], Any, str]]:
        """Yield the changes of each edit, the node that they are at, and the text after them."""
        seen = {self.program.text}
        for changes, node in itertools.chain(self.from_solution(), self.walked()):
            text = _applied(self.program.text, changes)
            if text not in seen:
                seen.add(text)
                yield changes, node, text

    def walked(self) -> Iterator[tuple[list[TextChange], ast.AST]]:
        """Yield each change of each family at one place, then at all places of the same text; likely lines first."""
        near: tuple[Family, ...] = (
            self.drops, self.unwraps, self.swaps, self.constants, self.operators, self.words, self.names, self.keywords,
            self.statements,
        )  # fmt: skip
        likely = [pair for pair in self.pairs if pair[0].lineno in self.lines]
        others = [pair for pair in self.pairs if pair[0].lineno not in self.lines]
        turns = itertools.product((near, (self.wraps,), (self.others,)), (likely, others))
        for families, pairs in turns:
            for family, (node, above) in itertools.product(families, pairs):
                for new in family(node, above):
                    if not isinstance(new, str):
                        yield new, node
                        continue
                    yield [TextChange(*self.span(node), new)], node
                    same = self.same[type(node), self.text(node)]
                    if len(same) > 1:
                        yield [TextChange(*self.span(each), new) for each in same], node

    def told(self, changes: Sequence[TextChange], node: Any, text: str) -> SourceEdit:
        """Return some changes at a node as a SourceEdit with words; `text` is the program's text after them."""
        program, first = self.program.edited(text), min(changes)
        put = [each for each in changes if each.start == each.end]
        if put:
            line = self.program.text.count("\n", 0, put[0].start) + 1
            code = put[0].new.strip()
            if len(put) == len(changes):
                return SourceEdit(line, f"line {line}: `{code}` before it", program)
            indent = len(put[0].new) - len(put[0].new.lstrip())
            where = f"before line {line}, {indent} spaces from the left"
            return SourceEdit(node.lineno, f"line {node.lineno}: `{code}` moved {where}", program)
        if isinstance(node, ast.stmt) and first.end == self.whole(node)[1]:
            return SourceEdit(
                node.lineno, f"line {node.lineno}: without `{self.text(node)}`", program
            )
        shown = node
        while len(self.text(shown)) < SHORT and isinstance(self.above[shown], SHOWN):
            shown = self.above[shown]
        start, end = self.span(shown)
        if isinstance(shown, ast.FunctionDef):
            end = self.span(shown.body[0])[0]
        inside = [each for each in changes if start <= each.start <= each.end <= end]
        more = " wherever it is" if len(inside) < len(changes) else ""
        texts = self.program.text[:end], _applied(self.program.text[:end], inside)
        old, new = (" ".join(each[start:].split()) for each in texts)
        return SourceEdit(node.lineno, f"line {node.lineno}: `{old}` → `{new}`{more}", program)

    def drops(self, node: Any, above: Any) -> Iterator[str]:
        """Yield a call, tuple or list without one item; a slice as ":", its end as the start, its start as the end."""
        whole = self.text(node)
        if isinstance(node, ast.Slice):
            yield ":"
            yield from (f"{self.text(each)}:" for each in (node.upper,) if each is not None)
            yield from (f":{self.text(each)}" for each in (node.lower,) if each is not None)
        items = getattr(node, "elts", ())
        first, last = (whole[0], whole[-1]) if whole[:1] in ("(", "[") else ("", "")
        if isinstance(node, ast.Call):
            items, first, last = [*node.args, *node.keywords], f"{self.text(node.func)}(", ")"
        for gone in items:
            kept = [self.text(each) for each in items if each is not gone]
            comma = "," if len(kept) == 1 and first == "(" else ""
            yield f"{first}{', '.join(kept)}{comma}{last}"

    def unwraps(self, node: Any, above: Any) -> Iterator[str]:
        """Yield each part of an expression instead of the whole, and the statement of an if instead of the if."""
        if isinstance(node, ast.expr):
            yield from map(self.text, _parts(node))
        elif isinstance(node, ast.If) and not node.orelse and len(node.body) == 1:
            yield self.text(node.body[0])

    def swaps(self, node: Any, above: Any) -> Iterator[list[TextChange]]:
        """Yield the changes that swap two operands, arguments or elements."""
        parts = [] if isinstance(node, ast.Attribute) else _parts(node)
        pairs = list(itertools.combinations(parts, 2))
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.BinOp):
            pairs += [(each, node.right) for each in (node.left.right, node.left.left)]
        if isinstance(node, ast.FunctionDef):
            pairs = list(itertools.combinations(node.args.args, 2))
        for one, other in pairs:
            yield [
                TextChange(*self.span(one), self.text(other)),
                TextChange(*self.span(other), self.text(one)),
            ]

    def constants(self, node: Any, above: Any) -> Iterator[str]:
        """Yield other numbers for a number, the opposite for a bool, attributes of self for a string."""
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        inner = node.operand if negative else node
        if isinstance(above, ast.UnaryOp) or not isinstance(inner, ast.Constant):
            return
        value = inner.value
        if isinstance(value, bool):
            yield str(not value)
        elif isinstance(value, int | float):
            value = -value if negative else value
            near = (value + 1, value - 1) if isinstance(value, int) else ()
            likely = [each for each in NUMBERS if type(each) is type(value)]
            yield from map(str, (*near, -value, *likely, *NUMBERS[-2:]))
        elif isinstance(value, str):
            yield from (f'"{each}"' for each in self.held)

    def operators(self, node: Any, above: Any) -> Iterator[str | list[TextChange]]:
        """Yield other signs for an operator, comparison or assignment, and updates for an assignment."""
        parts = _parts(node)
        if type(node) not in SIGNS or len(parts) != 2:
            return
        start, end = self.span(parts[0])[1], self.span(parts[1])[0]
        sign = re.search(r"[^\s()\\]+( not)?", self.program.text[start:end])
        if sign is None:
            return
        for each in SIGNS[type(node)]:
            yield [TextChange(start + sign.start(), start + sign.end(), each)]
        if isinstance(node, ast.Assign | ast.AugAssign):
            target, value = map(self.text, parts)
            yield from (f"{target} = {target} {each} {value}" for each in ("+", "@", "-"))

    def words(self, node: Any, above: Any) -> Iterator[str]:
        """Yield a name or attribute with its last word replaced by one that is often confused with it."""
        word = _word(node)
        if word in ("", "self") or not _is_read(node):
            return
        for other in (each for group in TWINS if word in group for each in group):
            yield self.text(node).removesuffix(word) + other

    def names(self, node: Any, above: Any) -> Iterator[str | list[TextChange]]:
        """Yield replacements for a name: names of its function, methods of the solution, attributes of self."""
        names = self.scopes.get(self.function(node), [])
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and node.id not in MODULES):
            yield from names
        if isinstance(node, ast.FunctionDef):
            at = self.program.text.index(node.name, self.span(node)[0] + len("def"))
            yield from ([TextChange(at, at + len(node.name), each)] for each in self.theirs)
        if is_of_self(node):
            yield from (f"self.{each}" for each in self.held)
            yield node.attr

    def keywords(self, node: Any, above: Any) -> Iterator[str]:
        """Yield a call with one keyword more, of those that it lacks."""
        if isinstance(node, ast.Call):
            known = {each.arg for each in node.keywords}
            inner = self.text(node)[:-1]
            for each in KEYWORDS:
                if each.partition("=")[0] not in known:
                    yield f"{inner}{'' if inner.endswith('(') else ', '}{each})"

    def statements(self, node: Any, above: Any) -> Iterator[str | list[TextChange]]:
        """Yield changes that drop, move, repeat, store or return a statement, or return a name at the end."""
        function = self.function(node)
        names = self.scopes.get(function, [])
        if isinstance(node, ast.Expr):
            inside = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
            for start in ("return", *(f"{name} =" for name in (*inside, *names))):
                yield f"{start} {self.text(node.value)}"
        if isinstance(node, ast.FunctionDef):
            end, column = self.whole(node.body[-1])[1], node.body[0].col_offset
            for name in reversed(names):
                yield [TextChange(end, end, _indented(f"return {name}\n", column))]
        if not isinstance(node, SIMPLE) or node.lineno == getattr(above, "lineno", node.lineno):
            return
        start, end = self.whole(node)
        alone = len(getattr(above, "body", ())) == 1
        gone = TextChange(start, end, _indented("pass\n", node.col_offset) if alone else "")
        yield [gone]
        text = self.program.text[start:end]
        places = {
            (at, each.col_offset)
            for each in ast.walk(function)
            if isinstance(each, ast.stmt) and each is not function
            for at in self.whole(each)
        }
        for place, column in sorted(places, key=lambda each: (abs(each[0] - start), each)):
            if start < place < end:
                continue
            put = TextChange(place, place, _indented(text, column))
            yield [gone, put]
            if not isinstance(node, ast.Return):
                yield [put]

    def wraps(self, node: Any, above: Any) -> Iterator[str]:
        """Yield an expression within a function, method or operator of `WRAPS`."""
        if not isinstance(node, ast.expr) or not _is_read(node) or _word(node) in MODULES:
            return
        text = self.text(node)
        is_bound = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        is_part = isinstance(above, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Subscript)
        for each in WRAPS:
            if isinstance(node, ast.Name) or not each.startswith(("self.", "torch.{")):
                new = each.format(text if is_bound or "({})" in each else f"({text})")
                yield f"({new})" if is_part and new[-1] not in ")]T" else new

    def others(self, node: Any, above: Any) -> Iterator[str]:
        """Yield attributes of self, expressions of the same function and of the solution instead of an expression."""
        if isinstance(node, ast.expr) and _is_read(node) and isinstance(above, HOLDERS):
            yield from (f"self.{each}" for each in self.held)
            for each in (*ast.walk(self.function(node)), *ast.walk(self.solution)):
                if isinstance(each, ast.expr) and _is_read(each) and not _is_plain(each):
                    text = ast.unparse(each)
                    yield from [text] if len(text) <= LONGEST else []

    def from_solution(self) -> Iterator[tuple[list[TextChange], ast.AST]]:
        """Yield statements and expressions of the solution in place of similar ones, and statements inserted."""
        for function in self.functions:
            mine = [each for each in ast.walk(function) if isinstance(each, SIMPLE)]
            known = {ast.dump(each) for each in mine}
            inside = list(ast.walk(self.theirs.get(function.name, function)))
            lines = [each for each in inside if isinstance(each, SIMPLE)]
            lines = [each for each in lines if ast.dump(each) not in known]
            parts = [each for line in lines for each in ast.walk(line)]
            parts += [each.iter for each in inside if isinstance(each, ast.For)]
            texts: dict[tuple[type, str], dict[str, None]] = {}
            for part in parts:
                if isinstance(part, ast.expr | ast.keyword) and not _is_plain(part):
                    texts.setdefault(_head(part), {})[ast.unparse(part)] = None
            for node in ast.walk(function):
                if isinstance(node, ast.expr | ast.keyword) and _is_read(node):
                    for text in texts.get(_head(node), ()):
                        yield [TextChange(*self.span(node), text)], node
            for line, node in itertools.product(lines, mine):
                if _head(node) == _head(line) or _target(node) == _target(line):
                    yield [TextChange(*self.span(node), ast.unparse(line))], node
                if not isinstance(line, ast.Return):
                    start, new = self.whole(node)[0], f"{ast.unparse(line)}\n"
                    yield [TextChange(start, start, _indented(new, node.col_offset))], node


def _applied(text: str, changes: Sequence[TextChange]) -> str:
    """Return the text with all changes applied; their positions refer to the original text."""
    for each in sorted(changes, reverse=True):
        text = text[: each.start] + each.new + text[each.end :]
    return text


def _indented(text: str, column: int) -> str:
    """Return a text dedented, then indented by `column` spaces."""
    return textwrap.indent(textwrap.dedent(text), " " * column)


def _is_read(node: ast.AST) -> bool:
    """Return True unless a node is the target of an assignment or a del."""
    return not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _is_plain(node: ast.AST) -> bool:
    """Return True for a constant or a name."""
    return isinstance(node, ast.Constant | ast.Name)


def _parts(node: ast.AST) -> list[ast.expr]:
    """Return the child expressions of a node, for a method call the owner instead of the function; no modules."""
    parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    if isinstance(node, ast.Call):
        parts[:1] = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return [each for each in parts if _word(each) not in MODULES]


def _word(node: ast.AST) -> str:
    """Return the last word of a name or an attribute; "" for other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _head(node: Any) -> tuple[type, str]:
    """Return a key that is equal for similar nodes: of one type, and the same word is called or indexed."""
    if isinstance(node, ast.keyword):
        return ast.keyword, str(node.arg)
    named = {ast.Call: "func", ast.Subscript: "value"}.get(type(node), "")
    return type(node), _word(getattr(node, named, node)) if named else ""


def _target(node: Any) -> str:
    """Return the code of the first target of an assignment, or of the node itself if it has no target."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", node)]
    return ast.unparse(targets[0])
