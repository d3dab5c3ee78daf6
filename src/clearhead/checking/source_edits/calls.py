"""Calls of a lesson's program: what goes in, what comes out, and what is right by the definition."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.lessons import LessonRow
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.source_edits.definition import Mistake, definition, layers_of
from clearhead.checking.thresholds import ROUNDING, SPREAD_HEADS
from clearhead.recording.thresholds import SUMS

# Numbers of words that a class is called with: fewer than any example has, and more.
LENGTHS = (5, 1, 7, 9)

Inputs = tuple[Any, ...]


class ExercisedCall(NamedTuple):
    """One call: its inputs, the result, the right result, and the index of the input that it wrote to (None: none)."""

    inputs: Inputs
    found: Tensor
    expected: Tensor
    written: int | None = None


def compared(calls: Iterator[ExercisedCall]) -> Iterator[Mistake | None]:
    """Yield None for each call whose result is right, and a mistake for each other one.

    A call that wrote to an input yields one more mistake, first.
    """
    for each in calls:
        if each.written is not None:
            yield Mistake("input.modified", name=str(each.written))
        if distance(each.found.double(), each.expected) <= ROUNDING[torch.float32]:
            yield None
            continue
        inputs = " and ".join(
            str(list(one.shape) if isinstance(one, Tensor) else one) for one in each.inputs
        )
        if each.found.shape != each.expected.shape:
            shapes = f"the result is {list(each.found.shape)}, expected {list(each.expected.shape)}"
            yield Mistake("", f"{shapes}, for {inputs}")
            continue
        close = torch.isclose(each.found.double(), each.expected, rtol=0, atol=SUMS)
        gap = (each.found.double() - each.expected).abs()
        at = tuple((gap == gap.max() if close.all() else ~close).nonzero()[0].tolist())
        values = f"{each.found[at].item():.4g}, expected {each.expected[at].item():.4g}"
        share = float(close.double().mean())
        yield Mistake("", f"result{list(at) or ''} is {values}, for {inputs}", right=(0, share))


def called(run: Callable[..., Any], inputs: Inputs, expected: Any) -> ExercisedCall:
    """Call with copies of the inputs, and return the call with the index of the first input that was written to.

    If a number or a list is expected, the result may be one, or a tensor. Raises TypeError for a result that is no
    tensor, and what the code raises.
    """
    given = copied(inputs)
    found = run(*given)
    if not isinstance(expected, Tensor):
        expected = torch.as_tensor(expected, dtype=torch.float64)
        if isinstance(found, int | float | list | tuple):
            found = torch.as_tensor(found, dtype=torch.float64)
    if not isinstance(found, Tensor):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise TypeError(f"a tensor was expected; got {kind}")
    tensors = [at for at, each in enumerate(inputs) if isinstance(each, Tensor)]
    written = [at for at in tensors if not torch.equal(given[at], inputs[at])]
    return ExercisedCall(inputs, found, expected.double(), next(iter(written), None))


def copied(inputs: Inputs) -> Inputs:
    """Return copies of the inputs, of tensors without their graph."""
    return tuple(
        each.detach().clone() if isinstance(each, Tensor) else copy.deepcopy(each)
        for each in inputs
    )


def of_module(
    module: nn.Module, row: LessonRow, promised: Mapping[str, Any], way: int
) -> Iterator[ExercisedCall]:
    """Yield calls of a module on several lengths and batches, with the results of the definition.

    The parameters are drawn again, in place. `way` is the index in `layers_of`; the first row of x is 0. Errors of the
    module are raised.
    """
    drawn, layers = redrawn(module, row), layers_of(module, row)[way]
    right, width = definition(layers, promised), layers["q"].matrix.shape[0]
    for number, words in enumerate(LENGTHS):
        batch: tuple[int, ...] = () if row.takes == "x2d" else (2 + number % 2,)
        x = drawn(*batch, words, width)
        if number == 3:
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
    """Yield the calls of a decoder: steps of one word and of several, and whole texts, also between steps.

    A copy is called with the words of the other texts in between, which must change nothing.
    """
    words = x.shape[1]
    for chunks in ([1] * words, [2, 1, words - 3] if words > 3 else [words]):
        module.reset()
        other, steps = copy.deepcopy(module), []
        for each in x.split(chunks, 1):
            steps.append(module.step(each.clone()))
            other.step(each.flip(0))
        yield ExercisedCall((x,), torch.cat(steps, 1), right)
    yield called(module.full, (x,), right)
    module.reset()
    steps = [module.step(x[:, :1].clone())]
    yield called(module.full, (x,), right)
    steps += [module.step(x[:, at : at + 1].clone()) for at in range(1, words)]
    yield ExercisedCall((x,), torch.cat(steps, 1), right)


def redrawn(module: nn.Module, row: LessonRow) -> Callable[..., Any]:
    """Draw every parameter again in place, so that no initial value hides a mistake; gradients must be off.

    Return a function that draws inputs. The numbers depend on the lesson alone. The function takes sizes, and returns
    float64.
    """
    generator = torch.Generator().manual_seed(row.number)

    def drawn(*shape: int) -> Tensor:
        """Return random numbers of these sizes in float64."""
        return torch.randn(shape, generator=generator, dtype=torch.float64) * SPREAD_HEADS

    for each in module.parameters():
        each.copy_(drawn(*each.shape) * max(each.shape) ** -0.5)
    return drawn


def _padded(module: nn.Module, x: Tensor, mask: Tensor, right: Tensor) -> ExercisedCall:
    """Return a call with padding, compared at the real words only if its shape is right and all numbers are finite."""
    made = called(module, (x, mask), right)
    if made.found.shape != right.shape or not made.found.isfinite().all():
        return made
    return made._replace(found=made.found[mask], expected=right[mask])
