"""The sixteen lessons and their exercises: what each grades, what it promises, and the mistakes that it speaks of.

Nothing here needs PyTorch, so that the command line, the pages and `check` read one table.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LessonRow:
    """A lesson of the course, as one row of the table.

    Attributes:
        number, title: as on its page.
        stem: the file name of its page, without the number.
        names: the names in a learner's file that are graded; the first is that of the starter.
        takes: how it is called, as `check` takes it.
        contract: what the lesson requires, as `check` declares it.
        codes: the mistakes that the lesson explains.
        either: other contracts that are accepted as well.
        sizes: the sizes that a class is made with, where they are not guessed; different primes, and narrow, so that
            scores without a scale do not saturate the softmax.
        named: what one of the names has to fulfil in addition.
        parameters: the names that the parameters must have; () if any names are right.
        headings: the heading on the page under which a mistake is explained, by the beginning of its code.
        calls: the inputs of each call, as expressions, where the solution of the lesson defines what is right.
        made: the arguments that a class is made with for these calls, as text.
        solution: the text of the solution; "" for the one on the page.
    """

    number: int
    stem: str
    title: str
    names: tuple[str, ...]
    takes: str
    codes: tuple[str, ...]
    contract: Mapping[str, Any] = field(default_factory=dict)
    either: tuple[Mapping[str, Any], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    named: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    made: str = ""
    solution: str = ""

    def pointer(self, code: str) -> str:
        """Return where a mistake with this code is explained: lesson, heading and the command that prints them.

        The heading is that of the longest beginning of the code in `headings`, "Write" without any.

        Example:
            >>> LESSONS[9].pointer("state.mask")
            'lesson 9, Two modes, under "A table that is not trained": clearhead lesson 9 --read'
        """
        began = max((each for each in self.headings if code.startswith(each)), key=len, default="")
        heading = self.headings.get(began, "Write")
        return f'lesson {self.number}, {self.title}, under "{heading}": {self.command}'

    @property
    def slug(self) -> str:
        """The name of its page without the ending.

        Example:
            >>> LESSONS[7].slug
            '07_not_the_future'
        """
        return f"{self.number:02d}_{self.stem}"

    @property
    def command(self) -> str:
        """The command that prints the lesson, where clearhead is installed and where it is checked out.

        Example:
            >>> LESSONS[1].command
            'clearhead lesson 1 --read'
        """
        return f"clearhead lesson {self.number} --read"

    @property
    def file(self) -> str:
        """The name of the file that a learner writes.

        Example:
            >>> LESSONS[13].file
            'lesson_13.py'
        """
        return f"lesson_{self.number:02d}.py"

    @property
    def has_out(self) -> bool:
        """True for a lesson with several heads, whose class joins them by a layer with a bias.

        Example:
            >>> LESSONS[10].has_out
            True
        """
        return "num_heads" in self.contract

    @property
    def is_part(self) -> bool:
        """True for a lesson that grades a function of tensors, False for one that grades a class."""
        return self.names[0].islower()


SIZES = tuple(
    {"q": q, "k": k, "d": d, "v": d + 2} for q, k, d in ((3, 5, 2), (5, 3, 2), (5, 5, 3), (1, 1, 2))
)
"""The numbers of queries and keys and the widths that a call is written out for: all different, alike, and 1."""


def _row(calls: Sequence[str] = (), **fields: Any) -> LessonRow:
    """Return the lesson of a row of lessons.toml; a call with {q}, {k}, {d} or {v} becomes one for each of `SIZES`."""
    sized = dict.fromkeys(each.format(**sizes) for each in calls for sizes in SIZES)
    fields |= {name: tuple(each) for name, each in fields.items() if isinstance(each, list)}
    return LessonRow(**fields, calls=tuple(sized))


TABLES = tomllib.loads(
    resources.files("clearhead._common").joinpath("lessons.toml").read_text(encoding="utf-8")
)
LESSONS: Mapping[int, LessonRow] = {each["number"]: _row(**each) for each in TABLES["lessons"]}
REASONS: Mapping[str, str] = TABLES["reasons"]
"""The effect of each mistake, in the words of the lessons."""


def lessons_of(code: str) -> tuple[LessonRow, ...]:
    """Return the lessons that explain a mistake, by its code, in their order; () if none does.

    Example:
        >>> [each.slug for each in lessons_of("mask.inverted")]
        ['07_not_the_future']
    """
    return tuple(each for each in LESSONS.values() if code in each.codes)


PACKAGE = Path(__file__).resolve().parent.parent


def docs(name: str) -> Path:
    """Return the path of a page or folder of the docs: in the installed package, else in the checkout around it.

    The second path is returned even if nothing is there.

    Example:
        >>> docs("lessons/01_one_number.md").is_file()
        True
    """
    installed = PACKAGE / "docs" / name
    return installed if installed.exists() else PACKAGE.parents[1] / "docs" / name


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
        """The name of the function or class that is graded."""
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
    """Return the exercise of a lesson that grades `name`, from the fields of its row in the file.

    Raises KeyError if a field other than `made` is missing.
    """
    row = replace(
        lesson, names=(name,), takes="", contract={}, either=(), calls=tuple(fields["calls"]),
        made=fields.get("made", ""), headings={"": "Exercises"},
        solution=f"import torch\nfrom torch import nn\n\n\n{fields['solution']}",
    )  # fmt: skip
    same = {each: fields[each] for each in ("title", "stars", "ask", "stub", "why")}
    return Exercise(row, hints=tuple(fields["hints"]), **same)
