"""The call of a layer: its arguments, checked once, before anything is computed."""

import weakref
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_tensor
from clearhead._common.torch_internals import can_be_read, is_autocast, is_exporting, is_tracing
from clearhead._text import kind_of
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClearheadError,
    DeviceError,
    DtypeError,
    ShapeError,
    UnsupportedError,
)
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.fixed import FixedCache
from clearhead.layers.caches.layout import is_in_order
from clearhead.layers.caches.sliding import SlidingCache
from clearhead.layers.positions import Positions
from clearhead.masks.algebra import hides_later
from clearhead.masks.base import Mask
from clearhead.masks.full import Full
from clearhead.masks.padding import padding
from clearhead.sharding.sharding import Sharding


class CallOptions(TypedDict, total=False):
    """The options of a layer's call next to x and a context, as `MultiHeadAttention.forward` takes them."""

    mask: Mask | Tensor | None
    valid: Tensor | None
    positions: Tensor | None
    cache: Cache | CacheBundle | None


Projected = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Query, key, value; the part of the query that no position rotates, or None."""


class Form(NamedTuple):
    """The form in which x was given, which the output has as well.

    Attributes:
        x: as it was given.
        held: which ranks hold the tokens of x, and those of the source; None without across=.
    """

    x: Tensor
    held: tuple[Sharding, Sharding] | None = None

    def restore(self, output: Tensor) -> Tensor:
        """Return an output (batch, tokens, width) in this form: without a batch if x was so."""
        return output if self.x.ndim == 3 else output[0]


class LayerCall(NamedTuple):
    """One call of a layer, checked.

    Attributes:
        x: (batch, tokens, embed_dim).
        source: what keys and values are made of: x, or the context, (batch, context_tokens,
            context_dim), without tokens if their keys are in the cache already.
        mask: that of the layer and that of the call.
        valid: the real tokens of the source, (batch, tokens); None if all are.
        cache: keys and values of earlier tokens, or None.
        is_cross: True for a context.
        absorbs: True if the heads attend to the latents that the cache holds.
        positions: those of x and of the source; None where nothing goes by them.
        form: the form of the output; None for x as it is.
    """

    x: Tensor
    source: Tensor
    mask: Mask | None = None
    valid: Tensor | None = None
    cache: Cache | None = None
    is_cross: bool = False
    absorbs: bool = False
    positions: Positions | None = None
    form: Form | None = None

    def in_order(self) -> bool:
        """Return True if in every row the distance of two key columns is the distance of their tokens.

        Reads cache or `valid`.
        """
        if self.cache is not None:
            return self.cache.in_order
        return self.valid is None or is_in_order(self.valid)

    def visible(self) -> Mask | None:
        """Return the mask of the real tokens among the keys, those of the cache included.

        None without a cache and `valid`, and if the cache hides nothing.
        """
        if self.cache is not None:
            mask = self.cache.mask()
            return None if isinstance(mask, Full) else mask
        return None if self.valid is None else padding(self.valid)


def check_widths(x: Tensor, context: Tensor | None, embed_dim: int, context_dim: int) -> None:
    """Raise ShapeError if x and the context do not fit the layer or each other.

    Raises:
        ShapeError: codes `layer.input`, `layer.context` and `layer.context-missing`.
        ArgumentTypeError: codes `x.type`, `context.type`, and `….layout`.
    """
    check_tensor("x", x)
    if context is not None:
        check_tensor("context", context)
    if x.ndim not in (2, 3) or x.shape[-1] != embed_dim:
        raise ShapeError(
            "layer.input",
            f"x must have shape (batch, tokens, embed_dim={embed_dim}) or "
            f"(tokens, embed_dim={embed_dim}); got {tuple(x.shape)}.",
        )
    if context is None:
        if context_dim != embed_dim:
            raise ShapeError(
                "layer.context-missing",
                f"this layer attends to a context of width context_dim={context_dim}; "
                "call it as layer(x, context).",
            )
        return
    alike = context.ndim == x.ndim and context.shape[:-2] == x.shape[:-2]
    if not alike or context.shape[-1] != context_dim:
        raise ShapeError(
            "layer.context",
            f"context must have shape (batch, tokens, context_dim={context_dim}), with the "
            f"batch of x; got {tuple(context.shape)} for x of {tuple(x.shape)}.",
        )


def check_positions(positions: Tensor, x: Tensor) -> Tensor:
    """Return the positions of a call's tokens, int64, (tokens,) or (batch, tokens), or raise an error.

    Raises:
        ArgumentTypeError: codes `positions.type` and `positions.layout`.
        ShapeError, DeviceError: code `layer.positions`.
    """
    check_tensor("positions", positions)
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise ArgumentTypeError(
            "positions.type", f"positions must be whole numbers; got {positions.dtype}."
        )
    batch, tokens, _ = x.shape
    if positions.shape not in ((tokens,), (1, tokens), (batch, tokens)):
        raise ShapeError(
            "layer.positions",
            f"positions must have shape (tokens,) = ({tokens},), or (batch, tokens) = ({batch}, "
            f"{tokens}): one number for each token; got {tuple(positions.shape)}.",
        )
    if positions.device != x.device:
        raise DeviceError(
            "layer.positions",
            f"positions must be on the device of x, {x.device}; they are on {positions.device}.",
        )
    return positions.long()


def check_cache(
    cache: object, mask: Mask | None, x: Tensor, context_len: int | None, layer: nn.Module
) -> None:
    """Raise an error if a cache does not fit a call; else an empty cache is bound to the layer by a weak reference.

    Args:
        cache: the argument.
        mask: that of the layer and that of the call.
        x: the tokens, (batch, len, width).
        context_len: number of tokens of the context; None for self-attention.
        layer: the layer that is called.

    Raises:
        ArgumentTypeError: code `layer.cache`.
        ShapeError: code `cache.shape`.
        UnsupportedError: code `cache.export`.
        ArgumentError: codes `layer.cache-causal`, `layer.cache-ahead`, `layer.cache-context`,
            `layer.cache-kind`, `layer.cache-fixed`, `layer.cache-shared` and `layer.cache-dropout`.
    """
    if not isinstance(cache, Cache):
        raise ArgumentTypeError(
            "layer.cache",
            f"cache must be a clearhead.layers.Cache of this layer, or None; got {kind_of(cache)}.",
        )
    layout, batch = cache._layout, x.shape[0]
    if layout is not None and layout.batch != batch:
        raise ShapeError("cache.shape", f"the cache holds batch={layout.batch}; got batch={batch}.")
    if layer.training and getattr(layer, "dropout", None):
        raise ArgumentError(
            "layer.cache-dropout",
            f"with a cache no weight may be dropped; this layer is in training mode, with dropout="
            f"{layer.dropout}. Call layer.eval() before.",
        )
    if context_len is None and mask is None:
        raise ArgumentError(
            "layer.cache-causal",
            "with a cache, tokens come one after the other, and none may see a later one; this "
            "layer has no mask. Make it with mask=clearhead.causal().",
        )
    if context_len is None and mask is not None and not hides_later(mask) and can_be_read(x):
        _check_ahead(mask, cache, x)
    if context_len is not None and len(cache) not in (0, context_len):
        raise ArgumentError(
            "layer.cache-context",
            f"the cache holds {len(cache)} tokens of a context; got one of {context_len}. For "
            "another context, use a new cache, or cache.reset().",
        )
    if context_len is not None and isinstance(cache, FixedCache | SlidingCache):
        raise ArgumentError(
            "layer.cache-kind",
            f"{cache.describe()} is for tokens that come one after the other, and a context has all of "
            "them; use a GrowingCache or a StaticCache.",
        )
    _bind(cache, layer)


def _check_ahead(mask: Mask, cache: Cache, x: Tensor) -> None:
    """Raise ArgumentError if a mask lets a token see a later call's token, which the cache cannot give it.

    Also, with a FixedCache, if a token sees a later one of its own call. A mask that does not fit is not checked.
    """
    start = torch.as_tensor(cache._counts(), device=x.device).view(-1, 1, 1, 1)
    whole = int(start.max()) + x.shape[1]
    extent = mask.extent(whole, whole, x.device)
    try:
        mask.check(extent)
    except ClearheadError:
        return
    token = torch.arange(whole - 1, device=x.device).view(1, 1, -1, 1)
    if bool((mask.visible(token, start, extent) & (token < start)).any()):
        raise ArgumentError(
            "layer.cache-ahead",
            f"with a cache, tokens come one after the other; by the mask {mask.describe()} some that came "
            "before see some of this call, and their outputs are given already. Let one call have all "
            "tokens that see each other, or hide what comes later: clearhead.causal() & the mask.",
        )
    if isinstance(cache, FixedCache):
        later = mask.visible(token, token + 1, extent) & (token >= start)
        if bool(later.any()):
            raise ArgumentError(
                "layer.cache-fixed",
                f"{cache.describe()} shows no token a later one; by the mask {mask.describe()} some of this "
                "call see one. Use a StaticCache, or hide what comes later: clearhead.causal() & the mask.",
            )


def _bind(cache: Cache, layer: nn.Module) -> None:
    """Bind a cache to a layer by a weak reference.

    ArgumentError, `layer.cache-shared`, if it holds keys of another layer. An empty cache changes its layer. In a trace
    nothing is bound; UnsupportedError, `cache.export`, in an export for a cache that was made before it.
    """
    if is_tracing():
        if is_exporting() and not cache._exporting:
            raise UnsupportedError(
                "cache.export",
                "an exported call would hold this cache as it is now, and not go on. Give the tensors "
                "of a FixedCache to the call: FixedCache.of(keys, values, length).",
            )
        return
    owner = None if cache._layer is None or cache._layout is None else cache._layer()
    if owner is None:
        cache._layer = weakref.ref(layer)
    elif owner is not layer:
        raise ArgumentError(
            "layer.cache-shared",
            "a cache belongs to one layer, and this one holds the keys of another; make one for "
            "each layer. cache.reset() frees it, and copy.deepcopy(cache) belongs to none.",
        )


class Rollback:
    """A context that restores the attributes of a cache if its block raises, and lets the error pass.

    `new` is the number of tokens that the block appends. No-op without a cache, and while compiling.
    """

    def __init__(self, cache: Cache | None, new: int) -> None:
        self.cache = cache
        # While compiling, an error comes before anything has run.
        self.is_armed = cache is not None and not torch.compiler.is_compiling()
        self.before = cache._snapshot(new) if cache is not None and self.is_armed else {}

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        """Restore the attributes of the cache if the block raised; the error passes."""
        if kind is not None and self.is_armed:
            vars(self.cache).update(self.before)


def is_plain_linear(projection: nn.Module) -> bool:
    """Return True if a projection runs the forward of nn.Linear on a weight parameter of its own.

    One with LoRA, or a quantised, pruned or parametrised one, does not. Hooks are not looked at.
    """
    return (
        type(projection).forward is nn.Linear.forward
        and "forward" not in vars(projection)
        and "weight" in projection._parameters
    )


def check_projected(name: str, tensor: Tensor, projection: nn.Module) -> None:
    """Raise an error if a layer's projection cannot be multiplied with an input.

    A projection that is not plain checks its input itself, and may not have its weight yet.

    Raises:
        DtypeError: code `layer.dtype`, unless autocast brings both to one precision.
        DeviceError: code `layer.device`.
    """
    weight = projection._parameters.get("weight")
    if weight is None or (tensor.dtype == weight.dtype and tensor.device == weight.device):
        return
    if not is_plain_linear(projection) or projection._forward_pre_hooks:
        return
    if tensor.dtype != weight.dtype and not (_is_cast(tensor) and _is_cast(weight)):
        raise DtypeError(
            "layer.dtype",
            f"{name} must have the dtype of the layer's weights, {weight.dtype}; got "
            f"{tensor.dtype}.",
        )
    if tensor.device != weight.device:
        raise DeviceError(
            "layer.device",
            f"{name} is on {tensor.device}, the layer's weights on {weight.device}.",
        )


def _is_cast(tensor: Tensor) -> bool:
    """Return True if autocast is on and casts the tensor to its lower precision: floating, but not float64."""
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and is_autocast(tensor)


def split_heads(
    projected: Tensor, num_heads: int, dim: int, name: str, *, may_share: bool = False
) -> Tensor:
    """Split (batch, tokens, num_heads · dim) into (batch, num_heads, tokens, dim), without a copy.

    With `may_share` it may be an equal share of the heads, as tensor parallelism leaves it. Any other width raises
    ShapeError, code `layer.projected`.
    """
    batch, tokens, width = projected.shape
    here = num_heads
    if width != num_heads * dim:
        here = width // dim
        if may_share and here and width % dim == num_heads % here == 0:
            return projected.view(batch, tokens, here, dim).transpose(1, 2)
        share = ", or in tensor parallelism an equal share of them" if may_share else ""
        raise ShapeError(
            "layer.projected",
            f"{name} must give num_heads × head_dim = {num_heads} × {dim} numbers a token{share}; it "
            f"gives {width}.",
        )
    return projected.view(batch, tokens, here, dim).transpose(1, 2)
