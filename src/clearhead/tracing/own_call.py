"""A call of anybody's code with its stages, as a trace reads it."""

import inspect
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.evidence.parts import part_of
from clearhead.checking.subject.locating import located
from clearhead.recording.recorder import Node
from clearhead.tracing.own_code import Recording, record
from clearhead.tracing.own_expected import UNTOLD, Differing, differing
from clearhead.tracing.own_part import OwnPart, own_part
from clearhead.tracing.own_steps import (
    OwnAxes,
    kept_factor,
    layout_of,
    lost_mask,
    steps_of,
    weighed,
)
from clearhead.tracing.traced_call import Expected, Step
from clearhead.tracing.traced_projections import TracedProjection

UNDECLARED = ", if it is meant to hide what it hides, which causal=True or False would say"


class OwnCall:
    """One call of anybody's code: the stages that it computed, and the first that differs from the definition.

    Attributes:
        title: the name of the code.
        scale, mask, softcap, dropout, sinks, renormalised: as of a `Trace`, as they were read.
        expected: the stage that differs, with what it should be; None where none does.
        notes: what else there is to say.
        projections: of query, key and value, where they are plain products with a matrix.
    """

    sinks = softcap = None
    renormalised = False

    def __init__(self, recording: Recording) -> None:
        self.title = recording.name
        self._recording = recording
        lost = lost_mask(recording)
        self._entries, read = weighed(recording, lost)
        whole = recording.cells.whole
        self.scale = 1.0 if read.scale is None else read.scale / (whole.gain or 1.0)
        hides = [
            each for each in self._entries if "masked_scores" in each.name and not each.same_as
        ]
        self.mask = "the code's own mask" if hides else None
        last = self._entries[-1]
        dropped = [change for change in read.after if change.kind == "dropout"]
        self.dropout = None
        if dropped and last.same_as is None:
            self.dropout = 1 - 1 / kept_factor(dropped[-1], self._entries[-2].values)
        layout = layout_of(recording)
        self.query_len, self.kv_len = whole.scores.shape[-2:]
        found = differing(recording, self._entries, read, lost)
        self.projections = dict(_projections(recording, layout))
        self._output, wrong, joined = _output(recording, layout)
        self.projections |= joined
        self.expected = _told(found, layout) or wrong
        self.notes = tuple(_notes(recording))

    def steps(self) -> Iterator[Step]:
        """Every stage from the inputs to the output, in the order of the code."""
        yield from steps_of(self._recording, self._entries, lambda layout: iter(self._output))

    def verdict(self) -> str:
        """The first stage that is not that of the definition."""
        if self.expected is not None:
            return (
                f"not the definition: {self.expected.stage} is the first stage that differs from it"
            )
        contract = self._recording.contract
        if any(getattr(contract, name) is not None for name in UNTOLD):
            names = ", ".join(name for name in UNTOLD if getattr(contract, name) is not None)
            return f"not held against the definition: {names}; clearhead.check does"
        told = "" if contract.causal is not None or contract.window is not None else UNDECLARED
        return f"the weights and the context are those of the definition{told}"


def own_call(thing: Any, *inputs: Tensor, **options: Any) -> OwnCall | OwnPart:
    """Call anybody's code, or a part of attention, read and held against the definition.

    Raises:
        ArgumentTypeError: code `trace.thing`.
        UnsupportedError: code `trace.unread`.
        ShapeError: code `trace.sizes`.
    """
    path = list(sys.path)
    try:
        found = located(thing) if isinstance(thing, str) else thing
        part = part_of(found) if inspect.isroutine(found) else None
        if part is not None:
            return own_part(part, found, inputs, options)
        return OwnCall(record(found, inputs, options))
    finally:
        sys.path[:] = path  # where the imports of a file are found


def _told(found: Differing | None, layout: OwnAxes) -> Expected | None:
    return None if found is None else Expected(found.stage, layout.place(found.values))


def _notes(recording: Recording) -> Iterator[str]:
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


def _projections(recording: Recording, layout: OwnAxes) -> Iterator[tuple[str, TracedProjection]]:
    """The products with a matrix that query and key are made by, where that gives their numbers."""
    cells, given = recording.cells, recording.tokens()
    sides = zip(("query", "key", "value"), cells.nodes, cells.columns, strict=True)
    for name, node, columns in sides:
        source = given.get("x" if name == "query" or "source" not in given else "source")
        if node is None or node.kind != "linear" or node.constant != 1 or source is None:
            continue
        weight = node.operands[1]
        weight = weight[0] if weight.ndim == 3 else weight
        stage = layout.place(getattr(cells.whole, name))
        heads, width = cells.heads, stage.shape[-1]
        if weight.shape[0] != source.shape[-1] or weight.shape[1] % width:
            continue
        if len(columns) != heads or max(columns) + width > weight.shape[1]:
            continue
        parts = torch.stack([weight[:, column : column + width] for column in columns])
        made = source.double().unsqueeze(-3) @ parts.double()
        if "num_heads" not in layout.lead:
            made, parts = made.squeeze(-3), parts[0]
        if made.shape == stage.shape and torch.allclose(
            made, stage.double(), atol=1e-5 * float(made.abs().max())
        ):
            yield name, TracedProjection(source, parts)


def _output(
    recording: Recording, layout: OwnAxes
) -> tuple[list[Step], Expected | None, dict[str, TracedProjection]]:
    """The output, how it comes from the contexts, and what it should be where their merge is wrong; and
    the product with a matrix that it is made by, where that gives its numbers."""
    cells, output = recording.cells, recording.output
    context = layout.place(cells.whole.context)
    if output.ndim not in (2, 3) or (
        output.shape == context.shape and torch.equal(output, context)
    ):
        return [], None, {}
    heads = "num_heads" in layout.lead
    merged = context.transpose(-2, -3).flatten(-2) if heads else context
    axes = (*("batch",) * (output.ndim - 2), "tokens", "output_dim")
    words = "the contexts of all heads side by side" if heads else "the context"

    def step(formula: str, line: str = "", standard: bool = False) -> list[Step]:
        return [Step("output", output, axes, formula, None, line, standard)]

    if merged.numel() == output.numel() and _equal(merged.reshape(output.shape), output):
        return (step(words, standard=True) if heads else []), None, {}
    values = merged.flatten().sort().values
    for node in reversed(recording.recorder.nodes):
        if node.kind != "linear" or node.place < cells.whole.layout.context.place:
            continue
        side, line = node.operands[1 - (node.constant or 0)], recording.line(node.place)
        if side.numel() != merged.numel():
            continue
        if _equal(merged.reshape(side.shape), side):
            made = _joined(node, merged, output)
            return step(f"{words}, projected", line, bool(made)), None, made
        if _equal(values, side.flatten().sort().values):
            should = _projected(node, merged.reshape(side.shape), side)
            found = step(f"{words} in another order, projected", line)
            fits = should.numel() == output.numel()
            return found, Expected("output", should.reshape(output.shape)) if fits else None, {}
    if _equal(values, output.flatten().sort().values):
        fits = merged.shape == output.shape
        return step(f"{words}, in another order"), Expected("output", merged) if fits else None, {}
    return step("what the code gave; how it comes from the contexts is not read"), None, {}


def _joined(node: Node, merged: Tensor, output: Tensor) -> dict[str, TracedProjection]:
    """The output projection, where it is the last thing that is done."""
    if node.constant != 1 or node.operands[1].ndim != 2 or not output.numel():
        return {}
    weight = node.operands[1]
    rest = output - (merged @ weight).reshape(output.shape)
    bias = rest.reshape(-1, rest.shape[-1])[0]
    if not _equal((rest + 1) - bias, torch.ones_like(rest)):
        return {}
    has_bias = not _equal(output - rest, output)
    return {"output": TracedProjection(merged, weight, bias if has_bias else None)}


def _projected(node: Node, merged: Tensor, side: Tensor) -> Tensor:
    """The output of a projection for other numbers than it took."""
    weight = node.operands[node.constant or 0]
    moved = merged - side
    return node.output + (moved @ weight if node.constant == 1 else weight @ moved)


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    size = math.sqrt(torch.finfo(other.dtype).eps)
    largest = float(other.abs().nan_to_num(0.0, 0.0, 0.0).max()) if other.numel() else 1.0
    return torch.allclose(one.to(other.dtype), other, rtol=0, atol=size * largest, equal_nan=True)
