"""The first statement of a program that computes a value which the solution of its lesson does not have."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import role
from clearhead.checking.source_edits.program import Program
from clearhead.recording.thresholds import SUMS

# Statements that are recorded: a program with a loop inside a loop has many.
MOST = 2000
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)


class Step(NamedTuple):
    """One statement that ran, or the arguments of a call: its line, what it read, and the tensors by their names."""

    line: int
    reads: frozenset[str]
    values: Mapping[str, Tensor]
    is_call: bool = False


def _recorded(program: Program, run: Callable[[Any], Any]) -> list[Step]:
    """Run a program, and return its statements with the tensors that they assigned or returned."""
    assert program.tree is not None
    statements = {
        line: node
        for node in ast.walk(program.tree)
        if isinstance(node, SIMPLE)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    steps: list[Step] = []
    pending: dict[FrameType, ast.stmt | None] = {}

    def ended(frame: FrameType, returned: Any = None) -> None:
        node = pending.get(frame)
        if node is not None and len(steps) < MOST:
            is_end = isinstance(node, ast.Return)
            found = {"return": returned} if is_end else _assigned(node, frame.f_locals)
            values = {name: one for name, each in found.items() for one in _tensors(each)}
            steps.append(Step(node.lineno, frozenset(_names(node)), _copied(values)))

    def traced(frame: FrameType, event: str, returned: Any) -> Any:
        if frame.f_code.co_filename != program.file or frame.f_code.co_name.startswith("<"):
            return None
        if event == "call":
            given = {name: one for name, each in frame.f_locals.items() for one in _tensors(each)}
            steps.append(Step(frame.f_lineno, frozenset(), _copied(given), is_call=True))
        elif event == "line" and statements.get(frame.f_lineno) is not pending.get(frame):
            ended(frame)
            pending[frame] = statements.get(frame.f_lineno)
        elif event == "return":
            ended(frame, returned)
            pending.pop(frame, None)
        return traced

    before = sys.gettrace()
    try:
        made = program.make()
        sys.settrace(traced)
        run(made)
    except Exception:  # what ran until then is recorded
        pass
    finally:
        sys.settrace(before)
    return steps


def _assigned(node: ast.stmt, names: Mapping[str, Any]) -> dict[str, Any]:
    """What a statement wrote to: names, attributes of self, and what a method changed in place."""
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    value = getattr(node, "value", None)
    if isinstance(node, ast.Expr) and isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute):
            targets = [value.func.value]
        if value.args and isinstance(value.args[0], ast.Constant):  # register_buffer
            held = getattr(names.get("self"), str(value.args[0].value), None)
            return {f"self.{value.args[0].value}": held}
    written = {name for each in targets if each is not None for name in _names(each)}
    own = vars(names["self"]) if isinstance(names.get("self"), nn.Module) else {}
    return {
        name: own.get(name[5:]) if name.startswith("self.") else names.get(name) for name in written
    }


def _names(node: ast.AST) -> Iterator[str]:
    """The names and attributes of self in a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif (
            isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
        ):
            yield f"self.{each.attr}"


def _tensors(value: Any) -> list[Tensor]:
    several = value if isinstance(value, list | tuple) else [value]
    return [
        each for each in several if isinstance(each, Tensor) and not isinstance(each, nn.Parameter)
    ]


def _copied(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: each.detach().double().clone() for name, each in values.items()}


class Known:
    """The values of a solution."""

    def __init__(self, steps: list[Step]) -> None:
        self.values: dict[tuple[int, ...], list[Tensor]] = {}
        self.named: dict[tuple[str, tuple[int, ...]], list[Tensor]] = {}
        for step in steps:
            for name, each in step.values.items():
                self.values.setdefault(_shape(each), []).append(each)
                self.named.setdefault((name, _shape(each)), []).append(each)

    def has(self, name: str, value: Tensor) -> bool:
        """Return whether the solution has a value; of a query, a key or a value under its name."""
        own = self.named.get((name, _shape(value))) if role(name) is not None else None
        return any(
            torch.allclose(each.reshape(value.shape), value, rtol=SUMS, atol=SUMS, equal_nan=True)
            for each in own or self.values.get(_shape(value), [])
        )


def _shape(value: Tensor) -> tuple[int, ...]:
    return tuple(size for size in value.shape if size != 1)


def first_wrong_lines(
    program: Program, solution: ast.Module, run: Callable[[Any], Any]
) -> list[int]:
    """Return the line of the first statement whose inputs are values of the solution and whose result is not, if any.

    A value that leads to one of the solution is right, however it is written. Nothing is returned if the program gets
    other inputs than the solution, as one that draws other parameters does.

    Args:
        program: of the learner.
        solution: the lesson's own, under the learner's names.
        run: grades what a program defines.
    """
    theirs = program.edited(ast.unparse(ast.fix_missing_locations(solution)))
    if theirs.tree is None:
        return []
    known, steps = Known(_recorded(theirs, run)), _recorded(program, run)
    first = next((each for each in steps if each.is_call and each.values), None)
    if first is None or not all(known.has(*each) for each in first.values.items()):
        return []
    suspects: dict[str, int | None] = {}
    lines: dict[int | None, None] = {}
    for step in steps:
        for name, value in step.values.items():
            read = [suspects[each] for each in step.reads if each in suspects and each != name]
            if known.has(name, value):
                suspects.pop(name, None)
                for line in read:
                    lines.pop(line, None)
            elif read or step.is_call:
                suspects[name] = None
            else:
                suspects[name] = step.line
                lines[step.line] = None
    return [line for line in lines if line is not None][:1]
