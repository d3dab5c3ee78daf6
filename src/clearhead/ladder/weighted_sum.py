"""The context: the weighted sum of the values.

New here: each value multiplied by its weight, and added up (Bahdanau et al., 2015,
https://arxiv.org/abs/1409.0473). Two loops, for which the later rungs have one matrix product,
`clearhead.stages.context`.
"""

import torch
from torch import Tensor

from clearhead._shapes import Float


def context_by_loops(
    weights: Float[Tensor, "query_len kv_len"], value: Float[Tensor, "kv_len value_head_dim"]
) -> Float[Tensor, "query_len value_head_dim"]:
    """Return the weighted sum of the values, for one query after the other.

    Example:
        >>> context_by_loops(torch.tensor([[0.25, 0.75]]), torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
        tensor([[1., 3.]])
    """
    context = torch.zeros(len(weights), value.shape[1], dtype=value.dtype, device=value.device)
    for i in range(len(weights)):
        for weight, vector in zip(weights[i], value, strict=True):
            context[i] += weight * vector
    return context
