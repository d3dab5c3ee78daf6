"""Trace a call of a user's code, or of a part of attention that a user wrote: its stages next to the definition."""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.checking import contract_of
from clearhead.checking.evidence.parts import PARTS, PartDefinition, part_of
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.locating import located
from clearhead.checking.subject.subject import name_of
from clearhead.errors import ArgumentTypeError, ShapeError
from clearhead.recording.lines import Lines
from clearhead.recording.recorder import Node
from clearhead.tracing.traced_call import AXES, Expected, Step
from clearhead.tracing.traced_projections import TracedProjection
from clearhead.tracing.user_code import Recording, record
from clearhead.tracing.user_code_stages import (
    STAGE_OF,
    UNCOMPARED,
    StagesOfCode,
    dropout_factor,
    equal_to_rounding,
)

UNDECLARED = ", if it is meant to hide what it hides, which causal=True or False would say"
FORMULAS = {
    "scores": "query · keyᵀ",
    "weights": "softmax(scores) over the keys",
    "context": "weights · value",
}


@dataclass(eq=False)
class UserCall:
    """One call of a user's code, with the attributes of a `Trace`.

    Attributes:
        title: the name of the code.
        stages: every stage from the inputs to the output, in the order of the code.
        query_len, kv_len: the numbers of queries and keys.
        notes: sentences below the stages.
        scale, mask, dropout, sinks, softcap, renormalised: as read from the code.
        expected: the first stage that differs from the definition, with its right numbers; None if none does.
        projections: of query, key, value and output, if they are plain products with a matrix.
    """

    title: str
    stages: list[Step]
    query_len: int
    kv_len: int
    notes: tuple[str, ...]
    scale: float | None = None
    mask: str | None = None
    dropout: float | None = None
    expected: Expected | None = None
    projections: dict[str, TracedProjection] = field(default_factory=dict)
    sinks: Tensor | None = None
    softcap: float | None = None
    renormalised: bool = False

    def steps(self) -> list[Step]:
        """Every stage, in order."""
        return self.stages


def user_call(thing: Any, *inputs: Tensor, **options: Any) -> UserCall:
    """Call a user's code, or a part of attention, and compare it with the definition.

    Raises:
        ArgumentTypeError: code `trace.thing`.
        UnsupportedError: code `trace.unread`.
        ShapeError: code `trace.sizes`.
    """
    path = list(sys.path)
    try:
        code = located(thing) if isinstance(thing, str) else thing
        part = part_of(code) if inspect.isroutine(code) else None
        if part is not None:
            return _of_part(part, code, inputs, options)
        return _of_recording(record(code, inputs, options))
    finally:
        sys.path[:] = path  # `located` adds the folder of a file


def _of_recording(recording: Recording) -> UserCall:
    """Return the call that a recording of the user's code shows."""
    cells, read_stages = recording.cells, StagesOfCode(recording)
    whole, read = cells.whole, read_stages.read
    query_len, kv_len = whole.scores.shape[-2:]
    hides = any(STAGE_OF.get(change.kind) == "masked_scores" for change in read.before)
    dropout = None
    if read.after and read.after[-1].kind == "dropout":
        before = list(read_stages.values.values())[-3]
        dropout = 1 - 1 / dropout_factor(read.after[-1], before)
    output, wrong, projections = _output(recording, read_stages)
    expected = read_stages.first_difference() or wrong
    inputs = [
        Step(
            name,
            tensor,
            (*("batch",) * (tensor.ndim - 2), *AXES[name]),
            "the input" if name == "x" else "the sequence attended to",
        )
        for name, tensor in recording.tokens().items()
    ]
    return UserCall(
        recording.name,
        [*inputs, *read_stages.steps, *output],
        query_len,
        kv_len,
        (*_notes(recording), _verdict(recording, expected)),
        1.0 if read.scale is None else read.scale / (whole.gain or 1.0),
        "the code's own mask" if hides else None,
        dropout,
        expected,
        dict(_projections(recording, read_stages)) | projections,
    )


def _verdict(recording: Recording, expected: Expected | None) -> str:
    """The first stage that is not that of the definition, in words."""
    contract = recording.contract
    skipped = ", ".join(name for name in UNCOMPARED if getattr(contract, name) is not None)
    if expected is not None:
        return f"not the definition: {expected.stage} is the first stage that differs from it"
    if skipped:
        return f"not held against the definition: {skipped}; clearhead.check does"
    is_declared = contract.causal is not None or contract.window is not None
    return "the weights and the context are those of the definition" + UNDECLARED * (
        not is_declared
    )


def _notes(recording: Recording) -> Iterator[str]:
    """Yield the remarks on a recording, a sentence each."""
    cells = recording.cells
    if cells.others:
        count = cells.others
        yield f"{count} more attention{'s' * (count > 1)} inside, of other layers or samples, not shown"
    if not cells.columns[0]:
        yield "rows are in the order of the code: which token each is of could not be read"
    if recording.floats[0].ndim == 3 and cells.batch == 1 < len(recording.floats[0]):
        yield "the samples are attended to as one long text"
    if len(cells.parts) > 1:
        yield f"put together from {len(cells.parts)} parts that the code computes one after the other"


def _projections(
    recording: Recording, read: StagesOfCode
) -> Iterator[tuple[str, TracedProjection]]:
    """The products with a matrix that give query, key and value."""
    cells, inputs = recording.cells, recording.tokens()
    sides = zip(("query", "key", "value"), cells.nodes, cells.columns, strict=True)
    for name, node, columns in sides:
        source = inputs.get("x" if name == "query" or "source" not in inputs else "source")
        if node is None or node.kind != "linear" or node.constant != 1 or source is None:
            continue
        weight = node.operands[1]
        weight = weight[0] if weight.ndim == 3 else weight
        stage = read.values[name]
        width = stage.shape[-1]
        if weight.shape[0] != source.shape[-1] or len(columns) != cells.heads:
            continue
        parts = torch.stack([weight[:, column : column + width] for column in columns])
        made = (source.double().unsqueeze(-3) @ parts.double()).flatten(0, -3)
        if equal_to_rounding(made, stage, recording.dtype):
            yield name, TracedProjection(source, parts if "num_heads" in read.lead else parts[0])


def _output(
    recording: Recording, read: StagesOfCode
) -> tuple[list[Step], Expected | None, dict[str, TracedProjection]]:
    """The output and how it comes from the contexts; its right numbers if these are merged in another order;
    and the product with a matrix that gives it."""
    output, dtype = recording.output, recording.dtype
    context = read.in_axes_of_call(read.values["context"])
    heads = "num_heads" in read.lead
    merged = context.transpose(-2, -3).flatten(-2) if heads else context
    if output.ndim not in (2, 3) or (context.shape == output.shape and context.equal(output)):
        return [], None, {}
    axes = (*("batch",) * (output.ndim - 2), "tokens", "output_dim")
    words = "the contexts of all heads side by side" if heads else "the context"
    start = recording.cells.whole.layout.context.place
    linear = [
        node
        for node in reversed(recording.recorder.nodes)
        if node.kind == "linear" and node.place >= start
    ]
    for node in (None, *linear):
        side = output if node is None else node.operands[1 - (node.constant or 0)]
        if side.numel() != merged.numel():
            continue
        right = merged.reshape(side.shape)
        is_right = equal_to_rounding(right, side, dtype)
        if not is_right:
            one, other = (each.flatten().sort().values for each in (right, side))
            if not equal_to_rounding(one, other, dtype):
                continue
        if node is None and is_right and not heads:
            return [], None, {}
        made = _output_projection(node, merged, output) if node is not None and is_right else {}
        formula = words + " in another order" * (not is_right) + ", projected" * (node is not None)
        line = "" if node is None else recording.line(node.place)
        standard = is_right and (node is None or bool(made))
        step = Step("output", output, axes, formula, None, line, standard)
        if node is not None:
            weight, change = node.operands[node.constant or 0], right - side
            right = node.output + (change @ weight if node.constant == 1 else weight @ change)
        fits = not is_right and right.numel() == output.numel()
        return [step], Expected("output", right.reshape(output.shape)) if fits else None, made
    formula = "what the code gave; how it comes from the contexts is not read"
    return [Step("output", output, axes, formula, standard=False)], None, {}


def _output_projection(node: Node, merged: Tensor, output: Tensor) -> dict[str, TracedProjection]:
    """The output projection, if nothing follows it."""
    weight = node.operands[1]
    if node.constant != 1 or weight.ndim != 2 or not output.numel():
        return {}
    rest = output - (merged @ weight).reshape(output.shape)
    bias = rest.reshape(-1, rest.shape[-1])[0]
    if not equal_to_rounding((rest + 1) - bias, torch.ones_like(rest), rest.dtype):
        return {}
    has_bias = not equal_to_rounding(output - rest, output, rest.dtype)
    return {"output": TracedProjection(merged, weight, bias if has_bias else None)}


def _of_part(name: str, thing: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> UserCall:
    """Call a part of attention: "query,key", "scores" or "weights,value"."""
    part = PARTS[name]
    _check_part(part, name_of(thing), inputs)
    scale = contract_of(None, None, options).scale
    copies = [each.detach().clone() for each in inputs]
    lines = Lines(copies)
    with torch.no_grad(), lines:
        returned = thing(*copies)
    output = output_of(returned)[0].detach()
    right = part.right(*(each.detach().double() for each in inputs))
    right = (right if scale is None else right * scale).to(inputs[0].dtype)
    is_right = equal_to_rounding(output, right, right.dtype)
    places = list(lines.found.values())
    formula = FORMULAS[part.gives]
    formula += "" if scale in (None, 1.0) else f" × {scale:.4g}"
    verdict = f"{part.gives} by the definition"
    if not is_right:
        formula = f"what the code gave, where {formula} is expected"
        verdict = f"not the definition: {part.gives} is the first stage that differs from it"
    if output.shape != right.shape:
        shapes = f"{list(output.shape)}, expected {list(right.shape)}"
        verdict = f"not the definition: {part.gives} has shape {shapes}"

    def step(
        name: str, tensor: Tensor, formula: str, line: str = "", standard: bool = True
    ) -> Step:
        lead = ("batch", "num_heads")[: max(tensor.ndim - 2, 0)]
        return Step(name, tensor, (*lead, *AXES[name]), formula, None, line, standard)

    sides = zip(part.names, inputs, strict=True)
    steps = [step(side, tensor.detach(), "an argument") for side, tensor in sides]
    line = f"line {places[-1][1]}" if places else ""
    return UserCall(
        name_of(thing),
        [*steps, step(part.gives, output, formula, line, is_right)],
        inputs[0].shape[-2],
        (right if part.gives == "scores" else inputs[0]).shape[-1],
        (verdict,),
        scale,
        expected=None if is_right else Expected(part.gives, right),
    )


def _check_part(part: PartDefinition, title: str, inputs: Sequence[Any]) -> None:
    """Check that the inputs of a part are matrices of matching sizes."""
    shapes = [
        str(list(each.shape)) if isinstance(each, Tensor) else type(each).__name__
        for each in inputs
    ]
    is_matrix = [isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2 for x in inputs]
    if len(inputs) != len(part.names) or not all(is_matrix):
        raise ArgumentTypeError(
            "trace.thing",
            f"{title} is traced with {' and '.join(part.names)}, each (…, rows, columns) of floating point; "
            f"got {', '.join(shapes) or 'nothing'}.",
        )
    axis = -1 if part.gives == "scores" else -2
    if len(inputs) == 2 and inputs[0].shape[-1] != inputs[1].shape[axis]:
        got = " and ".join(
            f"{name} {shape}" for name, shape in zip(part.names, shapes, strict=True)
        )
        raise ShapeError(
            "trace.sizes",
            f"the last axis of query and key, or the keys of weights and value, are one; got {got}.",
        )
