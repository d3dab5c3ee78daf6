"""Mutants of how hidden keys are hidden."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.checking.recipes import Setting
from clearhead.checking.references.base import Mutant


def _after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    return weights * seen


def _not_hidden(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return scores


def _multiplied(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return scores * seen


def _swapped_in_product(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
    return torch.where(seen, scores - 1e9, 0.0)


def _added(sign: float, scaled: bool) -> Callable[..., Tensor]:
    def hide(scores: Tensor, seen: Tensor, scale: float, empty: str) -> Tensor:
        return scores + sign * (scale if scaled else 1.0) * seen

    return hide


HIDING = [
    Mutant(
        "mask.after-softmax",
        "hidden weights are set to zero after the softmax, and the others do not sum to one",
        "hide before the softmax: scores.masked_fill(hidden, -torch.inf); or divide by the sum of "
        "what is left",
        {"hide": _not_hidden, "after": _after},
    ),
    Mutant(
        "mask.multiplied",
        "hidden scores are 0, not −∞, so that hidden keys keep exp(0) of the weight",
        "scores * mask, or masked_fill(hidden, 0) or 1e-9, before the softmax: fill with "
        "-torch.inf instead",
        {"hide": _multiplied},
    ),
    Mutant(
        "mask.inverted",
        "what must be hidden is visible, with equal weights, and what must be visible is hidden",
        "scores * mask - 1e9 * mask hides where the mask is 1: scores * mask - 1e9 * (1 - mask), or "
        "masked_fill",
        {"hide": _swapped_in_product},
    ),
    Mutant(
        "mask.added-as-number",
        "the mask is added to the scores as ones and zeros: a hidden key is only e times smaller",
        "scores + mask adds 1 where the mask is True: scores.masked_fill(~mask, -torch.inf). What "
        "wants a float mask on purpose is checked by a function that makes one of True and False",
        {"hide": _added(1.0, False)},
    ),
    Mutant(
        "mask.added-as-number",
        "the mask is added to the scores as ones and zeros, before they are scaled",
        "scores + mask adds 1 where the mask is True: scores.masked_fill(~mask, -torch.inf)",
        {"hide": _added(1.0, True)},
    ),
    Mutant(
        "mask.added-as-number",
        "the hidden keys get 1 added to their scores",
        "a tensor of ones and zeros is no bias: multiply it by -inf first, with torch.where, or "
        "use masked_fill",
        {"hide": _added(-1.0, False)},
    ),
    Mutant(
        "mask.added-as-number",
        "the hidden keys get 1 added to their scores, before they are scaled",
        "a tensor of ones and zeros is no bias: multiply it by -inf first, with torch.where, or "
        "use masked_fill",
        {"hide": _added(-1.0, True)},
    ),
]
