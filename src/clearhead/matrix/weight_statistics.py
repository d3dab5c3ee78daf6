"""The numbers that come from a sweep over the weights, one by one or all of them in a summary."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from clearhead._common.checks import check_choice
from clearhead._text import shown
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentTypeError, ShapeError
from clearhead.matrix.base import BaseMatrix
from clearhead.matrix.distances import DIVERGENCES, Distance
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.indexing import check_bins, read_k, read_segments
from clearhead.matrix.parts import by_queries, entropy_of
from clearhead.matrix.reductions import (
    Context,
    Entropy,
    Largest,
    LogSumExp,
    Mass,
    Maximum,
    MaxScore,
    OnKeys,
    PerQuery,
    Pooled,
    Received,
)
from clearhead.matrix.summary import Summary, TopK
from clearhead.matrix.sweep import Progress, sweep

Divergence = Literal["kl", "js"]


class WeightStatistics(BaseMatrix):
    """The numbers of a matrix of attention weights, each computed in O(tokens) memory by a sweep.

    `entropy`, `max`, `received`, `distance`, `mass` and `divergence` have gradients if query, key, bias or sinks do;
    `max_score`, `top_k`, `pool` and `summary` have none, and no number of a matrix whose tokens ranks share has any.

    Args:
        problem, value: as of `BaseMatrix`.
    """

    def __init__(self, problem: Problem, value: Tensor | None = None) -> None:
        """Store the problem and the value, as `BaseMatrix` does."""
        super().__init__(problem, value)
        # Computed once. Callers get copies, which they may write to.
        self._entropy: Tensor | None = None

    def entropy(self) -> Tensor:
        """Return the entropy of the weights of each query: −Σ weight · ln weight, in nats.

        Computed once unless it has gradients; each call returns a copy. 0 is one key only, ln(n) is n keys alike. What
        a sink takes is not counted.

        Returns:
            (batch, num_heads, query_len).

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(3, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).entropy()
            tensor([0.0000, 0.6931, 1.0986])
        """
        if self._has_gradients():
            return self._by_queries(entropy_of)
        if self._entropy is None:
            self._entropy = self._gather(Entropy(self.posed))
        return self._entropy.clone()

    def max(self) -> Tensor:
        """Return the largest weight of each query; 0 for one that may attend to nothing.

        Returns:
            (batch, num_heads, query_len).

        Example:
            >>> import torch, clearhead as ch
            >>> ch.AttentionMatrix(torch.zeros(2, 4), torch.zeros(5, 4)).max()
            tensor([0.2000, 0.2000])
        """
        return self._gather(Maximum(self.posed), lambda _, logs: logs.amax(dim=-1).exp())

    def max_score(self) -> Tensor:
        """Return the largest score of each query, as the softmax gets it: scaled, softcapped, with the bias.

        It is −∞ for a query that may attend to nothing.

        What grows before a training diverges, and what QK-clip limits at every step (Kimi K2, 2025,
        https://arxiv.org/abs/2507.20534).

        Returns:
            (batch, num_heads, query_len).

        Example:
            >>> import torch, clearhead as ch
            >>> ch.AttentionMatrix(torch.eye(2) * 4, torch.eye(2), scale=1.0).max_score()
            tensor([4., 4.])
        """
        return self._gather(MaxScore(self.posed))

    def top_k(self, k: int) -> TopK:
        """Return the k largest weights of each query, from the largest on, and their keys.

        Of equal weights any may come. A key is −1 where the weight is 0.

        Args:
            k: how many, 1 to kv_len.

        Returns:
            A pair `weights, keys`, both (batch, num_heads, query_len, k).

        Raises:
            ArgumentError: code `top-k.value`, for a k out of range.

        Example:
            >>> import torch, clearhead as ch
            >>> weights, keys = ch.AttentionMatrix(torch.eye(3), torch.eye(3)).top_k(1)
            >>> weights.flatten(), keys.flatten()
            (tensor([0.4711, 0.4711, 0.4711]), tensor([0, 1, 2]))
        """
        largest = Largest(self.posed, read_k(k, self.kv_len))
        sweep(self.posed, [largest])
        return TopK(*map(self._restore, largest.result))

    def received(self) -> Tensor:
        """Return the weight that each key gets from all queries: the sum of its column.

        Query heads that share a key head are summed, so that over all keys of a head it is
        query_len times the size of its group, less what sinks take.

        Returns:
            (batch, num_kv_heads, kv_len).

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(3, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).received()
            tensor([1.8333, 0.8333, 0.3333])
        """
        if self._has_gradients():
            columns: Any = sum(by_queries([self.problem], lambda _, logs: logs.exp().sum(dim=2)))
            return self._restore(columns.unflatten(1, (self.num_kv_heads, -1)).sum(dim=2))
        return self._gather(Received(self.posed))

    def distance(self) -> Tensor:
        """Return the mean distance at which each query looks: Σ weight · |query position − key position|, in tokens.

        The last query has the position of the last key, as everywhere.

        Returns:
            (batch, num_heads, query_len).

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(3, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).distance()
            tensor([0.0000, 0.5000, 1.0000])
        """
        places, keys = self.posed.query_positions, torch.arange(self.kv_len, device=self.device)
        return self._gather(
            Distance(self.posed),
            lambda rows, logs: (logs.exp() * (places[rows, None] - keys).abs()).sum(dim=-1),
        )

    def divergence(self, other: "WeightStatistics", kind: Divergence = "kl") -> Tensor:
        """Return how far the weights of each query are from those of another matrix, in nats, with gradients into both.

        Args:
            other: of the same shape: the same module of another run, or of another model.
            kind: "kl" is Σ weight · ln(weight / weight in the other): +∞, without a gradient, for a query that sees a
                key here and not there. "js" is the mean "kl" of both to their mean: symmetric, and ln 2 at most.

        Returns:
            (batch, num_heads, query_len).

        Raises:
            ArgumentTypeError: code `divergence.type`, unless `other` is a matrix.
            ShapeError: code `divergence.shape`.
            ArgumentError: code `kind.value`.

        Example:
            >>> import torch, clearhead as ch
            >>> half = ch.AttentionMatrix.from_weights(torch.tensor([[0.5, 0.5]]))
            >>> half.divergence(ch.AttentionMatrix.from_weights(torch.tensor([[0.25, 0.75]])))
            tensor([0.1438])
        """
        if not isinstance(other, WeightStatistics):
            raise ArgumentTypeError(
                "divergence.type", f"other must be an AttentionMatrix; got {shown(other)}."
            )
        if self.shape != other.shape:
            raise ShapeError(
                "divergence.shape",
                f"other must have the shape of this matrix, {tuple(self.shape)}; got {tuple(other.shape)}.",
            )
        check_choice("kind", kind, Divergence)
        return self._by_queries(DIVERGENCES[kind], other)

    def mass(self, segments: Tensor) -> Tensor:
        """Return the weight that each query puts on sets of keys.

        Args:
            segments: (kv_len,) or (batch, kv_len). Bool: the keys of one set. Ints: the number of
                the set that each key belongs to, from 0; −1 for none.

        Returns:
            (batch, num_heads, query_len) for bool, and with one more axis, of as many sets as
            there are, for ints.

        Raises:
            ArgumentTypeError: code `segments.type`, unless it is a tensor.
            ShapeError: code `segments.shape`.
            ArgumentError: code `segments.value`, for other numbers, or a set for every number up
                to a largest that is beyond kv_len.

        Example:
            >>> import torch, clearhead as ch
            >>> weights = ch.AttentionMatrix(torch.zeros(1, 2), torch.zeros(4, 2))
            >>> weights.mass(torch.tensor([0, 0, 0, 1]))
            tensor([[0.7500, 0.2500]])
        """
        member, sets = self._members(segments)
        mass = Mass(self.posed, member)
        return self._gather(mass, lambda _, logs: logs.exp() @ member[:, None])[..., sets]

    def pool(self, rows: int, columns: int) -> Tensor:
        """Return the matrix as a small map: weights summed over rectangles of queries × keys.

        The queries fall into as many bins as there are rows, in order and as equal as can be, and
        the keys too. The sum of the map is that of the weights: query_len for the whole
        matrix, if every query sees something and there are no sinks.

        Args:
            rows: bins of queries, 1 to as many as there are queries.
            columns: the number of bins of keys.

        Returns:
            (batch, num_heads, rows, columns).

        Raises:
            ArgumentError: code `pool.size`, for a number of bins out of range.

        Example:
            >>> import torch, clearhead as ch
            >>> query = key = torch.zeros(4, 2)
            >>> ch.AttentionMatrix(query, key, mask=ch.causal()).pool(2, 2)
            tensor([[2.0000, 0.0000],
                    [1.1667, 0.8333]])
        """
        check_bins(rows, columns, self.posed.all_queries, self.kv_len)
        return self._gather(Pooled(self.posed, rows, columns))

    def summary(
        self,
        *,
        value: Tensor | None = None,
        top_k: int | None = None,
        pool: tuple[int, int] | None = None,
        segments: Tensor | None = None,
        progress: Progress | None = None,
    ) -> Summary:
        """Return all of the statistics, and the context if a value is given, in one pass over the weights.

        It also stores the logsumexp and the entropy of the matrix. With everything it takes about twice as long as
        one fused call of attention of width 128, and more of a narrower one (2.5 times at 64, from 4 096 tokens on),
        in O(tokens) memory.

        Args:
            value: (batch, num_kv_heads, kv_len, value_head_dim), for the context.
            top_k: how many of the largest weights of each query, as in `top_k`.
            pool: rows and columns of the map, as in `pool`.
            segments: sets of keys, as in `mass`.
            progress: called as the work goes on with the share that is done, 0 to 1.

        Raises:
            ArgumentTypeError: code `pool.type`.
            ClearheadError: for a value that `attend` refuses, and as the single methods do.

        Example:
            >>> import torch, clearhead as ch
            >>> query, key, value = torch.randn(3, 1, 2, 5, 4).unbind()
            >>> weights = ch.AttentionMatrix(query, key, mask=ch.causal())
            >>> summary = weights.summary(value=value, top_k=2, pool=(5, 5))
            >>> summary
            Summary [batch=1, num_heads=2, query_len=5, kv_len=5] with context, top_k, pooled
            >>> summary.received.sum(dim=-1)
            tensor([[5.0000, 5.0000]])
        """
        return self._summary_and_weights((), value, top_k, pool, segments, progress)[0]

    def _summary_and_weights(
        self,
        keys: Sequence[Tensor],
        value: Tensor | None = None,
        top_k: int | None = None,
        pool: tuple[int, int] | None = None,
        segments: Tensor | None = None,
        progress: Progress | None = None,
    ) -> tuple[Summary, list[Tensor]]:
        """Return the summary, and for each set in `keys` the weight on it, (batch, num_heads, query_len).

        The sets are those of `OnKeys`; the other arguments, and the errors, are those of `summary`.
        """
        problem = self.posed
        posed = None if value is None else self._with_value(value, "2", posed=True)
        member, sets = (None, 0) if segments is None else self._members(segments)
        largest = None if top_k is None else Largest(problem, read_k(top_k, problem.kv_len))
        pooled = None
        if pool is not None:
            if not isinstance(pool, Sequence) or len(pool) != 2:
                raise ArgumentTypeError(
                    "pool.type", f"pool must be a pair (rows, columns); got {shown(pool)}."
                )
            check_bins(*pool, problem.all_queries, problem.kv_len)
            pooled = Pooled(problem, *pool)
        mass = None if member is None else Mass(problem, member)
        context = None if posed is None else Context(problem, posed.value)
        total, entropy, maximum = LogSumExp(problem), Entropy(problem), Maximum(problem)
        distance, received, score = Distance(problem), Received(problem), MaxScore(problem)
        # The token before by position: the last query sits on the last key.
        place = problem.query_positions[None, None, :, None]
        on_keys = OnKeys(problem, [torch.zeros_like(place), place - 1, *keys])
        single = [total, maximum, score, distance, on_keys, received, entropy]
        every = [largest, pooled, mass, context, *single]
        sweep(problem, [each for each in every if each is not None], progress)
        if self._logsumexp is None:
            self._logsumexp = total.result.clone()
        self._entropy = self._restore(entropy.result)
        first, before, *weights = on_keys.result.unbind(dim=3)
        summary = Summary(
            logsumexp=self._restore(total.result),
            entropy=self._entropy.clone(),
            max=self._restore(maximum.result),
            max_score=self._restore(score.result),
            distance=self._restore(distance.result),
            first=self._restore(first.contiguous()),
            previous=self._restore(before.contiguous()),
            received=self._restore(received.result),
            context=None if context is None else self._restore(context.result),
            top_k=None if largest is None else TopK(*map(self._restore, largest.result)),
            mass=None if mass is None else self._restore(mass.result)[..., sets],
            pooled=None if pooled is None else self._restore(pooled.result),
            cross=problem.cross,
            heads=None if self.heads is None else numbers_of_heads(self),
        )
        return summary, weights

    @torch.no_grad()
    def _statistic(self, name: str) -> Tensor:
        """Return a field of `summary` by its name, with axes of batch and heads, without gradients.

        It is (batch, num_heads, query_len), and for "received" (batch, num_kv_heads, kv_len). Other names than
        "entropy", "distance", "max" and "received" compute the whole summary.
        """
        if name in ("entropy", "distance", "max", "received"):
            found = getattr(self, name)()
            return found.reshape((1,) * (4 - self.ndim) + found.shape)
        return self.summary()._statistic(name)

    def _has_gradients(self) -> bool:
        """Return True if numbers of this matrix have gradients, in this grad mode: not over ranks, nor without keys."""
        is_whole = self.posed.sharding is None and self.kv_len > 0
        return is_whole and torch.is_grad_enabled() and self._trained()

    def _by_queries(self, function: Callable[..., Tensor], *others: BaseMatrix) -> Tensor:
        """Return the results of a function for all queries, in the user's dimensions, with gradients.

        The function is one for `by_queries`, of this matrix and `others`.
        """
        found = by_queries([each.problem for each in (self, *others)], function)
        return self._restore(torch.cat(found, dim=2))

    def _gather(
        self,
        reduction: PerQuery | Mass | Pooled | Received,
        function: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """Return the result of a reduction, by a sweep over the weights, in the user's dimensions.

        Where there are gradients, return those of `function` for all queries, unless it is None.
        """
        if function is not None and self._has_gradients():
            return self._by_queries(function)
        sweep(self.posed, [reduction])
        return self._restore(reduction.result)

    def _members(self, segments: Tensor) -> tuple[Tensor, int | slice]:
        """Return membership, (batch or 1, kv_len, sets), 1 or 0 in the dtype of the weights, and an index of the sets.

        The index is 0 for a single set, whose axis a result has not, and a slice of all otherwise.

        Raises as `read_segments` does.
        """
        member, single = read_segments(segments, (self.batch, self.kv_len), self.device)
        return member.to(self.dtype), 0 if single else slice(None)
