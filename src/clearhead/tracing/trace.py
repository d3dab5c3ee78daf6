"""Every stage between the input and the output, named, with its numbers."""

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from clearhead import stages
from clearhead._common.lazy import drawing
from clearhead._common.text import printable
from clearhead.attention.functional import attend
from clearhead.attention.kernels import eager
from clearhead.attention.planning import choose
from clearhead.attention.problem import Problem, make_problem
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError
from clearhead.ladder import (
    ConcatenatedHeads,
    RenormalisedAttention,
    SimpleAttention,
    SplitHeads,
    merge_heads,
    split_heads,
)
from clearhead.layers.caches import Cache
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.masks.base import Mask
from clearhead.masks.coerce import and_masks, as_mask
from clearhead.masks.dense import dense
from clearhead.stages import Stages
from clearhead.tracing.text import arithmetic, fenced, table

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

    @property
    def shape(self) -> str:
        """The sizes by the names of their axes."""
        return ", ".join(
            f"{name}={size}" for name, size in zip(self.axes, self.tensor.shape, strict=True)
        )


class Trace(Mapping[str, Tensor]):
    """The stages of one call of attention, by name and in order.

    `trace["weights"]` is a tensor, `print(trace)` shows every stage with its formula and numbers,
    `trace.explain(query=1)` writes the arithmetic of one token out.

    Example:
        >>> import torch, clearhead as ch
        >>> x = torch.eye(2)
        >>> ch.trace(ch.attend, x, x, x, scale=1.0)["weights"]
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """

    def __init__(
        self,
        title: str,
        steps: Sequence[Step],
        *,
        scale: float,
        mask: str | None,
        softcap: float | None = None,
        dropout: float | None = None,
        sinks: Tensor | None,
        kernel: str,
        difference: float,
        tokens: Sequence[str] | None,
        source_tokens: Sequence[str] | None,
        renormalised: bool = False,
    ) -> None:
        self.title = title
        self.steps = {step.name: step for step in steps}
        self.scale = scale
        self.mask = mask
        self.softcap = softcap
        self.dropout = dropout
        self.sinks = None if sinks is None else sinks.detach()
        self.renormalised = renormalised
        """Whether weights, not scores, were hidden, and the others divided by their sum again."""
        self.kernel = kernel
        """The kernel that runs this without being traced."""
        self.difference = difference
        """Largest distance between the traced context and that kernel's, without dropout."""
        query_len, kv_len = self["scores"].shape[-2:]
        self.tokens = _labels(tokens, query_len, "tokens")
        given = source_tokens if source_tokens is not None or query_len != kv_len else tokens
        self.source_tokens = _labels(given, kv_len, "source_tokens")

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.steps:
            raise SelectionError(
                "trace.stage", f"there is no stage {name!r}; there are {', '.join(self.steps)}."
            )
        return self.steps[name].tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __contains__(self, name: object) -> bool:
        return name in self.steps

    def __str__(self) -> str:
        return self.show()

    def __repr__(self) -> str:
        return f"Trace of {self.title}: {', '.join(self.steps)}"

    def show(self, *, sample: int = 0, head: int = 0) -> str:
        """Every stage as text, for one sample of the batch and one head.

        Args:
            sample: which row of the batch.
            head: which query head.

        Raises:
            SelectionError: code `trace.part`, if there is no such sample or head.
        """
        lines = [f"trace of {self.title}"]
        for step in self.steps.values():
            lines.append("")
            lines.append(f"{step.name}  [{step.shape}]")
            if step.same_as is not None:
                lines.append(f"  the same as {step.same_as}: {step.formula}")
                continue
            lines.append(f"  {step.formula}")
            part, which = self._part(step, sample, head)
            lines += [f"  {line}" for line in table(part, self._row_labels(step), which)]
        lines += ["", self._verdict()]
        return "\n".join(lines)

    def to_markdown(self, *, sample: int = 0, head: int = 0) -> str:
        """Every stage as Markdown, for one sample of the batch and one head.

        Args:
            sample: which row of the batch.
            head: which query head.

        Raises:
            SelectionError: code `trace.part`, if there is no such sample or head.
        """
        parts = [f"### {self.title}"]
        for step in self.steps.values():
            same = f"the same as `{step.same_as}`: " if step.same_as else ""
            parts.append(f"**{step.name}** `[{step.shape}]`  \n{same}{step.formula}")
            if step.same_as is None:
                part, which = self._part(step, sample, head)
                numbers = "\n".join(table(part, self._row_labels(step), which))
                parts.append(fenced(numbers))
        parts.append(self._verdict())
        return "\n\n".join(parts) + "\n"

    def _repr_html_(self) -> str:
        return drawing("notebook.inline.traces").trace_html(self)

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
            path: the file; whatever was there is replaced.
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
        payload = drawing("page.steps").steps_payload(self, sample=sample, head=head)
        return drawing("page.page").write_page(path, payload)

    def explain(self, query: int, *, sample: int = 0, head: int = 0) -> str:
        """The arithmetic of one query, written out.

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
            weights: scores × 0.7071 (1/√2); exp(score − 3.0052), the largest, as a share of the sum
              0     0.3536  exp(−2.6517) = 0.0705   weight 0.0659
              1     3.0052  exp(0.0000) = 1.0000   weight 0.9341
              the exps add up to 1.0705, the weights to 1.0000
            <BLANKLINE>
            context: each value as much as its weight
              0.0659·1 + 0.9341·0.5 = 0.5329
              0.0659·0 + 0.9341·2 = 1.8682
        """
        parts = {name: self._part(step, sample, head)[0] for name, step in self.steps.items()}
        count = parts["scores"].shape[0]
        if not -count <= query < count:
            raise SelectionError("trace.part", f"there are {count} queries; got query={query}.")
        query %= count
        sink = None if self.sinks is None else float(self.sinks[head])
        formulas = {step.name: step.formula for step in self.steps.values() if not step.same_as}
        lines = arithmetic(
            parts,
            query,
            self.tokens[query],
            self.source_tokens,
            formulas,
            renormalised=self.renormalised,
            sink=sink,
        )
        return "\n".join(lines)

    def plot(
        self,
        stages: Sequence[str] | None = None,
        *,
        sample: int = 0,
        head: int = 0,
        log: bool = False,
        ax: Any = None,
    ) -> Any:
        """Draw the stages from left to right with matplotlib, small ones with their numbers.

        Weights are on a scale from 0, all else on one with 0 in the middle; what is hidden is white.

        Args:
            stages: only these, in this order; None is all that are not a mere repetition.
            sample: which row of the batch.
            head: which query head.
            log: a logarithmic scale for the weights.
            ax: an array of axes to draw in, one for each stage; None is a new figure of pyplot's.

        Returns:
            An array of axes, one for each stage.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            SelectionError: code `trace.part`, if there is no such sample or head; code
                `trace.stage`, if there is no such stage.
            ArgumentError: codes `plot.stages`, for no stage, and `plot.empty`, for one of no numbers.
            ArgumentTypeError: codes `plot.axes`, `plot.stages` and `log.type`.
            ShapeError: code `plot.axes`.

        Example:
            >>> import torch, clearhead as ch
            >>> x = torch.eye(2)
            >>> axes = ch.trace(ch.attend, x, x, x).plot()
            >>> [each.get_title().split("\\n")[0] for each in axes]
            ['query', 'key', 'value', 'scores', 'scaled_scores', 'weights', 'context']
        """
        return drawing("figures").of_trace(self, stages, sample=sample, head=head, log=log, ax=ax)

    def _verdict(self) -> str:
        return f"largest distance to the context of kernel {self.kernel!r}: {self.difference:.1e}"

    def _part(self, step: Step, sample: int, head: int) -> tuple[Tensor, str]:
        """Two dimensions of a stage, and which they are, in words."""
        tensor, words = step.tensor.detach(), []
        for axis in step.axes[:-2]:
            index = {"batch": sample, "num_heads": head, "num_kv_heads": head}[axis]
            if axis == "num_kv_heads":
                groups = self.steps["query"].tensor.shape[-3] // tensor.shape[0]
                index //= groups
            if not 0 <= index < tensor.shape[0]:
                raise SelectionError(
                    "trace.part", f"there are {tensor.shape[0]} along {axis}; got {index}."
                )
            if tensor.shape[0] > 1:
                words.append(f"{axis.removeprefix('num_').removesuffix('s')} {index}")
            tensor = tensor[index]
        return tensor, ", ".join(words)

    def _row_labels(self, step: Step) -> list[str]:
        rows = step.axes[-2]
        return self.source_tokens if rows in ("kv_len", "source_tokens") else self.tokens


def trace(
    thing: Callable[..., Any],
    *inputs: Tensor,
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    **options: Any,
) -> Trace:
    """Run attention and keep every stage between the input and the output.

    The stages are scores → scaled_scores → capped_scores → masked_scores → weights →
    dropped_weights → context → output, with the projections before them; weights stand before *and*
    after dropout. They take query_len × kv_len numbers each. The trace also says how far the
    context is from that of the kernel which would run this untraced.

    Args:
        thing: `attend`, a `MultiHeadAttention` or a rung of the ladder.
        inputs: what the thing takes: query, key and value, or x, or x and a context.
        tokens: a word for each query, for the tables.
        source_tokens: a word for each key, where they are not those of the queries.
        options: further arguments of the thing, such as `mask`.

    Raises:
        ArgumentTypeError: code `trace.thing`, for anything else; and what the thing itself raises.
        ArgumentError: code `trace.tokens`, if there are more or fewer words than tokens.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> steps = ch.trace(layer, torch.randn(1, 3, 8))
        >>> steps["weights"].shape
        torch.Size([1, 2, 3, 3])
        >>> float(steps["weights"][0, 0, 0, 0].detach())
        1.0
    """
    if isinstance(thing, MultiHeadAttention):
        traced = _of_layer(thing, *inputs, **options)
    elif isinstance(thing, SimpleAttention | ConcatenatedHeads):
        traced = _of_rung(thing, *inputs, **options)
    elif thing is attend:
        kernel = options.pop("kernel", "auto")
        problem = make_problem(*inputs, **options)
        lead = ("batch", "num_heads")[4 - problem.dims :] if problem.dims > 2 else ()
        computed = Stages(*(problem.restore(t) for t in eager.compute(problem)))
        traced = _Traced("attend", problem, lead, computed, {}, {}, kernel=kernel)
    else:
        raise ArgumentTypeError(
            "trace.thing",
            "trace takes clearhead.attend, a MultiHeadAttention or a rung of the ladder; got "
            f"{type(thing).__name__}. A model is watched: clearhead.watch(model).",
        )
    return _assemble(traced, tokens, source_tokens)


class _Traced(NamedTuple):
    """What a trace is made of, before it is laid out."""

    title: str
    problem: Problem
    lead: tuple[str, ...]
    """The axes in front of the last two."""
    stages: Stages
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    renormalised: bool = False
    projected: bool = True
    """Whether query, key and value are made of the input, and not the input itself."""
    kernel: str = "auto"


def _of_layer(
    layer: MultiHeadAttention,
    x: Tensor,
    context: Tensor | None = None,
    *,
    mask: Mask | Tensor | None = None,
    valid: Tensor | None = None,
    cache: Cache | None = None,
) -> _Traced:
    # What is traced has not happened: the cache stays as it is.
    problem = layer.make_problem(x, context, mask=mask, valid=valid, cache=copy.deepcopy(cache))
    computed = eager.compute(problem)
    output = layer.join(computed.context, x)
    lead = ("batch", "num_heads")
    if x.ndim == 2:
        computed, output, lead = Stages(*(t[0] for t in computed)), output[0], ("num_heads",)
    return _Traced(
        f"MultiHeadAttention({layer.extra_repr()})",
        problem,
        lead,
        computed,
        _inputs(x, context),
        {"output": output},
    )


def _of_rung(
    rung: SimpleAttention | ConcatenatedHeads, x: Tensor, *others: Any, **options: Any
) -> _Traced:
    computed = rung.stages(x, *others, **options)
    context = others[0] if others else options.get("context")
    with_heads = isinstance(rung, SplitHeads | ConcatenatedHeads)
    lead = ("batch",) * (x.ndim - 2) + ("num_heads",) * with_heads
    query, key, value = _projected(rung, x, context)
    renormalised = _is_renormalised(rung)
    if isinstance(rung, ConcatenatedHeads):  # whose heads may have masks of their own
        hidden = computed.weights == 0 if renormalised else computed.masked_scores == -torch.inf
        mask = dense(_four_dimensions(~hidden, with_heads)) if bool(hidden.any()) else None
    else:
        mask = and_masks(getattr(rung, "mask", None), as_mask(options.get("mask")))
    problem = make_problem(
        *(_four_dimensions(t, with_heads) for t in (query, key, value)),
        mask=mask,
        scale=1.0 if type(rung) is SimpleAttention else None,
        dropout=_dropout(rung),
    )
    outputs = {}
    if isinstance(rung, SplitHeads):
        outputs["output"] = rung.output_projection(merge_heads(computed.context))
    elif with_heads:
        outputs["output"] = merge_heads(computed.context)
    return _Traced(
        type(rung).__name__,
        problem,
        lead,
        computed,
        _inputs(x, context),
        outputs,
        renormalised=renormalised,
        projected=query is not x,
    )


def _projected(
    rung: SimpleAttention | ConcatenatedHeads, x: Tensor, context: Tensor | None
) -> tuple[Tensor, ...]:
    """Query, key and value of a rung, with an axis of heads where it has several."""
    if isinstance(rung, ConcatenatedHeads):
        each = [_projected(cast(SimpleAttention, head), x, context) for head in rung.heads]
        return tuple(torch.stack(same, dim=-3) for same in zip(*each, strict=True))
    project = cast(Callable[..., tuple[Tensor, ...]], rung.project)
    projected = project(x) if context is None else project(x, context)
    if isinstance(rung, SplitHeads):
        return tuple(split_heads(each, rung.num_heads) for each in projected)
    return projected


def _heads(rung: SimpleAttention | ConcatenatedHeads) -> list[nn.Module]:
    """The rungs that a rung is made of."""
    return list(rung.heads) if isinstance(rung, ConcatenatedHeads) else [rung]


def _is_renormalised(rung: SimpleAttention | ConcatenatedHeads) -> bool:
    return type(_heads(rung)[0]) is RenormalisedAttention


def _dropout(rung: SimpleAttention | ConcatenatedHeads) -> float | None:
    found = [getattr(head, "dropout", None) for head in _heads(rung) if head.training]
    return next((dropout for dropout in found if dropout), None)


def _four_dimensions(tensor: Tensor, with_heads: bool) -> Tensor:
    tensor = tensor if with_heads else tensor.unsqueeze(-3)
    return tensor if tensor.ndim == 4 else tensor[None]


def _inputs(x: Tensor, context: Tensor | None) -> dict[str, Tensor]:
    return {"x": x} if context is None else {"x": x, "source": context}


def _assemble(
    traced: _Traced, tokens: Sequence[str] | None, source_tokens: Sequence[str] | None
) -> Trace:
    problem, computed = traced.problem, traced.stages
    steps = []
    batch = traced.lead[:1] if "batch" in traced.lead else ()
    for name, tensor in traced.inputs.items():
        formula = "what is given" if name == "x" else "what is attended to"
        steps.append(Step(name, tensor, (*batch, *AXES[name]), formula))
    kv_lead = tuple(axis.replace("num_heads", "num_kv_heads") for axis in traced.lead)
    source = "source" if "source" in traced.inputs else "x"
    shown = {"query": problem.query, "key": problem.key, "value": problem.value}
    for name, tensor in shown.items():
        origin = "x" if name == "query" else source
        formula = f"{name} projection of {origin}" if traced.inputs else "what is given"
        if traced.inputs and not traced.projected:
            formula = f"the same as {origin}"
        lead = traced.lead if name == "query" else kv_lead
        steps.append(Step(name, _fewer_dimensions(tensor, lead), (*lead, *AXES[name]), formula))
    before = None
    for name, tensor in computed._asdict().items():
        unchanged = before is not None and _nothing_to_do(name, traced)
        formula = _formula(name, traced)
        axes = (*traced.lead, *AXES[name])
        steps.append(Step(name, tensor, axes, formula, before if unchanged else None))
        before = name
    for name, tensor in traced.outputs.items():
        formula = "the contexts of all heads side by side"
        if not traced.title.startswith("ConcatenatedHeads"):
            formula += ", projected"
        steps.append(Step(name, tensor, (*batch, *AXES[name]), formula))
    kernel, difference = _distance(traced)
    return Trace(
        traced.title,
        steps,
        scale=problem.scale,
        mask=None if problem.mask is None else problem.mask.describe(),
        softcap=problem.softcap,
        dropout=problem.dropout,
        sinks=problem.sinks,
        kernel=kernel,
        difference=difference,
        tokens=tokens,
        source_tokens=source_tokens,
        renormalised=traced.renormalised,
    )


def _fewer_dimensions(tensor: Tensor, lead: tuple[str, ...]) -> Tensor:
    if "batch" not in lead:
        tensor = tensor[0]
    return tensor if lead and lead[-1] != "batch" else tensor.squeeze(-3)


def _distance(traced: _Traced) -> tuple[str, float]:
    """The kernel that would run this, and how far its context is from the traced one."""
    problem = traced.problem.replace(dropout=None)
    chosen = choose(problem, traced.kernel)
    with torch.no_grad():
        value = stages.repeat_kv_heads(problem.value, problem.num_heads)
        undropped = stages.context(
            traced.stages.weights.reshape(*problem.query.shape[:3], problem.kv_len),
            value,
            problem.visible(),
        )
        far = (chosen.attend(problem) - undropped).abs()
    return chosen.NAME, float(far.max()) if far.numel() else 0.0


def _nothing_to_do(name: str, traced: _Traced) -> bool:
    problem = traced.problem
    return {
        "scores": False,
        "scaled_scores": problem.scale == 1.0,
        "capped_scores": problem.softcap is None,
        "masked_scores": (problem.mask is None or traced.renormalised) and problem.bias is None,
        "weights": False,
        "dropped_weights": problem.dropout is None,
        "context": False,
    }[name]


def _formula(name: str, traced: _Traced) -> str:
    problem = traced.problem
    scale = problem.scale
    if name == "scores":
        return "query · keyᵀ"
    if name == "scaled_scores":
        if scale == 1.0:
            return "scale is 1"
        root = math.isclose(scale, problem.query.shape[-1] ** -0.5)
        return f"scores × {scale:.4f}" + (f" (1/√{problem.query.shape[-1]})" if root else "")
    if name == "capped_scores":
        cap = problem.softcap
        return "no softcap" if cap is None else f"{cap:g} · tanh(scaled_scores / {cap:g})"
    if name == "masked_scores":
        if traced.renormalised:
            return "this rung hides weights, not scores"
        bias = "" if problem.bias is None else " + bias"
        if problem.mask is None:
            return f"capped_scores{bias}" if bias else "no mask, no bias"
        return f"capped_scores{bias}, −∞ where {problem.mask.describe()} hides"
    if name == "weights":
        if traced.renormalised:
            return "softmax over the keys, then 0 where hidden, then each row divided by its sum"
        sinks = "" if problem.sinks is None else ", beside a sink per head"
        return f"softmax(masked_scores) over the keys{sinks}"
    if name == "dropped_weights":
        if problem.dropout is None:
            return "no dropout"
        factor = 1 / (1 - problem.dropout)
        return f"dropout {problem.dropout:g}: some weights 0, the others × {factor:.4g}"
    return "dropped_weights · value"


def _labels(words: Sequence[str] | None, count: int, name: str) -> list[str]:
    if words is None:
        return [str(place) for place in range(count)]
    if len(words) != count:
        raise ArgumentError(
            "trace.tokens", f"{name} must hold a word for each of {count} tokens; got {len(words)}."
        )
    return [f"{place} {printable(word)}" for place, word in enumerate(words)]
