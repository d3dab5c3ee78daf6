"""One traced call: its stages laid out as steps, each with its axes and its formula."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.planning import choose
from clearhead.attention.problem import Problem
from clearhead.stages import Stages
from clearhead.tracing.traced_projections import TracedProjection

AXES = {
    "query": ("query_len", "head_dim"),
    "key": ("kv_len", "head_dim"),
    "value": ("kv_len", "value_head_dim"),
    "scores": ("query_len", "kv_len"),
    "scaled_scores": ("query_len", "kv_len"),
    "capped_scores": ("query_len", "kv_len"),
    "masked_scores": ("query_len", "kv_len"),
    "weights": ("query_len", "kv_len"),
    "dropped_weights": ("query_len", "kv_len"),
    "context": ("query_len", "value_head_dim"),
    "x": ("tokens", "embed_dim"),
    "source": ("source_tokens", "context_dim"),
    "output": ("tokens", "output_dim"),
}


@dataclass(frozen=True, eq=False)
class Step:
    """One stage of a trace.

    Attributes:
        name: the stage.
        tensor: its numbers.
        axes: the names of the tensor's axes.
        formula: how it comes from the stages before it.
        same_as: the stage that it merely repeats, because there was nothing to do, or None.
        line: of code of one's own, the line that computes it: "line 12"; "" where that is not known.
        standard: False of a stage of one's own code that does not come about as in the definition.

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
    """Stage by the definition of the stages before one that differs from it.

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


class TracedCall(NamedTuple):
    """One call of attention with its stages.

    Attributes:
        title: the name of the thing that was called.
        problem: the call as the kernels take it.
        lead: the axes of the stages before the last two.
        stages: with as many dimensions as the inputs of the call.
        inputs: `x` and `source` of a layer or a rung, which projects them.
        outputs: the `output` by its formula; empty where the context is the result.
        projected: query, key and value are made of the inputs, and are not the inputs themselves.
        renormalised: weights, not scores, were hidden, and the others divided by their sum again.
        kernel: the kernel that was asked for.
        projections: of query, key, value and output, where they are plain linear maps.
    """

    title: str
    problem: Problem
    lead: tuple[str, ...]
    stages: Stages
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    projected: bool = True
    renormalised: bool = False
    kernel: str = "auto"
    projections: Mapping[str, TracedProjection] = MappingProxyType({})

    def steps(self) -> Iterator[Step]:
        """Every step from the inputs to the output, in order."""
        batch = ("batch",) if "batch" in self.lead else ()
        for name, tensor in self.inputs.items():
            formula = "the input" if name == "x" else "the sequence attended to"
            yield Step(name, tensor, (*batch, *AXES[name]), formula)
        for name in ("query", "key", "value"):
            heads = "num_heads" if name == "query" else "num_kv_heads"
            lead = tuple(axis.replace("num_heads", heads) for axis in self.lead)
            tensor = self._restore(getattr(self.problem, name))
            yield Step(name, tensor, (*lead, *AXES[name]), self._origin(name))
        before = None
        named = self.stages._asdict().items()
        for (name, tensor), (formula, changes) in zip(named, self._formulas(), strict=True):
            same_as = None if changes else before
            yield Step(name, tensor, (*self.lead, *AXES[name]), formula, same_as)
            before = name
        for formula, tensor in self.outputs.items():
            yield Step("output", tensor, (*batch, *AXES["output"]), formula)

    def kernel_and_distance(self) -> tuple[str, float]:
        """The kernel that would run this, and the largest distance of its context, without dropout."""
        problem = self.problem.replace(dropout=None)
        chosen = choose(problem, self.kernel)
        with torch.no_grad():
            weights = self.stages.weights.reshape(*problem.query.shape[:3], problem.kv_len)
            value = stages.repeat_kv_heads(problem.value, problem.num_heads)
            context = stages.context(weights, value, problem.visible())
            distance = (chosen.attend(problem) - context).abs()
        return chosen.NAME, float(distance.max()) if distance.numel() else 0.0

    def _restore(self, tensor: Tensor) -> Tensor:
        """A tensor of four dimensions with the axes of the call."""
        tensor = tensor if "batch" in self.lead else tensor[0]
        return tensor if "num_heads" in self.lead else tensor.squeeze(-3)

    def _origin(self, name: str) -> str:
        """The formula of query, key or value."""
        if not self.inputs:
            return "an argument"
        source = "source" if "source" in self.inputs and name != "query" else "x"
        return f"{name} projection of {source}" if self.projected else f"the same as {source}"

    def _formulas(self) -> Iterator[tuple[str, bool]]:
        """The formula of each stage, and whether it differs from the stage before."""
        problem = self.problem
        yield "query · keyᵀ", True
        scale, head_dim = problem.scale, problem.query.shape[-1]
        root = f" (1/√{head_dim})" if math.isclose(scale, head_dim**-0.5) else ""
        yield "scale is 1" if scale == 1.0 else f"scores × {scale:.4f}{root}", scale != 1.0
        cap = problem.softcap
        capped = "no softcap" if cap is None else f"{cap:g} · tanh(scaled_scores / {cap:g})"
        yield capped, cap is not None
        bias = "" if problem.bias is None else " + bias"
        hidden = "" if problem.mask is None else f", −∞ where {problem.mask.describe()} hides"
        if self.renormalised:
            yield "this rung hides weights, not scores", False
            weights = "softmax over the keys, then 0 where hidden, then each row divided by its sum"
        else:
            changes = bool(bias or hidden)
            yield f"capped_scores{bias}{hidden}" if changes else "no mask, no bias", changes
            sinks = "" if problem.sinks is None else ", with a sink per head"
            weights = f"softmax(masked_scores) over the keys{sinks}"
        yield weights, True
        rate = problem.dropout or 0.0
        dropped = f"dropout {rate:g}: some weights 0, the others × {1 / (1 - rate):.4g}"
        yield dropped if rate else "no dropout", bool(rate)
        yield "dropped_weights · value", True
