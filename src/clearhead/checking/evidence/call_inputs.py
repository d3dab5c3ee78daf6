"""The inputs: the same call again, what is written to, and whether strides matter."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import called
from clearhead.checking.hypotheses.matching import distance
from clearhead.recording.attempt import attempt
from clearhead.recording.operations import Unfilled


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
    return max(_gap(each, first) for each in others)


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
    """Return the largest difference on views of the same numbers with other strides, and True if a view is refused."""
    plain = run(*(each.clone() for each in inputs)).detach()
    views = (_turned, _outer, _every_second)
    found = [called(run, tuple(map(view, inputs))) for view in views]
    gaps = [_gap(each, plain) for each in found if isinstance(each, Tensor)]
    return max(gaps, default=0.0), len(gaps) < len(views)


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
