"""Every stage between the input and the output, named, with its numbers."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead._common.lazy import drawing
from clearhead._common.memory import within_memory
from clearhead._text import shown
from clearhead.attention.functional import attend
from clearhead.errors import SelectionError
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.tracing.library_call import attend_call, check_call, layer_call
from clearhead.tracing.text import arithmetic, fenced, labels, table
from clearhead.tracing.traced_call import Step, TracedCall
from clearhead.tracing.user_call import user_call

INSTEAD = "Trace fewer tokens; AttentionMatrix gives rows and numbers of any length."


class Trace(TracedCall, Mapping[str, Tensor]):
    """The stages of one call of attention, by name and in order.

    `trace["weights"]` is a tensor, `print(trace)` shows every stage with its formula and numbers,
    `trace.explain(query=1)` writes the arithmetic of one token out.

    Attributes:
        tokens: a label for each query: its number, and its word if there are words.
        source_tokens: a label for each key.

    Example:
        >>> import torch, clearhead as ch
        >>> x = torch.eye(2)
        >>> ch.trace(ch.attend, x, x, x, scale=1.0)["weights"]
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """

    def __init__(
        self,
        call: TracedCall,
        tokens: Sequence[str] | None = None,
        source_tokens: Sequence[str] | None = None,
    ) -> None:
        super().__init__(**vars(call))
        self.tokens = labels(tokens, call.query_len, "tokens")
        if source_tokens is None and call.query_len == call.kv_len:
            source_tokens = tokens
        self.source_tokens = labels(source_tokens, call.kv_len, "source_tokens")

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

    def to_markdown(self, *, sample: int = 0, head: int = 0) -> str:
        """Return every stage as Markdown, for one sample of the batch and one head.

        Args:
            sample: which row of the batch.
            head: which query head.

        Raises:
            SelectionError: code `trace.part`, if there is no such sample or head.
        """
        parts = [f"### {self.title}"]
        for step in self._drawn():
            same = f"the same as `{step.same_as}`: " if step.same_as else ""
            parts.append(f"**{step.name}** `[{step.shape}]`  \n{same}{step.formula}")
            if step.same_as is None:
                part, which = self._part(step, sample, head)
                numbers = "\n".join(table(part, self._row_labels(step), which))
                parts.append(fenced(numbers))
        parts.append(self.verdict)
        return "\n\n".join(parts) + "\n"

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
        """Return a stage for one sample and head, (rows, columns), and what was selected, as "batch 0, head 1".

        "" if there was no choice. The numbers have no graph. A key head is that of the query head. Raises
        SelectionError for an index out of range; an axis that the trace lacks has one entry. Of an empty axis, entry 0
        is (0, columns).
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


@with_hints
def trace(
    thing: Callable[..., Any] | str,
    *inputs: Tensor,
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    **options: Any,
) -> Trace:
    """Run attention and keep every stage between the input and the output.

    The stages are scores → scaled_scores → capped_scores → masked_scores → weights →
    dropped_weights → context → output, with the projections before them; weights stand before *and*
    after dropout. Scores and weights take query_len × kv_len numbers each. The trace also says how far
    the context is from that of the kernel which would run this untraced.

    Code of your own is read as `check` reads it, operation by operation, whether it is right or wrong: the stages
    are those that it computed, bit for bit, each with its line. Next to the first one that differs from the
    definition stands what it should be. A module is copied, and its mode is left as it is.
    A rung of the ladder is read in the same way.

    Args:
        thing: `attend`, a `MultiHeadAttention`, a rung of the ladder; or code of your own: a function, an
            instance, a class, or "file.py:Name".
        inputs: what the thing takes: query, key and value, or x, or x and a context.
        tokens: a word for each query, for the tables.
        source_tokens: a word for each key, where they are not those of the queries.
        options: further arguments of the thing, such as `mask`; and what is declared of code of your own, as
            for `check`: causal=True.

    Raises:
        ArgumentTypeError: codes `trace.thing`, for anything else, and `trace.inputs`, for a call without its inputs;
            and what the thing itself raises.
        UnsupportedError: code `trace.unread`, for code in which no attention can be read.
        ArgumentError: code `trace.tokens`, if there are more or fewer words than tokens; for declarations that make no
            sense, and a place of another form.
        ModelError: for code of your own that cannot be found or made.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> steps = ch.trace(layer, torch.randn(1, 3, 8))
        >>> steps["weights"].shape
        torch.Size([1, 2, 3, 3])
        >>> float(steps["weights"][0, 0, 0, 0].detach())
        1.0
        >>> def mine(x):
        ...     return (x @ x.T).softmax(dim=0) @ x
        >>> ch.trace(mine, torch.tensor([[1.0, 0.0], [0.5, 2.0]]), scale=1.0).expected.stage
        'weights'
    """
    with within_memory(INSTEAD):
        given = inputs if thing is attend else (thing, *inputs)
        function: Callable[..., TracedCall] = user_call
        if thing is attend or isinstance(thing, MultiHeadAttention):
            function = attend_call if thing is attend else layer_call
            check_call(function, given, options)
        return Trace(function(*given, **options), tokens, source_tokens)


def _check_index(index: int, count: int, axis: str) -> None:
    """Raise SelectionError unless 0 ≤ index < count; negative indices are refused."""
    if not 0 <= index < count:
        raise SelectionError("trace.part", f"there are {count} along {axis}; got {index}.")
