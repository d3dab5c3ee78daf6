"""The change of one place that makes right what a learner wrote: it says what is wrong, and where."""

import ast
import contextlib
import copy
import inspect
import io
import itertools
import linecache
import re
import textwrap
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from clearhead._common.lessons import LessonRow
from clearhead.checking import words
from clearhead.checking.mending.edits import ChangedTree, edits_of
from clearhead.checking.mending.outcomes import is_right, is_sized, names_missing, progress
from clearhead.checking.subject.stubs import reached
from clearhead.checking.subject.subject import Subject

# The lesson that begins to write .mT in the place of .T, which says the same of tables.
TURNED = 5
# So many changes are looked for.
ENOUGH = 3
# What each round of a `while` loop asks first, and so many times all of them may.
ROUND, ROUNDS = "_is_another_round", 5000
# What makes a list longer, by a method.
GROWS = ("append", "extend", "insert")
# Changes that take a step away, of which one too many was taken.
STEPS = ("step", "line")
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
    written = LearnersCode.of(thing)
    if written is None:
        return []
    found: list[Mend] = []
    with contextlib.redirect_stdout(io.StringIO()):  # what it prints, hundreds of times
        half, most = None, written.progress(written.tree, row) if row.is_part else None
        for edit in edits_of(written.tree, written.held, certain=certain):
            if _right(written, edit, row, promises, args):
                found.append(_mend(written, edit, row))
            elif most is not None and not found:
                now = written.progress(edit.tree, row)
                if now is not None and now > most:
                    half, most = edit._replace(tree=copy.deepcopy(edit.tree)), now
            if len(found) == enough:
                break
        if half is not None and not found:
            for edit in edits_of(half.tree, written.held):
                if _right(written, edit, row, promises, args):
                    one, other = _mend(written, half, row), _mend(written, edit, row)
                    values = {"one": one.sentence, "line": other.place[1], "other": other.sentence}
                    return [Mend("both", words.filled("mend", "both", values), one.place)]
    return found


def mends_for(
    thing: Any,
    subject: Subject,
    row: LessonRow,
    promises: Promises,
    *,
    certain: bool = False,
    enough: int = ENOUGH,
) -> list[Mend]:
    """The changes that mend what was written; none of an object, whose class is not what was handed over."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return []
    return mends_of(thing, row, promises, subject.args, certain=certain, enough=enough)


def _mend(written: "LearnersCode", edit: ChangedTree, row: LessonRow) -> Mend:
    sentence = words.filled("mend", edit.key, edit.values)
    if row.number < TURNED:
        sentence = sentence.replace(".mT", ".T")
    return Mend(edit.key, sentence, (written.file, edit.line))


class LearnersCode(NamedTuple):
    """The classes and functions of one file that a learner wrote, and what else that has."""

    name: str
    file: str
    tree: ast.Module
    held: tuple[str, ...]
    around: Mapping[str, Any]
    grows: bool
    turns: bool

    @classmethod
    def of(cls, thing: Any) -> "LearnersCode | None":
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
        _Bare().visit(tree)
        held = dict.fromkeys(
            each.attr for each in ast.walk(tree)
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
        )  # fmt: skip
        nodes = list(ast.walk(tree))
        grows = any(map(_lengthened, nodes))
        turns = any(isinstance(each, ast.While) for each in nodes)
        return cls(thing.__name__, file, tree, tuple(held), around, grows, turns)

    def made(self, tree: ast.Module) -> Any:
        """Make what the tree defines.

        Raises:
            Exception: whatever a change that makes no sense raises; for what may have no end.
        """
        if self.grows and _is_endless(tree):
            raise RecursionError("a loop makes longer what it goes over")
        around = dict(self.around)
        if self.turns:
            tree = ast.fix_missing_locations(_Bounded().visit(copy.deepcopy(tree)))
            around[ROUND] = partial(next, itertools.repeat(True, ROUNDS))
        exec(compile(tree, self.file, "exec"), around)
        return around[self.name]

    def progress(self, tree: ast.Module, row: LessonRow) -> tuple[int, float] | None:
        """Return how far what the tree defines comes, of a part; None of what cannot be made."""
        try:
            return progress(self.made(tree), row)
        except Exception:  # most changes make no sense
            return None


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


class _Bounded(ast.NodeTransformer):
    """Functions whose `while` loops end by an error where nothing else ends them."""

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        asked = ast.Call(ast.Name(ROUND, ast.Load()), [], [])
        node.test = ast.BoolOp(ast.And(), [asked, node.test])
        return node


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
    written: LearnersCode,
    edit: ChangedTree,
    row: LessonRow,
    promises: Promises,
    args: Mapping[str, Any] | None,
) -> bool:
    try:
        thing = written.made(edit.tree)
        if inspect.isclass(thing):
            thing = thing(**(args or {}))
            thing = thing.eval().double() if isinstance(thing, nn.Module) else thing
    except Exception:  # most changes make no sense
        return False
    if isinstance(thing, nn.Module) and (names_missing(thing, row) or not is_sized(thing, args)):
        return False
    return is_right(thing, row, promises) is True
