"""What learners write in the lessons of the course: right in several ways, the gallery, and further mistakes.

Each file holds the right texts of a lesson and the edits of them that are wrong.
"""

import linecache
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import Any

from clearhead._common.lessons import LESSONS

HEAD = "import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n\n"
_numbers = count()


@dataclass(frozen=True)
class Case:
    """What somebody wrote in a lesson.

    Args:
        lesson: its number.
        codes: the names that are right for its mistake; empty where it is right.
        text: what was written.
        label: what tells it apart.
    """

    lesson: int
    codes: tuple[str, ...]
    text: str
    label: str

    def __str__(self) -> str:
        return f"{self.lesson}: {self.label}"

    def make(self) -> Any:
        """What is graded, with lines that can be read."""
        name = f"lesson_{self.lesson:02d}_{next(_numbers)}.py"
        whole = HEAD + self.text
        linecache.cache[name] = len(whole), None, whole.splitlines(keepends=True), name
        module = ModuleType(name.removesuffix(".py"))
        exec(compile(whole, name, "exec"), module.__dict__)
        names = [each for each in LESSONS[self.lesson].names if hasattr(module, each)]
        return getattr(module, min(names))  # a class, where the function is a part of it


def right(lesson: int, **texts: str) -> list[Case]:
    """Right texts, by their labels."""
    return [Case(lesson, (), text, label) for label, text in texts.items()]


def wrong(lesson: int, codes: str, text: str, *edits: tuple[str, str], label: str = "") -> Case:
    """A right text with edits in it, each of what stands there once; the codes are apart by spaces."""
    for old, new in edits:
        assert text.count(old) == 1, (lesson, old, text.count(old))
        text = text.replace(old, new)
    label = label or " · ".join(new.strip().replace("\n", " ")[:60] for _, new in edits)
    return Case(lesson, tuple(codes.split()), text, label)
