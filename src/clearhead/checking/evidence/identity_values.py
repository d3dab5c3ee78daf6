"""The weights: with the identity as the value, the output is the weight matrix."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.evidence.attempts import heads_first


class Weights(NamedTuple):
    """The weights of a call, (batch, heads, query_len, kv_len), and q·k next to them."""

    weights: Tensor
    products: Tensor


def measure(
    run: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, *rest: Tensor
) -> Weights:
    """Return the weights, from calls whose value is a part of the identity, as wide as the given value.

    Errors of the call are raised.
    """
    width, kv_len = value.shape[-1], key.shape[-2]
    blocks = []
    for start in range(0, kv_len, width):
        block = torch.eye(kv_len, dtype=value.dtype)[:, start : start + width]
        spare = width - block.shape[1]
        block = torch.nn.functional.pad(block, (0, spare)).expand(*value.shape[:2], -1, -1)
        output = run(query.clone(), key.clone(), block.clone(), *(each.clone() for each in rest))
        output = heads_first(output, *query.shape[1:3]).detach().double()
        blocks.append(output[..., : width - spare])
    products = stages.scores(query, stages.repeat_kv_heads(key, query.shape[1]))
    return Weights(torch.cat(blocks, -1), products)


def slope(measured: Weights, seen: Tensor) -> float | None:
    """Return the slope of the log-weights over q·k, which is the scale that was used.

    None if they form no line, or q·k does not vary. `seen`: True for the weights to use, if they are above 0.
    """
    weights, products = measured.weights, measured.products
    usable = (weights > 0) & seen.expand_as(weights)
    logs = torch.where(usable, weights.clamp_min(1e-300).log(), 0.0)
    count = usable.sum(-1, keepdim=True).clamp_min(1)
    x = torch.where(usable, products - (products * usable).sum(-1, keepdim=True) / count, 0.0)
    y = torch.where(usable, logs - logs.sum(-1, keepdim=True) / count, 0.0)
    spread = (x * x).sum()
    if spread < 1e-20:
        return None
    found = ((x * y).sum() / spread).item()
    left_over = (y - found * x).abs().max().item()
    return found if left_over < 1e-3 * max(1.0, y.abs().max().item()) else None
