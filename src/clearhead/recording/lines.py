"""What a call runs: the lines of the code that is checked, by their operations."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from clearhead.recording.attempt import attempt
from clearhead.recording.operations import FUSED, PRODUCTS, Operations
from clearhead.recording.recorder import storage_of

# What code calls to compute; the line that is wanted called these.
TOOLS = ("torch", "einops", "opt_einsum", "clearhead")
HALVES = (torch.float16, torch.bfloat16)


class Lines(Operations):
    """The file and line of each operation of a call, and what the operations did.

    Attributes:
        found: (file, line) of each operation, by its number, as the recorder counts; no entry where only tools called
            it.
        names: the name of each operation, by its number.
        multiplied: True if two tensors that depend on the input were multiplied, by a matrix product or elementwise.
        ended: True if the call returned; False if it raised. Set by `lines_of`.
        broke: (name, number) of the first operation that returned NaN from inputs without NaN; None if there is none or
            `alone` is False.
        halved: (number, whether it read the input) of the first operation that returned float16 or bfloat16; None
            without.
    """

    def __init__(self, inputs: Sequence[Tensor], *, alone: bool = False) -> None:
        """Take the inputs that operations depend on; `alone` checks for NaN, which needs that no recorder is active."""
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
        """The name of the operation in `broke`, and its (file, line), None if unknown; None if no NaN arose."""
        return None if self.broke is None else (self.broke[0], self.found.get(self.broke[1]))

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and return its result.

        Update the attributes, and keep results that depend on the input alive.
        """
        place = _calling(sys._getframe(2))
        self.names.setdefault(self.count, name)
        if place is not None:
            self.found.setdefault(self.count, place)
        found = func(*args, **kwargs)
        given, made = (tensors_in_tree(each) for each in ((args, kwargs), found))
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


def tensors_in_tree(found: Any) -> list[Tensor]:
    """Return the tensors in a tree that have strides; sparse ones and other leaves are left out."""
    leaves = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
    return [each for each in leaves if each.layout is torch.strided]


def _has_nan(tensors: list[Tensor]) -> bool:
    """Return True if a floating-point tensor holds a NaN; False for no tensors."""
    return any(each.is_floating_point() and bool(each.isnan().any()) for each in tensors)


def _calling(frame: Any) -> tuple[str, int] | None:
    """Return (file, line) of the innermost frame outside the modules of `TOOLS`.

    None if a frame of `clearhead.checking` or `clearhead.recording` is reached first, or no frame is left.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("clearhead.checking.", "clearhead.recording.")):
            return None
        if module.partition(".")[0] not in TOOLS:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def lines_of(call: Callable[..., Any], inputs: Sequence[Tensor]) -> Lines:
    """Call a function without gradient, and return the lines that ran.

    An error of the call is caught: `ended` is then False, and the lines are those up to it.
    """
    lines = Lines(inputs, alone=True)
    with torch.no_grad(), lines:
        # Code that looks at the type of its tensors may fail under a mode.
        _, error = attempt(call, *inputs)
    lines.ended = error is None
    return lines
