"""Trace a call of `attend` or of a layer: compute its stages by the definition."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from clearhead import stages
from clearhead._common.hints import hint_at, refusal, with_hints
from clearhead.attention.kernels import eager
from clearhead.attention.planning import choose
from clearhead.attention.problem import Options, Problem, make_problem
from clearhead.errors import ArgumentTypeError
from clearhead.layers.inputs import CallOptions, split_heads
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.stages import Stages
from clearhead.tracing.traced_call import Step, Trace, TracedProjection, input_steps, stage_axes


def check_call(
    function: Callable[..., Any], given: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Check that a call has its inputs, and no unknown arguments or too many by position.

    Raises:
        ArgumentTypeError: codes `argument.words` and `trace.inputs`.
    """
    signature = inspect.signature(function)
    if hint_at(signature.parameters, given, options):
        raise refusal(function, given, options, "trace")
    try:
        signature.bind(*given, **options)
    except TypeError as error:
        text = f"trace needs the inputs of the call, as in trace(layer, x); {error}."
        raise ArgumentTypeError("trace.inputs", text) from None


@with_hints
def attend_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    kernel: str = "auto",
    **options: Unpack[Options],
) -> Trace:
    """Return the trace of a call of `attend`, with the stages by the definition.

    `kernel` is the one that the context is compared with. Raises what `attend` raises for such arguments.
    """
    problem = make_problem(query, key, value, **options)
    lead = ("batch", "num_heads")[4 - problem.dims :] if problem.dims > 2 else ()
    computed = Stages(*(problem.restore(tensor) for tensor in eager.compute(problem)))
    return _traced("attend", problem, lead, computed, {}, kernel=kernel)


@with_hints
def layer_call(
    layer: MultiHeadAttention,
    x: Tensor,
    context: Tensor | None = None,
    **options: Unpack[CallOptions],
) -> Trace:
    """Return the trace of a call of a layer, with the stages by the definition; layer and cache are not changed.

    Raises what the layer raises for such arguments.
    """
    # A trace leaves the cache of the caller as it is.
    options["cache"] = copy.deepcopy(options.get("cache"))
    problem = layer.make_problem(x, context, **options)
    computed = eager.compute(problem)
    output = layer.join(computed.context, x)
    inputs = {"x": x} if context is None else {"x": x, "source": context}
    is_cached = options["cache"] is not None
    projections = _projections(
        layer, problem, inputs, computed.context, output, is_cached=is_cached
    )
    lead = ("batch", "num_heads")
    if x.ndim == 2:
        computed, output, lead = Stages(*(each[0] for each in computed)), output[0], ("num_heads",)
    title = f"MultiHeadAttention({layer.extra_repr()})"
    return replace(_traced(title, problem, lead, computed, inputs, output), projections=projections)


def _traced(
    title: str,
    problem: Problem,
    lead: tuple[str, ...],
    computed: Stages,
    inputs: dict[str, Tensor],
    output: Tensor | None = None,
    kernel: str = "auto",
) -> Trace:
    """Return the trace of a problem and its stages; `lead` are the names of the axes before the last two.

    `inputs` are x and perhaps source of a layer, and `output` is its output; {} and None for `attend`. The kernel is
    run once, to compare its context.
    """
    steps = input_steps(inputs)
    for name in ("query", "key", "value"):
        tensor = getattr(problem, name)
        tensor = tensor if "batch" in lead else tensor[0]
        tensor = tensor if "num_heads" in lead else tensor.squeeze(-3)
        source = "source" if "source" in inputs and name != "query" else "x"
        formula = f"{name} projection of {source}" if inputs else "an argument"
        steps.append(Step(name, tensor, stage_axes(lead, name), formula))
    before = None
    for (name, tensor), (formula, changes) in zip(
        computed._asdict().items(), _formulas(problem), strict=True
    ):
        same_as = None if changes else before
        steps.append(Step(name, tensor, stage_axes(lead, name), formula, same_as))
        before = name
    if output is not None:
        axes = (*("batch",) * (output.ndim - 2), "tokens", "output_dim")
        formula = "the contexts of all heads side by side, projected"
        steps.append(Step("output", output, axes, formula))
    chosen, distance = _kernel_and_distance(problem, computed, kernel)
    return Trace(
        title,
        {step.name: step for step in steps},
        problem.query_len,
        problem.kv_len,
        f"largest distance to the context of kernel {chosen!r}: {distance:.1e}",
        scale=problem.scale,
        mask=None if problem.mask is None else problem.mask.describe(),
        softcap=problem.softcap,
        dropout=problem.dropout,
        sinks=None if problem.sinks is None else problem.sinks.detach(),
        kernel=chosen,
        difference=distance,
    )


def _kernel_and_distance(problem: Problem, computed: Stages, kernel: str) -> tuple[str, float]:
    """Return the name of the kernel that runs a problem, and the largest distance of its context from the definition.

    Both contexts are computed without dropout and without gradient; the distance is 0.0 for an empty context.
    """
    problem = problem.replace(dropout=None)
    chosen = choose(problem, kernel)
    with torch.no_grad():
        weights = computed.weights.reshape(*problem.query.shape[:3], problem.kv_len)
        value = stages.repeat_kv_heads(problem.value, problem.num_heads)
        context = stages.context(weights, value, problem.visible())
        distance = (chosen.attend(problem) - context).abs()
    return chosen.NAME, float(distance.max()) if distance.numel() else 0.0


def _formulas(problem: Problem) -> Iterator[tuple[str, bool]]:
    """Yield for each stage, from scores to context, its formula, and False if it repeats the stage before."""
    yield "query · keyᵀ", True
    scale, head_dim = problem.scale, problem.query.shape[-1]
    root = f" (1/√{head_dim})" if math.isclose(scale, head_dim**-0.5) else ""
    yield "scale is 1" if scale == 1.0 else f"scores × {scale:.4f}{root}", scale != 1.0
    cap = problem.softcap
    capped = "no softcap" if cap is None else f"{cap:g} · tanh(scaled_scores / {cap:g})"
    yield capped, cap is not None
    bias = "" if problem.bias is None else " + bias"
    hidden = "" if problem.mask is None else f", −∞ where {problem.mask.describe()} hides"
    changes = bool(bias or hidden)
    yield f"capped_scores{bias}{hidden}" if changes else "no mask, no bias", changes
    sinks = "" if problem.sinks is None else ", with a sink per head"
    yield f"softmax(masked_scores) over the keys{sinks}", True
    rate = problem.dropout or 0.0
    dropped = f"dropout {rate:g}: some weights 0, the others × {1 / (1 - rate):.4g}"
    yield dropped if rate else "no dropout", bool(rate)
    yield "dropped_weights · value", True


@torch.no_grad()
def _projections(
    layer: MultiHeadAttention,
    problem: Problem,
    inputs: dict[str, Tensor],
    context: Tensor,
    output: Tensor,
    *,
    is_cached: bool,
) -> dict[str, TracedProjection]:
    """Return the linear maps of a layer by the name of their stage; {} if none can be shown.

    Maps that are not plain, such as those of an adapter, are left out, and those whose result is not the stage though
    the layer has no parts. So are those of keys and values if a cache has some of the keys and values.

    Args:
        layer: the layer.
        problem: its query, key and value, after parts and cache.
        inputs: x, and source if there is one.
        context: (batch, num_heads, tokens, value_head_dim).
        output: (batch, tokens, output_dim).
        is_cached: True if keys and values are those of a cache.
    """
    x = inputs["x"]
    source = inputs.get("source", x)
    parts = ", ".join(type(part).__name__ for part in layer.parts)
    projections, names = {}, dict(zip(("query", "key", "value"), (x, source, source), strict=True))
    if type(layer)._project is not MultiHeadAttention._project:
        names = {}
    elif is_cached:
        names = {"query": x}
    for name, given in names.items():
        stage, linear = getattr(problem, name), getattr(layer, f"{name}_projection")
        heads, dim = stage.shape[-3], stage.shape[-1]
        if not _is_plain(linear) or linear.out_features != heads * dim:
            continue
        made = split_heads(linear(_batched(given)), heads, dim, name)
        same = _equal(made, stage)
        if same or parts:
            weight, bias = linear.weight.detach().T, linear.bias
            projections[name] = TracedProjection(
                given.detach(),
                weight.unflatten(-1, (heads, -1)).movedim(-2, -3),
                None if bias is None else bias.detach().unflatten(-1, (heads, -1)),
                "" if same else parts,
            )
    plain = context.transpose(1, 2).flatten(2)
    for part in layer.parts:
        context = part.transform_context(context, _batched(x))
    joined = context.transpose(1, 2).flatten(2)
    linear = layer.output_projection
    if _is_plain(linear) and _equal(linear(joined), output):
        given = joined if x.ndim == 3 else joined[0]
        bias = None if linear.bias is None else linear.bias.detach()
        changed = "" if _equal(joined, plain) else parts
        projections["output"] = TracedProjection(
            given.detach(), linear.weight.detach().T, bias, changed
        )
    return projections


def _batched(tensor: Tensor) -> Tensor:
    """Return a tensor of three axes unchanged, any other with a batch axis of 1 in front."""
    return tensor if tensor.ndim == 3 else tensor[None]


def _is_plain(linear: Any) -> bool:
    """Return True for an nn.Linear with its own forward, no forward hooks, and a weight that is no tensor subclass."""
    if not isinstance(linear, nn.Linear) or type(linear).forward is not nn.Linear.forward:
        return False
    return not linear._forward_hooks and type(linear.weight) in (Tensor, nn.Parameter)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same shape and exactly equal numbers; NaN equals NaN."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
