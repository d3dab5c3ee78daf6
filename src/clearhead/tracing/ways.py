"""The ways to trace: of a call of `attend`, of a layer and of a rung."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from clearhead._common.hints import hint_at, refusal, with_hints
from clearhead.attention.functional import attend
from clearhead.attention.kernels import eager
from clearhead.attention.problem import Options, make_problem
from clearhead.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from clearhead.ladder import (
    ConcatenatedHeads,
    RenormalisedAttention,
    SimpleAttention,
    SplitHeads,
    merge_heads,
    split_heads,
)
from clearhead.ladder.rung import Rung
from clearhead.layers.caches import Cache, CacheBundle
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.layers.nested import is_nested
from clearhead.masks.base import Mask
from clearhead.masks.dense import and_masks, as_mask, dense
from clearhead.stages import Stages
from clearhead.tracing.traced_call import TracedCall
from clearhead.tracing.traced_projections import of_layer, with_batch
from clearhead.tracing.traced_projections import of_rung as projections_of
from clearhead.tracing.user_call import UserCall, user_call


def way_of(thing: object) -> Callable[..., TracedCall | UserCall]:
    """The function that traces a call of `attend`, of a layer, of a rung, or of anybody's code."""
    if thing is attend:
        return _of_attend
    if isinstance(thing, MultiHeadAttention):
        return _of_layer
    return of_rung if isinstance(thing, Rung) else user_call


def check_call(way: Callable[..., Any], given: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Check that a call has its inputs, and no unknown arguments.

    Raises:
        ArgumentTypeError: codes `argument.words` and `trace.inputs`.
    """
    parameters = inspect.signature(way).parameters
    if hint_at(parameters, given, options):
        raise refusal(way, given, options, "trace")
    needed = [name for name, each in parameters.items() if each.default is each.empty]
    needed = [
        name for name in needed if parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    missing = [name for name in needed[len(given) :] if name not in options]
    if missing:
        thing = "clearhead.attend, " if needed[0] == "query" else ""
        raise ArgumentTypeError(
            "trace.inputs",
            f"trace needs the inputs of the call: trace({thing}{', '.join(needed)}); got no {', no '.join(missing)}.",
        )


@with_hints
def _of_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    kernel: str = "auto",
    **options: Unpack[Options],
) -> TracedCall:
    problem = make_problem(query, key, value, **options)
    lead = ("batch", "num_heads")[4 - problem.dims :] if problem.dims > 2 else ()
    computed = Stages(*(problem.restore(tensor) for tensor in eager.compute(problem)))
    return TracedCall("attend", problem, lead, computed, {}, {}, kernel=kernel)


def _of_layer(
    layer: MultiHeadAttention,
    x: Tensor,
    context: Tensor | None = None,
    *,
    mask: Mask | Tensor | None = None,
    valid: Tensor | None = None,
    cache: Cache | CacheBundle | None = None,
) -> TracedCall:
    if is_nested(x) or is_nested(context):
        raise UnsupportedError(
            "trace.nested",
            "a trace takes one text, or padded texts with valid=; got a nested tensor.",
        )
    # A trace leaves the cache of the caller as it is.
    problem = layer.make_problem(x, context, mask=mask, valid=valid, cache=copy.deepcopy(cache))
    computed = eager.compute(problem)
    output = layer.join(computed.context, x)
    inputs = {"x": x} if context is None else {"x": x, "source": context}
    projections = of_layer(
        layer, problem, inputs, computed.context, output, is_cached=cache is not None
    )
    lead = ("batch", "num_heads")
    if x.ndim == 2:
        computed, output, lead = Stages(*(each[0] for each in computed)), output[0], ("num_heads",)
    outputs = {"the contexts of all heads side by side, projected": output}
    title = f"MultiHeadAttention({layer.extra_repr()})"
    return TracedCall(title, problem, lead, computed, inputs, outputs, projections=projections)


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
