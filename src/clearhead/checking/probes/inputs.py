"""The inputs: whether they are written to, and whether their strides matter."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.checking.matching import distance


def written(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[int]:
    """Which of the inputs are not what they were before the call."""
    given = [each.clone() for each in inputs]
    run(*given)
    return [
        index
        for index, (before, after) in enumerate(zip(inputs, given, strict=True))
        if not torch.equal(before, after)
    ]


def strided(run: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[float, str | None]:
    """The largest difference on views of the same numbers, and what refused them, if anything."""
    plain = run(*(each.clone() for each in inputs)).detach()
    worst = 0.0
    for view in (_turned, _outer, _every_second):
        try:
            found = run(*(view(each) for each in inputs)).detach()
        except (RuntimeError, ValueError) as error:
            return worst, str(error).splitlines()[0]
        same = torch.equal(found.isnan(), plain.isnan())
        worst = max(worst, distance(found, plain) if same else torch.inf)
    return worst, None


def _turned(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def _outer(tensor: Tensor) -> Tensor:
    if tensor.ndim < 3:
        return tensor
    return tensor.transpose(0, -2).contiguous().transpose(0, -2)


def _every_second(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor.logical_not().to(tensor.dtype)], -1)[..., 0]
