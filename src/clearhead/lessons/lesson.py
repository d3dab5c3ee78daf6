"""A lesson, read from its page."""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clearhead._common.lessons import LESSONS, LessonRow, docs, exercises_of
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError

FENCE = re.compile(r"(`{3,})(\S*) *(.*)")
# What a gallery lists to choose from.
LISTED = re.compile(r"^- `([a-z-]+\.[a-z-]+|differs)`: ", re.MULTILINE)
ROLES = {"write", "solution", "live", "check", "wrong", "train", "exercise", "answer"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a lesson.

    Args:
        role: one of ROLES, `predict`, or the language of any other block.
        words: the text after the role: the code of a mistake; name, answer and tolerance; or the address at which
            a page opens; "" if there is none.
        source: the text inside the fence.
        line: the line of the page on which the source begins, from 1.
    """

    role: str
    words: str
    source: str
    line: int

    @property
    def question(self) -> tuple[str, str, float]:
        """The name, the expression of the answer, and the tolerance, of a `predict` block.

        ValueError for another block.
        """
        name, _, rest = self.words.partition(" ")
        answer, _, tolerance = rest.rpartition(" ")
        return name, answer, float(tolerance)


@dataclass(frozen=True)
class Lesson:
    """One lesson of the course, with its page.

    Args:
        row: its number, title and file, and what is graded.
        parts: the page in order, as strings of Markdown and code blocks.

    Example:
        >>> lesson = read_lesson(1)
        >>> lesson.row.title, lesson.codes[:2]
        ('One number', ('sum.wrong', 'law.pairs'))
    """

    row: LessonRow
    parts: tuple[str | Block, ...]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The code blocks of the page, in order."""
        return tuple(each for each in self.parts if isinstance(each, Block))

    def of_role(self, role: str) -> tuple[Block, ...]:
        """Return the code blocks with the given role, in order."""
        return tuple(each for each in self.blocks if each.role == role)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of mistakes to choose from.

        Those that its page lists, or else those of its row and its `wrong` blocks, sorted.
        """
        listed = [
            name for part in self.parts if isinstance(part, str) for name in LISTED.findall(part)
        ]
        gallery = [each.words for each in self.of_role("wrong")]
        return tuple(listed) or tuple(sorted({*self.row.codes, *gallery}))

    @property
    def starter(self) -> str:
        """The Python file to begin with: a docstring with the command that grades it, the stubs, and the exercises."""
        row = self.row
        ask = f"    clearhead check {row.file} --lesson {row.number}"
        head = f"Lesson {row.number}: {row.title}\n\n`{row.command}` prints the lesson"
        head += f", and `clearhead lesson {row.number} --notebook` makes a notebook of it."
        head += "\nReplace each `...` with your code, then run"
        head = f'"""{head}\n\n{ask}\n"""\n\n'
        return head + "\n\n".join(
            each.source for role in ("write", "exercise") for each in self.of_role(role)
        )

    @property
    def solution(self) -> str:
        """The solutions of the lesson as Python source, without those of its exercises."""
        return "\n\n".join(each.source for each in self.of_role("solution"))

    def broken(self, wrong: Block) -> str:
        """Return the solution in which the definitions of a `wrong` block replace its own.

        StopIteration for an unknown name.
        """
        return replaced(self.solution, wrong.source)


def read_lesson(number: int) -> Lesson:
    """Read the page of a lesson by its number, with its exercises before the recap.

    Raises:
        ArgumentError: code `lesson.number`, if there is no such lesson.
        ArgumentTypeError: code `lesson.number`, if it is not a whole number.

    Example:
        >>> read_lesson(17)
        Traceback (most recent call last):
        ...
        clearhead.errors.ArgumentError: [lesson.number] lesson must be one of 1 to 16; got 17.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise ArgumentTypeError(
            "lesson.number", f"lesson must be a whole number; got {shown(number)}."
        )
    if number not in LESSONS:
        raise ArgumentError(
            "lesson.number", f"lesson must be one of 1 to {max(LESSONS)}; got {number}."
        )
    page = page_of(number).read_text(encoding="utf-8")
    before, heading, after = page.partition("## Recap\n")
    return parse_lesson(LESSONS[number], before + _exercises(number) + heading + after)


def _exercises(number: int) -> str:
    """Return the exercises of a lesson, which must have some, as a section of its page, in Markdown."""
    row, exercises = LESSONS[number], exercises_of(number)
    name = next(iter(exercises))
    head = f"`clearhead check {row.file}:{name} --lesson {number}` grades an exercise by its name."
    pages = "\n".join(each.page() for each in exercises.values())
    return f"## Exercises\n\n{head}\n\n{pages}\n"


def page_of(number: int) -> Path:
    """Return the path of the page of a lesson, a Markdown file; KeyError for a number without a lesson.

    Example:
        >>> page_of(7).name
        '07_not_the_future.md'
    """
    return docs(f"lessons/{LESSONS[number].slug}.md")


def parse_lesson(row: LessonRow, text: str) -> Lesson:
    r"""Return the lesson of a row and the text of its page.

    Example:
        >>> page = "# 1. One number\n\n```python wrong law.pairs\nx = 1\n```\n"
        >>> parse_lesson(LESSONS[1], page).of_role("wrong")[0].line
        4
    """
    return Lesson(row, tuple(_parts(text.splitlines(keepends=True))))


def _parts(lines: list[str]) -> Iterator[str | Block]:
    """Yield the text and the code blocks of a page, in order; text of white space alone is left out.

    A fence that is not closed raises StopIteration, which becomes RuntimeError.
    """
    text, at = "", 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            text, at = text + lines[at], at + 1
            continue
        if text.strip():
            yield text
        ticks, language, words = fence.groups()
        stop = at + 1 + next(i for i, line in enumerate(lines[at + 1 :]) if line.rstrip() == ticks)
        role, _, rest = words.partition(" ")
        if language == "python" and role in ROLES:
            language, words = role, rest
        yield Block(language, words.strip(), "".join(lines[at + 1 : stop]), at + 2)
        text, at = "", stop + 1
    if text.strip():
        yield text


def replaced(source: str, new: str) -> str:
    r"""Return source in which each definition in `new` replaces the first one of the same kind and name.

    A function may also replace a method of a class. Raises StopIteration if there is none.

    Example:
        >>> print(replaced("class A:\n    def f(self):\n        return 1\n", "def f(self):\n    return 2\n"))
        class A:
            def f(self):
                return 2
        <BLANKLINE>
    """
    for definition in ast.parse(new).body:
        assert isinstance(definition, ast.FunctionDef | ast.ClassDef)
        old = next(
            each
            for each in ast.walk(ast.parse(source))
            if isinstance(each, type(definition)) and each.name == definition.name
        )
        lines, put = (
            source.splitlines(),
            new.splitlines()[definition.lineno - 1 : definition.end_lineno],
        )
        lines[old.lineno - 1 : old.end_lineno] = textwrap.indent(
            "\n".join(put), " " * old.col_offset
        ).splitlines()
        source = "\n".join(lines) + "\n"
    return source
