"""The lines of a program where its numbers leave those of the right result."""

import ast
import sys
from collections.abc import Set
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.checking.thresholds import ROUNDING
from clearhead.recording.lines import tensors_in_tree
from clearhead.recording.operations import RANDOM, Operations
from clearhead.recording.recorder import storage_of
from clearhead.recording.thresholds import SUMS

# A score of this size is hidden, as one of -inf is.
HIDDEN = 1e6
# Operations that take a tensor for its shape.
FILLED = ("empty", "zeros", "ones", "full", "new_")
# Operations whose result has no gradient.
CUTS = ("detach", "_local_scalar_dense", "argmax")
# Mistakes whose line is the first of an attribute of `Departures`, whatever other line is known.
NOTED = {
    "law.samples": "changed",
    "output.non-finite": "changed",
    "law.again": "drawn",
    "dropout.wrong": "drawn",
    "dropout.never": "drawn",
    "grad.wrong": "cut",
}


class Departures(Operations):
    """Lines of a file whose numbers do not occur in what is computed outside of it.

    Outside are the inputs and the right result, which must be computed before the file's own.

    Attributes:
        drawn: the lines outside of `__init__` that draw random numbers, as they ran.
        cut: the lines that read a tensor with a gradient and whose result has none, as they ran.
        changed: the first line whose numbers, or whose rows and columns, occur nowhere outside. Where a constant of the
            file causes it, such as a mask, it is the line of the constant.
        moved: the lines that put right numbers into other rows and columns, from which that in `changed` computes.
        ran: the lines that ran in the call of that in `changed`, up to it.
        last: the last line that computes with an input; 0 if none does.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.drawn: list[int] = []
        self.cut: list[int] = []
        self.changed: list[int] = []
        self.moved: list[int] = []
        self.ran: set[int] = set()
        self.last = 0
        self._outside: list[Tensor] = []
        self._known, self._rows, self._runs = (torch.empty(0) for _ in range(3))
        self._kept: list[Tensor] = []  # so that no other tensor lies at the place of one
        self._read: set[int] = set()
        self._constants: dict[int, tuple[int, bool]] = {}
        self._moved: dict[tuple[Any, ...], int] = {}

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and return its result; note its line, or its numbers outside of the file."""
        found = func(*args, **kwargs)
        line, is_making = self._calling(sys._getframe(2))
        given, made = (
            [
                torch.view_as_real(each) if each.is_complex() else each
                for each in tensors_in_tree(tree)
            ]
            for tree in ((args, kwargs), found)
        )
        self._kept += made
        if line is None:
            self._outside += [each.detach().clone() for each in made if each.is_floating_point()]
            self._read.update(map(storage_of, made))
            self.ran = self.ran if self.changed else set()
            return found
        if not self.changed:
            self.ran.add(line)
        if name in RANDOM and not is_making:
            self.drawn.append(line)
        # A leaf is a parameter, whose gradient is not lost where it is read.
        with_gradient = any(each.requires_grad and not each.is_leaf for each in given)
        if with_gradient and (name in CUTS or not torch.is_grad_enabled()):
            self.cut.append(line)
        if self.changed:  # of these the first alone counts
            return found
        self._learn()
        fixed = [self._constants[at] for at in map(storage_of, given) if at in self._constants]
        wrong = [at for at, is_wrong in fixed if is_wrong]
        is_unknown = not all(_occur(_numbers(each), self._known, SUMS) for each in made)
        moved = [self._moved[at] for at in map(_place, given) if at in self._moved]
        at = min(wrong + moved, default=line)
        if not self._read & set(map(storage_of, given)):
            has_numbers = any(each.is_floating_point() for each in made)
            is_wrong = is_unknown and not is_making if has_numbers else bool(wrong)
            self._constants.update((storage_of(each), (at, is_wrong)) for each in made)
            return found
        self._read.update(map(storage_of, made))
        self.last = line
        for each in made if not name.startswith(FILLED) else []:
            self._moved.pop(_place(each), None)
            if self._is_moved(each):
                self._moved[_place(each)] = at
        if is_unknown or not (name.startswith(FILLED) or all(map(self._has_rows, made))):
            is_masked = not is_unknown and any(map(_is_hiding, made))
            self.moved = moved
            self.changed.append(max((one for one, _ in fixed if is_masked), default=at))
        return found

    def lines(self, code: str) -> list[int]:
        """Return the line of a mistake with this code, [] if no line did what `NOTED` says of it.

        For other codes it is the first in `changed`; without any, `last`, which puts right numbers together wrongly.
        """
        noted = getattr(self, NOTED[code]) if code in NOTED else self.changed or [self.last]
        return [line for line in noted[:1] if line]

    def _calling(self, frame: Any) -> tuple[int | None, bool]:
        """Return the innermost line of the file that runs, None if none does, and whether an `__init__` of it does."""
        line, is_making = None, False
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                line = line or frame.f_lineno
                is_making |= frame.f_code.co_name == "__init__"
            frame = frame.f_back
        return line, is_making

    def _learn(self) -> None:
        """Add what was computed outside since the last time to the known numbers and rows."""
        if not self._outside:
            return
        outside = {(each.shape[-2:], each.sum().item()): each for each in self._outside}.values()
        powers = [one for each in outside if _is_table(each) for one in _powers(each)]
        parts = [self._known, torch.tensor([0.0, 1.0]), *outside, *powers]
        self._known = torch.cat([_numbers(each) for each in parts]).unique()
        tables = [each for each in (*outside, *powers) if _is_table(each)]
        rows = [side.flatten() for each in tables for side in _signatures(each)]
        self._rows = torch.cat([self._rows, *rows]).unique()
        self._runs = torch.cat([self._rows, self._runs, *map(_runs, tables)]).unique()
        self._outside = []

    def _has_rows(self, made: Tensor) -> bool:
        """Return True if all rows occur outside, or all columns; True for integers, bools and one axis.

        Without hidden numbers a row occurs if it is a part of one.
        """
        known = self._rows if _is_hiding(made) else self._runs
        return not _is_table(made) or any(_occur(each, known) for each in _signatures(made))

    def _is_moved(self, made: Tensor) -> bool:
        """Return True if a row or a column of several numbers occurs nowhere outside, nor as a part of one."""
        sides = zip(made.shape[:-3:-1], _signatures(made), strict=True) if _is_table(made) else ()
        return not all(_occur(each, self._runs) for size, each in sides if size > 1)


def skipped_if(tree: ast.Module, line: int, ran: Set[int]) -> int:
    """Return the line of the last `if` before a line, in its function, that skips a name which the line reads.

    The line itself if there is none.

    Args:
        tree: the program.
        line: one that reads wrong numbers.
        ran: the lines that ran; an `if` without `else` is skipped if none of its block is one.
    """
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    around = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    nodes: list[Any] = [node for each in around[-1:] for node in ast.walk(each)]
    names = [(each.id, each.lineno, each.ctx) for each in nodes if isinstance(each, ast.Name)]
    read = {name for name, at, use in names if at == line and isinstance(use, ast.Load)}
    found = line
    for node in nodes:
        if isinstance(node, ast.If) and not node.orelse and (node.end_lineno or 0) < line:
            block = {*range(node.lineno + 1, (node.end_lineno or 0) + 1)}
            stored = {name for name, at, use in names if at in block and isinstance(use, ast.Store)}
            found = node.lineno if stored & read and not ran & block else found
    return found


def _powers(scores: Tensor) -> list[Tensor]:
    """Return the powers of scores, those that a softmax has inside, and the sums of their rows."""
    made = [scores.exp(), (scores - scores.amax(-1, keepdim=True)).exp()]
    return [*made, *(each.sum(-1) for each in made)]


def _numbers(tensor: Tensor) -> Tensor:
    """Return the visible numbers of a tensor in one row, in float64; none for integers and bools."""
    if not tensor.is_floating_point():
        return torch.empty(0)
    flat = tensor.detach().double().flatten()
    return flat[flat.abs() < HIDDEN]


def _signs(tensor: Tensor) -> Tensor:
    """Return a number for each number of a tensor, 0 for a hidden one, whose sums identify rows in any order."""
    one = tensor.detach().double()
    return torch.where(one.abs() < HIDDEN, 2 + torch.cos(3.7 * one), 0.0)


def _signatures(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return a number for each row, and one for each column, equal for the same visible numbers in any order."""
    signs = _signs(tensor)
    return signs.sum(-1).flatten(), signs.sum(-2).flatten()


def _runs(tensor: Tensor) -> Tensor:
    """Return in one row the signatures of all parts of rows and of columns: numbers next to each other."""
    signs = _signs(tensor)
    sums = (nn.functional.pad(each.cumsum(-1), (1, 0)) for each in (signs, signs.mT))
    made = torch.cat([(each[..., None] - each[..., None, :]).flatten() for each in sums])
    return made[made >= 0]


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return what identifies the numbers of a tensor in memory; equal for all tensors that share them all."""
    return storage_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()


def _is_table(tensor: Tensor) -> bool:
    """Return True for floating-point numbers in two axes or more; False without numbers."""
    return tensor.is_floating_point() and tensor.ndim > 1 and tensor.numel() > 0


def _is_hiding(tensor: Tensor) -> bool:
    """Return True if some scores are hidden."""
    return tensor.is_floating_point() and bool((tensor.abs() >= HIDDEN).any())


def _occur(numbers: Tensor, known: Tensor, rounding: float = ROUNDING[torch.float64]) -> bool:
    """Return True if each number is one of the known ones, to rounding."""
    if not numbers.numel() or len(known) < 2:
        return not numbers.numel()
    at = torch.searchsorted(known, numbers).clamp(1, len(known) - 1)
    gap = (numbers[:, None] - known[torch.stack([at - 1, at], -1)]).abs().amin(-1)
    return bool((gap <= rounding * (1 + numbers.abs())).all())
