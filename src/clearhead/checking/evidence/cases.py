"""Cases: a call and the output that it must have; the laws that are cases, and how inputs come into a call."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.subject.refusals import first_line
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import ROUNDING
from clearhead.recording.attempt import attempt
from clearhead.recording.operations import Unfilled
from clearhead.recording.recorder import Recorder, storage_of
from clearhead.recording.thresholds import MOVES

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


def in_turn(subject: Subject, calls: Sequence[Inputs]) -> Iterator[Case]:
    """Yield cases: calls of one copy, one after the other, each compared with the same call of a fresh copy."""
    copy = subject.fresh()
    for number, inputs in enumerate(calls):
        at = f"call {number + 1}, {list(inputs[0].shape)}"
        fresh = partial(subject.fresh(), *inputs)
        yield Case(at, partial(copy, *inputs), fresh, MOVES[subject.dtype])


def reseeded(subject: Subject, inputs: Inputs) -> bool:
    """Return True if the caller's random numbers after a call are the same from two seeds; False if the call raises.

    The global generator is seeded.
    """
    after = []
    for seed in (11, 12):
        torch.manual_seed(seed)
        if isinstance(called(subject.spare(), inputs), Exception):
            return False
        after.append(torch.rand(2))
    return torch.equal(*after)


def by_samples(subject: Subject, inputs: Inputs, output: Tensor) -> Iterator[Case]:
    """Yield cases: the last sample alone, and all samples in reverse order, each compared with the batch.

    Nothing for one sample, or an output without a batch.
    """
    batch = inputs[0].shape[0]
    if batch < 2 or output.shape[:1] != (batch,):
        return
    for places in [batch - 1], list(reversed(range(batch))):
        at, chosen = "samples " + ", ".join(map(str, places)), torch.tensor(places)
        call = partial(subject.fresh(), *(each[chosen] for each in inputs))
        yield Case(at, call, output[chosen], ROUNDING[subject.dtype])


def lost(recorded: Recorder, output: Tensor) -> bool:
    """Return True if an operation hides scores, and its result is read by nothing."""
    read = recorded.read | {storage_of(output)}
    return any(
        step.name in ("masked_fill", "where") and step.result not in read for step in recorded.steps
    )


def repeated(run: Callable[[], Tensor]) -> float:
    """Return the largest relative difference between the first of three equal calls and the other two.

    Tensors that are never filled hold another number at each call, since memory may by chance be the same. inf if the
    shapes or the places of NaN or infinity differ; errors of the call are raised.
    """

    def call(number: float) -> Tensor:
        """Return the result of a call in which unfilled tensors hold a number; without that if it fails so."""
        with Unfilled(number):
            found, _ = attempt(run)
        # No mode can look at code that is compiled or mapped.
        return (run() if found is None else found).detach()

    first, *others = map(call, (3.0, 5.0, 7.0))
    return max(_gap_with_nan(each, first) for each in others)


def written(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the indices of the inputs that the call writes to, or that hold NaN; errors of the call are raised."""
    given = [each.clone() for each in inputs]
    run(*given)
    return tuple(
        index
        for index, (before, after) in enumerate(zip(inputs, given, strict=True))
        if not torch.equal(before, after)
    )


def measure_strides(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[float, bool]:
    """Return the largest relative difference on views with other strides, and True if the call raises for a view.

    The difference is 0.0 if it raises for all views. Errors of the call on contiguous inputs are raised.
    """
    plain = run(*(each.clone() for each in inputs)).detach()
    views = (_turned, _outer, _every_second)
    found = [called(run, tuple(map(view, inputs))) for view in views]
    gaps = [_gap_with_nan(each, plain) for each in found if isinstance(each, Tensor)]
    return max(gaps, default=0.0), len(gaps) < len(views)


def _gap_with_nan(output: Tensor, expected: Tensor) -> float:
    """Return the distance of two outputs, inf also if NaN is in other places, such as where infinity is expected."""
    same = output.shape == expected.shape and torch.equal(output.isnan(), expected.isnan())
    return distance(output, expected) if same else torch.inf


def _turned(tensor: Tensor) -> Tensor:
    """Return equal values with the last two axes swapped in memory; the tensor itself below 2-D."""
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def _outer(tensor: Tensor) -> Tensor:
    """Return equal values with axes 0 and -2 swapped in memory; the tensor itself below 3-D."""
    return tensor.transpose(0, -2).contiguous().transpose(0, -2) if tensor.ndim > 2 else tensor


def _every_second(tensor: Tensor) -> Tensor:
    """Return equal values as a view of every second element of a buffer twice as large."""
    return torch.stack([tensor, tensor.logical_not().to(tensor.dtype)], -1)[..., 0]
