"""16 bits: the same call in float16 and bfloat16, against float64."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Halved(NamedTuple):
    """How a call in 16 bits went: its largest error, that of the plain computation, or why not."""

    error: float
    plain: float
    refused: str | None = None


def measure(
    run: Callable[..., Tensor],
    plain: Callable[[torch.dtype], float],
    inputs: Sequence[Tensor],
    target: Tensor,
    dtype: torch.dtype,
) -> Halved:
    """Compare with the target, of the largest number in it; infinite where NaN comes out.

    `plain` says what the plain computation loses in a dtype.
    """
    given = [each.to(dtype) if each.is_floating_point() else each for each in inputs]
    try:
        found = run(*given).detach().double()
    except (RuntimeError, TypeError, ValueError) as error:
        return Halved(torch.inf, 0.0, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return Halved(lost(found, target), plain(dtype))


def lost(found: Tensor, target: Tensor) -> float:
    """The largest difference, of the largest number in the target; infinite where NaN is."""
    if found.shape != target.shape or not found.isfinite().all():
        return torch.inf
    return (found - target).abs().max().item() / max(target.abs().max().item(), 1e-30)
