"""What stood in the expression that raised: what is certain of an error, whatever its cause is."""

import ast
import dis
import linecache
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._text import bounded, shown
from clearhead.checking.subject.refusals import traced
from clearhead.recording.attempt import attempt

# What may be worked out again, for its value alone.
PLAIN = (
    ast.Expression, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.List, ast.BinOp,
    ast.UnaryOp, ast.Call, ast.keyword, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip
LONGEST = 60
# Names that say nothing of what was written.
KNOWN = frozenset(("torch", "nn", "F", "math", "float"))


class Operand(NamedTuple):
    """A part of an expression: how it is written, what it was, and the line that has made it, if that is another."""

    text: str
    value: Any
    made: tuple[int, str] | None = None


class FailedExpression(NamedTuple):
    """The expression that raised, and its parts."""

    node: ast.AST
    operands: tuple[Operand, ...]

    @property
    def called(self) -> str:
        """The name that is called like a function, or ""."""
        function = self.node.func if isinstance(self.node, ast.Call) else None
        return function.id if isinstance(function, ast.Name) else ""

    @property
    def told(self) -> str:
        """The parts in words, each line behind two spaces; "" where nothing is known of them."""
        parts, lines = [], []
        for each in self.operands:
            words = "" if each.text == "self" else _described(each.value)
            if words:
                parts.append(f"{bounded(each.text, LONGEST)} is {words}")
            if words and each.made is not None and not isinstance(each.value, list):
                name = each.made[1].partition(" = ")[0]
                lines.append(
                    f"{name} is made in line {each.made[0]}: {bounded(each.made[1], LONGEST)}"
                )
        told = [", ".join(parts), *dict.fromkeys(lines)]
        return "".join(f"\n  {each}" for each in told if each)


def parts_of(error: BaseException) -> str:
    """The parts of the expression that raised, in lines of their own."""
    failed = failure_of(error)
    return "" if failed is None else failed.told


def failure_of(error: BaseException) -> FailedExpression | None:
    """The expression that raised an error, in the code that is checked; None where it is not read."""
    trace = traced(error)
    return None if trace is None else attempt(_read, trace)[0]


def _read(trace: types.TracebackType) -> FailedExpression | None:
    code = trace.tb_frame.f_code
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    where = list(code.co_positions())[trace.tb_lasti // 2]
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = [node for node in above if _span(node) == where]
    node = next((each for each in found if isinstance(each, ast.expr)), next(iter(found), None))
    if node is None:
        return None
    if isinstance(getattr(node, "ctx", None), ast.Store):
        node = above[node]
    iterated = dis.opname[code.co_code[trace.tb_lasti]] == "GET_ITER"
    parts = [node.iter if isinstance(node, ast.For) else node] if iterated else _parts(node)
    function: ast.AST = node
    while function in above and not isinstance(function, ast.FunctionDef):
        function = above[function]
    operands = []
    for part in parts:
        text = ast.unparse(part)
        value, failed = attempt(_value, text, trace.tb_frame)
        if failed is not None:
            continue
        operands.append(Operand(text, value, _made(part, function, trace.tb_lineno)))
    return FailedExpression(node, tuple(operands))


def _span(node: ast.AST) -> tuple[int | None, ...]:
    names = ("lineno", "end_lineno", "col_offset", "end_col_offset")
    return tuple(getattr(node, name, None) for name in names)


def _parts(node: ast.AST) -> list[Any]:
    """The expressions that an operation takes, without plain numbers."""
    found: list[Any] = []
    match node:
        case ast.BinOp():
            found = [node.left, node.right]
        case ast.AugAssign():
            found = [node.target, node.value]
        case ast.Assign(targets=[ast.Subscript() as target]):
            found = [target, *_parts(target), node.value]
        case ast.Assign(targets=[ast.Tuple()]):
            found = [node.value]
        case ast.Compare():
            found = [node.left, *node.comparators]
        case ast.UnaryOp():
            found = [node.operand]
        case ast.Subscript():
            inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            found = [node.value, *inside]
        case ast.Call():
            top = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            found = [top, *node.args, *(each.value for each in node.keywords)]
    return [each for each in found if _is_told(each)]


def _is_told(part: ast.AST) -> bool:
    """True of what has a name of somebody's own in it."""
    names = {each.id for each in ast.walk(part) if isinstance(each, ast.Name)}
    return not isinstance(part, ast.Slice | ast.Starred) and bool(names - KNOWN)


def _value(text: str, frame: types.FrameType) -> Any:
    """The value of an expression where it stood.

    Raises:
        LookupError: if working it out again might do something.
    """
    tree = ast.parse(text, mode="eval")
    for each in _inner_first(tree):
        if not isinstance(each, PLAIN):
            raise LookupError
        if isinstance(each, ast.Call) and ast.unparse(each.func) != "len":
            if not isinstance(each.func, ast.Attribute) or each.func.attr.endswith("_"):
                raise LookupError
            top = _evaluated(ast.Expression(each.func.value), frame)
            if not isinstance(top, Tensor) and top not in (torch, nn.functional):
                raise LookupError
    return _evaluated(tree, frame)


def _inner_first(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield from _inner_first(child)
    yield node


def _evaluated(tree: ast.Expression, frame: types.FrameType) -> Any:
    with torch.no_grad():
        return eval(compile(tree, "part", "eval"), frame.f_globals, frame.f_locals)


def _made(part: ast.AST, function: ast.AST, line: int) -> tuple[int, str] | None:
    """The last line before this one that gives a name its value."""
    while isinstance(part, ast.Subscript | ast.Attribute):
        part = part.value
    if not isinstance(part, ast.Name):
        return None
    lines = [
        (each.lineno, ast.unparse(each).partition("\n")[0])
        for each in ast.walk(function)
        if isinstance(each, ast.Assign)
        and [ast.unparse(target) for target in each.targets] == [part.id]
        and each.lineno < line
    ]
    return max(lines, default=None)


def _described(value: Any) -> str:
    """A value in a few words; "" of what says nothing, such as a function."""
    if isinstance(value, Tensor):
        if value.ndim == 0:
            return "one number"
        kind = {torch.bool: " of True and False", torch.int64: " of whole numbers"}
        return f"{list(value.shape)}{kind.get(value.dtype, '')}"
    if isinstance(value, nn.Module):
        words = repr(value)
        return "" if "\n" in words else words
    if type(value) in (list, tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if callable(value) or isinstance(value, types.ModuleType):
        return ""
    if value is None or isinstance(value, bool | int | float | str | torch.Size):
        return shown(value)
    return f"a {type(value).__name__}"
