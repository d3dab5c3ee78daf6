"""The lines of a program where its numbers leave those of the right result."""

import sys
from typing import Any

import torch
from torch import Tensor

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
# Mistakes whose line is one that draws numbers, or one that cuts off a gradient.
NOTED = {
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
        changed: the lines whose numbers, or whose rows and columns, occur nowhere outside, as they ran. Where a
            constant of the file causes it, such as a mask, it is the line of the constant.
        last: the last line that computes with an input; 0 if none does.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.drawn: list[int] = []
        self.cut: list[int] = []
        self.changed: list[int] = []
        self.last = 0
        self._outside: list[Tensor] = []
        self._known, self._rows = torch.empty(0), torch.empty(0)
        self._kept: list[Tensor] = []  # so that no other tensor lies at the place of one
        self._read: set[int] = set()
        self._constants: dict[int, tuple[int, bool]] = {}

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and return its result; note its line, or its numbers outside of the file."""
        found = func(*args, **kwargs)
        line, is_making = self._calling(sys._getframe(2))
        given, made = (tensors_in_tree(each) for each in ((args, kwargs), found))
        self._kept += made
        if line is None:
            self._outside += [each.detach().clone() for each in made if each.is_floating_point()]
            self._read.update(map(storage_of, made))
            return found
        if name in RANDOM and not is_making:
            self.drawn.append(line)
        # A leaf is a parameter, whose gradient is not lost where it is read.
        with_gradient = any(each.requires_grad and not each.is_leaf for each in given)
        if with_gradient and (name in CUTS or not torch.is_grad_enabled()):
            self.cut.append(line)
        self._learn()
        fixed = [self._constants[at] for at in map(storage_of, given) if at in self._constants]
        wrong = [at for at, is_wrong in fixed if is_wrong]
        is_unknown = not all(_occur(_numbers(each), self._known) for each in made)
        if not self._read & set(map(storage_of, given)):
            at = min(wrong, default=line), bool(wrong) or (is_unknown and not is_making)
            self._constants.update((storage_of(each), at) for each in made)
            return found
        self._read.update(map(storage_of, made))
        self.last = line
        if is_unknown:
            self.changed.append(min(wrong, default=line))
        elif not name.startswith(FILLED) and not all(map(self._has_rows, made)):
            masks = [at for at, _ in fixed] if any(map(_is_hiding, made)) else []
            self.changed.append(max(masks, default=line))
        return found

    def lines(self, code: str) -> list[int]:
        """Return the line of a mistake with this code, [] if no line did what `NOTED` says of it.

        For other codes it is the first in `changed`; without any, `last`, which puts right numbers together wrongly.
        """
        if code in NOTED:
            return getattr(self, NOTED[code])[:1]
        if self.changed:
            return self.changed[:1]
        return [self.last] if self.last else []

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
        tables = [each for each in self._outside if each.ndim > 1 and each.numel()]
        powers = [one for each in tables for one in _powers(each)]
        parts = [self._known, torch.tensor([0.0, 1.0]), *self._outside, *powers]
        self._known = torch.cat([_numbers(each) for each in parts]).unique()
        rows = [one for each in tables for one in _signatures(each)]
        self._rows = torch.cat([self._rows, *rows]).unique()
        self._outside = []

    def _has_rows(self, made: Tensor) -> bool:
        """Return True if all rows occur outside, or all columns; True for integers, bools and one axis."""
        if not made.is_floating_point() or made.ndim < 2 or not made.numel():
            return True
        return any(_occur(each, self._rows) for each in _signatures(made))


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


def _signatures(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return a number for each row, and one for each column, equal for the same visible numbers in any order."""
    one = tensor.detach().double()
    each = torch.where(one.abs() < HIDDEN, 2 + torch.cos(3.7 * one), 0.0)
    return each.sum(-1).flatten(), each.sum(-2).flatten()


def _is_hiding(tensor: Tensor) -> bool:
    """Return True if some scores are hidden."""
    return tensor.is_floating_point() and bool((tensor.abs() >= HIDDEN).any())


def _occur(numbers: Tensor, known: Tensor) -> bool:
    """Return True if each number is one of the known ones, to rounding."""
    if not numbers.numel() or len(known) < 2:
        return not numbers.numel()
    at = torch.searchsorted(known, numbers).clamp(1, len(known) - 1)
    gap = (numbers[:, None] - known[torch.stack([at - 1, at], -1)]).abs().amin(-1)
    return bool((gap <= SUMS * (1 + numbers.abs())).all())
