"""PyTorch's own function of attention, wherever it was imported to."""

from collections.abc import Callable
from functools import wraps
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

_sdpa = F.scaled_dot_product_attention


def install() -> Callable[[], None]:
    """Begin to tell of the calls of PyTorch's function; what is returned ends it."""
    return replace([(_sdpa, _telling)], globals())


@wraps(_sdpa)
def _telling(*args: Any, **kwargs: Any) -> Tensor:
    if tap.is_inside():
        return _sdpa(*args, **kwargs)
    tap.tell(lambda: _read(*args, **kwargs))
    with tap.inside():
        return _sdpa(*args, **kwargs)


def _read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Problem:
    """A call of PyTorch's function, in its conventions, as a problem of four dimensions."""
    leading = query.shape[:-2]
    if not enable_gqa:
        leading = torch.broadcast_shapes(leading, key.shape[:-2])
        query, key = (t.expand(*leading, *t.shape[-2:]) for t in (query, key))
    mask = causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None:
        # A mask of few dimensions is left small: where it has 1, all see alike.
        if attn_mask.ndim > 4:
            attn_mask = attn_mask.expand(*leading, *attn_mask.shape[-2:])
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2])
        attn_mask = _four_dimensions(attn_mask)
        if attn_mask.dtype == torch.bool:
            mask = and_masks(mask, dense(attn_mask))
        else:
            bias = attn_mask
    key = _four_dimensions(key)
    # The weights do not ask for the value; the key stands in, with the right length and heads.
    return make_problem(_four_dimensions(query), key, key, mask=mask, bias=bias, scale=scale)


def _four_dimensions(tensor: Tensor) -> Tensor:
    """(…, num_heads, len, dim) as (batch, num_heads, len, dim)."""
    if tensor.ndim < 4:
        return tensor[(None,) * (4 - tensor.ndim)]
    return tensor if tensor.ndim == 4 else tensor.flatten(0, -4)
