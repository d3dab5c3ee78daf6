"""The ways to trace: of a call of `attend`, of a layer and of a rung."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.attention.functional import attend
from clearhead.attention.kernels import eager
from clearhead.attention.problem import make_problem
from clearhead.errors import ArgumentTypeError, UnsupportedError
from clearhead.ladder.rung import Rung
from clearhead.layers.caches import Cache, CacheBundle
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.layers.nested import is_nested
from clearhead.masks.base import Mask
from clearhead.stages import Stages
from clearhead.tracing.rungs import of_rung
from clearhead.tracing.traced_call import TracedCall
from clearhead.tracing.traced_projections import of_layer


def way_of(thing: object) -> Callable[..., TracedCall]:
    """The function that traces a call of `attend`, of a layer or of a rung.

    Raises:
        ArgumentTypeError: code `trace.thing`, for anything else.
    """
    if thing is attend:
        return _of_attend
    if isinstance(thing, MultiHeadAttention):
        return _of_layer
    if isinstance(thing, Rung):
        return of_rung
    raise ArgumentTypeError(
        "trace.thing",
        "trace takes clearhead.attend, a MultiHeadAttention or a rung of the ladder; got "
        f"{type(thing).__name__}. A model is watched: clearhead.watch(model).",
    )


def _of_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    kernel: str = "auto",
    bias: Bias | Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float | None = None,
) -> TracedCall:
    options: dict[str, Any] = {"bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
    problem = make_problem(query, key, value, mask=mask, dropout=dropout, **options)
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
            "a trace takes one text, or texts that are padded, beside valid=; got a nested tensor.",
        )
    # A trace leaves the cache of the caller as it is.
    problem = layer.make_problem(x, context, mask=mask, valid=valid, cache=copy.deepcopy(cache))
    computed = eager.compute(problem)
    output = layer.join(computed.context, x)
    inputs = {"x": x} if context is None else {"x": x, "source": context}
    projections = of_layer(layer, problem, inputs, computed.context, output)
    lead = ("batch", "num_heads")
    if x.ndim == 2:
        computed, output, lead = Stages(*(each[0] for each in computed)), output[0], ("num_heads",)
    outputs = {"the contexts of all heads side by side, projected": output}
    title = f"MultiHeadAttention({layer.extra_repr()})"
    return TracedCall(title, problem, lead, computed, inputs, outputs, projections=projections)
