"""What the layers have in common about tokens: where they stand, which are real, what a cache holds."""

from typing import Any

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.layers.caches.base import Cache, before, is_in_order
from clearhead.layers.placing import Places, placed_bias, placed_mask
from clearhead.masks.base import Mask
from clearhead.masks.full import Full
from clearhead.masks.given import both
from clearhead.masks.padding import padding


def check_cache(cache: object, mask: Mask | None, context_len: int | None) -> None:
    """Refuse a cache that does not go with a call.

    Args:
        cache: what was given as one.
        mask: who may see whom, in all.
        context_len: how many tokens the context has; None for self-attention.

    Raises:
        ArgumentTypeError: code `layer.cache`.
        ArgumentError: codes `layer.cache-causal` and `layer.cache-context`.
    """
    if not isinstance(cache, Cache):
        raise ArgumentTypeError(
            "layer.cache",
            "cache must be a clearhead.layers.Cache of this layer, or None; got "
            f"{type(cache).__name__}.",
        )
    if context_len is None and mask is None:
        raise ArgumentError(
            "layer.cache-causal",
            "with a cache, tokens come one after the other, and none may see a later one; this "
            "layer has no mask. Make it with mask=clearhead.causal().",
        )
    if context_len is not None and len(cache) not in (0, context_len):
        raise ArgumentError(
            "layer.cache-context",
            f"the cache holds {len(cache)} tokens of a context; got one of {context_len}. For "
            "another context, use a new cache, or cache.reset().",
        )


def next_positions(
    new: int, valid: Tensor | None, cache: Cache | None, device: torch.device
) -> Tensor:
    """Where new tokens stand, int64, (new,) or (batch, new)."""
    if cache is not None:
        return cache.next_positions(new, valid, device=device)
    return torch.arange(new, device=device) if valid is None else before(valid)


def arranged(
    mask: Mask | None,
    options: dict[str, Any],
    valid: Tensor | None,
    cache: Cache | None,
    query_positions: Tensor,
    key_positions: Tensor,
    *,
    is_cross: bool = False,
) -> tuple[Mask | None, dict[str, Any]]:
    """Mask and options for the keys as they are, with what is not real hidden, and in positions
    where columns are not tokens in order. What a cache gave back is read from it."""
    in_order = valid is None or is_in_order(valid)
    hidden = None if valid is None else padding(valid)
    if cache is not None:
        in_order = cache.in_order
        hidden = None if isinstance(found := cache.mask(), Full) else found
    if not in_order and not is_cross:
        places = Places(query_positions, key_positions)
        mask = None if mask is None else placed_mask(mask, places)
        if options.get("bias") is not None:
            options = options | {"bias": placed_bias(options["bias"], places)}
    return both(mask, hidden), options
