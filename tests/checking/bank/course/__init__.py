"""What learners write in the lessons of the course: one file a lesson, of right programs, and of wrong ones.

A wrong program is an edit of a right one, as a diff whose pieces `@` separates, or a whole text. With it are the codes
that are true of it, and the line, without the imports, that `check` named when the bank was frozen.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead._common.lessons import LESSONS
from clearhead.checking.words import code_of
from tests.checking.bank.texts import digest, module_of, patched

HERE = Path(__file__).parent
HEAD = "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n\n"


@dataclass(frozen=True)
class Case:
    """What somebody wrote in a lesson.

    Args:
        lesson: its number.
        codes: the names that are true of its mistake; empty if it is right.
        text: what was written.
        label: a name of the case.
        line: of the file, that a report named when the bank was frozen.
        is_named: whether a report has one of the codes, or an edit that mends it.
        is_placed: whether a report has that line, or an edit that mends it.
    """

    lesson: int
    codes: tuple[str, ...]
    text: str
    label: str
    line: int | None = None
    is_named: bool = True
    is_placed: bool = True

    def __str__(self) -> str:
        return f"{self.lesson}: {self.label}"

    def make(self) -> Any:
        """Define it in a file whose lines can be read, and return what is graded."""
        return made(self.lesson, HEAD + self.text)


def made(lesson: int, whole: str) -> Any:
    """Define a whole file, and return what the lesson grades of it."""
    module = module_of(f"lesson_{lesson:02d}_{digest(whole)}", whole)
    names = [each for each in LESSONS[lesson].names if hasattr(module, each)]
    return getattr(module, min(names))  # a class, where the function is a part of it


def cases_of(lesson: int) -> list[Case]:
    """The cases of one lesson, the right ones first."""
    data = tomllib.loads((HERE / f"{LESSONS[lesson].slug}.toml").read_text(encoding="utf-8"))
    right = {each["label"]: each["text"] for each in data["right"]}
    found = [Case(lesson, (), text, label) for label, text in right.items()]
    for each in data["wrong"]:
        text = each.get("text") or patched(right[each["of"]], each["diff"])
        line = HEAD.count("\n") + each["line"] if "line" in each else None
        known = each.get("named", True), each.get("placed", True)
        found.append(
            Case(lesson, tuple(map(code_of, each["codes"])), text, each["label"], line, *known)
        )
    return found


CASES = [case for lesson in LESSONS for case in cases_of(lesson)]


def program(lesson: int, label: str) -> str:
    """A right program by its label."""
    return next(each.text for each in CASES if (each.lesson, each.label) == (lesson, label))
