"""Reductions: sums and maxima over rows or columns of the weights, gathered chunk by chunk."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.problem import Problem
from clearhead.matrix.chunk import Chunk, largest_of_rows, top_of_any, top_of_finite
from clearhead.matrix.indexing import bins
from clearhead.matrix.summary import TopK
from clearhead.sharding.sharding import Sharding

R = TypeVar("R", bound="Reduction")

NONE: frozenset[str] = frozenset()


class Reduction(ABC):
    """A result gathered from all weights of a problem.

    A sweep passes each chunk to every reduction, and orders them by what they declare.

    Attributes:
        reads: the tensors and statistics of a chunk that it reads.
        provides: statistics of a chunk that it stores, so that it comes before their readers.
        destroys: tensors of a chunk that it overwrites, and so comes after their readers.
        finite: True if the numbers that it multiplies with weights are all finite. If not, a chunk
            says which pairs are visible: a weight of 0 does not take a NaN away.
        tiled: True if it takes chunks of several tiles, where a mask repeats.
        by_head: True if chunks of different heads change different numbers, so that threads may share them.
    """

    reads: frozenset[str] = frozenset({"weights"})
    provides: frozenset[str] = NONE
    destroys: frozenset[str] = NONE
    finite: bool = True
    tiled: bool = False
    by_head: bool = True

    @abstractmethod
    def update(self, chunk: Chunk) -> None:
        """Add a chunk of the weights to the result; each weight is passed exactly once."""

    def share(self, sharding: Sharding) -> None:
        """Sum the result over the ranks, in place, where it is a sum over their queries; by default do nothing."""
        return


def in_order(reductions: Iterable[R]) -> list[R]:
    """Return the reductions sorted: those that provide a statistic first, those that overwrite a tensor last.

    Those that overwrite a tensor without reading it come at the very end.
    """

    def place(each: R) -> tuple[int, bool]:
        """Return −1, 0 or 1, and True for one that overwrites a tensor that it does not read."""
        return bool(each.destroys) - bool(each.provides), not each.destroys <= each.reads

    return sorted(reductions, key=place)


def update_all(reductions: Sequence[Reduction], chunk: Chunk) -> None:
    """Pass a chunk to the reductions, in the order given; they may overwrite its tensors.

    A tensor that a reduction overwrites is restored afterwards if a later one reads it.
    """
    for place, reduction in enumerate(reductions):
        saved = {
            name: getattr(chunk, name).clone()
            for name in reduction.destroys
            if any(name in later.reads for later in reductions[place + 1 :])
        }
        reduction.update(chunk)
        for name, tensor in saved.items():
            getattr(chunk, name).copy_(tensor)


class PerQuery(Reduction):
    """One number for each query: `result` is (batch, num_heads, query_len), upcast, and starts with `of_nothing`.

    Attributes:
        of_nothing: the number of no keys.
        together: puts the numbers of some keys and of others together.
    """

    tiled = True
    of_nothing: float = 0.0
    together: Callable[[Tensor, Tensor], Tensor] = staticmethod(torch.add)

    def __init__(self, problem: Problem) -> None:
        """Start with `of_nothing` for each query of the problem, whose sizes alone are read."""
        like = stages.upcast(problem.query[:0])
        self.result: Tensor = like.new_full(problem.query.shape[:3], self.of_nothing)

    def update(self, chunk: Chunk) -> None:
        """Store the numbers of a chunk's queries in the result.

        With blocks of keys, combine them with those of earlier blocks.
        """
        rows = chunk.extent.rows_of(self.result)
        numbers = self.of(chunk).view(rows.shape)
        rows.copy_(numbers if chunk.block is None else self.together(rows, numbers))

    @abstractmethod
    def of(self, chunk: Chunk) -> Tensor:
        """Return one number for each query of a chunk, (heads, queries)."""


class LogSumExp(PerQuery):
    """log Σ exp of the masked scores of each query, without sinks, nats; −∞ for a query that may attend to nothing."""

    reads = frozenset({"scores", "weights", "best_score", "maximum", "logsumexp"})
    of_nothing, together = -math.inf, staticmethod(torch.logaddexp)

    def of(self, chunk: Chunk) -> Tensor:
        """Return the logsumexp of each query of a chunk, (heads, queries)."""
        return chunk.logsumexp


class Maximum(PerQuery):
    """The largest weight of each query; 0 for a query that may attend to nothing."""

    reads = frozenset({"weights", "maximum"})
    together = staticmethod(torch.maximum)

    def of(self, chunk: Chunk) -> Tensor:
        """Return the largest weight of each query of a chunk, (heads, queries)."""
        return chunk.maximum


class MaxScore(PerQuery):
    """The largest masked score of each query; −∞ for a query that may attend to nothing."""

    reads = frozenset({"scores", "best_score"})
    of_nothing, together = -math.inf, staticmethod(torch.maximum)

    def of(self, chunk: Chunk) -> Tensor:
        """Return the largest masked score of each query of a chunk, (heads, queries)."""
        if not chunk.scores.shape[-1]:
            return chunk.scores.new_full(chunk.scores.shape[:-1], -torch.inf)
        best = chunk.best_score
        return best if chunk.empty is None else best.masked_fill(chunk.empty, -torch.inf)


class Entropy(PerQuery):
    """−Σ weight · ln weight, nats; 0 for a query that may attend to nothing.

    With ln weight = score − best score + ln largest weight, only one logarithm a query is taken.
    The best score is subtracted first, since all scores of a query together may be large, and digits
    would be lost.
    """

    reads = frozenset({"scores", "weights", "best_score", "maximum", "logsumexp", "total"})
    destroys = frozenset({"scores"})

    def of(self, chunk: Chunk) -> Tensor:
        """Return the entropy of each query of a chunk, (heads, queries), in nats; the scores are overwritten."""
        if not chunk.scores.shape[-1]:
            return chunk.total
        # In the place of the scores: fresh memory takes as long as all of the arithmetic.
        spread = chunk.scores.sub_(chunk.best_score[..., None]).mul_(chunk.weights).sum(dim=-1)
        # Counted down from 0, so that nothing is −0.
        return (0.0 - torch.xlogy(chunk.total, chunk.maximum) - spread).clamp_(min=0.0)


class OnKeys(Reduction):
    """The weight of each query on sets of keys: `result` is (batch, num_heads, query_len, sets), upcast."""

    tiled = True

    def __init__(self, problem: Problem, keys: Sequence[Tensor]) -> None:
        """Start with zeros, for the keys of each set and query, int64, (batch or 1, num_heads or 1, query_len, n).

        The keys of one set differ, and one out of range has weight 0.
        """
        shape = (*problem.query.shape[:3], len(keys))
        self.result = stages.upcast(problem.query[:0]).new_zeros(shape)
        self.sizes = [each.shape[3] for each in keys]
        heads = max(each.shape[1] for each in keys)
        every = torch.cat([each.expand(problem.batch, heads, -1, -1) for each in keys], dim=3)
        self.keys = every.expand(-1, problem.num_heads, -1, -1)

    def update(self, chunk: Chunk) -> None:
        """Add the weight of a chunk's queries on their keys to the result."""
        keys, there = chunk.find(self.keys)
        width = chunk.weights.shape[-1]
        if not width:
            return
        found = chunk.weights.gather(-1, keys.clamp(0, width - 1)).masked_fill(~there, 0.0)
        rows = chunk.extent.rows_of(self.result)
        sums = [some.sum(dim=-1) for some in found.split(self.sizes, dim=-1)]
        rows += torch.stack(sums, dim=-1).view(rows.shape)


class Mass(Reduction):
    """The weight on sets of keys: `result` is (batch, num_heads, query_len, segments), upcast."""

    def __init__(self, problem: Problem, member: Tensor) -> None:
        """Start with zeros; `member`, (batch or 1, kv_len, segments), is 1 where a key belongs to a segment, else 0."""
        self.member = member
        shape = (*problem.query.shape[:3], member.shape[2])
        self.result = stages.upcast(problem.query[:0]).new_zeros(shape)

    def update(self, chunk: Chunk) -> None:
        """Add the weight that the queries of a chunk put on each set of keys to the result."""
        member = self.member[chunk.sample if self.member.shape[0] > 1 else 0, chunk.columns]
        self.result[chunk.place] += chunk.times(member)


FEW = 4
"""Up to how many columns of a bin are added one after the other."""


class Largest(Reduction):
    """The k largest weights of each query and their keys.

    `weights` and `keys` are (batch, num_heads, query_len, k), from the largest weight on; the key
    is −1 where the weight is 0.
    """

    reads = frozenset({"scores", "weights"})
    tiled = True
    provides = frozenset({"maximum", "best_score"})

    def __init__(self, problem: Problem, k: int) -> None:
        """Start with weights of 0 and keys of −1; k is 1 to kv_len."""
        self.k = k
        shape = (*problem.query.shape[:3], k)
        self.weights = stages.upcast(problem.query[:0]).new_zeros(shape)
        self.keys = torch.full(shape, -1, dtype=torch.int64, device=problem.device)

    @property
    def result(self) -> TopK:
        """The k largest weights of each query with their keys, without a copy."""
        return TopK(self.weights, self.keys)

    def update(self, chunk: Chunk) -> None:
        """Merge the largest weights of a chunk into the result, and store the chunk's `maximum` and `best_score`.

        The latter only where all numbers are finite; nothing for a chunk without keys.
        """
        weights = chunk.weights
        width = weights.shape[-1]
        k = min(self.k, width)
        if k == 0:
            return
        top = top_of_finite if chunk.visible is None else top_of_any
        values, keys = largest_of_rows(weights, k, top)
        chunk.maximum = values[..., 0]
        if chunk.visible is None:  # of weights that are NaN any may come first
            chunk.best_score = chunk.scores.gather(-1, keys[..., :1])[..., 0]
        keys = chunk.whole_keys(keys)
        rows = chunk.extent.rows_of(self.weights), chunk.extent.rows_of(self.keys)
        if chunk.block is not None:
            values = torch.cat([rows[0].view(*values.shape[:2], -1), values], dim=-1)
            keys = torch.cat([rows[1].view(*keys.shape[:2], -1), keys], dim=-1)
            k = self.k
            values, among = top(values, k)
            keys = keys.gather(-1, among)
        keys.masked_fill_(values == 0, -1)
        for kept, new in zip(rows, (values, keys), strict=True):
            kept[..., :k] = new.view(*kept.shape[:-1], k)


class Pooled(Reduction):
    """The weights summed over rectangles: `result` is (batch, num_heads, rows, columns), in the weights' dtype."""

    provides = frozenset({"column_sums"})

    def __init__(self, problem: Problem, rows: int, columns: int) -> None:
        """Start with zeros, float64: `rows` bins of queries, in order and as equal as can be, and `columns` of keys."""
        # On the CPU, where a chunk asks for the first and the last.
        self.row_bins = bins(problem.all_queries, rows, torch.device("cpu"))
        if problem.sharding is not None:
            self.row_bins = self.row_bins[problem.sharding.positions.cpu()]
        self.column_bins = bins(problem.kv_len, columns, problem.device)
        shape = (*problem.query.shape[:2], rows, columns)
        self.dtype = stages.upcast(problem.query[:0]).dtype
        # A bin may be most of the matrix: too many numbers to add up one by one in float32.
        self.sums = torch.zeros(shape, dtype=torch.float64, device=problem.device)

    @property
    def result(self) -> Tensor:
        """The sums, (batch, num_heads, rows, columns), in the dtype of the weights."""
        return self.sums.to(self.dtype)

    def update(self, chunk: Chunk) -> None:
        """Add the weights of a chunk to their cells, and store the chunk's `column_sums`."""
        rows = self.row_bins[chunk.queries]
        first, last = (int(edge) for edge in rows.aminmax())
        sums = chunk.row_sums(rows - first, last + 1 - first)
        chunk.column_sums = sums.sum(dim=1)
        into = self.sums[chunk.sample, chunk.heads, first : last + 1]
        count, width = into.shape[-1], sums.shape[-1]
        if chunk.block is None and width == len(self.column_bins) and width % count == 0:
            # All keys, in bins of one size: neighbours are added, which is much faster; column by column
            # if they are few, since a sum over a short last dimension takes as long as one over a longer.
            neighbours = sums.unflatten(-1, (count, -1))
            if neighbours.shape[-1] <= FEW:
                for column in neighbours.unbind(-1):
                    into += column
            else:
                into += neighbours.sum(dim=-1, dtype=torch.float64)
        else:
            into.index_add_(-1, self.column_bins[chunk.columns], sums.double())

    def share(self, sharding: Sharding) -> None:
        """Sum the maps over the ranks, in place; every rank must call it."""
        self.sums = sharding.sum(self.sums, "pooled maps")


class Received(Reduction):
    """The weights that each key receives from all queries of the heads that share it, summed.

    `result` is (batch, num_kv_heads, kv_len), upcast; `problem` gives the sizes.
    """

    reads = frozenset({"weights", "column_sums"})
    tiled = True

    def __init__(self, problem: Problem) -> None:
        """Start with zeros, (batch, num_kv_heads, kv_len)."""
        shape = (problem.batch, problem.num_kv_heads, problem.kv_len)
        self.result = stages.upcast(problem.query[:0]).new_zeros(shape)

    def update(self, chunk: Chunk) -> None:
        """Add the weight that each key gets from a chunk, summed over grouped heads, to the result."""
        sums, result = chunk.column_sums, self.result[chunk.sample, chunk.kv_heads]
        grouped = sums.unflatten(0, (result.shape[0], chunk.tiles, -1)).sum(dim=2)
        columns = chunk.columns
        if isinstance(columns, Tensor):  # keys of neighbouring tiles overlap
            result.index_add_(1, columns.flatten(), grouped.flatten(1))
        else:
            result[:, columns] += grouped[:, 0]

    def share(self, sharding: Sharding) -> None:
        """Sum the result over the ranks, in place; every rank must call it."""
        self.result = sharding.sum(self.result, "what keys receive")


class Context(Reduction):
    """Weights times values: `result` is (batch, num_heads, query_len, value_head_dim).

    It has the dtype of the value.
    """

    tiled = True

    def __init__(self, problem: Problem, value: Tensor) -> None:
        """Start with zeros, for a value (batch, num_kv_heads or num_heads, kv_len, value_head_dim)."""
        self.value = value
        self.per_head = value.shape[1] == problem.num_heads
        self.finite = stages.all_finite(value)
        shape = (*problem.query.shape[:3], value.shape[3])
        rounds = None if problem.part is None else problem.part.rounds
        # Of one block after another, it is summed in the precision of sums.
        like = value if rounds is None else stages.upcast(value[:0])
        self.result = like.new_zeros(shape)

    def share(self, sharding: Sharding) -> None:
        """Cast the result to the dtype of the value; nothing is summed, since each rank has its own queries."""
        self.result = self.result.to(self.value.dtype)

    def update(self, chunk: Chunk) -> None:
        """Add weights · values of a chunk to the result."""
        heads_of_value = chunk.heads if self.per_head else chunk.kv_heads
        value = stages.upcast(self.value[chunk.sample, heads_of_value][:, chunk.columns])
        into, (heads, queries, keys) = chunk.extent.rows_of(self.result), chunk.weights.shape
        if chunk.visible is not None:
            value = stages.repeat_kv_heads(value, heads)
            context = stages.context(chunk.weights, value, chunk.visible)
        else:
            value = value.flatten(0, -3)  # a tile counts as a key head
            rows = heads // value.shape[0] * queries
            context = torch.bmm(chunk.weights.view(value.shape[0], rows, keys), value)
        into += context.view(into.shape)
