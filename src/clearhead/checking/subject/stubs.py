"""Code that nobody has written yet: a body of `...` or `pass`, in what is checked or in what it calls."""

import ast
import inspect
import textwrap
import types
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from clearhead.checking.subject.copying import names_in

# Where calls of what is checked begin.
ENTRIES = ("__init__", "forward", "__call__", "step", "full", "reset")


class Stub(NamedTuple):
    """A function that is not written: its name, and its file and line where they are known."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        """Return the name, and file and line in brackets if they are known."""
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
    """Return False for a module class that, with its parents below nn.Module, defines no function and no class.

    True for any other class.
    """
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
        for name in names_in(each.__code__):
            other = methods.get(name) or each.__globals__.get(name)
            if isinstance(other, types.FunctionType) and other.__module__ == module:
                waiting.append(other)
    return list(found.values())


def _unwritten(function: types.FunctionType) -> bool:
    """Return True if a function is not written: its body is empty, or `...` fills a gap; False without a source.

    An empty body without parameters and without `...` is written: there may be nothing to do, as for a reset.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return False
    node = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)
    if node is None:
        return False
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    takes = any(each.arg != "self" for each in node.args.args)
    return (takes and all(map(_says_nothing, body))) or _has_gap(node)


def _says_nothing(statement: ast.stmt) -> bool:
    """Return True for `pass` and for raise NotImplementedError."""
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return isinstance(statement, ast.Pass)


def _has_gap(node: ast.AST) -> bool:
    """Return True if `...` is anywhere but in an index, as in x[..., 0]."""
    indexed = [each.slice for each in ast.walk(node) if isinstance(each, ast.Subscript)]
    known = {id(inner) for each in indexed for inner in ast.walk(each)}
    gaps = (each for each in ast.walk(node) if isinstance(each, ast.Constant) and each.value is ...)
    return any(id(each) not in known for each in gaps)
