"""Gradients: what autograd says against differences of the output itself."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

STEP = 1e-3
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

    def along(leaf: Tensor, direction: Tensor) -> float:
        sums = []
        with torch.no_grad():
            kept = leaf.clone()
            for sign in (1, -1):
                leaf.copy_(kept + sign * STEP * direction)
                sums.append((run().double() * weight).sum().item())
            leaf.copy_(kept)
        return (sums[0] - sums[1]) / (2 * STEP)

    return [
        _compared(name, leaf, gradient, along, generator)
        for (name, leaf), gradient in zip(leaves, gradients, strict=True)
    ]


def _compared(
    name: str,
    leaf: Tensor,
    gradient: Tensor | None,
    along: Callable[[Tensor, Tensor], float],
    generator: torch.Generator,
) -> Gradient:
    flat = torch.zeros_like(leaf) if gradient is None else gradient
    if not flat.isfinite().all():
        return Gradient(name, "not finite", float("nan"), 0.0)
    worst = Gradient(name, "right", 0.0, 0.0)
    size = max(flat.norm().item(), 1e-6)
    for _ in range(2):
        direction = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        ours, theirs = along(leaf, direction), (flat * direction).sum().item()
        if abs(ours - theirs) > TOLERANCE * max(abs(ours), abs(theirs), size):
            state = "wrong"
            nothing = flat == 0
            if nothing.any():
                # What has no gradient at all: does it move the output?
                through = along(leaf, direction * nothing)
                state = "blocked" if abs(through) > TOLERANCE * size else state
            worst = Gradient(name, state, theirs, ours)
    return worst
