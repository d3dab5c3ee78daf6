"""What a call runs: the lines of the code that is checked, by their operations."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from clearhead.recording.attempt import attempt
from clearhead.recording.callee import Callee
from clearhead.recording.operations import FUSED, PRODUCTS, Operations
from clearhead.recording.recorder import storage_of

# What code calls to compute; the line that is wanted called these.
TOOLS = ("torch", "einops", "opt_einsum", "clearhead")
HALVES = (torch.float16, torch.bfloat16)


class Lines(Operations):
    """What a call runs.

    Attributes:
        found: file and line of each operation, by its number, which is that of the recorder.
        names: of those operations.
        multiplied: numbers that depend on the input were multiplied with each other.
        ended: the call came to its end.
        broke: the first operation that returned NaN from finite inputs, by its name and number.
        halved: the number of the first operation that rounded to 16 bits, and whether it was of the input.
    """

    def __init__(self, inputs: Sequence[Tensor], *, alone: bool = False) -> None:
        super().__init__()
        # To look for NaN are operations too, which a recorder below would count.
        self._alone = alone
        self.found: dict[int, tuple[str, int]] = {}
        self.names: dict[int, str] = {}
        self.multiplied = self.ended = False
        self.broke: tuple[str, int] | None = None
        self.halved: tuple[int, bool] | None = None
        self._kept = list(inputs)  # so that no other tensor lies at the place of one
        self._dependent = set(map(storage_of, inputs))

    @property
    def first_nan(self) -> tuple[str, tuple[str, int] | None] | None:
        """The operation that broke, with its line."""
        return None if self.broke is None else (self.broke[0], self.found.get(self.broke[1]))

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, and note its line."""
        place = _calling(sys._getframe(2))
        self.names.setdefault(self.count, name)
        if place is not None:
            self.found.setdefault(self.count, place)
        found = func(*args, **kwargs)
        given, made = (_tensors(each) for each in ((args, kwargs), found))
        sides = [each for each in given if storage_of(each) in self._dependent]
        if self.halved is None and any(each.dtype in HALVES for each in made):
            self.halved = self.count, bool(sides)
        if sides:
            self._kept += made
            self._dependent.update(map(storage_of, made))
        if self._alone and self.broke is None and _has_nan(made) and not _has_nan(given):
            self.broke = name.rstrip("_"), self.count
        multiplies = name.rstrip("_") in ("mul", *PRODUCTS) or name.startswith(FUSED)
        self.multiplied |= multiplies and len(sides) > 1
        return found


def _tensors(found: Any) -> list[Tensor]:
    """Return the strided tensors in a tree."""
    leaves = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
    return [each for each in leaves if each.layout is torch.strided]


def _has_nan(tensors: list[Tensor]) -> bool:
    """Return True if a floating tensor holds a NaN."""
    return any(each.is_floating_point() and bool(each.isnan().any()) for each in tensors)


def _calling(frame: Any) -> tuple[str, int] | None:
    """File and line of the innermost frame that is no tool's; None where `check` called the tool."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("clearhead.checking.", "clearhead.recording.")):
            return None
        if module.partition(".")[0] not in TOOLS:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def lines_of(subject: Callee, tensors: Sequence[Tensor]) -> Lines:
    """What a call runs, as far as the code bears to be watched."""
    spare = subject.spare()
    turned = [
        each.to(subject.dtype, copy=True) if each.is_floating_point() else each.clone()
        for each in tensors
    ]
    lines = Lines(turned, alone=True)
    with torch.no_grad(), lines:
        # Code that looks at the type of its tensors may fail under a mode.
        _, error = attempt(spare.bare, *turned)
    lines.ended = error is None
    return lines
