"""A trace: the stages of one call with axes and formulas, its settings, and the linear maps around it."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.lazy import drawing
from clearhead._text import shown
from clearhead.errors import SelectionError
from clearhead.tracing.text import arithmetic, table


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


@dataclass(eq=False, repr=False)
class Trace(Mapping[str, Tensor]):
    """The stages of one call of attention, by name and in order.

    `trace["weights"]` is a tensor, `print(trace)` shows every stage with its formula and numbers,
    `trace.explain(query=1)` writes the arithmetic of one token out.

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
        tokens: a label for each query: its number, and its word if there are words.
        source_tokens: a label for each key.

    Example:
        >>> import torch, clearhead as ch
        >>> x = torch.eye(2)
        >>> ch.trace(ch.attend, x, x, x, scale=1.0)["weights"]
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
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
    tokens: list[str] = field(default_factory=list)
    source_tokens: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Tensor:
        if not isinstance(name, str) or name not in self.steps:
            raise SelectionError(
                "trace.stage",
                f"there is no stage {shown(name)}; there are {', '.join(self.steps)}.",
            )
        return self.steps[name].tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        return self.show()

    def __repr__(self) -> str:
        return f"Trace of {self.title}: {', '.join(self.steps)}"

    def show(self, *, sample: int = 0, head: int = 0) -> str:
        """Return every stage as text, for one sample of the batch and one head.

        Args:
            sample: which row of the batch.
            head: which query head.

        Raises:
            SelectionError: code `trace.part`, if there is no such sample or head.
        """
        lines = [f"trace of {self.title}"]
        for step in self._drawn():
            lines.append("")
            lines.append(f"{step.name}  [{step.shape}]" + (f"  {step.line}" if step.line else ""))
            if step.same_as is not None:
                lines.append(f"  the same as {step.same_as}: {step.formula}")
                continue
            lines.append(f"  {step.formula}")
            part, which = self._part(step, sample, head)
            lines += [f"  {line}" for line in table(part, self._row_labels(step), which)]
        lines += ["", self.verdict]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the trace as HTML for a notebook."""
        return drawing("notebook.inline.markup").trace_html(self)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        sample: int | None = None,
        head: int | None = None,
    ) -> Path:
        """Write the stages as a page to step through, which opens without a network.

        It shows them from left to right, and of the number under the pointer how it came about.

        Args:
            path: the file; an existing one is replaced.
            sample: only this row of the batch; None for all, to choose from.
            head: only this query head; None for all.

        Returns:
            The path.

        Raises:
            SelectionError: code `trace.part`, if there is no such sample or head.
            TooLargeError: code `trace.page-size`, for more numbers than a page can hold.
            FileError: code `file.unwritable`, if the place cannot be written to.

        Example:
            >>> import tempfile, torch, clearhead as ch
            >>> x = torch.eye(2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ch.trace(ch.attend, x, x, x).to_html(f"{folder}/steps.html").name
            'steps.html'
        """
        payload = drawing("element.trace_page").trace_payload(self, sample=sample, head=head)
        return drawing("page.page").write_page(path, payload)

    def explain(self, query: int, *, sample: int = 0, head: int = 0) -> str:
        """Return the arithmetic of one query as text.

        Args:
            query: which query, counted from 0; negative from the end.
            sample: which row of the batch.
            head: which query head.

        Raises:
            SelectionError: code `trace.part`, if there is no such query, sample or head.

        Example:
            >>> import torch, clearhead as ch
            >>> x = torch.tensor([[1.0, 0.0], [0.5, 2.0]])
            >>> print(ch.trace(ch.attend, x, x, x).explain(query=1))
            query 1: [0.5, 2]
            <BLANKLINE>
            scores: the query times each key
              0  0.5·1 + 2·0 = 0.5000
              1  0.5·0.5 + 2·2 = 4.2500
            <BLANKLINE>
            weights: scores × 0.7071 (1/√2); softmax: exp(score − 3.0052, the largest), divided by their sum
              0     0.3536  exp(−2.6517) = 0.0705   weight 0.0659
              1     3.0052  exp(0.0000) = 1.0000   weight 0.9341
              the exps add up to 1.0705, the weights to 1.0000
            <BLANKLINE>
            context: the weighted sum of the values
              0.0659·1 + 0.9341·0.5 = 0.5329
              0.0659·0 + 0.9341·2 = 1.8682
        """
        parts = {name: self._part(step, sample, head)[0] for name, step in self.steps.items()}
        count = len(parts["query"])
        if not -count <= query < count:
            raise SelectionError("trace.part", f"there are {count} queries; got query={query}.")
        query %= count
        sink = None if self.sinks is None else float(self.sinks[head])
        formulas = {step.name: step.formula for step in self.steps.values() if not step.same_as}
        standard = all(step.standard for step in self.steps.values())
        lines = arithmetic(
            parts, query, self.tokens[query], self.source_tokens, formulas, standard, sink
        )
        return "\n".join(lines)

    def plot(
        self,
        stages: Sequence[str] | None = None,
        *,
        sample: int = 0,
        head: int = 0,
    ) -> Any:
        r"""Draw the stages from left to right with matplotlib, and return the axes; small stages show their numbers.

        Weights are on a scale from 0, all else on one with 0 in the middle; hidden pairs are white.

        Args:
            stages: only these, in this order; None is all that are not a mere repetition.
            sample: which row of the batch.
            head: which query head.

        Returns:
            An array of axes of a new figure of pyplot's, one for each stage.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            SelectionError: code `trace.part`, if there is no such sample or head; code
                `trace.stage`, if there is no such stage.
            ArgumentError: codes `plot.stages`, for no stage, and `plot.empty`, for one of no numbers.
            ArgumentTypeError: code `plot.stages`.

        Example:
            >>> import torch, clearhead as ch
            >>> x = torch.eye(2)
            >>> axes = ch.trace(ch.attend, x, x, x).plot()
            >>> [each.get_title().split("\n")[0] for each in axes]
            ['query', 'key', 'value', 'scores', 'scaled_scores', 'weights', 'context']
        """
        return drawing("figures").of_trace(self, stages, sample=sample, head=head)

    def _drawn(self) -> Iterator[Step]:
        """Yield every stage, and after the first that differs from the definition, what it should be."""
        for step in self.steps.values():
            yield step
            if self.expected is not None and self.expected.stage == step.name:
                formula = f"{step.name} by the definition, of the stages before it"
                yield Step(
                    f"expected_{step.name}",
                    self.expected.tensor,
                    step.axes,
                    formula,
                    standard=False,
                )

    def _part(self, step: Step, sample: int, head: int) -> tuple[Tensor, str]:
        """Return a stage for one sample and head, (rows, columns), and what was selected, as "batch 0, head 1" or "".

        The numbers have no graph. A key head is that of the query head. Raises SelectionError for an index out of
        range; an axis that the trace lacks has one entry. Of an empty axis, entry 0 is (0, columns).
        """
        tensor, words = step.tensor.detach(), []
        leading = {axis for each in self.steps.values() for axis in each.axes[:-2]}
        for axis, asked in (("batch", sample), ("num_heads", head)):
            if axis not in leading:
                _check_index(asked, 1, axis)
        for axis in step.axes[:-2]:
            index = {"batch": sample, "num_heads": head, "num_kv_heads": head}[axis]
            if axis == "num_kv_heads":
                groups = self.steps["query"].tensor.shape[-3] // tensor.shape[0]
                index //= groups
            if tensor.shape[0] == index == 0:
                return tensor.reshape(0, tensor.shape[-1]), ""
            _check_index(index, tensor.shape[0], axis)
            if tensor.shape[0] > 1:
                words.append(f"{axis.removeprefix('num_').removesuffix('s')} {index}")
            tensor = tensor[index]
        return tensor, ", ".join(words)

    def _hidden(self, part: Tensor, sample: int, head: int) -> Tensor:
        """Return bool, True where the masked score of a pair is −∞.

        All False for a stage of another shape than the scores.
        """
        scores = self._part(self.steps["masked_scores"], sample, head)[0]
        if scores.shape != part.shape:
            return torch.zeros_like(part, dtype=torch.bool)
        return scores == -math.inf

    def _row_labels(self, step: Step) -> list[str]:
        """Return the labels of the rows of a stage: those of the keys or those of the queries."""
        rows = step.axes[-2]
        return self.source_tokens if rows in ("kv_len", "source_tokens") else self.tokens


def _check_index(index: int, count: int, axis: str) -> None:
    """Raise SelectionError unless 0 ≤ index < count; negative indices are refused."""
    if not 0 <= index < count:
        raise SelectionError("trace.part", f"there are {count} along {axis}; got {index}.")


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
