"""Decoding with a cache: token by token, in chunks, and all at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def stepped(decoder: Any, x: Tensor, chunks: Sequence[int]) -> Tensor:
    """The outputs for x (batch, tokens, dim), handed over in chunks after a reset."""
    decoder.reset()
    outputs, start = [], 0
    for size in chunks:
        outputs.append(decoder.step(x[:, start : start + size]))
        start += size
    return torch.cat(outputs, 1).detach()


def schedules(tokens: int) -> dict[str, list[int]]:
    """Ways to hand over so many tokens."""
    return {
        "token by token": [1] * tokens,
        "prefill, then token by token": [tokens - 3, 1, 1, 1],
        "in chunks": [4, 3, *([2] * ((tokens - 7) // 2)), *([1] * ((tokens - 7) % 2))],
    }


def dependency(run: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator) -> Tensor:
    """moves[i, j]: output i moves with token j."""
    still = run(x)
    moves = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    for token in range(x.shape[1]):
        changed = x.clone()
        changed[:, token] += torch.randn(x.shape[-1], generator=generator, dtype=x.dtype)
        gap = (run(changed) - still).nan_to_num(0.0).abs().amax((0, -1))
        moves[:, token] = gap > 1e-9
    return moves
