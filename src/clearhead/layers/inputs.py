"""The call of a layer: its arguments, checked once, before anything is computed."""

import weakref
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_tensor
from clearhead._common.text import kind_of
from clearhead._common.torch_internals import can_be_read, is_autocast, is_exporting, is_tracing
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClearheadError,
    DeviceError,
    DtypeError,
    ShapeError,
    UnsupportedError,
)
from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.bundle import CacheBundle
from clearhead.layers.caches.fixed import FixedCache
from clearhead.layers.caches.layout import is_in_order
from clearhead.layers.caches.sliding import SlidingCache
from clearhead.layers.nested import Sequences
from clearhead.layers.positions import Positions
from clearhead.masks.algebra import hides_later
from clearhead.masks.base import Mask
from clearhead.masks.full import Full
from clearhead.masks.padding import padding
from clearhead.sharding.dtensors import as_given
from clearhead.sharding.sharding import Sharding


class CallOptions(TypedDict, total=False):
    """The options of a layer's call beside x and a context, as `MultiHeadAttention.forward` takes them."""

    mask: Mask | Tensor | None
    valid: Tensor | None
    positions: Tensor | None
    cache: Cache | CacheBundle | None


class Across(NamedTuple):
    """A call of a layer whose tokens ranks share.

    Attributes:
        held: who holds the tokens of x, and those of the source.
        given: x as it was given, which may be a DTensor.
    """

    held: tuple[Sharding, Sharding]
    given: Tensor


Projected = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Query, key; value, or None if it is not wanted; the part of the query that no position rotates, or None."""


class LayerCall(NamedTuple):
    """One call of a layer, checked.

    Attributes:
        x: (batch, tokens, embed_dim).
        source: what keys and values are made of: x, or the context, (batch, context_tokens,
            context_dim), without tokens if their keys are in the cache already.
        is_cross: True for a context.
        mask: that of the layer and that of the call.
        valid: the real tokens of the source, (batch, tokens); None if all are.
        cache: keys and values of earlier tokens, or None.
        absorbs: True if the heads attend to the latents that the cache holds.
        sequences: those that x is made of, if a nested tensor was given.
        positions: those of x and of the source, counted; None where nothing goes by them.
        kernel: "auto", or the name of one.
        dims: number of dimensions of x as it was given.
        values: False if only the weights are wanted.
        placed: the positions that the parts go by, in place of the counted ones; None if none were given.
        axes: the same where each token has several, (axes, batch, tokens); else None.
        across: what is known of the ranks that share the tokens; else None.
        projected: what x and the source were projected and transformed to, where they have been; else None.
    """

    x: Tensor
    source: Tensor
    is_cross: bool
    mask: Mask | None = None
    valid: Tensor | None = None
    cache: Cache | None = None
    absorbs: bool = False
    sequences: Sequences | None = None
    positions: Positions | None = None
    kernel: str = "auto"
    dims: int = 3
    values: bool = True
    placed: Positions | None = None
    axes: Positions | None = None
    across: Across | None = None
    projected: Projected | None = None

    def in_order(self) -> bool:
        """True if columns of keys are as far apart as their tokens, in every row."""
        if self.cache is not None:
            return self.cache.in_order
        return self.valid is None or is_in_order(self.valid)

    def visible(self) -> Mask | None:
        """The mask of keys that are there at all: real tokens, of the query's own sequence."""
        if self.sequences is not None and self.sequences.mask is not None:
            return self.sequences.mask
        if self.cache is not None:
            mask = self.cache.mask()
            return None if isinstance(mask, Full) else mask
        return None if self.valid is None else padding(self.valid)

    def restore(self, output: Tensor) -> Tensor:
        """An output (batch, tokens, width) in the form in which x was given."""
        if self.sequences is not None:
            return self.sequences.restore(output)
        output = output if self.dims == 3 else output[0]
        across = self.across
        return output if across is None else as_given(output, across.given, across.held[0])


def check_alone(**others: object) -> None:
    """Refuse what a layer cannot have beside ranks that share its tokens.

    Raises:
        UnsupportedError: code `layer.across`.
    """
    also = [name for name, other in others.items() if other is not None]
    if also:
        raise UnsupportedError(
            "layer.across",
            f"across= goes without {', '.join(others)}; got {', '.join(also)}. Padding of all tokens "
            "is mask=clearhead.padding(…).",
        )


def check_widths(x: Tensor, context: Tensor | None, embed_dim: int, context_dim: int) -> None:
    """Refuse an x and a context whose shapes do not fit a layer or each other.

    Raises:
        ShapeError: codes `layer.input`, `layer.context`, `layer.context-missing` and
            `layer.context-batch`.
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
    if context.ndim != x.ndim or context.shape[-1] != context_dim:
        raise ShapeError(
            "layer.context",
            f"context must have shape (batch, tokens, context_dim={context_dim}), with as "
            f"many dimensions as x; got {tuple(context.shape)} for x of {tuple(x.shape)}.",
        )
    if x.ndim == 3 and context.shape[0] != x.shape[0]:
        raise ShapeError(
            "layer.context-batch",
            f"x and context must have the same batch; got {x.shape[0]} and {context.shape[0]}.",
        )


def check_positions(positions: Tensor, x: Tensor, axes: int) -> Tensor:
    """The positions that were given for the tokens of x, int64, (tokens,) or (batch, tokens), or, for parts
    that go by several, (axes, batch, tokens).

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
    several = [(axes, 1, tokens), (axes, batch, tokens)] if axes > 1 else []
    if positions.shape not in ((tokens,), (1, tokens), (batch, tokens), *several):
        also = f", or (axes, batch, tokens) = ({axes}, {batch}, {tokens})" if several else ""
        hint = (
            "" if several else " Several, as M-RoPE has, are for a part such as Rotary(…, axes=)."
        )
        raise ShapeError(
            "layer.positions",
            f"positions must have shape (tokens,) = ({tokens},), or (batch, tokens) = ({batch}, "
            f"{tokens}): one number for each token{also}; got {tuple(positions.shape)}.{hint}",
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
    """Refuse a cache that does not go with a call.

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
            `layer.cache-window`, `layer.cache-fixed`, `layer.cache-shared` and `layer.cache-dropout`.
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
    if context_len is not None and isinstance(cache, SlidingCache):
        raise ArgumentError(
            "layer.cache-window",
            f"{cache.describe()} hides what is far from the last token, and the tokens of a context "
            "are all as near; use a cache of another kind, such as GrowingCache.",
        )
    if context_len is not None and isinstance(cache, FixedCache):
        raise ArgumentError(
            "layer.cache-fixed",
            f"{cache.describe()} is for tokens that come one after the other, and a context has all of "
            "them; use a StaticCache.",
        )
    _bind(cache, layer)


def _check_ahead(mask: Mask, cache: Cache, x: Tensor) -> None:
    """Refuse a mask by which a token sees one that it cannot have seen; one of other sizes is not asked."""
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
    """Let a cache belong to a layer, or refuse one that belongs to another."""
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
    """A context that leaves a cache as it was if the call fails that appends `new` tokens to it."""

    def __init__(self, cache: Cache | None, new: int) -> None:
        self.cache = cache
        # While compiling, an error comes before anything has run.
        self.is_armed = cache is not None and not torch.compiler.is_compiling()
        if cache is not None and self.is_armed:
            cache._own()  # what is put back would be shared again
        self.before = cache._snapshot(new) if cache is not None and self.is_armed else {}

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        if kind is not None and self.is_armed:
            vars(self.cache).update(self.before)


def is_plain_linear(projection: nn.Module) -> bool:
    """Return True if a projection is weight · x + bias of its own parameters: not LoRA, quantised or pruned."""
    return (
        type(projection).forward is nn.Linear.forward
        and "forward" not in vars(projection)
        and "weight" in projection._parameters
    )


def check_projected(name: str, tensor: Tensor, projection: nn.Module) -> None:
    """Refuse an input that a projection of a layer cannot be multiplied with.

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
    """True if autocast brings the tensor to the precision of its products."""
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and is_autocast(tensor)


def split_heads(
    projected: Tensor, num_heads: int, dim: int, name: str, *, may_share: bool = False
) -> Tensor:
    """Split (batch, tokens, num_heads · dim) into (batch, num_heads, tokens, dim), without a copy.

    With `may_share` it may be an equal share of the heads, as tensor parallelism leaves it. Any other width is
    refused: ShapeError `layer.projected`.
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
