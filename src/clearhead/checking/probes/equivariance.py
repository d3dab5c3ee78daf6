"""Order: without positions, tokens that change places change their outputs' places and no more."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.checking.matching import distance


def measure(
    run: Callable[[Tensor], Tensor], x: Tensor, causal: bool, generator: torch.Generator
) -> float:
    """How much order matters, of the largest number.

    Without causal all tokens are permuted; with it the past of the last token, whose output must
    stay.
    """
    tokens = x.shape[1]
    order = torch.arange(tokens)
    if causal:
        order[:-1] = torch.randperm(tokens - 1, generator=generator)
        return distance(run(x[:, order]).detach()[:, -1], run(x).detach()[:, -1])
    order = torch.randperm(tokens, generator=generator)
    return distance(run(x[:, order]).detach(), run(x).detach()[:, order])
