"""PyTorch's own function of attention, wherever it was imported to."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.problem import Problem, make_problem
from clearhead.masks.causal import causal
from clearhead.masks.coerce import and_masks
from clearhead.masks.dense import dense
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.patching import replace


def _read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Problem:
    """A call of PyTorch's function, in its conventions, as a problem of four dimensions."""
    leading = query.shape[:-2]
    if not options.get("enable_gqa", False):
        leading = torch.broadcast_shapes(leading, key.shape[:-2], value.shape[:-2])
        query, key, value = (t.expand(*leading, *t.shape[-2:]) for t in (query, key, value))
    mask = causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None:
        # Sizes of 1 broadcast, and are left so.
        if attn_mask.ndim > 4:
            attn_mask = attn_mask.expand(*leading, *attn_mask.shape[-2:])
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2])
        attn_mask = _four_dimensions(attn_mask)
        if attn_mask.dtype == torch.bool:
            mask = and_masks(mask, dense(attn_mask))
        else:
            bias = attn_mask
    query, key, value = (_four_dimensions(t) for t in (query, key, value))
    scale, dropout = options.get("scale"), dropout_p or None
    return make_problem(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)


def _put(output: Tensor, edited: tap.Edited) -> Tensor:
    return edited.context(_four_dimensions(output)).reshape(output.shape)


def _four_dimensions(tensor: Tensor) -> Tensor:
    """(…, num_heads, len, dim) as (batch, num_heads, len, dim)."""
    if tensor.ndim < 4:
        return tensor[(None,) * (4 - tensor.ndim)]
    return tensor if tensor.ndim == 4 else tensor.flatten(0, -4)


_sdpa = F.scaled_dot_product_attention
_reported = tap.reporting(_sdpa, _read, put=_put)


def install() -> Callable[[], None]:
    """Report the calls of PyTorch's function from now on; returns a function that ends it."""
    return replace([(_sdpa, _reported)], globals())
