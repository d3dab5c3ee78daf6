"""Cases: a call, and the output that it must have."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.subject.refusals import first_line
from clearhead.recording.attempt import attempt

Inputs = tuple[Tensor, ...]
Call = Callable[..., Tensor]


class Case(NamedTuple):
    """A call, the output that it must have, and the largest difference that is rounding.

    `at` describes the call in a report; `expected` is a tensor, or another call.
    """

    at: str
    call: Call
    expected: Tensor | Call
    tolerance: float


class Broken(NamedTuple):
    """The first case that fails.

    `way` is the key of its sentence, `gap` its relative difference, inf if it raised, and `at` its description.
    """

    way: str
    gap: float
    at: str


def called(run: Call, inputs: Inputs = ()) -> Tensor | Exception:
    """Return the detached output of a call without gradients, or the `Exception` that it raised."""
    with torch.no_grad():
        found = attempt(lambda: run(*inputs).detach())
    return found[0] if found[1] is None else found[1]


def converted(inputs: Iterable[Tensor], dtype: torch.dtype) -> Inputs:
    """Return copies of the inputs, floating-point ones in another dtype."""
    return tuple(
        each.to(dtype, copy=True) if each.is_floating_point() else each.clone() for each in inputs
    )


def gap_of(output: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected number; inf if shapes or finite places differ."""
    return distance(output.detach().double(), expected.detach().double())


def broken(way: str, cases: Iterable[Case], *, refused: str = "") -> Broken | None:
    """Return the first case that fails, under the sentence `way`; None if none does.

    Cases whose expected output raises are left out. One whose call raises is left out too, unless `refused` names the
    sentence for it.
    """
    for case in cases:
        expected = case.expected if isinstance(case.expected, Tensor) else called(case.expected)
        if isinstance(expected, Exception):
            continue
        output = called(case.call)
        if isinstance(output, Tensor):
            gap = gap_of(output, expected)
            if gap > case.tolerance:
                return Broken(way, gap, case.at)
        elif refused:
            return Broken(refused, torch.inf, f"{case.at}: {first_line(output)}")
    return None
