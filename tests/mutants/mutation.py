"""Mutants of the package: one comparison, sign, constant or condition of one statement, changed.

A mutant is kept as words that outlive an edit of its file: the module, the function, the text of the statement and what
it becomes. Of a statement with a body it is the head alone, such as `if x < 3:`.
"""

import ast
import copy
import gc
import importlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

from tests.surface import MODULES

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One changed statement: the `nth` of that text in the function."""

    module: str
    function: str
    statement: str
    becomes: str
    nth: int = 0

    @property
    def package(self) -> str:
        """`masks` of `clearhead.masks.causal`; of a module that stands alone, its own name."""
        return self.module.split(".")[1]

    def __str__(self) -> str:
        return f"{self.module} {self.function}: {self.statement}  →  {self.becomes}"


class GoneError(LookupError):
    """The statement of a mutant stands no longer in its function."""


def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def bare(statement: ast.stmt) -> ast.stmt:
    """The statement without its bodies."""
    alone = copy.copy(statement)
    for name in BODIES:
        if isinstance(getattr(alone, name, None), list):
            setattr(alone, name, [])
    return alone


def text(statement: ast.stmt) -> str:
    """The statement in the spelling of `ast.unparse`, without its bodies."""
    return ast.unparse(bare(statement))


def statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Each statement inside a function, with the qualified name of the innermost one."""

    def visit(node: ast.AST, name: str, inside: bool) -> Iterator[tuple[str, ast.stmt]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                function = isinstance(child, FUNCTIONS)
                yield from visit(child, f"{name}.{child.name}".lstrip("."), function)
            elif isinstance(child, ast.stmt):
                if inside:
                    yield name, child
                yield from visit(child, name, inside)
            elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                yield from visit(child, name, inside)

    yield from visit(tree, "", False)


def changeable(statement: ast.stmt) -> list[ast.expr]:
    """The expressions of the statement in which a change is one of behaviour, not of words or types."""
    found: list[ast.expr] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
            return
        if isinstance(node, ast.expr):
            found.append(node)
        for name, value in ast.iter_fields(node):
            if name in (*BODIES, "annotation", "returns") and isinstance(node, ast.stmt):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.keyword) and child.arg == "stacklevel":
                    continue
                if isinstance(child, ast.AST):
                    visit(child)

    if "TYPE_CHECKING" not in ast.unparse(statement) and not isinstance(statement, ast.Assert):
        visit(statement)
    return found


def changes(node: ast.expr) -> Iterator[ast.expr]:
    """What the expression may become."""
    match node:
        case ast.Compare(ops=ops):
            for place, each in enumerate(ops):
                other = copy.copy(node)
                other.ops = [*ops[:place], COMPARED[type(each)](), *ops[place + 1 :]]
                yield other
        case ast.BinOp(op=op) if type(op) in COMPUTED:
            yield ast.BinOp(node.left, COMPUTED[type(op)](), node.right)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield node.operand
        case ast.BoolOp(op=op):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(2 * value if value else 1.0)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)


def is_negated_alone(statement: ast.If | ast.While) -> bool:
    """Whether the opposite of the condition is no change of one of its parts."""
    match statement.test:
        case (
            ast.UnaryOp(op=ast.Not())
            | ast.Compare(
                ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]
            )
        ):
            return False
    return bool(changeable(statement))


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of the module."""
    seen = Counter[tuple[str, str]]()
    for function, statement in statements(parsed(module)):
        before = text(statement)
        nth = seen[function, before]
        seen[function, before] += 1
        if isinstance(statement, (ast.If, ast.While)) and is_negated_alone(statement):
            changed = copy.copy(statement)
            changed.test = ast.UnaryOp(ast.Not(), statement.test)
            yield Mutant(module, function, before, text(changed), nth)
        for place in range(len(changeable(statement))):
            # A copy each: the expression is changed where it stands.
            for choice in range(len(list(changes(changeable(statement)[place])))):
                other = copy.deepcopy(bare(statement))
                node = changeable(other)[place]
                put(other, node, list(changes(node))[choice])
                yield Mutant(module, function, before, text(other), nth)


def put(root: ast.AST, old: ast.expr, new: ast.expr) -> None:
    """Put `new` where `old` stands below `root`."""
    for parent in ast.walk(root):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list) and any(each is old for each in value):
                value[:] = [new if each is old else each for each in value]
                return


def head(words: str) -> ast.stmt:
    """The statement that these words are, where a body is missing with one that does nothing."""
    if not words.endswith(":"):
        return ast.parse(words).body[0]
    if words.startswith("try"):
        return ast.parse(f"{words} pass\nfinally: pass").body[0]
    return ast.parse(f"{words} pass").body[0]


def mutated(mutant: Mutant) -> CodeType:
    """The code of the module with the mutant in it; GoneError where its statement is no longer there."""
    tree = parsed(mutant.module)
    wanted = text(head(mutant.statement))
    same = [s for name, s in statements(tree) if name == mutant.function and text(s) == wanted]
    if len(same) <= mutant.nth:
        raise GoneError(str(mutant))
    changed = head(mutant.becomes)
    for node in ast.walk(changed):
        ast.copy_location(node, same[mutant.nth])
    for name in changed._fields:
        if name not in BODIES:
            setattr(same[mutant.nth], name, getattr(changed, name))
    return compile(ast.fix_missing_locations(tree), str(MODULES[mutant.module]), "exec")


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code and every one inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def functions(module: str) -> list[FunctionType]:
    """Every function of the file that there is, decorated ones and methods as well."""
    importlib.import_module(module)
    path = str(MODULES[module])
    return [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType and each.__code__.co_filename == path
    ]


def place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def apply(code: CodeType, among: list[FunctionType]) -> int:
    """Make the functions `among` those of the mutated module in this process, where whoever imported them has them at
    once; how many changed."""
    new = {place(each): each for each in codes(code)}
    changed = [
        each for each in among if new.get(place(each.__code__), each.__code__) != each.__code__
    ]
    for function in changed:
        function.__code__ = new[place(function.__code__)]
    return len(changed)
