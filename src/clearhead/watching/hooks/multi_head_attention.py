"""nn.MultiheadAttention where it does not call PyTorch's function of attention.

With need_weights=True it works the weights out itself; in eval mode it has a fast path, and
nn.TransformerEncoderLayer has one for the whole layer. There query and key are never seen, so they
are worked out anew from the same input by the same projections.

In its masks True hides, and a float mask is added to the scores. `is_causal` is a hint only, that
the mask beside it is causal.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.problem import Problem, make_problem
from clearhead.masks.base import Mask
from clearhead.masks.coerce import and_masks
from clearhead.masks.dense import dense
from clearhead.masks.padding import padding
from clearhead.watching.hooks import tap
from clearhead.watching.hooks.patching import replace

_forward = F.multi_head_attention_forward
_native: Callable[..., Any] = vars(torch)["_native_multi_head_attention"]
_encoder_layer: Callable[..., Any] = vars(torch)["_transformer_encoder_layer_fwd"]

NEED_WEIGHTS = 15
"""Which argument of `multi_head_attention_forward` it is, counted from 0."""


def install() -> Callable[[], None]:
    """Begin to tell of what PyTorch's layers work out themselves; what is returned ends it."""
    functions = [
        (_forward, _telling_forward),
        (_native, _telling_native),
        (_encoder_layer, _telling_encoder_layer),
    ]
    return replace(functions, globals())


@wraps(_forward)
def _telling_forward(*args: Any, **kwargs: Any) -> Any:
    place = NEED_WEIGHTS
    needed = args[place] if len(args) > place else kwargs.get("need_weights", True)
    # Without weights it calls PyTorch's function, which is told of with its own query and key.
    if tap.is_inside() or not needed:
        return _forward(*args, **kwargs)
    tap.tell(lambda: _read_forward(*args, **kwargs))
    with tap.inside():
        return _forward(*args, **kwargs)


@wraps(_native)
def _telling_native(*args: Any, **kwargs: Any) -> Any:
    if tap.is_inside():
        return _native(*args, **kwargs)
    tap.tell(lambda: _read_native(*args, **kwargs))
    with tap.inside():
        return _native(*args, **kwargs)


@wraps(_encoder_layer)
def _telling_encoder_layer(*args: Any, **kwargs: Any) -> Any:
    if tap.is_inside():
        return _encoder_layer(*args, **kwargs)
    tap.tell(lambda: _read_encoder_layer(*args, **kwargs), child="self_attn")
    with tap.inside():
        return _encoder_layer(*args, **kwargs)


def _read_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Problem:
    """A call of `multi_head_attention_forward`, whose tensors are (len, batch, embed_dim)."""
    if query.ndim == 2:
        query, key = query[:, None], key[:, None]
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    batch = query.shape[1]
    if use_separate_proj_weight:
        assert q_proj_weight is not None
        assert k_proj_weight is not None
        query_weight, key_weight = q_proj_weight, k_proj_weight
    else:
        assert in_proj_weight is not None
        query_weight, key_weight, _ = in_proj_weight.chunk(3)
    query_bias, key_bias = _biases(in_proj_bias)
    queries = _heads(F.linear(query, query_weight, query_bias).transpose(0, 1), num_heads)
    if static_k is None:
        projected = F.linear(key, key_weight, key_bias)
        if bias_k is not None:
            projected = torch.cat([projected, bias_k.expand(-1, batch, -1)])
        keys = _heads(projected.transpose(0, 1), num_heads)
    else:
        keys = static_k.unflatten(0, (batch, num_heads))
    if add_zero_attn:
        keys = F.pad(keys, (0, 0, 0, 1))
    mask, bias = None, None
    # What was added behind the keys is seen by everybody.
    if attn_mask is not None:
        attn_mask = F.pad(attn_mask, (0, keys.shape[2] - attn_mask.shape[-1]))
        wide = attn_mask.ndim == 3
        attn_mask = attn_mask.unflatten(0, (batch, num_heads)) if wide else attn_mask[None, None]
        mask, bias = _mask_and_bias(attn_mask)
    if key_padding_mask is not None:
        rows = F.pad(key_padding_mask, (0, keys.shape[2] - key_padding_mask.shape[-1]))
        more, added = _mask_and_bias(rows[:, None, None])
        mask = and_masks(mask, more)
        bias = added if bias is None else bias if added is None else bias + added
    return make_problem(queries, keys, keys, mask=mask, bias=bias)


def _read_native(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Problem:
    """A call of the fast path, whose tensors are (batch, len, embed_dim), or nested."""
    visible = None if mask is None else _visible(mask, mask_type)
    if query.is_nested:
        visible = and_masks(visible, padding([len(row) for row in key.unbind()]))
    query, key = (t.to_padded_tensor(0.0) if t.is_nested else t for t in (query, key))
    query_weight, key_weight, _ = qkv_weight.chunk(3)
    query_bias, key_bias = _biases(qkv_bias)
    queries = _heads(F.linear(query, query_weight, query_bias), num_head)
    keys = _heads(F.linear(key, key_weight, key_bias), num_head)
    return make_problem(queries, keys, keys, mask=visible)


def _read_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Problem:
    """A call of the fast path of a whole layer, (batch, len, embed_dim), or nested."""
    x = src
    if norm_first:
        x = F.layer_norm(src, (embed_dim,), norm_weight_1, norm_bias_1, eps)
    return _read_native(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
        mask=mask, mask_type=mask_type,
    )  # fmt: skip


def _biases(bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Those of query and key, from the bias of the packed projection."""
    if bias is None:
        return None, None
    query_bias, key_bias, _ = bias.chunk(3)
    return query_bias, key_bias


def _heads(projected: Tensor, num_heads: int) -> Tensor:
    """(batch, len, num_heads · head_dim) as (batch, num_heads, len, head_dim)."""
    return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _mask_and_bias(given: Tensor) -> tuple[Mask | None, Tensor | None]:
    """What a mask of PyTorch's layer hides, or what it adds."""
    return (dense(~given), None) if given.dtype == torch.bool else (None, given)


def _visible(mask: Tensor, mask_type: int | None) -> Mask:
    """What a mask of the fast path shows. It hides wherever it is not 0, a float mask as well.

    Types: 0 is (query_len, kv_len), 1 is (batch, kv_len), 2 is (batch, num_heads, query_len,
    kv_len).
    """
    shown = mask.logical_not()
    if mask_type == 1:
        shown = shown[:, None, None]
    return dense(shown)
