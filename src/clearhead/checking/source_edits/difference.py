"""The smallest difference between a program and the solution of its lesson that makes the program right."""

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from clearhead.checking.source_edits.edits import SourceEdit
from clearhead.checking.source_edits.program import Program

# Pieces that are told, and lines of each.
PIECES, LINES = 2, 2


class Statement(NamedTuple):
    """A statement, or the head of a compound one: its depth, its text, and its line."""

    depth: int
    text: str
    line: int


class Hunk(NamedTuple):
    """Statements of the program, from start to end, and those of the solution."""

    start: int
    end: int
    new: tuple[Statement, ...]


def difference(
    program: Program, solution: ast.Module, is_right: Callable[[Program], bool]
) -> tuple[SourceEdit | None, list[int]]:
    """Return the smallest difference that makes a program right, as one edit, and its lines.

    (None, lines) if a piece is longer than two lines; (None, []) if there is no difference, if there are more than two
    pieces, or the difference does not make it right: it is then another program, and no line of it is the mistake.

    Args:
        program: of the learner, which can be parsed.
        solution: the lesson's own, under the learner's names; its return annotations are removed in place.
        is_right: grades a program.
    """
    assert program.tree is not None
    mine, theirs = (list(_flat(each.body, 0)) for each in (program.tree, solution))
    texts = ([each[:2] for each in side] for side in (mine, theirs))
    matcher = SequenceMatcher(None, *texts, autojunk=False)
    pieces = [
        piece
        for kind, start, end, first, last in matcher.get_opcodes()
        if kind != "equal"
        for piece in _by_lines(Hunk(start, end, tuple(theirs[first:last])))
    ]
    if not pieces or not is_right(_with(program, mine, pieces)):
        return None, []
    for size in (1, 2):  # a statement that is moved is two pieces
        for some in itertools.combinations(pieces[::-1], size):
            fewer = [each for each in pieces if each not in some]
            if fewer and set(some) <= set(pieces) and is_right(_with(program, mine, fewer)):
                pieces = fewer
    first = [mine[min(each.start, len(mine) - 1)].line for each in pieces]
    lines = [_line(each, mine) for each in pieces] + first
    if len(pieces) > PIECES or any(
        max(each.end - each.start, len(each.new)) > LINES for each in pieces
    ):
        return None, lines if len(pieces) <= PIECES else []
    told = [_told(each, mine) for each in pieces]
    return SourceEdit(first[0], "; ".join(told), _with(program, mine, pieces)), lines


def _by_lines(piece: Hunk) -> Iterator[Hunk]:
    """Yield one piece for each statement where as many are replaced as there are new ones, or else the piece."""
    if piece.end - piece.start != len(piece.new):
        yield piece
        return
    for at, each in enumerate(piece.new, piece.start):
        yield Hunk(at, at + 1, (each,))


def _line(piece: Hunk, mine: Sequence[Statement]) -> int:
    """Return the line of the first statement of a piece that heads no block, else that of its start.

    For a piece without statements of the program it is the line of the statement that it comes before.
    """
    simple = (each.line for each in mine[piece.start : piece.end] if not each.text.endswith(":"))
    return next(simple, mine[min(piece.start, len(mine) - 1)].line)


def _flat(body: Sequence[Any], depth: int) -> Iterator[Statement]:
    """Yield the statements of a block and of the blocks in it, in order; docstrings are left out.

    Return annotations are removed from the tree in place.
    """
    for each in body:
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            continue
        if isinstance(each, ast.FunctionDef):
            each.returns = None
        node: Any = each
        text = ast.unparse(ast.fix_missing_locations(node))
        line = getattr(each, "lineno", 0)
        if not hasattr(each, "body"):
            yield Statement(depth, text, line)
            continue
        yield Statement(depth, text.partition("\n")[0], line)
        yield from _flat(node.body, depth + 1)
        if getattr(node, "orelse", None):
            yield Statement(depth, "else:", node.orelse[0].lineno)
            yield from _flat(node.orelse, depth + 1)


def _with(program: Program, mine: Sequence[Statement], pieces: Sequence[Hunk]) -> Program:
    """Return a new program in which each piece is replaced by its statements of the solution."""
    made = list(mine)
    for each in sorted(pieces, reverse=True):
        made[each.start : each.end] = each.new
    return program.edited("".join(f"{'    ' * each.depth}{each.text}\n" for each in made))


def _told(piece: Hunk, mine: Sequence[Statement]) -> str:
    """Return a piece in words, as "line 3: `old` → `new`", "without `old`" or "`new` before it"."""
    old, new = mine[piece.start : piece.end], piece.new
    line = mine[min(piece.start, len(mine) - 1)].line
    texts = ["; ".join(each.text for each in some) for some in (old, new)]
    change = f"`{texts[0]}` → `{texts[1]}`" if new else f"without `{texts[0]}`"
    return f"line {line}: {change if old else f'`{texts[1]}` before it'}"
