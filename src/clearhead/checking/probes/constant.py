"""Equal tokens: whatever the weights are, if they sum to one every output is the same."""

from collections.abc import Callable

import torch
from torch import Tensor


def measure(run: Callable[[Tensor], Tensor], token: Tensor, lengths: tuple[int, ...]) -> float:
    """The largest difference among the outputs for one token repeated, of the largest number.

    Args:
        run: (batch, tokens, dim) → (batch, tokens, dim).
        token: (dim,).
        lengths: how often it is repeated.
    """
    outputs = [run(token.expand(1, length, -1).clone()).detach()[0] for length in lengths]
    whole = torch.cat(outputs)
    size = whole.abs().max().item()
    return (whole - whole[:1]).abs().max().item() / max(size, 1e-30)


def grows_evenly(run: Callable[[Tensor], Tensor], token: Tensor, length: int) -> bool:
    """Whether each more token adds the same, as to a sum that is divided by nothing."""
    last = [
        run(token.expand(1, count, -1)).detach()[0, -1]
        for count in (length - 2, length - 1, length)
    ]
    one, other = last[1] - last[0], last[2] - last[1]
    return bool((one - other).abs().max() < 1e-5 * one.abs().max().clamp_min(1e-30))


def profile(run: Callable[[Tensor], Tensor], token: Tensor, length: int) -> Tensor:
    """How far each output is from the first, for one token repeated: (outputs,), with a sign.

    What the weights of a query sum to shows in it, up to a factor.
    """
    output = run(token.expand(1, length, -1).clone()).detach()[0]
    moved = output - output[:1]
    direction = moved[moved.abs().amax(-1).argmax()]
    return moved @ direction / direction.norm().clamp_min(1e-30)
