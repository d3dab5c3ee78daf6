"""torch.nn.functional.scaled_dot_product_attention, under every name that it was imported as."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.undoing import Undo
from clearhead.attention.problem import Problem, make_problem
from clearhead.masks.causal import causal
from clearhead.masks.dense import and_masks, dense
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.patching import Replacement


def _read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Problem:
    """Return the problem of a call of SDPA, with four dimensions; batch axes are broadcast unless `enable_gqa`.

    A bool mask becomes a mask, any other the bias; None is neither. With `is_causal` the first query has the first key.
    """
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
        if len(leading) > 1:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)]
        attn_mask = four_dimensions(attn_mask)
        if attn_mask.dtype == torch.bool:
            mask = and_masks(mask, dense(attn_mask))
        else:
            bias = attn_mask
    query, key, value = (four_dimensions(t) for t in (query, key, value))
    scale, dropout = options.get("scale"), dropout_p or None
    return make_problem(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)


def put(output: Tensor, change: tap.Change, edited: tap.Read | None) -> Tensor:
    """Return the changed output, in its original shape; `edited` is not used."""
    return change(four_dimensions(output)).reshape(output.shape)


def four_dimensions(tensor: Tensor) -> Tensor:
    """Reshape (…, num_heads, len, dim) to (batch, num_heads, len, dim); missing leading axes are 1.

    Of three dimensions the first is the batch: (batch, 1, len, dim).
    """
    if tensor.ndim == 3:
        return tensor[:, None]
    if tensor.ndim < 3:
        return tensor[(None,) * (4 - tensor.ndim)]
    return tensor if tensor.ndim == 4 else tensor.flatten(0, -4)


_sdpa = F.scaled_dot_product_attention

_reported = tap.reporting(_sdpa, _read, put=put)

FUNCTIONS = [(_sdpa, _reported)]
"""PyTorch's function, and the same reporting each call."""


def install(undo: Undo) -> None:
    """Report calls of PyTorch's function that bypass its name, until `undo` is run.

    These are the calls of the operator itself, and the calls of a third-party patch on top of the function.
    """
    packet: Any = torch.ops.aten.scaled_dot_product_attention
    operator = packet._op
    undo.append(lambda: setattr(packet, "_op", operator))
    packet._op = tap.reporting(operator, _read, put=put)
    now = F.scaled_dot_product_attention
    if now is not _sdpa and now is not _reported:
        Replacement([(now, tap.reporting(now, _read, put=put))]).install(undo)
