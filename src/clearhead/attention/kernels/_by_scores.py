"""A few queries of many keys on the CPU: two products around a softmax.

A product reads each key once for all queries and all heads of a group; PyTorch's fused call reads it once for each
head. Keys and values are not checked for non-finite entries, which takes another pass over them. Such an entry makes a
score or an entry of the context non-finite, because 0 · ∞ is NaN, and these are few.
"""

import math

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import safe_softmax
from clearhead.attention.kernels._nonfinite import SMALL

MOST_QUERIES = 16

MOST_IN_CACHE = 1 << 20
"""The number of entries of the key up to which the product of scores is faster with the query on the left."""

LEAST_CHECKED = 1 << 18
"""The number of entries of the key up to which a fused call that checks none of them is faster."""


def fits(query: Tensor, key: Tensor, value: Tensor, keys_finite: bool) -> bool:
    """Return True if `context_by_scores` is at least as fast as the fused call, for CPU tensors without gradients.

    False for few keys, for 16-bit tensors, and for keys or values that would be copied.

    Args:
        query: four dimensions, up to MOST_QUERIES queries.
        key: four dimensions.
        value: four dimensions.
        keys_finite: True if the fused call would not check key and value.
    """
    if key.numel() <= (LEAST_CHECKED if keys_finite else SMALL):
        return False
    # In 16 bits a product would round the scores.
    if query.dtype not in (torch.float32, torch.float64):
        return False
    for tensor in (key, value):
        sample, head, row, step = tensor.stride()
        if step != 1 or row < tensor.shape[3]:
            return False
        if tensor.shape[0] > 1 and sample != tensor.shape[1] * head:  # merging the axes would copy
            return False
    return True


def context_by_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    added: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor | None:
    """Return the context, (batch, num_heads, query_len, value_head_dim).

    None if a score or an entry of it is not finite.

    Args:
        query: (batch, num_heads, query_len, head_dim), float32 or float64.
        key: (batch, num_kv_heads, kv_len, head_dim).
        value: (batch, num_kv_heads, kv_len, value_head_dim).
        scale: the factor of the scores.
        added: a tensor that is added to the capped scores, and broadcasts to (batch, num_heads, query_len, kv_len), −∞
            for a hidden key; None to add nothing.
        softcap: the bound of the scaled scores, or None.
    """
    batch, heads, query_len, width = query.shape
    rows = query.reshape(batch * key.shape[1], -1, width)
    keys = key.flatten(0, 1)
    in_cache = key.numel() <= MOST_IN_CACHE
    scores = (torch.bmm(rows, keys.mT) if in_cache else torch.bmm(keys, rows.mT).mT) * scale
    if not math.isfinite(scores.sum().item()):
        return None
    if added is not None or softcap is not None:
        capped = stages.capped_scores(scores.reshape(batch, heads, query_len, -1), softcap)
        scores = stages.masked_scores(capped, added, None).reshape(scores.shape)
    weights = scores.softmax(dim=-1) if added is None else safe_softmax(scores, -1)
    context = torch.bmm(weights, value.flatten(0, 1))
    if not math.isfinite(context.sum().item()):
        return None
    return context.view(batch, heads, query_len, -1)
