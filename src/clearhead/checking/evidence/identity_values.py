"""The weights: with the identity as the value, the output is the weight matrix."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages


class Weights(NamedTuple):
    """The weights of a call, (batch, heads, query_len, kv_len), and q·k beside them."""

    weights: Tensor
    products: Tensor


def measure(
    run: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, *rest: Tensor
) -> Weights | None:
    """The weights, in blocks of the value's width; None if the output has another shape."""
    batch, num_heads, query_len, _ = query.shape
    width, kv_len = value.shape[-1], key.shape[-2]
    blocks = []
    for start in range(0, kv_len, width):
        block = torch.eye(kv_len, dtype=value.dtype)[:, start : start + width]
        spare = width - block.shape[1]
        block = torch.nn.functional.pad(block, (0, spare)).expand(*value.shape[:2], -1, -1)
        output = run(query.clone(), key.clone(), block.clone(), *(each.clone() for each in rest))
        if output.shape == (batch, query_len, num_heads * width):
            output = output.unflatten(-1, (num_heads, width)).transpose(1, 2)
        if output.shape != (batch, num_heads, query_len, width):
            return None
        blocks.append(output.detach().double()[..., : width - spare])
    products = stages.scores(query, stages.repeat_kv_heads(key, num_heads))
    return Weights(torch.cat(blocks, -1), products)


def solved(query: Tensor, key: Tensor, value: Tensor, context: Tensor) -> Weights | None:
    """The weights that make a context of known values; None if none do, or many would.

    Args:
        query, key, value: (batch, heads, len, dim), with fewer tokens than the value is wide.
        context: (batch, query_len, heads · dim), heads side by side.
    """
    num_heads, width = query.shape[1], value.shape[-1]
    if context.shape[-1] != num_heads * width or not context.isfinite().all():
        return None
    context = context.unflatten(-1, (num_heads, width)).transpose(1, 2)
    value = stages.repeat_kv_heads(value, num_heads)
    found = context @ torch.linalg.pinv(value)
    if (found @ value - context).abs().max() > 1e-6 * context.abs().max():
        return None
    return Weights(found, stages.scores(query, stages.repeat_kv_heads(key, num_heads)))


def normalised_otherwise(measured: Weights) -> bool:
    """Whether weights that do not sum to one were normalised, beside something else.

    A sink takes a share of every row; a skip adds the query's own value. Without any softmax a
    weight follows its own score alone, or is negative.
    """
    found = measured.weights
    sums = found.sum(-1)
    if torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        return False
    if found.shape[-1] == found.shape[-2]:
        own = torch.eye(found.shape[-1], dtype=found.dtype)
        if torch.allclose((found - own).sum(-1), torch.ones_like(sums), atol=1e-4):
            return True
    by_score = found.flatten()[measured.products.flatten().argsort()]
    alone = bool((by_score.diff() >= -1e-6).all())
    return not alone and bool((found > -1e-6).all() and (sums < 1 - 1e-6).all())


def slope(measured: Weights, seen: Tensor) -> float | None:
    """How much the log-weights grow with q·k: the scale that was used, if that is a line."""
    weights, products = measured.weights, measured.products
    usable = (weights > 0) & seen.expand_as(weights)
    if not weights.isfinite().all() or usable.sum(-1).max() < 2:
        return None
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
