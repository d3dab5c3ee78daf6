"""A rung of the ladder as a traced call: query, key, value and mask of every head."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from clearhead.attention.problem import make_problem
from clearhead.errors import ArgumentError
from clearhead.ladder import (
    ConcatenatedHeads,
    RenormalisedAttention,
    SimpleAttention,
    SplitHeads,
    merge_heads,
    split_heads,
)
from clearhead.ladder.rung import Rung
from clearhead.masks.coerce import and_masks, as_mask
from clearhead.masks.dense import dense
from clearhead.tracing.traced_call import TracedCall
from clearhead.tracing.traced_projections import of_rung as projections_of
from clearhead.tracing.traced_projections import with_batch


def of_rung(rung: Rung, x: Tensor, context: Tensor | None = None, **options: Any) -> TracedCall:
    """Run a rung and keep its stages.

    Raises:
        ArgumentError: code `trace.heads`, for heads that do not scale and hide in one way, or that
            have heads of their own.
    """
    inputs = {"x": x} if context is None else {"x": x, "source": context}
    heads = _heads(rung)
    is_simple = isinstance(heads[0], SimpleAttention)
    renormalised = isinstance(heads[0], RenormalisedAttention)
    computed = rung.stages(*inputs.values(), **options)
    query, key, value = rung.project(*inputs.values())
    mask = and_masks(rung.mask, as_mask(options.get("mask")))
    outputs, joined = {}, computed.context
    if isinstance(rung, ConcatenatedHeads | SplitHeads):
        joined = merge_heads(joined)
    if isinstance(rung, ConcatenatedHeads):  # whose heads may have masks of their own
        hidden = computed.weights == 0 if renormalised else computed.masked_scores == -torch.inf
        mask = dense(with_batch(~hidden, 4)) if bool(hidden.any()) else None
        outputs["the contexts of all heads side by side"] = joined
    elif isinstance(rung, SplitHeads):
        query, key, value = (split_heads(each, rung.num_heads) for each in (query, key, value))
        output = rung.output_projection(joined)
        outputs["the contexts of all heads side by side, projected"] = output
    lead = ("batch",) * (x.ndim - 2) + ("num_heads",) * bool(outputs)
    if not outputs:
        query, key, value = (each.unsqueeze(-3) for each in (query, key, value))
    problem = make_problem(
        *(with_batch(each, 4) for each in (query, key, value)),
        mask=mask,
        scale=1.0 if is_simple else None,
        dropout=next((head.dropout for head in heads if head.training and head.dropout), None),
    )
    title = type(rung).__name__
    return TracedCall(
        title,
        problem,
        lead,
        computed,
        inputs,
        outputs,
        not is_simple,
        renormalised,
        projections=projections_of(rung, inputs, joined),
    )


def _heads(rung: Rung) -> list[Rung]:
    """The rungs that a rung is made of, which scale and hide in one way; else it is refused."""
    if not isinstance(rung, ConcatenatedHeads):
        return [rung]
    heads = list(cast(Iterable[Rung], rung.heads))
    special = (SimpleAttention, RenormalisedAttention, SplitHeads, ConcatenatedHeads)
    kinds = {next((kind for kind in special if isinstance(head, kind)), Rung) for head in heads}
    if len(kinds) != 1 or kinds & {SplitHeads, ConcatenatedHeads}:
        names = ", ".join(type(head).__name__ for head in heads) or "none"
        raise ArgumentError(
            "trace.heads",
            f"a trace needs heads of one kind, without heads of their own; got {names}.",
        )
    return heads
