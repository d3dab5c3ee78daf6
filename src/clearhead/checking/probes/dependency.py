"""Does output i move when token j changes? For every pair, and for other samples."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Dependency(NamedTuple):
    """moves[i, j]: output i moves with token j; broken[i]: output i is not finite; mixed: a token
    of one sample moves another sample."""

    moves: Tensor
    broken: Tensor
    mixed: bool

    def cells(self) -> list[list[bool | None]]:
        """For a drawing: None where an output is not finite."""
        return [
            [None] * self.moves.shape[1] if gone else row
            for row, gone in zip(self.moves.tolist(), self.broken.tolist(), strict=True)
        ]


def measure(
    run: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator, threshold: float = 1e-8
) -> Dependency:
    """Change one token of the last sample after the other, and look at all outputs.

    Args:
        run: (batch, tokens, dim) → (batch, outputs, dim).
        x: (batch, tokens, dim), two samples or more if mixing is to be seen.
        generator: of the changes.
        threshold: a movement, of the largest number, that counts as one.
    """
    moves = torch.zeros(0)
    broken, mixed = torch.zeros(0), False
    # Small inputs as well: weights of large ones can be too uneven for anything to be felt.
    for factor in (1.0, 0.2):
        scaled = factor * x
        still = run(scaled.clone()).detach()
        finite = still.isfinite()
        size = still[finite].abs().max().item() if finite.any() else 1.0
        if not len(moves):
            broken = ~finite.all(-1)
            moves = torch.zeros(still.shape[1], x.shape[1], dtype=torch.bool)
        for token in range(x.shape[1]):
            changed = scaled.clone()
            noise = torch.randn(x.shape[-1], generator=generator, dtype=x.dtype)
            changed[-1, token] += 2 * scaled.std() * noise
            gap = (run(changed).detach() - still).nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
            moved = gap > threshold * max(size, 1e-30)
            moves[:, token] |= moved[-1]
            mixed |= bool(moved[:-1].any())
    return Dependency(moves, broken[-1], mixed)
