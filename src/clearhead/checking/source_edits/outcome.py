"""The outcome that a lesson asks for: numbers, gradients, parameters and training, held against the definition.

The definition is computed with the learner's own matrices, on lengths, batches and widths that no example has. How
something is written makes no difference: products in another order, loops and fused calls are all the same.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.lessons import LessonRow
from clearhead.checking.source_edits.calls import called, compared, of_module, redrawn
from clearhead.checking.source_edits.definition import (
    Mistake,
    UnknownOutcomeError,
    definition,
    layers_of,
)
from clearhead.checking.source_edits.parameters import (
    MASKS,
    asked_biases,
    asked_layers,
    asked_parameters,
)
from clearhead.checking.source_edits.reference import next_to_solution, unequal_gradients
from clearhead.checking.source_edits.solution import solution_of
from clearhead.recording.thresholds import SUMS

# Of these the gradients are asked for.
GRADED = ("x2d", "x", "x,mask", "x,context")
# Texts that are dropped from at once, and their words.
DROPPED, WORDS = 64, 5


@contextmanager
def doubles() -> Iterator[None]:
    """Run the block with float64 as the default dtype, without gradients, and with NaN in what `torch.empty` makes.

    The random state is restored after the block.
    """
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    mode = torch.get_deterministic_debug_mode()
    torch.set_default_dtype(torch.float64)
    torch.set_deterministic_debug_mode("warn")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(before)
        torch.set_deterministic_debug_mode(mode)
        torch.set_rng_state(state)


def first_mistake(
    thing: Any, row: LessonRow, promised: Mapping[str, Any], args: Mapping[str, Any] | None
) -> Mistake | None:
    """Return the first difference from what the lesson asks, or None if all is right.

    An error of the code is a mistake too. An instance is copied; of several meanings of the names, the best one counts.

    Args:
        thing: a function, a class, or an instance.
        row: of the lesson.
        promised: one of the promises that the lesson accepts.
        args: for the constructor of a class.

    Raises:
        UnknownOutcomeError: if the right result is unknown.
    """
    with doubles():
        torch.default_generator.manual_seed(row.number)
        is_module = inspect.isclass(thing) or isinstance(thing, nn.Module)
        if row.calls and not (row.is_part and is_module):
            return _first(next_to_solution(thing, row, solution_of(row)))
        try:
            made = thing(**(args or {})) if inspect.isclass(thing) else copy.deepcopy(thing)
            if not isinstance(made, nn.Module):
                raise UnknownOutcomeError
            mistake = _first(asked_parameters(_settled(made), row))
            if mistake is not None:
                return mistake
            ways = range(_ways(made, row))
        except UnknownOutcomeError:
            raise
        except Exception as error:  # any that the code of a learner raises
            return Mistake("check.call", error=error)
        found = None
        for way in ways:
            mistake = _first(_asked(thing, made, row, promised, args, way))
            if mistake is None:
                return None
            found = mistake if found is None or mistake.right > found.right else found
    return found


def _first(asked: Iterator[Mistake | None]) -> Mistake | None:
    """Return the first mistake, with the number of right results before it; None if all are right.

    An error of the code is the mistake "check.call"; UnknownOutcomeError is raised.
    """
    right = 0
    try:
        for mistake in asked:
            if mistake is not None:
                return mistake._replace(right=(right, mistake.right[1]))
            right += 1
    except UnknownOutcomeError:
        raise
    except Exception as error:  # any that the code of a learner raises
        return Mistake("check.call", error=error, right=(right, 0.0))
    return None


def _ways(module: nn.Module, row: LessonRow) -> int:
    """Return the number of meanings that the names of the parameters allow.

    1 for a module without parameters whose calls differ. Raises UnknownOutcomeError otherwise.
    """
    try:
        return len(layers_of(module, row))
    except UnknownOutcomeError:
        if row.takes not in ("x2d", "x"):
            raise
    # What has no parameters may raise, or draw them at each call.
    size = 3, row.sizes.get("d_in", 5)
    x = torch.ones(size if row.takes == "x2d" else (1, *size))
    if any(True for _ in module.parameters()) or torch.equal(module(x), module(x)):
        raise UnknownOutcomeError
    return 1


def _asked(
    thing: Any,
    made: Any,
    row: LessonRow,
    promised: Mapping[str, Any],
    args: Mapping[str, Any] | None,
    way: int,
) -> Iterator[Mistake | None]:
    """Yield None for each check of a module that passes, and a mistake for each other one, in the order of the report.

    `way` is the index in `layers_of`. The parameters of `made` are changed in place. Errors of its code are raised.
    """
    if not any(True for _ in made.parameters()):
        yield Mistake("law.again")
    yield from asked_layers(made, row, args, layers_of(made, row)[way])
    yield from compared(of_module(made, row, promised, way))
    yield from _gradients(made, row, promised, way)
    yield from _state(made, row)
    yield from _training(made, row, way)
    if inspect.isclass(thing):
        yield from asked_biases(thing, args)


def _settled(module: nn.Module) -> nn.Module:
    """Put a module into evaluation mode and float64, tensors in attributes included; return the same module."""
    module.eval()
    module.double()
    for part in module.modules():
        for name, each in vars(part).items():
            if isinstance(each, Tensor) and each.is_floating_point():
                setattr(part, name, each.detach().double())
    return module


def _gradients(
    module: nn.Module, row: LessonRow, promised: Mapping[str, Any], way: int
) -> Iterator[Mistake | None]:
    """Compare the gradients of every parameter and of the input with the definition's; yield one result, None if equal.

    Nothing for a lesson without gradients. The parameters are drawn again in place.
    """
    if row.takes not in GRADED:
        return
    drawn, layers = redrawn(module, row), layers_of(module, row)[way]
    batch: tuple[int, ...] = () if row.takes == "x2d" else (2,)
    x: Tensor = drawn(*batch, 5, layers["q"].matrix.shape[0]).requires_grad_()
    mask, context = torch.ones(*batch, 5).bool(), drawn(*batch, 7, layers["k"].matrix.shape[0])
    others: list[Tensor] = {"x,mask": [mask], "x,context": [context]}.get(row.takes, [])
    sides = {**dict(module.named_parameters()), "x": x}
    with torch.enable_grad():
        right = definition(layers_of(module, row)[way], promised)
        expected = right(x, context if row.takes == "x,context" else x)
        found = module(x * 1.0, *(each.clone() for each in others))
        tensors = list(sides.values())
        yield unequal_gradients(list(sides), (found, tensors), (expected, tensors))


def _state(module: nn.Module, row: LessonRow) -> Iterator[Mistake | None]:
    """Yield a mistake for each buffer that is saved and each tensor in an attribute; nothing outside lesson 9."""
    if row.number != MASKS:
        return
    for name in module.state_dict():
        if name not in dict(module.named_parameters()):
            yield Mistake("state.mask", name=name)
    for part in module.modules():
        for name, each in vars(part).items():
            if isinstance(each, Tensor):
                yield Mistake("state.mask", name=name)


def _training(module: nn.Module, row: LessonRow, way: int) -> Iterator[Mistake | None]:
    """Compare training mode with evaluation, and yield the results.

    Outputs must be equal without dropout; with it, weights must be dropped at the rate and the others scaled. Nothing
    for other `takes` than "x" and "x2d". Parameters are drawn again, and the mode stays training.
    """
    if row.takes not in ("x2d", "x"):
        return
    drawn, layers = redrawn(module, row), layers_of(module, row)[way]
    batch: tuple[int, ...] = () if row.takes == "x2d" else (1,)
    x, rate = drawn(*batch, WORDS, layers["q"].matrix.shape[0]), row.contract.get("dropout")
    module.eval()
    calm = module(x.clone())
    module.train()
    if rate is None:
        yield from compared(iter([called(module, (x,), calm)]))
        return
    value = layers["v"](x[0])
    back = torch.linalg.pinv(value)
    out, again = (module(x.expand(DROPPED, -1, -1).clone()) for _ in range(2))
    kept, weights = out @ back, calm[0] @ back
    if not torch.allclose(kept @ value, out, atol=SUMS):
        yield Mistake("dropout.wrong", "an output is not made of values and weights")
        return
    some = weights > SUMS
    ratio = (kept / weights.where(some, torch.ones_like(weights)))[:, some]
    left = ratio[ratio.abs() > SUMS]
    share = 1 - left.numel() / ratio.numel()
    if share == 0 and torch.allclose(kept, weights.expand_as(kept), atol=SUMS):
        yield Mistake("dropout.never", "all weights stay as they are in training")
    elif share == 0:
        yield Mistake("dropout.wrong", "in training the weights change, and none is 0")
    elif not left.isclose(out.new_tensor(1 / (1 - rate)), atol=1e-3).all():
        grown = f"those that are left are {left.median().item():.3g} times as large"
        yield Mistake("dropout.wrong", f"{grown}, expected {1 / (1 - rate):.3g}")
    elif abs(share - rate) > 5 * (rate * (1 - rate) / ratio.numel()) ** 0.5:
        yield Mistake(
            "dropout.wrong", f"{share:.0%} of the weights are dropped, expected {rate:.0%}"
        )
    elif bool(((ratio.abs() > SUMS) == (ratio.abs() > SUMS)[:1]).all()):
        yield Mistake("dropout.wrong", "each text loses the same weights")
    elif torch.equal(out, again):
        yield Mistake("law.again", "two calls in training lose the same weights")
    elif _by_rows(kept, some):
        yield Mistake("dropout.wrong", "whole rows of weights are dropped, expected single weights")
    else:
        yield None


def _by_rows(kept: Tensor, some: Tensor) -> bool:
    """Return True if all weights of a row are dropped together, in every row of several weights.

    True without such rows.
    `kept`: the weights of several calls; `some`: where they are not 0 without dropout.
    """
    several = some.sum(-1) > 1
    gone = (kept.abs() <= SUMS) & some
    whole = (gone == some).all(-1)
    return bool((whole | ~gone.any(-1))[:, several].all())


def asked_of(row: LessonRow) -> tuple[str, ...]:
    """Return in words what a lesson checks of a program."""
    if row.is_part and row.takes != "x":
        return ("numbers",)
    if row.made:
        return ("parameters", "stages", "numbers", "gradients")
    words = ["parameters", *(["steps", "whole texts"] if row.takes == "decode" else ["numbers"])]
    words += ["gradients"] if row.takes in GRADED else []
    words += ["what is saved"] if row.number == MASKS else []
    if row.takes in ("x2d", "x"):
        words.append("dropout" if "dropout" in row.contract else "training")
    return tuple(words)
