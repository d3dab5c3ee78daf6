"""Weights: the scores of a query as shares of one, their softmax.

New here: two methods to share that fail, and why the third one does. Dividing by the sum gives
negative shares for negative scores, and infinite ones when the scores add up to 0. The exponential
makes every score positive first: the softmax (Bridle, 1990), but in float32 it is infinite above
88.7. `clearhead.stages.weights`, which the later rungs use, subtracts the largest score first,
which changes no share (Blanchard et al., 2021, https://doi.org/10.1093/imanum/draa038).
"""

import torch
from torch import Tensor

from clearhead._shapes import Float


def weights_by_sum(scores: Float[Tensor, "*rows kv_len"]) -> Float[Tensor, "*rows kv_len"]:
    """Return each score divided by the sum of its row; no row is checked for a sum of 0.

    Example:
        >>> weights_by_sum(torch.tensor([1.0, 3.0]))
        tensor([0.2500, 0.7500])
        >>> weights_by_sum(torch.tensor([-1.0, 3.0]))  # a negative share
        tensor([-0.5000,  1.5000])
    """
    return scores / scores.sum(dim=-1, keepdim=True)


def naive_softmax(scores: Float[Tensor, "*rows kv_len"]) -> Float[Tensor, "*rows kv_len"]:
    """Return the softmax by its formula: each exponential divided by the sum of its row.

    NaN where exponentials overflow.

    Example:
        >>> naive_softmax(torch.tensor([1.0, 2.0]))
        tensor([0.2689, 0.7311])
        >>> naive_softmax(torch.tensor([101.0, 102.0]))  # exp(102) is too large: inf / inf
        tensor([nan, nan])
        >>> torch.softmax(torch.tensor([101.0, 102.0]), dim=-1)
        tensor([0.2689, 0.7311])
    """
    return weights_by_sum(torch.exp(scores))
