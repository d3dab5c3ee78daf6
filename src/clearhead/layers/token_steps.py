"""A fast path for one more token of a text with cached keys, with few Python calls per step of a generation.

Between two such calls the processor's caches have been filled with keys and values, so that a line of Python costs a
multiple of what it does in a loop of its own.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages
from clearhead.attention.kernels._by_scores import context_by_scores, fits
from clearhead.attention.planning import observers
from clearhead.attention.remembering import is_untransformed, wants_gradient
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.columns import ColumnCache, GrowingCache, StaticCache
from clearhead.layers.inputs import LayerCall, check_projected
from clearhead.layers.parts import Part
from clearhead.layers.positions import Positions, is_causal


def next_token(
    layer: AttentionLayer, x: Tensor, cache: Cache | CacheBundle, kernel: str
) -> Tensor | None:
    """Return the output of one more token, which sees all of its text, (batch, 1, output_dim); the cache appends it.

    Args:
        layer: one that projects and joins as `MultiHeadAttention` does.
        x: (batch, 1, embed_dim).
        cache: that of the layer, or the bundle that it is in, which makes it if there is none.
        kernel: "auto", or the name of one.

    Returns:
        None, before anything is computed, for any other call, also for one that is to be refused.

    Raises:
        DtypeError, DeviceError: as `check_projected`; TooLargeError: code `cache.full`.
    """
    if torch.compiler.is_compiling() or not (isinstance(kernel, str) and kernel == "auto"):
        return None
    own = cache[layer] if type(cache) is CacheBundle else cache
    if not (type(own) is StaticCache or type(own) is GrowingCache) or not _is_next(layer, x, own):
        return None
    positions = None
    if layer.parts:
        position = own.next_positions(1)
        positions = Positions(position, position)
    call = LayerCall(x, x, layer.mask, cache=own, positions=positions)
    query, key, value, unrotated = layer._project(call)
    if positions is not None:
        query, key = layer._transform(query, key, call)
    context = _append_and_attend(own, query, key, value)
    if context is None:
        return layer._attend(call, kernel, (query, key, value, unrotated))
    return layer._merge_heads(context, x)


def _is_next(layer: AttentionLayer, x: Tensor, cache: ColumnCache) -> bool:
    """Return True if x is one token that fits the layer, and the cache holds only real, finite tokens of the layer.

    False too while anybody observes, with dropout, without a plain causal mask, and with parts that set options. Raises
    DtypeError or DeviceError if x does not fit the weights.
    """
    layout = cache._layout
    if layout is None or cache._layer is None or cache._layer() is not layer or observers:
        return False
    if cache._valid is not None or cache._shown is not None or not cache._finite:
        return False
    if type(x) is not Tensor or x.is_nested or x.layout is not torch.strided:
        return False
    if x.shape != (layout.batch, 1, layer.embed_dim) or layer.context_dim != layer.embed_dim:
        return False
    if (layer.training and layer.dropout) or not is_causal(layer.mask):
        return False
    for part in layer.parts:
        if type(part).attend_options is not Part.attend_options:
            return False
    projection = layer._modules[layer.INPUT_PROJECTION]
    assert projection is not None
    check_projected("x", x, projection)
    return True


def _append_and_attend(
    cache: ColumnCache, query: Tensor, key: Tensor, value: Tensor
) -> Tensor | None:
    """Append a token to the cache and return its context, (batch, heads, 1, dim); None if the call does not qualify.

    The cache must hold tokens. It counts the token at the very end, so an error or None leaves its length unchanged.
    Raises TooLargeError if it is full.
    """
    assert cache._layout is not None
    batch, kv_heads, width, value_width, dtype, _ = cache._layout
    if not type(query) is type(key) is type(value) is Tensor:
        return None
    if not (key.shape == value.shape == (batch, kv_heads, 1, width) and width == value_width):
        return None
    if query.shape != (batch, query.shape[1], 1, width):
        return None
    if wants_gradient(query, key, value) or not is_untransformed(query, key, value):
        return None
    if not query.dtype == key.dtype == value.dtype == dtype:
        return None
    if not (_is_short(query) and _is_short(key) and _is_short(value)):
        return None
    cache._check_room(1)
    keys, values = cache._add(key, value, None)
    scale = 1.0 / math.sqrt(width)
    if fits(query, keys, values, keys_finite=True):
        context = context_by_scores(query, keys, values, scale)
    else:
        context = F.scaled_dot_product_attention(
            query.contiguous(), keys, values, scale=scale, enable_gqa=kv_heads != query.shape[1]
        )
    if context is not None:
        cache._appended = 1, None
        cache._record(1, None)
    return context


def _is_short(tensor: Tensor) -> bool:
    """Return True if the norm of the whole tensor is so small that every row counts as finite.

    It is computed as a dot product, because the projections just before have its code in the processor's cache.
    """
    numbers = tensor.reshape(1, -1)
    return F.linear(numbers, numbers).item() <= stages.SAFE_LENGTH**2
