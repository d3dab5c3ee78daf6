"""Code that nobody has written yet: a body of `...`, `pass` or None, in what is checked or in what it calls."""

import ast
import dis
import inspect
import textwrap
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

# Where calls of what is checked begin.
ENTRIES = ("__init__", "forward", "__call__", "step", "full", "reset")

# Of a body that returns None and does nothing else, where its source is not known.
NOTHING = ("RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST")


class Stub(NamedTuple):
    """A function that is not written: its name, and its file and line where they are known."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({Path(self.file).name}, line {self.line})" if self.file else self.name


def stubs_of(found: Any) -> tuple[Stub, ...]:
    """Return the functions that are not written, of the subject and of its file if it calls them; () if all are.

    A module class without any content is one stub.
    """
    top = found if inspect.isclass(found) or inspect.isroutine(found) else type(found)
    if inspect.isclass(top) and not _is_written(top):
        return (_stub(top, top.__name__),)
    functions = reached(top)
    return tuple(_stub(each, each.__name__) for each in functions if _unwritten(each))


def _is_written(cls: type) -> bool:
    """Return False for a module class that, with its parents below nn.Module, defines no function and no class."""
    own = cls.__mro__[: cls.__mro__.index(nn.Module)] if issubclass(cls, nn.Module) else ()
    held = [each for kind in own for each in vars(kind).values()]
    return not own or any(inspect.isroutine(each) or isinstance(each, type) for each in held)


def _stub(found: Any, name: str) -> Stub:
    """Return the stub of a function or class; its file is "" and its line 0 if the source is unknown."""
    code = getattr(found, "__code__", None)
    if code is not None:
        return Stub(name, code.co_filename, code.co_firstlineno)
    try:
        return Stub(name, inspect.getsourcefile(found) or "", inspect.getsourcelines(found)[1])
    except (OSError, TypeError):
        return Stub(name, "", 0)


def reached(top: Any) -> list[types.FunctionType]:
    """Return the functions of one module that a class or function reaches by name, each once, callers first.

    For a class, calls begin at `ENTRIES`.
    """
    module, methods = getattr(top, "__module__", None), dict[str, types.FunctionType]()
    if inspect.isclass(top):
        for kind in reversed(top.__mro__):
            if kind.__module__ == module:
                methods |= {
                    n: f for n, f in vars(kind).items() if isinstance(f, types.FunctionType)
                }
        waiting = [methods[name] for name in ENTRIES if name in methods]
    else:
        waiting = [each for each in [inspect.unwrap(top)] if isinstance(each, types.FunctionType)]
    found: dict[int, types.FunctionType] = {}
    while waiting:
        each = waiting.pop(0)
        if id(each) in found:
            continue
        found[id(each)] = each
        for name in _names(each.__code__):
            other = methods.get(name) or each.__globals__.get(name)
            if isinstance(other, types.FunctionType) and other.__module__ == module:
                waiting.append(other)
    return list(found.values())


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object and in the code nested in it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _unwritten(function: types.FunctionType) -> bool:
    """Return True if a function is not written: its body is empty, or `...` or None fills a gap.

    An empty body without parameters and without `...` is written: there may be nothing to do.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return all(each.opname in NOTHING for each in dis.get_instructions(function))
    node = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    if node is None:
        return False
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    own = [each for each in node.args.args if each.arg != "self"]
    if all(map(_says_nothing, body)):
        # What takes nothing may have nothing to do: a reset without a state.
        return bool(own) or any(_holds(each, ...) for each in body)
    return any(_is_gap(each) for each in ast.walk(node)) or _left_none(node)


def _says_nothing(statement: ast.stmt) -> bool:
    """Return True for `pass`, `return`, `...` or None, also returned, and for raise NotImplementedError."""
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return isinstance(statement, ast.Pass) or _holds(statement, ..., None)


def _holds(statement: ast.stmt, *values: Any) -> bool:
    """Return True if a statement is, or returns, one of these constants; a bare return is None."""
    if isinstance(statement, ast.Return) and statement.value is None:
        return None in values
    if not isinstance(statement, ast.Expr | ast.Return):
        return False
    return isinstance(statement.value, ast.Constant) and statement.value.value in values


def _is_gap(node: ast.AST) -> bool:
    """Return True for `...` as a statement, as a value that is assigned or returned, as an operand or as an argument.

    False for x[..., 0].
    """
    given: list[ast.expr | None] = []
    if isinstance(node, ast.Expr | ast.Return | ast.Assign | ast.AnnAssign | ast.AugAssign):
        given = [node.value]
    elif isinstance(node, ast.Call):
        given = [*node.args, *(each.value for each in node.keywords)]
    elif isinstance(node, ast.BinOp):
        given = [node.left, node.right]
    return any(isinstance(each, ast.Constant) and each.value is ... for each in given)


def _left_none(node: ast.FunctionDef) -> bool:
    """Return True if a name is set to None and never again: `weights = None` where it is to be computed.

    It must be read somewhere, or the function have a second parameter.
    """
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    written = Counter(each.id for each in names if isinstance(each.ctx, ast.Store))
    read = {each.id for each in names if isinstance(each.ctx, ast.Load)}
    given = [each for each in ast.walk(node) if isinstance(each, ast.Assign)]
    nothing = [each.targets[0] for each in given if _holds(ast.Return(each.value), None)]
    kept = [each.id for each in nothing if isinstance(each, ast.Name)]
    return any(written[name] == 1 and (name in read or node.args.args[1:]) for name in kept)
