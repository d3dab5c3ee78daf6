"""Distances: of the keys from their queries, and of the weights of two matrices from each other."""

import math

import torch
from torch import Tensor

from clearhead.attention.problem import Problem
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.reductions import PerQuery


class Distance(PerQuery):
    """Σ weight · |query position − key position|, in tokens, of each query; it overwrites the scores of a chunk.

    The last query has the position of the last key.

    Args:
        problem: the problem whose weights are swept.
    """

    destroys = frozenset({"scores"})

    def __init__(self, problem: Problem) -> None:
        """Start with 0 for each query of the problem, (batch, num_heads, query_len)."""
        super().__init__(problem)
        self.positions = problem.query_positions
        self.offset = None if problem.sharding else problem.kv_len - problem.query_len

    def _positions_of(self, chunk: Chunk) -> tuple[Tensor, int, int]:
        """Return the positions of the queries of the chunk's first tile, (queries,), the smallest and the largest."""
        positions, queries = self.positions[chunk.queries], chunk.queries
        if self.offset is None:
            return positions, int(positions.min()), int(positions.max())
        return positions, self.offset + queries.start, self.offset + queries.stop - 1

    def of(self, chunk: Chunk) -> Tensor:
        """Return Σ weight · |query position − key position| of each query, (heads, queries).

        The scores are overwritten.
        """
        # Distances are the same in every tile. Positions are counted from the first query of the
        # first. In it and as many tokens later, distances are taken pair by pair. Farther away the sign
        # of p − j is that of −j, so that the sum is ∓ Σ weight · j ± p · Σ weight: products with two
        # vectors, which lose no digits there.
        weights = chunk.weights
        queries, width = weights.shape[1:]
        position, origin, last = self._positions_of(chunk)
        if chunk.block is not None:  # keys in no order
            steps = (position[:, None] - chunk.block.places[chunk.keys]).abs().to(weights.dtype)
            return torch.linalg.vecdot(weights, steps)
        position = position - origin
        key = torch.arange(chunk.keys.start, chunk.keys.stop, device=weights.device) - origin
        first = chunk.keys.start - origin
        behind = max(2 * queries, last - origin + 1)
        near, far = (max(0, min(edge - first, width)) for edge in (0, behind))
        steps = (position[:, None] - key[near:far]).abs().to(weights.dtype)
        distance = chunk.sums_with(slice(near, far), steps)
        if far - near < width:
            rows, away = weights.flatten(0, 1), key.to(weights.dtype)
            away[near:far] = 0.0  # a product with whole rows is faster than one with parts of them
            total = (rows @ -away.sign()).unflatten(0, weights.shape[:2])
            distance += (rows @ away.abs()).unflatten(0, weights.shape[:2]) + total * position
        return distance


def _kullback_leibler(_queries: Tensor, logs: Tensor, others: Tensor) -> Tensor:
    """Return Σ weight · ln(weight / other) over the keys, the last axis, from the logarithms of both weights.

    +∞, without a gradient, if a visible key is hidden in the other.
    """
    hidden, absent = logs == -torch.inf, others == -torch.inf
    ratios = (logs - others).masked_fill(hidden | absent, 0.0)
    divergence = (logs.exp() * ratios).sum(dim=-1)
    return divergence.masked_fill((absent & ~hidden).any(dim=-1), torch.inf)


def _from_mean(logs: Tensor, others: Tensor) -> Tensor:
    """Return Σ weight · ln(weight / mean of weight and other) over the keys, from the logarithms of both weights."""
    ratios = (others - logs).masked_fill(logs == -torch.inf, 0.0)
    shares = math.log(2) - torch.logaddexp(ratios.new_zeros(()), ratios)
    return (logs.exp() * shares).sum(dim=-1)


def _jensen_shannon(_queries: Tensor, logs: Tensor, others: Tensor) -> Tensor:
    """Return the mean divergence of both weights from their mean, over the keys, from the logarithms of both."""
    return (_from_mean(logs, others) + _from_mean(others, logs)) / 2


DIVERGENCES = {"kl": _kullback_leibler, "js": _jensen_shannon}
"""Divergences by name, functions for `by_queries`, in nats."""
