"""The change of one place that makes right what a learner wrote: it says what is wrong, and where."""

import ast
import contextlib
import inspect
import io
import linecache
import re
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from clearhead._common.lessons import LessonRow
from clearhead.checking import words
from clearhead.checking.lessons import BATCHES
from clearhead.checking.mending.edits import ChangedTree, edits_of
from clearhead.checking.mending.outcomes import is_right, is_sized, names_missing
from clearhead.checking.subject.stubs import reached

# So many changes are looked for.
ENOUGH = 3
# What makes a list longer, by a method.
GROWS = ("append", "extend", "insert")
Promises = tuple[Mapping[str, Any], ...]


class Mend(NamedTuple):
    """A change that makes it right: its key, its sentence, and file and line."""

    key: str
    sentence: str
    place: tuple[str, int]


def mends_of(
    thing: Any,
    row: LessonRow,
    promises: Promises,
    args: Mapping[str, Any] | None,
    *,
    certain: bool = False,
    enough: int = ENOUGH,
) -> list[Mend]:
    """The changes of one place that make it right, those first that a slip makes most; none of what is not read.

    Args:
        thing: the class or the function, as it was written.
        row: of the lesson.
        promises: those that the lesson takes for right.
        args: of the constructor.
        certain: only those that are the cause, whatever else is seen.
        enough: so many are looked for.
    """
    written = _Written.of(thing)
    if written is None:
        return []
    found: list[Mend] = []
    with contextlib.redirect_stdout(io.StringIO()):  # what it prints, hundreds of times
        for edit in edits_of(written.tree, written.held, certain=certain):
            if _right(written, edit, row, promises, args):
                sentence = words.filled("mend", edit.key, edit.values)
                if row.number < BATCHES:  # tables alone, of which both turn the same
                    sentence = sentence.replace(".mT", ".T")
                found.append(Mend(edit.key, sentence, (written.file, edit.line)))
            if len(found) == enough:
                break
    return found


class _Written(NamedTuple):
    """The classes and functions of one file that a learner wrote, and what else that has."""

    name: str
    file: str
    tree: ast.Module
    held: tuple[str, ...]
    around: Mapping[str, Any]
    grows: bool

    @classmethod
    def of(cls, thing: Any) -> "_Written | None":
        if inspect.isclass(thing):
            functions = [each for each in reached(thing) if "." not in each.__qualname__]
        else:
            functions = [each for each in reached(thing) if each is not thing]
        body: list[ast.stmt] = []
        file, around = "", dict[str, Any]()
        for each in (*functions, thing):
            own = (
                [each]
                if inspect.isfunction(each)
                else filter(inspect.isfunction, vars(each).values())
            )
            some = next(iter(own), None)
            if some is None:
                return None
            file, around = some.__code__.co_filename, some.__globals__
            try:
                part = _block(each, file, some.__code__.co_firstlineno)
            except SyntaxError:
                return None
            if part is None:
                return None
            body += part.body
        tree = ast.Module(body, [])
        if any(isinstance(each, ast.While) for each in ast.walk(tree)):
            return None
        _Bare().visit(tree)
        held = dict.fromkeys(
            each.attr for each in ast.walk(tree)
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
        )  # fmt: skip
        grows = any(_lengthened(each) for each in ast.walk(tree))
        return cls(thing.__name__, file, tree, tuple(held), around, grows)


def _lengthened(node: ast.AST) -> str:
    """The name of the list that a node makes longer, or ""."""
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value) if node.func.attr in GROWS else ""
    return ""


def _is_endless(tree: ast.Module) -> bool:
    """True if a loop may make longer what it goes over."""
    nodes = list(ast.walk(tree))
    longer = {_lengthened(each) for each in nodes} - {""}
    for loop in nodes:
        if isinstance(loop, ast.For):
            over = {each.id for each in ast.walk(loop.iter) if isinstance(each, ast.Name)} & longer
            if over and any(_lengthened(inner) in over for inner in ast.walk(loop)):
                return True
    return False


def _block(found: Any, file: str, line: int) -> ast.Module | None:
    """The text of a function or a class, by a line of it, also where it stands in a notebook."""
    lines = linecache.getlines(file)
    named = re.compile(rf"\s*(class|def)\s+{re.escape(found.__name__)}\b")
    at = (
        range(line - 1, min(line + 5, len(lines)))
        if inspect.isfunction(found)
        else range(line - 1, -1, -1)
    )
    first = next((each for each in at if each < len(lines) and named.match(lines[each])), None)
    if first is None:
        return None
    made = ast.parse(textwrap.dedent("".join(inspect.getblock(lines[first:]))))
    return ast.Module(list(ast.increment_lineno(made, first).body), [])


class _Bare(ast.NodeTransformer):
    """Functions without what they say of themselves, and without types."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass(lineno=node.lineno, col_offset=0)]
        node.returns = None
        for each in node.args.args:
            each.annotation = None
        return node


def _right(
    written: _Written,
    edit: ChangedTree,
    row: LessonRow,
    promises: Promises,
    args: Mapping[str, Any] | None,
) -> bool:
    if written.grows and _is_endless(edit.tree):
        return False
    around = dict(written.around)
    try:
        exec(compile(edit.tree, written.file, "exec"), around)
        thing = around[written.name]
        if inspect.isclass(thing):
            thing = thing(**(args or {}))
            thing = thing.eval().double() if isinstance(thing, nn.Module) else thing
    except Exception:  # most changes make no sense
        return False
    if isinstance(thing, nn.Module) and (names_missing(thing, row) or not is_sized(thing, args)):
        return False
    return is_right(thing, row, promises) is True
