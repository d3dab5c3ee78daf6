"""The context: what a query takes home.

New here: each value counted as much as its weight says, and added up (Bahdanau et al., 2015,
https://arxiv.org/abs/1409.0473). Two loops do what one matrix product does,
`clearhead.stages.context`, which the later rungs use.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.ladder.checking import check_axes


def context_by_loops(
    weights: Float[Tensor, "query_len kv_len"], value: Float[Tensor, "kv_len value_head_dim"]
) -> Float[Tensor, "query_len value_head_dim"]:
    """The weighted sum of the values, for one query after the other.

    Args:
        weights: (query_len, kv_len).
        value: (kv_len, value_head_dim).

    Raises:
        ShapeError: code `rung.input`, if the shapes are others.

    Example:
        >>> context_by_loops(torch.tensor([[0.25, 0.75]]), torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
        tensor([[1., 3.]])
    """
    check_axes("weights", weights, "query_len", "kv_len")
    check_axes("value", value, "kv_len", "value_head_dim", kv_len=weights.shape[1])
    context = torch.zeros(len(weights), value.shape[1], dtype=value.dtype, device=value.device)
    for i in range(len(weights)):
        for j in range(len(value)):
            context[i] += weights[i, j] * value[j]
    return context
