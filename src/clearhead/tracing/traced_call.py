"""One traced call: its stages with their axes and formulas, and its settings."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from clearhead.tracing.traced_projections import TracedProjection

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


@dataclass(frozen=True, eq=False)
class TracedCall:
    """One call of attention.

    Attributes:
        title: the name of what was called.
        steps: every stage from the inputs to the output, in order.
        query_len, kv_len: the numbers of queries and keys.
        notes: the sentences below the stages.
        scale, mask, softcap, dropout, sinks: the settings; of user code as they were read from it.
        projections: of query, key, value and output, if they are plain linear maps.
        kernel: the kernel that runs this call untraced; None for user code.
        difference: the largest distance of the context to that of the kernel.
        expected: the first stage that differs from the definition; None if none does.
    """

    title: str
    steps: list[Step]
    query_len: int
    kv_len: int
    notes: tuple[str, ...]
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
