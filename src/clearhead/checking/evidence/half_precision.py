"""Other precisions: the same call in float16, bfloat16 and float32, against float64."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.evidence.cases import called, converted
from clearhead.checking.hypotheses.recipe import Setting, right_scale, right_visible
from clearhead.checking.subject.refusals import first_line
from clearhead.checking.thresholds import LOST, LOST_FACTOR


class Halved(NamedTuple):
    """The result of a call in a dtype: its relative error, that of the plain computation, and `refused`.

    `refused` is the error that it raised, or None; the relative error is then inf.
    """

    error: float
    plain: float
    refused: str | None = None

    def fails(self, dtype: torch.dtype) -> bool:
        """Return True if it was refused, or loses clearly more than the plain computation does."""
        return self.refused is not None or self.error > max(LOST[dtype], LOST_FACTOR * self.plain)


def measure_halves(
    run: Callable[..., Tensor],
    plain: Callable[[torch.dtype], float],
    inputs: Sequence[Tensor],
    target: Tensor,
    dtype: torch.dtype,
) -> Halved:
    """Return the relative errors of a call with inputs cast to a dtype, and of plain attention in that dtype.

    The first is inf if the output is not finite, has another shape, or the call raises; then the second is 0.0 if it
    raises. `plain` returns the second for a dtype. `target` is the output of `run` in float64.
    """
    given = converted(inputs, dtype)
    found = called(run, given)
    if isinstance(found, Exception):
        return Halved(torch.inf, 0.0, first_line(found))
    return Halved(_lost(found.double(), target), plain(dtype))


def _lost(found: Tensor, target: Tensor) -> float:
    """Return the largest error relative to the target's maximum; inf if shapes differ or `found` is not finite."""
    if found.shape != target.shape or not found.isfinite().all():
        return torch.inf
    return (found - target).abs().max().item() / max(target.abs().max().item(), 1e-30)


def lost_by_plain(
    query: Tensor, key: Tensor, value: Tensor, at: Setting, dtype: torch.dtype
) -> float:
    """Return the largest relative error of plain attention in a dtype; 0.0 if float64 is not finite.

    Plain attention has the declared scale and mask, and no softcap, bias, sinks or rotation.
    """

    def computed(kind: torch.dtype) -> Tensor:
        """Return the context of plain attention in a dtype, with declared scale and mask."""
        q, k, v = (each.to(kind) for each in (query, key, value))
        scores = q @ stages.repeat_kv_heads(k, at.num_heads).mT * right_scale(at)
        weights = scores.masked_fill(~right_visible(at), -torch.inf).softmax(-1)
        return weights @ stages.repeat_kv_heads(v, at.num_heads)

    exact = computed(torch.float64)
    return _lost(computed(dtype).double(), exact) if exact.isfinite().all() else 0.0
