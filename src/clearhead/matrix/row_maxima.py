"""The largest weights of each row of a chunk."""

from collections.abc import Callable

import torch
from torch import Tensor

FOLD = 8
"""Number of weights of a segment; only the largest of a segment is compared."""


def largest_of_rows(
    weights: Tensor, k: int, top: Callable[..., tuple[Tensor, Tensor]], *, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest weights of each row, (…, k), and their indices; `top` computes them for short rows.

    They are in no order with `sorted=False`. They are in the k segments with the largest maxima, which are found the
    same way: few numbers at a time, because `topk` takes five times as long for 256 as for 128.
    """
    width = weights.shape[-1]
    step = width // FOLD
    if step < 4 * k:
        return top(weights, k, sorted=sorted)
    # A segment is every step-th key, so that its maximum is one of columns, which is fast.
    segments = weights[..., : FOLD * step].unflatten(-1, (FOLD, step))
    best = largest_of_rows(segments.amax(dim=-2), k, top, sorted=False)[1]
    every = torch.arange(width, device=weights.device)
    places = (best[..., None, :] + every[: FOLD * step : step, None]).flatten(-2)
    if width > FOLD * step:
        rest = every[FOLD * step :].expand(*places.shape[:-1], -1)
        places = torch.cat([places, rest], dim=-1)
    values, among = top(weights.gather(-1, places), k, sorted=sorted)
    return values, places.gather(-1, among)


def top_of_finite(weights: Tensor, k: int, *, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest of finite non-negative weights in each row, (…, k), with their indices.

    They are in any order unless `sorted`. Values of float32 are compared as integers, which is faster.
    """
    if weights.dtype != torch.float32:
        return top_of_any(weights, k, sorted=sorted)
    # Finite numbers from 0 on come in the order of their bits, and comparing whole numbers takes two
    # thirds of the time.
    bits, places = weights.view(torch.int32).topk(k, dim=-1, sorted=sorted)
    return bits.view(torch.float32), places


def top_of_any(weights: Tensor, k: int, *, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest weights of each row, (…, k), and their indices, in any order unless `sorted`.

    NaN counts as largest.
    """
    values, places = weights.topk(k, dim=-1, sorted=sorted)
    return values, places
