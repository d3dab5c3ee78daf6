"""nn.MultiheadAttention when it does not call scaled_dot_product_attention.

With need_weights=True it works the weights out itself, and is read as the call that it makes without them. In eval mode
it has a fast path, and nn.TransformerEncoderLayer has one for the whole layer. There query and key are never seen, so
they are recomputed from the same input by the same projections, and the value where it is read.

`is_causal` is a hint only, that the mask next to it is causal.
"""

import inspect
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.torch_internals import argument_names, private
from clearhead.attention.problem import Problem, make_problem
from clearhead.masks.base import Mask
from clearhead.masks.dense import and_masks, dense
from clearhead.masks.padding import padding
from clearhead.matrix.matrix import matrix_of
from clearhead.watching.hooks import tap


def _bind(names: Iterable[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a call as attributes by these names; None for an argument that was not given."""
    return SimpleNamespace(
        **{**dict.fromkeys(names), **dict(zip(names, args, strict=False)), **kwargs}
    )


def _works_out_weights(*args: Any, **kwargs: Any) -> bool:
    """Return True if a call computes its weights itself (need_weights, True by default); else SDPA reports the call."""
    needed = _bind(FORWARD, args, kwargs).need_weights
    return needed is None or needed


def _without_weights(*args: Any, **kwargs: Any) -> Any:
    """Return what `multi_head_attention_forward` returns for these arguments if no weights are needed."""
    call: Any = dict(zip(FORWARD, args, strict=False)) | kwargs | {"need_weights": False}
    return _forward(**call)


def _read_forward(*args: Any, **kwargs: Any) -> Problem:
    """Return the problem of a call of `multi_head_attention_forward`, of (len, batch, embed_dim) or (len, embed_dim).

    It is that of the call of SDPA that it makes where no weights are needed, which drops nothing here.
    """
    plain: dict[str, Any] = {"is_causal": False, "dropout_p": 0.0}
    call = dict(zip(FORWARD, args, strict=False)) | kwargs | plain
    return tap.read_inside(lambda: _without_weights(**call))


def _read_fast_attention(*args: Any, **kwargs: Any) -> Problem:
    """Return the problem of a call of PyTorch's fused multi-head attention."""
    call = _bind(FAST_ATTENTION, args, kwargs)
    return _read_fast_path((call.query, call.key, call.value), call.num_head, call)


def _read_fast_encoder_layer(*args: Any, **kwargs: Any) -> Problem:
    """Return the problem of a call of PyTorch's fused encoder layer."""
    call = _bind(FAST_ENCODER_LAYER, args, kwargs)
    x = call.src
    if call.norm_first:
        x = F.layer_norm(x, (call.embed_dim,), call.norm_weight_1, call.norm_bias_1, call.eps)
    return _read_fast_path((x, x, x), call.num_heads, call)


def _read_fast_path(inputs: tuple[Tensor, ...], num_heads: int, call: Any) -> Problem:
    """Return the problem of a fast-path call with query, key and value (batch, len, embed_dim), or nested.

    `call` has the other arguments: `qkv_weight`, `qkv_bias`, `mask` and `mask_type`. Query and key are projected again;
    the value only if it is read, and is the key otherwise.
    """
    visible = None if call.mask is None else _visible(call.mask, call.mask_type)
    if inputs[0].is_nested:
        visible = and_masks(visible, padding([len(row) for row in inputs[1].unbind()]))
    if not tap.value_readers:
        inputs = inputs[:2]
    packed = zip(inputs, call.qkv_weight.chunk(3), _biases(call.qkv_bias), strict=False)
    heads = [
        _heads(F.linear(t.to_padded_tensor(0.0) if t.is_nested else t, weight, bias), num_heads)
        for t, weight, bias in packed
    ]
    return make_problem(heads[0], heads[1], heads[-1], mask=visible)


def _biases(bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the biases of query, key and value from the packed one, as views; three times None for None."""
    return (None,) * 3 if bias is None else bias.chunk(3)


def _heads(projected: Tensor, num_heads: int) -> Tensor:
    """Reshape (batch, len, num_heads · head_dim) to (batch, num_heads, len, head_dim)."""
    return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _visible(mask: Tensor, mask_type: int | None) -> Mask:
    """Return the mask of a fast path, which hides wherever its tensor is not 0, even if that is float.

    Types: 0 is (query_len, kv_len), 1 is (batch, kv_len), 2 is (batch, num_heads, query_len,
    kv_len).
    """
    shown = mask.logical_not()
    return dense(shown[:, None, None] if mask_type == 1 else shown)


def _edited_forward(*args: Any, **kwargs: Any) -> Any:
    """Replacement of `multi_head_attention_forward` that reports its call.

    Edited, the output is that of PyTorch's function of attention, which is edited in turn, next to the weights of the
    edited call.
    """
    if tap.is_guarded():
        return _forward(*args, **kwargs)
    call = _bind(FORWARD, args, kwargs)
    with tap.appending((call.bias_k is not None) + bool(call.add_zero_attn)):
        needed = _works_out_weights(*args, **kwargs)
        edited = tap.edit(lambda: _read_forward(*args, **kwargs)) if needed else None
        if edited is None:
            return _observed_forward(*args, **kwargs)
        output, _ = _without_weights(*args, **kwargs)
    with tap.guard():  # a softmax of ours is none of the model
        weights = matrix_of(edited.read()).dense()
    if call.average_attn_weights is not False:
        weights = weights.mean(dim=1)
    return output, weights[0] if call.query.ndim == 2 else weights


def _edited_fastpath_enabled() -> bool:
    """Return True if PyTorch's fast paths are enabled and no edited model is running, or PyTorch compiles.

    The fast paths give no context of a head, which an edit needs. The switch itself is one for all threads.
    """
    # torch.compile knows PyTorch's own by the name that this one has now.
    is_enabled: bool = _mha._is_fastpath_enabled
    return is_enabled and (torch.compiler.is_compiling() or not tap.is_edited())


_mha = private("backends.mha")
_fastpath_enabled = _mha.get_fastpath_enabled
_forward = F.multi_head_attention_forward
_fast_attention = private("_native_multi_head_attention")
_fast_encoder_layer = private("_transformer_encoder_layer_fwd")

FORWARD = tuple(inspect.signature(_forward).parameters)
FAST_ATTENTION = argument_names("_native_multi_head_attention")
FAST_ENCODER_LAYER = argument_names("_transformer_encoder_layer_fwd")

_observed_forward = tap.reporting(_forward, _read_forward, applies=_works_out_weights)

FUNCTIONS = [
    (_fastpath_enabled, _edited_fastpath_enabled),
    (_forward, _edited_forward),
    (_fast_attention, tap.reporting(_fast_attention, _read_fast_attention)),
    (
        _fast_encoder_layer,
        tap.reporting(_fast_encoder_layer, _read_fast_encoder_layer, child="self_attn"),
    ),
]
"""The functions that PyTorch's layers call themselves, and the same reporting each call."""
