"""The classes and functions that a learner wrote, as text that can be edited and made again."""

import ast
import inspect
import itertools
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from clearhead.checking.subject.stubs import reached

# The number of rounds of loops and of calls of functions, together, from which on a program is stopped.
ROUNDS = 20_000
ROUND = "_clearhead_round"


class EndlessError(RuntimeError):
    """A program that runs more loops, or more calls, than any lesson asks for."""


@dataclass(frozen=True)
class Program:
    """The definitions of one file, each on its own lines; all other lines are empty.

    Attributes:
        name: of the class or function that is graded.
        file: the file.
        text: the definitions.
        around: the globals of the file, and the variables of enclosing functions.
    """

    name: str
    file: str
    text: str
    around: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, thing: Any) -> "Program | None":
        """Return the program of a class or a function, with the functions of its module that it reaches.

        None for anything else, a class without functions, or if its source is unknown or has a syntax error.
        """
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            return None
        others = [each for each in reached(thing) if "." not in each.__qualname__]
        lines: dict[int, str] = {}
        file, around = "", dict[str, Any]()
        for each in (*others, thing):
            own = _functions(each) if isinstance(each, type) else [inspect.unwrap(each)]
            if not own or not all(map(inspect.isfunction, own)):
                return None
            file = own[0].__code__.co_filename
            around |= own[0].__globals__
            for function in own:
                around |= inspect.getclosurevars(function).nonlocals
            block = _block(each, file, own[0].__code__.co_firstlineno)
            if block is None:
                return None
            lines |= block
        text = "".join(f"{lines.get(each, '')}\n" for each in range(1, max(lines) + 1))
        program = cls(thing.__name__, file, text, around)
        return program if program.tree is not None else None

    @cached_property
    def tree(self) -> ast.Module | None:
        """The parsed text, or None if it has a syntax error (cached; do not modify)."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError):
            return None

    def edited(self, text: str) -> "Program":
        """Return a program with another text."""
        return Program(self.name, self.file, text, self.around)

    def make(self) -> Any:
        """Define everything, and return the class or function that is graded.

        Loops and calls are limited: the code raises EndlessError when it runs beyond that. Annotations are left out,
        and the globals of the file are not changed.

        Raises:
            Exception: what the text raises; SyntaxError if it assigns to an attribute of a module.
        """
        tree, around = ast.parse(self.text), {**self.around, ROUND: _counter()}
        for node in list(ast.walk(tree)):
            _bound(node, around)
        exec(compile(tree, self.file, "exec", dont_inherit=True), around)
        return around[self.name]


def _functions(cls: type) -> list[Any]:
    """Return the functions in the body of a class, without inherited ones."""
    return [each for each in vars(cls).values() if inspect.isfunction(each)]


def _block(found: Any, file: str, line: int) -> dict[int, str] | None:
    """Return the lines of a function or a class by their numbers, dedented; None if no line near `line` begins it."""
    lines = linecache.getlines(file)
    named = re.compile(rf"\s*(class|def)\s+{re.escape(found.__name__)}\b")
    nearby = range(line - 1, min(line + 5, len(lines)))
    above = nearby if inspect.isfunction(found) else range(line - 1, -1, -1)
    first = next((each for each in above if each < len(lines) and named.match(lines[each])), None)
    if first is None:
        return None
    block = textwrap.dedent("".join(inspect.getblock(lines[first:]))).splitlines()
    return dict(enumerate(block, first + 1))


def _bound(node: Any, around: Mapping[str, Any]) -> None:
    """Change one node in place, not its children: the caller walks the tree.

    A loop and a function get a call that counts their runs; a function loses the annotations of its arguments and
    result; other nodes stay. SyntaxError for a node that sets or deletes a module's attribute.
    """
    if isinstance(node, ast.For | ast.While | ast.FunctionDef):
        node.body.insert(0, _count(node))
    if isinstance(node, ast.FunctionDef):
        node.returns = None
        for each in (*node.args.args, *node.args.kwonlyargs):
            each.annotation = None
    elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if inspect.ismodule(around.get(owner)):
            raise SyntaxError("a module is not to be changed")


def _count(at: ast.stmt) -> ast.Expr:
    """Return a statement that calls the counter of a program, at the line of the given statement."""
    function = ast.copy_location(ast.Name(ROUND, ast.Load()), at)
    return ast.copy_location(ast.Expr(ast.copy_location(ast.Call(function, [], []), at)), at)


def _counter() -> Callable[[], None]:
    """Return a function that counts its calls, and raises EndlessError above ROUNDS."""
    rounds = itertools.count(1)

    def counted() -> None:
        """Count one call; raise EndlessError above ROUNDS."""
        if next(rounds) > ROUNDS:
            raise EndlessError("its loops, or its calls of itself, do not end")

    return counted


def nodes_of(top: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each node of a tree with the node above it, in the order of the text."""
    for child in ast.iter_child_nodes(top):
        yield child, top
        yield from nodes_of(child)
