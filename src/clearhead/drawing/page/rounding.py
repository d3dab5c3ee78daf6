"""Rounding to one or two bytes: fine steps for small numbers, coarse ones for large numbers.

A share of attention is mostly near 0. Its root is spread far more evenly, and is what is rounded.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

BYTE, WORD = 253, 65533
"""Most steps of a byte, and of two: one code is for what is hidden, and one for what is no number."""


class Rounded(NamedTuple):
    """Rounded numbers: their codes, and how a page reads them.

    Attributes:
        codes: uint8 or uint16; 0 is hidden, levels + 2 is no number, else
            top · ((code − 1) / levels) ** power.
        about: `levels`, `power` and, for each entry of the first axis, `top`: the largest number.
    """

    codes: Tensor
    about: dict[str, Any]


def rounded(
    values: Tensor, levels: int = BYTE, *, power: float = 2, hidden: Tensor | None = None
) -> Rounded:
    """Return non-negative numbers rounded to `levels` steps between 0 and the largest of each entry of the first axis.

    NaN and infinity get a code of their own; numbers below 0 count as 0. The root of a number moves by half a step at
    most: 1/(2 levels) of the largest one's root. With power 2 a number w below the top t is so kept to ±√(w·t)/levels,
    or ±t/(4 levels²) near 0.

    Args:
        values: (any, …), float; not changed.
        levels: the number of steps; a byte holds BYTE, two hold WORD.
        power: of the root that is taken; 1 is none.
        hidden: bool, of the shape of the values: which get code 0, and so differ from 0; None is none.

    Example:
        >>> import torch
        >>> codes, about = rounded(torch.tensor([[0.0, 0.25, 1.0]]), 100)
        >>> codes, about
        (tensor([[  1,  51, 101]], dtype=torch.uint8), {'levels': 100, 'power': 2, 'top': [1.0]})
    """
    values = values.float()
    # A sum that rounds to just below 0 is 0; infinity has no place on a scale.
    broken = None if values.sum().isfinite() else ~values.isfinite()
    values = (values if broken is None else values.masked_fill(broken, 0.0)).clamp(min=0.0)
    top = values.flatten(1).amax(dim=1) if values.numel() else values.new_zeros(len(values))
    scale = top.clamp(min=torch.finfo(torch.float32).tiny)
    values.div_(scale.view(-1, *[1] * (values.ndim - 1)))
    if power != 1:
        values = values.sqrt_() if power == 2 else values.pow_(1 / power)
    codes = values.mul_(levels).round_().add_(1)
    if broken is not None:
        codes.masked_fill_(broken, levels + 2)
    if hidden is not None:
        codes.masked_fill_(hidden, 0)
    codes = codes.to(torch.uint8) if levels <= BYTE else codes.int().to(torch.uint16)
    return Rounded(codes, {"levels": levels, "power": power, "top": top.tolist()})
