"""One query that sees all of its keys: by PyTorch's fused call, or by two products for grouped heads.

The scores of one query are few, so that nothing is saved by not holding them, and a product reads a key once for all
heads of a group, where the fused call reads it for each. Where each head has keys of its own, memory is all that takes
time, and products take as long.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages

WORTH_PRODUCTS = 1 << 19
"""Above how many numbers of the keys, each counted for every query head that reads it, two products are faster."""

LEAST_GROUP = 4
"""From how many query heads of a key head on."""


def by_products(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return True if two products are faster, for tensors of the CPU without gradients: of large groups, in a
    precision in which products sum, that lie in memory as products read them."""
    batch, heads, query_len, width = query.shape
    if query_len != 1 or heads < LEAST_GROUP * key.shape[1]:
        return False
    if batch * heads * key.shape[2] * width <= WORTH_PRODUCTS:
        return False
    if query.dtype not in (torch.float32, torch.float64):
        return False
    for tensor in (key, value):
        sample, head, row, step = tensor.stride()
        if step != 1 or row < tensor.shape[3] or (batch > 1 and sample != tensor.shape[1] * head):
            return False
    return True


def multiplied(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The context by a product with the keys, a softmax and a product with the values."""
    batch, heads, _, width = query.shape
    groups = key.shape[1]
    queries = (query * scale).reshape(batch, groups, heads // groups, width)
    weights = torch.matmul(queries, key.mT).softmax(dim=-1)
    return torch.matmul(weights, value).view(batch, heads, 1, value.shape[3])


def context_if_finite(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
    """The context of one query, as many heads of keys as of queries and one width; None if a number may not be finite.

    Of the value the result tells, as 0 · ∞ is NaN; a key of −∞ takes no part, so that keys are read.
    """
    if not (stages.rows_finite(query) and stages.rows_finite(key)):
        return None
    context = F.scaled_dot_product_attention(query, key, value, scale=scale)
    return context if stages.all_finite(context) else None
