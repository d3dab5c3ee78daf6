"""Gradients: what autograd says against differences of the output itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import GRADIENT, GRADIENT_FLOOR, LEAP, NEARBY, STEPS


class Gradient(NamedTuple):
    """The gradient of one tensor: its name, its state, and the movement along a direction, by both ways.

    States are "right", "blocked", "wrong", "not finite", "dead", which moves nothing and has no gradient, and
    "part dead", if a quarter or more of a matrix is dead.
    """

    name: str
    state: str
    by_autograd: float = 0.0
    by_difference: float = 0.0


class Gradients(NamedTuple):
    """The measured gradients, one for each tensor.

    `why` is a key of the catalogue if they were not, or not fully, measured, else ""; `raised` is the error of the
    backward pass, else "".
    """

    each: tuple[Gradient, ...] = ()
    why: str = ""
    raised: str = ""

    def names(self, *states: str) -> list[str]:
        """Return the names of the tensors in one of these states."""
        return [each.name for each in self.each if each.state in states]


def measure_gradients(subject: Subject, inputs: Mapping[str, Tensor], seed: int) -> Gradients:
    """Return the gradients of the floating-point inputs and the parameters, compared with finite differences.

    Only "dead" ones in other dtypes than float64. Parameters of the subject are changed for calls, and restored. Errors
    of the first call are raised; a later RuntimeError, as of the backward pass, is caught, and is `raised` of the
    result.
    """
    given = {
        name: each.to(subject.dtype, copy=True).requires_grad_()
        if each.is_floating_point()
        else each
        for name, each in inputs.items()
    }
    leaves = [(name, each) for name, each in given.items() if each.is_floating_point()]
    if subject.copied:
        leaves += [
            (name, each)
            for name, each in subject.parameters().items()
            if each.requires_grad and each.dtype == subject.dtype
        ]

    def run() -> Tensor:
        """Return the output for the inputs as they are now; errors are raised."""
        return subject(*given.values())

    output = run()
    if not output.isfinite().all():
        return Gradients(why="finite")
    try:
        found = tuple(_measured(run, output, leaves, seed))
    except RuntimeError as error:
        return Gradients(raised=str(error).splitlines()[0])
    if subject.dtype == torch.float64:
        return Gradients(found)
    # Differences are too coarse in another precision; whether anything moves at all is not.
    return Gradients(tuple(each for each in found if "dead" in each.state), why="float64")


def _measured(
    run: Callable[[], Tensor], output: Tensor, leaves: Sequence[tuple[str, Tensor]], seed: int
) -> list[Gradient]:
    """Return the gradient of each leaf, compared along random directions.

    A wrong one is measured at a nearby point too. The leaves are changed in place for calls of `run`, and restored.
    Raises RuntimeError if the backward pass does.
    """
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    tensors = [leaf for _, leaf in leaves]

    def by_autograd(output: Tensor) -> Sequence[Tensor | None]:
        """Return the gradient of the output's weighted sum for each tensor; None for one without influence on it."""
        if not output.requires_grad:
            return (None,) * len(tensors)
        total = (output.double() * weight).sum()
        return torch.autograd.grad(total, tensors, allow_unused=True)

    def along(leaf: Tensor, direction: Tensor, step: float) -> float:
        """Return the central difference of the output's weighted sum along a direction of a leaf; that is restored."""
        sums = []
        with torch.no_grad():
            kept = leaf.clone()
            for sign in (1, -1):
                leaf.copy_(kept + sign * step * direction)
                sums.append((run().double() * weight).sum().item())
            leaf.copy_(kept)
        return (sums[0] - sums[1]) / (2 * step)

    def nearby(index: int, found: Gradient) -> Gradient:
        """Return the gradient at a nearby point if that is right, else the one given.

        At a kink itself, as where a ReLU gets 0, there is no unique gradient.
        """
        leaf = tensors[index]
        kept = leaf.detach().clone()
        with torch.no_grad():
            leaf.add_(NEARBY * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype))
        gradient = by_autograd(run())[index]
        other = _compared(found.name, leaf, gradient, along, generator, floor)
        with torch.no_grad():
            leaf.copy_(kept)
        return other if other.state == "right" else found

    gradients = by_autograd(output)
    largest = max((each.norm().item() for each in gradients if each is not None), default=0.0)
    floor = max(1e-6, GRADIENT_FLOOR * largest)
    found = [
        _compared(name, leaf, gradient, along, generator, floor)
        for (name, leaf), gradient in zip(leaves, gradients, strict=True)
    ]
    return [
        nearby(index, each) if each.state in ("wrong", "blocked") else each
        for index, each in enumerate(found)
    ]


def _compared(
    name: str,
    leaf: Tensor,
    gradient: Tensor | None,
    along: Callable[[Tensor, Tensor, float], float],
    generator: torch.Generator,
    floor: float,
) -> Gradient:
    """Return the gradient of a leaf: autograd compared with central differences along two random directions.

    The leaf is changed by `along` and restored. "dead" needs no gradient and no change; smaller steps excuse a kink.
    Differences are relative to the norm of the gradient, or to `floor` if that is larger.
    """
    flat = torch.zeros_like(leaf) if gradient is None else gradient
    if not flat.isfinite().all():
        return Gradient(name, "not finite", float("nan"), 0.0)
    rows = (flat == 0).all(-1, keepdim=True)
    some = len(rows) > int(rows.sum()) >= len(rows) / 4
    if gradient is not None and leaf.ndim == 2 and some:
        part = rows * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        # What a ReLU keeps from the output moves it by a large step.
        if not any(along(leaf, part, step) for step in (STEPS[0], LEAP)):
            return Gradient(name, "part dead")
    worst = Gradient(name, "right")
    size = max(flat.norm().item(), floor)
    for _ in range(2):
        direction = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        theirs = (flat * direction).sum().item()
        ours = along(leaf, direction, STEPS[0])
        if gradient is None and ours == 0:
            return Gradient(name, "dead")
        if _near(ours, theirs, size):
            continue
        closer = [along(leaf, direction, step) for step in STEPS[1:]]
        if any(_near(each, theirs, size) for each in closer) or not _near(
            closer[0], closer[1], size
        ):
            continue
        state, nothing = "wrong", flat == 0
        if nothing.any():
            # What has no gradient at all: does it move the output?
            through = along(leaf, direction * nothing, STEPS[1])
            state = "blocked" if abs(through) > GRADIENT * size else state
        worst = Gradient(name, state, theirs, closer[0])
    return worst


def _near(one: float, other: float, size: float) -> bool:
    """Return True if two derivatives agree within GRADIENT, relative to the largest of them and `size`."""
    return abs(one - other) <= GRADIENT * max(abs(one), abs(other), size)
