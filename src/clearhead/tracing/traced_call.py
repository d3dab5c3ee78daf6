"""One traced call: its stages with axes and formulas, its settings, and the linear maps around it."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.attention.problem import Problem
from clearhead.layers.inputs import split_heads
from clearhead.layers.multi_head_attention import MultiHeadAttention

INPUTS = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class TracedProjection:
    """One linear map: the stage is `input @ weight + bias`, head by head.

    Attributes:
        input: (..., tokens, width): x, source, or, of the output, the contexts of all heads side by side.
        weight: (num_heads, width, head_dim), the transpose of nn.Linear's; (width, head_dim) where there
            are no heads, and (width, output_dim) of the output.
        bias: (num_heads, head_dim), or (head_dim,); None without one.
        parts: the parts of the layer that change query, key or value afterwards, such as rotary
            positions, or, of the output, the contexts before; empty where none does.

    Example:
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> steps = ch.trace(layer, torch.randn(1, 3, 8))
        >>> made = steps.projections["query"]
        >>> torch.allclose(made.input[:, None] @ made.weight, steps["query"], atol=1e-6)
        True
    """

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    parts: str = ""


@torch.no_grad()
def of_layer(
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
    projections, names = {}, dict(zip(INPUTS, (x, source, source), strict=True))
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


AXES = {
    "query": ("query_len", "head_dim"),
    "key": ("kv_len", "head_dim"),
    "value": ("kv_len", "value_head_dim"),
    "context": ("query_len", "value_head_dim"),
    "x": ("tokens", "embed_dim"),
    "source": ("source_tokens", "context_dim"),
    "output": ("tokens", "output_dim"),
}
PAIRS = ("query_len", "kv_len")
"""The axes of every other stage."""


@dataclass(frozen=True, eq=False)
class Step:
    """One stage of a trace.

    Attributes:
        name: the stage.
        tensor: its numbers.
        axes: the names of the tensor's axes.
        formula: how it is computed from the stages before it.
        same_as: the stage that it repeats, because there was nothing to do; None if it repeats none.
        line: the line of user code that computes it, such as "line 12"; "" where that is not known.
        standard: False for a stage of user code that is not computed as in the definition.

    Example:
        >>> import torch, clearhead as ch
        >>> x = torch.eye(2)
        >>> step = ch.trace(ch.attend, x, x, x).steps["scaled_scores"]
        >>> step.formula, step.shape
        ('scores × 0.7071 (1/√2)', 'query_len=2, kv_len=2')
    """

    name: str
    tensor: Tensor
    axes: tuple[str, ...]
    formula: str
    same_as: str | None = None
    line: str = ""
    standard: bool = True

    @property
    def shape(self) -> str:
        """The sizes by the names of their axes."""
        return ", ".join(
            f"{name}={size}" for name, size in zip(self.axes, self.tensor.shape, strict=True)
        )


class Expected(NamedTuple):
    """A stage by the definition, computed from the traced stages before it.

    Attributes:
        stage: the name of the stage.
        tensor: its numbers by the definition, with its axes.

    Example:
        >>> def unscaled(x):
        ...     return (x @ x.T).softmax(-1) @ x
        >>> ch.trace(unscaled, torch.eye(4)).expected.stage
        'scaled_scores'
    """

    stage: str
    tensor: Tensor


@dataclass(eq=False)
class TracedCall:
    """One call of attention.

    Attributes:
        title: the name of what was called.
        steps: every stage from the inputs to the output by its name, in order.
        query_len, kv_len: the numbers of queries and keys.
        verdict: the text below the stages: their distance to a kernel or to the definition.
        scale, mask, softcap, dropout, sinks: the settings; of user code as they were read from it.
        projections: input, weight and bias of query, key, value and output, if they are plain linear maps.
        kernel: the kernel that runs this call untraced; None for user code.
        difference: the largest distance of the context to that of the kernel, without dropout.
        expected: of user code, the first stage that differs from the definition; None if none does.
    """

    title: str
    steps: dict[str, Step]
    query_len: int
    kv_len: int
    verdict: str
    scale: float | None = None
    mask: str | None = None
    softcap: float | None = None
    dropout: float | None = None
    sinks: Tensor | None = None
    projections: dict[str, TracedProjection] = field(default_factory=dict)
    kernel: str | None = None
    difference: float = 0.0
    expected: Expected | None = None


def input_steps(inputs: dict[str, Tensor]) -> list[Step]:
    """Return the steps of the inputs "x" and "source", in their order; [] for none."""
    words = {"x": "the input", "source": "the sequence attended to"}
    return [
        Step(name, tensor, (*("batch",) * (tensor.ndim - 2), *AXES[name]), words[name])
        for name, tensor in inputs.items()
    ]


def stage_axes(lead: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the names of a stage's axes; `lead` are those of the query before its last two.

    "num_heads" becomes "num_kv_heads" for key and value.
    """
    heads = "num_kv_heads" if name in ("key", "value") else "num_heads"
    lead = tuple(axis.replace("num_heads", heads) for axis in lead)
    return (*lead, *AXES.get(name, PAIRS))
