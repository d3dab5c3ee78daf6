"""The same call again: whether it gives the same, and what training changes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checking.matching import distance


def changed(run: Callable[[], Tensor]) -> float:
    """The largest difference between three equal calls, of the largest number."""
    first = run().detach()
    return max(_gap(run().detach(), first) for _ in range(2))


def _gap(again: Tensor, first: Tensor) -> float:
    same_nan = torch.equal(again.isnan(), first.isnan())
    return distance(again, first) if same_nan else torch.inf


class Draws(NamedTuple):
    """What training mode does to the output of one call.

    `finite`: no draw holds NaN; `varies`: draws differ; `constant_varies`: they do where all
    tokens are the same; `shrinks`: the mean over the draws, as a multiple of the output without
    dropout, and its standard error.
    """

    finite: bool
    varies: bool
    constant_varies: bool | None
    shrinks: float
    uncertain: float


def draws(
    run: Callable[[], Tensor], constant: Callable[[], Tensor] | None, still: Tensor, count: int
) -> Draws:
    """Draw many times; `still` is the output without dropout."""
    found = torch.stack([run().detach().double() for _ in range(count)])
    varies = not torch.allclose(found, found[:1].expand_as(found), rtol=1e-9, atol=1e-9)
    constant_varies = None
    if constant is not None:
        alike = torch.stack([constant().detach().double() for _ in range(8)])
        constant_varies = not torch.allclose(alike, alike[:1].expand_as(alike), atol=1e-6)
    # Over the tokens, so that what is added to every one of them (a bias) drops out.
    centred = still.double() - still.double().mean(-2, keepdim=True)
    moved = found - found.mean(-2, keepdim=True)
    slopes = (moved * centred).flatten(1).sum(-1) / (centred * centred).sum().clamp_min(1e-30)
    finite = bool(found.isfinite().all())
    uncertain = (slopes.std() / count**0.5).item()
    return Draws(finite, varies, constant_varies, slopes.mean().item(), uncertain)
