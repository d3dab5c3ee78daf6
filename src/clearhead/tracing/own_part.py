"""A part of attention that somebody wrote, as a traced call: what went in, what came, and what is right."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.checking import contract_of
from clearhead.checking.evidence.parts import PARTS
from clearhead.checking.subject.calling import output_of
from clearhead.checking.subject.subject import name_of
from clearhead.errors import ArgumentTypeError, ShapeError
from clearhead.recording.lines import Lines
from clearhead.tracing.traced_call import AXES, Expected, Step

FORMULAS = {
    "scores": "query · keyᵀ",
    "weights": "softmax(scores) over the keys",
    "context": "weights · value",
}


class OwnPart:
    """One call of somebody's part of attention: scores, weights or context, however they are worked out.

    Attributes:
        title, scale, mask, softcap, dropout, sinks, renormalised, projections: as of a `Trace`.
        expected: the result by the definition, where another came; None where it is right.
        notes: what else there is to say.
    """

    sinks = softcap = mask = dropout = None
    renormalised = False
    notes = ()

    def __init__(
        self, part: str, thing: Any, inputs: Sequence[Tensor], scale: float | None
    ) -> None:
        self._part, self.title, self.scale = PARTS[part], name_of(thing), scale
        self._given = dict(zip(self._part.names, inputs, strict=True))
        self.projections: dict[str, Any] = {}
        taken = [each.detach().clone() for each in inputs]
        lines = Lines(taken)
        with torch.no_grad(), lines:
            returned = thing(*taken)
        self._output = output_of(returned)[0].detach()
        places = list(lines.found.values())
        self._line = f"line {places[-1][1]}" if places else ""
        right = self._part.right(*(each.detach().double() for each in inputs))
        self._right = (right if scale is None else right * scale).to(inputs[0].dtype)
        self.query_len = inputs[0].shape[-2]
        self.kv_len = (self._right if part == "query,key" else inputs[0]).shape[-1]
        name = self._part.gives
        self.expected = None if self._equals(self._right) else Expected(name, self._right)

    def steps(self) -> Iterator[Step]:
        """What went in, and what came."""
        for name, tensor in self._given.items():
            yield self._step(name, tensor.detach(), "an argument")
        name = self._part.gives
        formula, scale = FORMULAS[name], self.scale
        if scale is not None and scale != 1.0:
            formula += f" × {scale:.4g}"
        if self.expected is not None:
            formula = f"what the code gave, where {formula} is expected"
        yield self._step(name, self._output, formula, self._line, self.expected is None)

    def verdict(self) -> str:
        """The result beside the definition."""
        name = self._part.gives
        if self.expected is None:
            return f"{name} by the definition"
        if self._output.shape != self._right.shape:
            got, wanted = list(self._output.shape), list(self._right.shape)
            return f"not the definition: {name} has shape {got}, expected {wanted}"
        return f"not the definition: {name} is the first stage that differs from it"

    def _step(
        self, name: str, tensor: Tensor, formula: str, line: str = "", standard: bool = True
    ) -> Step:
        lead = ("batch", "num_heads")[: max(tensor.ndim - 2, 0)]
        return Step(name, tensor, (*lead, *AXES[name]), formula, None, line, standard)

    def _equals(self, right: Tensor) -> bool:
        found = self._output
        if found.shape != right.shape:
            return False
        size = math.sqrt(torch.finfo(right.dtype).eps) * max(float(right.abs().max()), 1e-30)
        return torch.allclose(found.to(right.dtype), right, rtol=0, atol=size)


def own_part(part: str, thing: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> OwnPart:
    """Call a part of attention, beside its definition.

    Args:
        part: "query,key", "scores" or "weights,value".
        thing: the function.
        inputs: its tensors.
        options: what is declared: scale=, of scores.

    Raises:
        ArgumentTypeError: code `trace.thing`, for what are no tables of numbers.
        ShapeError: code `trace.sizes`, for tables that do not meet.
    """
    names = PARTS[part].names
    tables = [
        each
        for each in inputs
        if isinstance(each, Tensor) and each.is_floating_point() and each.ndim >= 2
    ]
    if len(tables) != len(inputs) or len(tables) != len(names):
        kinds = ", ".join(
            str(list(each.shape)) if isinstance(each, Tensor) else type(each).__name__
            for each in inputs
        )
        raise ArgumentTypeError(
            "trace.thing",
            f"{name_of(thing)} is traced with {' and '.join(names)}, each (…, rows, columns) of floating point; "
            f"got {kinds or 'nothing'}.",
        )
    meet = {"query,key": (-1, -1), "weights,value": (-1, -2)}.get(part)
    if meet is not None and tables[0].shape[meet[0]] != tables[1].shape[meet[1]]:
        shapes = " and ".join(
            f"{name} {list(each.shape)}" for name, each in zip(names, tables, strict=True)
        )
        raise ShapeError(
            "trace.sizes",
            f"the last axis of query and key, or the keys of weights and value, are one; got {shapes}.",
        )
    scale = contract_of(None, None, options).scale
    return OwnPart(part, thing, tables, scale)
