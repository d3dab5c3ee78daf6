"""A lesson as one session, from top to bottom: what its blocks print, answer, draw and are graded.

A solution runs in the place of its stub. A block that trains does so for a few steps where the session is `brief`, and
what it and the blocks below print is not held against the page then.
"""

import ast
import contextlib
import importlib.util
import io
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from clearhead.checking import Report
from clearhead.errors import MissingExtraError
from clearhead.lessons.lesson import Block, Lesson

STEPS = re.compile(r"^steps = \d+", re.MULTILINE)
SEED = 0


@dataclass(frozen=True)
class Shown:
    """The argument of `ch.view`: a thing, and how its page begins."""

    thing: Any
    options: dict[str, Any]


@dataclass
class Session:
    """A lesson that was run.

    Args:
        lesson: the lesson.
        folder: where its files are written; the working folder meanwhile.
        brief: train for three steps, and end where a sample is needed that is not installed.
        printed: by the line of each block, what it printed.
        answers: by its name, the answer of each question.
        live: by the line of each `live` block, what it ends in.
    """

    lesson: Lesson
    folder: Path
    brief: bool = True
    namespace: dict[str, Any] = field(default_factory=dict)
    printed: dict[int, str] = field(default_factory=dict)
    answers: dict[str, float] = field(default_factory=dict)
    live: dict[int, object] = field(default_factory=dict)

    def run(self) -> "Session":
        torch.manual_seed(SEED)
        module = self.load(self.lesson.solution, f"lesson_{self.lesson.row.number:02}")
        missing = [MissingExtraError] if self.brief else []
        with contextlib.chdir(self.folder), contextlib.suppress(*missing):
            for block in self.lesson.blocks:
                if block.role == "solution":
                    self.namespace |= {
                        name: each for name, each in vars(module).items() if name[:2] != "__"
                    }
                elif block.role == "predict":
                    name, answer, _ = block.question
                    self.answers[name] = float(eval(answer, self.namespace))
                elif block.role in ("python", "check", "live", "train"):
                    self._run(block)
        return self

    def _run(self, block: Block) -> None:
        source = block.source
        if block.role == "train":
            assert STEPS.search(source), f"line {block.line}: a block that trains has steps = …"
            source = STEPS.sub("steps = 3", source) if self.brief else source
        # Lines are those of the block, which is what a learner sees; the name says where that stands.
        tree = ast.parse(source)
        name = f"{self.lesson.row.slug}.md, block of line {block.line}"
        last = tree.body.pop() if block.role == "live" else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, name, "exec"), self.namespace)
            if last is not None:
                assert isinstance(last, ast.Expr), f"line {block.line}: ends in nothing to see"
                self.live[block.line] = self._seen(last.value)
        self.printed[block.line] = printed.getvalue()

    def _seen(self, made: ast.expr) -> object:
        """The value of an expression; of a widget, what it shows and how."""
        if isinstance(made, ast.Call) and ast.unparse(made.func) == "ch.view":
            options = {str(each.arg): self._value(each.value) for each in made.keywords}
            return Shown(self._value(made.args[0]), options)
        return self._value(made)

    def _value(self, made: ast.expr) -> Any:
        return eval(
            compile(ast.Expression(made), f"{self.lesson.row.slug}.md", "eval"), self.namespace
        )

    @property
    def held(self) -> list[tuple[Block, str]]:
        """Each output that stands on the page, with what was printed."""
        found: list[tuple[Block, str]] = []
        loose = False
        for above, block in zip(self.lesson.blocks, self.lesson.blocks[1:], strict=False):
            loose = loose or (self.brief and above.role == "train")
            if block.role == "text" and above.line in self.printed and not loose:
                found.append((block, self.printed[above.line]))
        return found

    def load(self, source: str, name: str) -> ModuleType:
        """A file of this source as a module, whose lines a report can show."""
        path = self.folder / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def grade(self, source: str) -> list[Report]:
        """The reports of the lesson's checks on another file: a stub, or a broken solution."""
        name = f"lesson_{self.lesson.row.number:02}_{len(list(self.folder.iterdir()))}"
        module = self.load(source, name)
        namespace = self.namespace | vars(module)
        try:
            with contextlib.chdir(self.folder):
                return [eval(each, namespace) for each in self._checks()]
        finally:
            del sys.modules[name]

    def _checks(self) -> list[Any]:
        """Each call of `ch.check` in the blocks that grade."""
        return [
            compile(ast.Expression(node), f"{self.lesson.row.slug}.md", "eval")
            for block in self.lesson.of_role("check")
            for node in ast.walk(ast.parse(block.source))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ch.check"
        ]
