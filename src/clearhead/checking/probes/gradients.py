"""Gradients: what autograd says against differences of the output itself."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# A large step where float32 rounds inside, small ones where a ReLU has its kink nearby.
STEPS = (1e-3, 1e-5, 1e-6)
TOLERANCE = 2e-2


class Gradient(NamedTuple):
    """Of one tensor: its name, and "right", "blocked", "wrong" or "not finite", with numbers."""

    name: str
    state: str
    by_autograd: float
    by_difference: float


def measure(
    run: Callable[[], Tensor], leaves: Sequence[tuple[str, Tensor]], seed: int
) -> list[Gradient]:
    """Compare along random directions.

    Args:
        run: the call, of the leaves as they are now.
        leaves: float64 tensors that require a gradient, with names.
        seed: of the directions.

    Raises:
        RuntimeError: the backward pass itself does.
    """
    generator = torch.Generator().manual_seed(seed)
    output = run()
    weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    tensors = [leaf for _, leaf in leaves]
    if output.requires_grad:
        total = (output.double() * weight).sum()
        gradients = torch.autograd.grad(total, tensors, allow_unused=True)
    else:
        gradients = (None,) * len(tensors)

    def along(leaf: Tensor, direction: Tensor, step: float) -> float:
        sums = []
        with torch.no_grad():
            kept = leaf.clone()
            for sign in (1, -1):
                leaf.copy_(kept + sign * step * direction)
                sums.append((run().double() * weight).sum().item())
            leaf.copy_(kept)
        return (sums[0] - sums[1]) / (2 * step)

    largest = max((each.norm().item() for each in gradients if each is not None), default=0.0)
    floor = max(1e-6, 1e-3 * largest)
    return [
        _compared(name, leaf, gradient, along, generator, floor)
        for (name, leaf), gradient in zip(leaves, gradients, strict=True)
    ]


def _compared(
    name: str,
    leaf: Tensor,
    gradient: Tensor | None,
    along: Callable[[Tensor, Tensor, float], float],
    generator: torch.Generator,
    floor: float,
) -> Gradient:
    flat = torch.zeros_like(leaf) if gradient is None else gradient
    if not flat.isfinite().all():
        return Gradient(name, "not finite", float("nan"), 0.0)
    worst = Gradient(name, "right", 0.0, 0.0)
    size = max(flat.norm().item(), floor)
    for _ in range(2):
        direction = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        theirs = (flat * direction).sum().item()
        ours = along(leaf, direction, STEPS[0])
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
            state = "blocked" if abs(through) > TOLERANCE * size else state
        worst = Gradient(name, state, theirs, closer[0])
    return worst


def _near(one: float, other: float, size: float) -> bool:
    return abs(one - other) <= TOLERANCE * max(abs(one), abs(other), size)
