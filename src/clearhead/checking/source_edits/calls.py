"""Calls of a lesson's program: what goes in, what comes out, and what is right by the definition."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead import stages
from clearhead._common.lessons import LessonRow
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.hypotheses.recipe import rotated
from clearhead.checking.source_edits.definition import (
    Mistake,
    UnknownOutcomeError,
    attended,
    definition,
    layers_of,
)
from clearhead.checking.thresholds import ROUNDING, SPREAD_HEADS
from clearhead.recording.thresholds import SUMS

# Numbers of words that a class is called with: fewer than any example has, and more.
LENGTHS = (5, 1, 7, 9)
# Queries, keys and the width of a call of a function: every axis another, all alike, and one.
CALLS = ((3, 5, 2), (5, 3, 2), (5, 5, 3), (1, 1, 2))
# Inputs of a part and what is right, by what it takes.
PARTS: Mapping[str, Callable[..., Tensor]] = {
    "query,key": stages.scores, "scores": stages.weights, "weights,value": stages.matmul,
}  # fmt: skip

Inputs = tuple[Tensor, ...]


class ExercisedCall(NamedTuple):
    """One call: what went in, what came, what is right, and which of the inputs was written to."""

    inputs: Inputs
    found: Tensor
    expected: Tensor
    written: int | None = None


def compared(calls: Iterator[ExercisedCall]) -> Iterator[Mistake | None]:
    for each in calls:
        if each.written is not None:
            yield Mistake("input.modified", name=str(each.written))
        if distance(each.found.double(), each.expected) <= ROUNDING[torch.float32]:
            yield None
            continue
        inputs = " and ".join(str(list(one.shape)) for one in each.inputs)
        if each.found.shape != each.expected.shape:
            shapes = f"the result is {list(each.found.shape)}, expected {list(each.expected.shape)}"
            yield Mistake("", f"{shapes}, for {inputs}")
            continue
        close = torch.isclose(each.found.double(), each.expected, rtol=0, atol=SUMS)
        at = tuple((~close).nonzero()[0].tolist())
        values = f"{each.found[at].item():.4g}, expected {each.expected[at].item():.4g}"
        share = float(close.double().mean())
        yield Mistake("", f"result{list(at)} is {values}, for {inputs}", right=(0, share))


def called(run: Callable[..., Any], inputs: Inputs, expected: Tensor) -> ExercisedCall:
    """Call with copies of the inputs, and note which of them was written to."""
    given = tuple(each.detach().clone() for each in inputs)
    found = run(*given)
    if not isinstance(found, Tensor):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise TypeError(f"a tensor was expected; got {kind}")
    pairs = enumerate(zip(given, inputs, strict=True))
    written = next((at for at, (one, other) in pairs if not torch.equal(one, other)), None)
    return ExercisedCall(inputs, found, expected, written)


def of_function(
    run: Callable[..., Any], row: LessonRow, promised: Mapping[str, Any]
) -> Iterator[ExercisedCall]:
    if row.takes not in (*PARTS, "qkv") and row.names[0] != "rotate":
        raise UnknownOutcomeError
    calls = _calls_of(row.takes, row.number, repr(promised.get("rope")))
    for inputs, right in calls:
        yield called(run, inputs, right)
    inputs = calls[-1][0]
    again = [run(*(each.clone() for each in inputs)) for _ in range(2)]
    yield ExercisedCall(inputs, again[0], again[1].double())


@cache
def _calls_of(takes: str, seed: int, layout: str) -> tuple[tuple[Inputs, Tensor], ...]:
    """The inputs of each call of a function, and what is right."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD_HEADS

    calls: list[tuple[Inputs, Tensor]] = []
    if takes == "x":
        for shape in ((5, 4), (2, 7, 6), (2, 3, 7, 8), (1, 6)):
            rows = drawn(*shape)
            calls.append(
                ((rows,), rotated(rows, 0, 10000.0, "half" if "half" in layout else "interleaved"))
            )
    for queries, keys, width in CALLS if takes != "x" else ():
        query, key, table = drawn(queries, width), drawn(keys, width), drawn(queries, keys)
        if takes == "qkv":
            inputs = query, key, drawn(keys, width + 2)
            calls.append((inputs, attended(*inputs, {})))
            continue
        inputs = {
            "query,key": (query, key), "scores": (table,), "weights,value": (table.softmax(-1), key),
        }[takes]  # fmt: skip
        calls.append((inputs, PARTS[takes](*inputs)))
    if takes == "scores":  # rows that lie far apart
        far = drawn(4, 3) - 800 * torch.arange(4, dtype=torch.float64)[:, None]
        calls.append(((far,), stages.weights(far)))
    return tuple(calls)


def of_module(
    module: nn.Module, row: LessonRow, promised: Mapping[str, Any], way: int
) -> Iterator[ExercisedCall]:
    drawn, layers = redrawn(module, row), layers_of(module, row)[way]
    right, width = definition(layers, promised), layers["q"].matrix.shape[0]
    for number, words in enumerate(LENGTHS):
        batch: tuple[int, ...] = () if row.takes == "x2d" else (2 + number % 2,)
        x = drawn(*batch, words, width)
        x[..., 0, :] = 0  # scores of 0 are scores as well
        if row.takes == "x,mask":
            mask = torch.ones(*batch, words, dtype=torch.bool)
            mask[0, words // 2 + 1 :] = False
            yield _padded(module, x, mask, right(x, x, mask[:, None, None]))
        elif row.takes == "x,context":
            context = drawn(*batch, LENGTHS[number - 1], layers["k"].matrix.shape[0])
            yield called(module, (x, context), right(x, context))
        elif row.takes == "decode":
            yield from _decoded(module, x, right(x, x))
        else:
            yield called(module, (x,), right(x, x))


def _decoded(module: Any, x: Tensor, right: Tensor) -> Iterator[ExercisedCall]:
    """Steps of one word and of several, next to those of another module, with whole texts in between."""
    words = x.shape[1]
    for chunks in ([1] * words, [2, 1, words - 3] if words > 3 else [words]):
        module.reset()
        other, steps = copy.deepcopy(module), []
        for each in x.split(chunks, 1):
            steps.append(module.step(each.clone()))
            other.step(each * 0.5)
        yield ExercisedCall((x,), torch.cat(steps, 1), right)
    yield called(module.full, (x,), right)
    module.reset()
    first = module.step(x[:, :1].clone())
    whole = called(module.full, (x,), right)
    yield whole
    yield ExercisedCall(
        (x,),
        torch.cat([first, *(module.step(x[:, at : at + 1].clone()) for at in range(1, words))], 1),
        right,
    )


def redrawn(module: nn.Module, row: LessonRow) -> Callable[..., Any]:
    """Draw every parameter again, so that no initial value hides a mistake; return what draws inputs."""
    generator = torch.Generator().manual_seed(row.number)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD_HEADS

    for each in module.parameters():
        each.copy_(drawn(*each.shape) * max(each.shape) ** -0.5)
    return drawn


def _padded(module: nn.Module, x: Tensor, mask: Tensor, right: Tensor) -> ExercisedCall:
    """A call with padding, whose own rows may be any finite numbers."""
    made = called(module, (x, mask), right)
    if made.found.shape != right.shape or not made.found.isfinite().all():
        return made
    return made._replace(found=made.found[mask], expected=right[mask])
