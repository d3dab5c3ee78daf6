"""What the layers have in common about tokens: where they stand, which are real, what a cache holds."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, ArgumentTypeError, ClearheadError, UnsupportedError
from clearhead.layers.caches.base import Cache, before, is_in_order
from clearhead.layers.caches.sliding import SlidingCache
from clearhead.layers.placing import Places, placed_bias, placed_mask
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.coerce import and_masks
from clearhead.masks.documents import documents
from clearhead.masks.full import Full
from clearhead.masks.padding import padding


def check_cache(cache: object, mask: Mask | None, context_len: int | None) -> None:
    """Refuse a cache that does not go with a call.

    Args:
        cache: what was given as one.
        mask: who may see whom, in all.
        context_len: how many tokens the context has; None for self-attention.

    Raises:
        ArgumentTypeError: code `layer.cache`.
        ArgumentError: codes `layer.cache-causal`, `layer.cache-context` and `layer.cache-window`.
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
    if context_len is not None and isinstance(cache, SlidingCache):
        raise ArgumentError(
            "layer.cache-window",
            f"{cache.describe()} hides what is far from the last token, and the tokens of a context "
            "are all as near; use a cache of another kind, such as GrowingCache.",
        )


class Packed(NamedTuple):
    """Sequences of a nested tensor, one after the other.

    Attributes:
        tokens: (1, tokens, width).
        offsets: (sequences + 1,), where each begins, and the end.
        positions: (1, tokens), counted from 0 in each.
        mask: who is of one sequence.
    """

    tokens: Tensor
    offsets: Tensor
    positions: Tensor
    mask: Mask

    def within(self, mask: Mask | None) -> Mask:
        """A mask, in each sequence by itself."""
        if mask is None:
            return self.mask
        places = Places(self.positions, self.positions)
        return placed_mask(mask, places, in_order=True) & self.mask

    def like_it(self, output: Tensor) -> Tensor:
        """An output (1, tokens, width) as a nested tensor of the same sequences."""
        return torch.nested.nested_tensor_from_jagged(output[0], offsets=self.offsets)


def packed(x: object, **others: object) -> Packed | None:
    """The sequences of a nested tensor; None for another one.

    Raises:
        UnsupportedError: code `layer.nested`, for one that is not jagged, or beside others.
    """
    if not isinstance(x, Tensor) or not x.is_nested:
        return None
    also = [name for name, other in others.items() if other is not None]
    if x.layout != torch.jagged or x.ndim != 3 or also:
        raise UnsupportedError(
            "layer.nested",
            "a nested x must be of layout torch.jagged and shape (batch, tokens, width), without "
            f"{', '.join(others)}; got layout {x.layout}, {x.ndim} dimensions"
            f"{', with ' + ', '.join(also) if also else ''}.",
        )
    jagged = cast(Any, x)  # what such a tensor has beside others is not declared
    tokens, offsets = jagged.values(), jagged.offsets()
    lengths = offsets.diff()
    places = torch.arange(len(tokens), device=tokens.device)
    positions = places - offsets[:-1].repeat_interleave(lengths)
    return Packed(tokens[None], offsets, positions[None], documents(lengths=lengths))


@contextmanager
def taken_back(cache: Cache | None) -> Iterator[None]:
    """Tokens of a call that is refused leave no trace in a cache, where they can still be taken back."""
    held = 0 if cache is None else len(cache)
    try:
        yield
    except ClearheadError:
        if cache is not None and len(cache) > held:
            with suppress(ArgumentError):
                cache.truncate(held)
        raise


def next_positions(
    new: int, valid: Tensor | None, cache: Cache | None, device: torch.device
) -> Tensor:
    """Where new tokens stand, int64, (new,) or (batch, new)."""
    if cache is not None:
        return cache.next_positions(new, valid, device=device)
    return torch.arange(new, device=device) if valid is None else before(valid)


def is_causal(mask: Mask | None) -> bool:
    """Whether a mask asks of a cache only what comes later: any cache says that by itself."""
    return isinstance(mask, Causal) and mask.offset is None


def seen_of(cache: Cache, mask: Mask | None) -> Mask | None:
    """A mask, and what a cache hides of the keys that it gave back."""
    hidden = cache.mask()
    return mask if isinstance(hidden, Full) else and_masks(mask, hidden)


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
        in_order, hidden = cache.in_order, seen_of(cache, None)
    # Positions are (tokens,) where every row counts its columns.
    if not is_cross and (not in_order or key_positions.ndim == 2):
        places = Places(query_positions, key_positions)
        mask = None if mask is None else placed_mask(mask, places, in_order=in_order)
        if not in_order and options.get("bias") is not None:
            options = options | {"bias": placed_bias(options["bias"], places)}
    return and_masks(mask, hidden), options
