"""The exercises of the lessons: rows of docs/lessons/exercises, each graded next to its own solution."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from clearhead._common.docs_pages import docs
from clearhead._common.lessons import LESSONS, LessonRow


@dataclass(frozen=True)
class Exercise:
    """An exercise of a lesson.

    Attributes:
        row: what is graded: the row of the lesson with the name, the calls and the solution of the exercise.
        title: a heading.
        stars: how hard it is, 1 to 3.
        ask: the task.
        hints: from a first step to nearly all of it.
        stub: the code to fill in or to mend.
        why: why the solution is right.
    """

    row: LessonRow
    title: str
    stars: int
    ask: str
    hints: tuple[str, ...]
    stub: str
    why: str

    @property
    def name(self) -> str:
        """The name of the function or class."""
        return self.row.names[0]

    def page(self) -> str:
        """Return the exercise as Markdown, with blocks as in a lesson."""
        blocks = [("python exercise", self.stub), *(("hint", f"{each}\n") for each in self.hints)]
        blocks += [("python answer", self.row.solution), ("why", f"{self.why}\n")]
        code = "\n\n".join(f"```{role}\n{source}```" for role, source in blocks)
        return f"### {'★' * self.stars} {self.title}\n\n{self.ask}\n\n{code}\n"


@cache
def exercises_of(number: int) -> Mapping[str, Exercise]:
    """Return the exercises of a lesson by their names, the easiest first; read from its file once, then cached.

    The mapping is shared: do not change it. Raises KeyError for a lesson that is not there.

    Example:
        >>> [exercise.stars for exercise in exercises_of(7).values()]
        [1, 2, 3]
    """
    lesson = LESSONS[number]
    file = docs(f"lessons/exercises/{lesson.slug}.toml")
    rows = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: _exercise(lesson, name, each) for name, each in rows.items()}


def _exercise(lesson: LessonRow, name: str, fields: Mapping[str, Any]) -> Exercise:
    """Return an exercise from the fields of its row; KeyError if one but `made` is missing."""
    row = replace(
        lesson, names=(name,), takes="", contract={}, either=(), calls=tuple(fields["calls"]),
        made=fields.get("made", ""), headings={"": "Exercises"},
        solution=f"import torch\nfrom torch import nn\n\n\n{fields['solution']}",
    )  # fmt: skip
    same = {each: fields[each] for each in ("title", "stars", "ask", "stub", "why")}
    return Exercise(row, hints=tuple(fields["hints"]), **same)
