"""Padding: whether each row alone gives what it gives in its padded batch, and who moves whom."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checking.hypotheses.matching import distance


class Padded(NamedTuple):
    """What was seen in a padded batch; the gaps are of the largest number.

    `alone`: the largest difference to each row alone; `ignored`: the mask changes nothing;
    `by_padding`, `by_real`: real outputs move with padding, with other real tokens;
    `by_other`: they move with the mask of another sample; `queries_zero`: padded outputs are zero;
    `own_row`: only the padded queries move with the mask.
    """

    alone: float
    ignored: bool
    by_padding: bool
    by_real: bool
    by_other: bool
    queries_zero: bool
    own_row: bool


def measure(
    run: Callable[[Tensor, Tensor], Tensor], x: Tensor, mask: Tensor, generator: torch.Generator
) -> Padded:
    """All of it, for x (batch, tokens, dim) and mask (batch, tokens), True = a real token."""
    whole = run(x, mask).detach()
    gaps = []
    for row, length in enumerate(mask.sum(-1).tolist()):
        alone = run(x[row : row + 1, :length], mask[row : row + 1, :length]).detach()
        same = torch.equal(alone[0].isnan(), whole[row, :length].isnan())
        gaps.append(distance(alone[0], whole[row, :length]) if same else torch.inf)
    everything = run(x, torch.ones_like(mask)).detach()
    noise = 2 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    by_padding = run(x + noise * ~mask[..., None], mask).detach()
    others = torch.zeros_like(mask)
    others[:, 1] = True
    by_real = run(x + noise * others[..., None], mask).detach()
    shorter = mask.clone()
    shorter[0, 1:] = False
    by_other = run(x, shorter).detach()
    first = torch.zeros_like(mask)
    first[:, 0] = True
    later = mask.clone()
    later[0] = False
    return Padded(
        max(gaps),
        _same(everything, whole, mask),
        not _same(by_padding, whole, mask),
        not _same(by_real, whole, first),
        not _same(by_other, whole, later),
        bool((whole[~mask].abs() < 1e-9).all()),
        _same(everything, whole, mask) and not _same(everything, whole, ~mask),
    )


def _same(one: Tensor, other: Tensor, where: Tensor) -> bool:
    first, second = one[where], other[where]
    return torch.equal(first.isnan(), second.isnan()) and distance(first, second) < 1e-6
