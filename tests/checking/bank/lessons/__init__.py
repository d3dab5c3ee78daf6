"""Mistakes that learners make: right code of the tutorials, and edits of its text that make it wrong.

`FIRST` is what `check` is built against, `LATER` what it is judged on once. A code of "" is right.
"""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.checking.bank.entry import Entry

HERE = Path(__file__).parent
TUTORIAL = {"d_in": 3, "d_out": 2, "context_length": 6, "dropout": 0.0}
SPLIT = {"d_in": 3, "d_out": 4, "context_length": 6, "dropout": 0.0, "num_heads": 2}
LAYERS = {"d_in": 3, "d_out": 2}
HEAD = {"d_in": 12, "head_size": 4, "context_length": 8}
HEADS = {**HEAD, "num_heads": 3}


@dataclass(frozen=True)
class Lesson:
    """One edit of a right text.

    Args:
        codes: the names that are right; empty where the edited code is right as well.
        place: file:object, of the files beside this one.
        edits: pairs of what stands there, once, and what is put in its place.
        takes: how it is called.
        args: of the constructor, for a class.
        declared: what its author declares.
    """

    codes: tuple[str, ...]
    place: str
    edits: tuple[tuple[str, str], ...]
    takes: str
    args: Mapping[str, Any] | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        edit = " · ".join(new.strip().replace("\n", " ")[:60] for _, new in self.edits)
        return f"{self.place}: {edit}"

    def make(self) -> Any:
        """The edited object: a class, or a function."""
        file, _, name = self.place.partition(":")
        return getattr(edited(HERE / f"{file}.py", self.edits), name)


def edited(path: Path, edits: tuple[tuple[str, str], ...]) -> ModuleType:
    """A module of the text of a file with edits in it."""
    text = path.read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, (path.name, old, text.count(old))
        text = text.replace(old, new)
    with _compiled(path, text) as module:
        return module


@contextmanager
def _compiled(path: Path, text: str) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_loader(f"lesson_{path.stem}", None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    yield module


def wrong(
    codes: str,
    place: str,
    edits: list[tuple[str, str]],
    takes: str = "x",
    args: Mapping[str, Any] | None = None,
    **declared: Any,
) -> Lesson:
    """A lesson; the codes are apart by spaces."""
    return Lesson(tuple(codes.split()), place, tuple(edits), takes, args, declared)


def entry(lesson: Lesson) -> Entry:
    """A lesson as an entry of the bank."""
    declared = dict(lesson.declared)
    if lesson.args is not None:
        declared["args"] = lesson.args
    if "alibi_slopes" in declared:
        declared["alibi_slopes"] = torch.tensor(declared["alibi_slopes"])
    code, *also = lesson.codes or (None,)
    return Entry(lesson.name, lesson.make, lesson.takes, declared, code, tuple(map(str, also)))
