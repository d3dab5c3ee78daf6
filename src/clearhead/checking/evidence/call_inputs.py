"""The inputs: the same call again, what is written to, and whether strides matter."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import Case, broken, called
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.subject.refusals import first_line
from clearhead.recording.attempt import attempt
from clearhead.recording.operations import Unfilled


def repeated(run: Callable[[], Tensor]) -> float:
    """Return the largest relative difference between the first of three equal calls and the other two.

    Tensors that are never filled hold another number at each call, since memory may by chance be the same. inf for
    other shapes or NaN; errors of the call are raised.
    """

    def call(number: float) -> Tensor:
        """Return the result of a call in which unfilled tensors hold a number; without that if it fails so."""
        with Unfilled(number):
            found, _ = attempt(run)
        # No mode can look at code that is compiled or mapped.
        return (run() if found is None else found).detach()

    first, *others = map(call, (3.0, 5.0, 7.0))
    return max(_gap(each, first) for each in others)


def written(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the indices of the inputs that the call writes to."""
    given = [each.clone() for each in inputs]
    run(*given)
    return tuple(
        index
        for index, (before, after) in enumerate(zip(inputs, given, strict=True))
        if not torch.equal(before, after)
    )


class Strided(NamedTuple):
    """The largest difference on views of the same numbers, the error of a refused one, and that on overlapping ones."""

    gap: float
    refused: str | None = None
    overlapping: float = 0.0


def measure_strides(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Strided:
    """Return the differences on views of other strides and on overlapping ones, or the error of a refused view."""
    plain = run(*(each.clone() for each in inputs)).detach()
    worst = 0.0
    for view in (_turned, _outer, _every_second):
        found = called(run, tuple(map(view, inputs)))
        if isinstance(found, Exception):
            return Strided(worst, first_line(found).partition(": ")[2])
        worst = max(worst, _gap(found, plain))
    # One token after the other; each begins inside the one before.
    lines = [_overlapping(each) for each in inputs]
    overlap = broken(
        "", [Case("", partial(run, *lines), partial(run, *map(torch.clone, lines)), 0.0)]
    )
    return Strided(worst, None, 0.0 if overlap is None else overlap.gap)


def _gap(one: Tensor, other: Tensor) -> float:
    """Return the largest difference relative to `other`'s maximum; inf if shapes or NaN or inf positions differ."""
    same = one.shape == other.shape and torch.equal(one.isnan(), other.isnan())
    return distance(one, other) if same else torch.inf


def _turned(tensor: Tensor) -> Tensor:
    """Return equal values with the last two axes swapped in memory; the tensor itself below 2-D."""
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def _outer(tensor: Tensor) -> Tensor:
    """Return equal values with axes 0 and -2 swapped in memory; the tensor itself below 3-D."""
    return tensor.transpose(0, -2).contiguous().transpose(0, -2) if tensor.ndim > 2 else tensor


def _every_second(tensor: Tensor) -> Tensor:
    """Return equal values as a view of every second element of a buffer twice as large."""
    return torch.stack([tensor, tensor.logical_not().to(tensor.dtype)], -1)[..., 0]


def _overlapping(tensor: Tensor) -> Tensor:
    """Return the first numbers of a tensor in its shape, as a view in which each row begins one number later.

    The tensor itself below 3-D or if not floating-point.
    """
    if not tensor.is_floating_point() or tensor.ndim < 3:
        return tensor
    length, width = tensor.shape[-2:]
    return tensor.flatten(-2)[..., : length + width - 1].contiguous().unfold(-1, width, 1)
