"""What can be gathered from the weights of attention while they pass by, chunk after chunk."""

import math
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.problem import Problem
from clearhead.matrix.summary import TopK


class Chunk:
    """The weights of some queries, of some heads of one sample.

    The tensors are overwritten by the next chunk.

    Attributes:
        sample: which sample.
        kv_heads: which key heads.
        heads: which query heads; those that share a key head are neighbours.
        queries: which queries.
        keys: which keys; no query of the chunk sees another.
        scores: (heads, queries, keys), masked, with a very low number where a pair is hidden.
        weights: (heads, queries, keys).
        empty: (queries,) or (heads, queries), bool: which queries see nothing; None if none.
        sinks: (heads,), or None.
        visible: (heads, queries, keys), bool, where numbers are not all finite; else None.
    """

    def __init__(
        self,
        sample: int,
        kv_heads: slice,
        heads: slice,
        queries: slice,
        keys: slice,
        scores: Tensor,
        weights: Tensor,
        empty: Tensor | None,
    ) -> None:
        self.sample, self.kv_heads, self.heads = sample, kv_heads, heads
        self.queries, self.keys = queries, keys
        self.scores, self.weights, self.empty = scores, weights, empty
        self.sinks: Tensor | None = None
        self.visible: Tensor | None = None

    @property
    def place(self) -> tuple[int, slice, slice]:
        """Where the chunk is in a tensor (batch, num_heads, query_len, …)."""
        return self.sample, self.heads, self.queries

    @cached_property
    def maximum(self) -> Tensor:
        """The largest weight of each query, (heads, queries); 0 for one that sees nothing."""
        if not self.weights.shape[-1]:
            return self.weights.new_zeros(self.weights.shape[:-1])
        return self.weights.amax(dim=-1)

    @cached_property
    def best_score(self) -> Tensor:
        """The largest score of each query, (heads, queries)."""
        return self.scores.amax(dim=-1)

    @cached_property
    def logsumexp(self) -> Tensor:
        """log Σ exp of the scores of each query, (heads, queries), nats."""
        if not self.scores.shape[-1]:
            return self.scores.new_full(self.scores.shape[:-1], -torch.inf)
        # Any weight and its score tell it; the largest has the most digits.
        total = self.best_score - self.maximum.log()
        return total if self.empty is None else total.masked_fill(self.empty, -torch.inf)

    @cached_property
    def total(self) -> Tensor:
        """The sum of the weights of each query, (heads, queries): 1 less what its sink gets."""
        if self.visible is not None or not self.weights.shape[-1]:
            return self.weights.sum(dim=-1)
        total = self.weights.new_ones(self.weights.shape[:2])
        if self.sinks is not None:
            total = torch.sigmoid(self.logsumexp - self.sinks[:, None])
        return total if self.empty is None else total.masked_fill(self.empty, 0.0)

    def share_with(self, sinks: Tensor) -> None:
        """Take from the weights what sinks, (heads,), get."""
        share = torch.sigmoid(self.logsumexp - sinks[:, None])
        self.weights.mul_(share[..., None])
        self.maximum = self.maximum * share
        self.sinks = sinks

    @cached_property
    def column_sums(self) -> Tensor:
        """What each key gets from the queries of the chunk, (heads, keys)."""
        every = torch.zeros(self.weights.shape[1], dtype=torch.int64, device=self.weights.device)
        return self.row_sums(every, 1)[:, 0]

    def times(self, columns: Tensor) -> Tensor:
        """Weights · columns, for columns of shape (keys, width) that are 0 or more."""
        rows = self.weights.flatten(0, 1)
        if self.visible is None:
            product = rows @ columns
        else:
            # A NaN is in the columns that count it, and in no other.
            broken = rows.isnan()
            product = rows.masked_fill(broken, 0.0) @ columns
            product = product.masked_fill((broken.to(columns.dtype) @ columns) > 0, torch.nan)
        return product.unflatten(0, self.weights.shape[:2])

    def row_sums(self, bins: Tensor, count: int) -> Tensor:
        """The weights summed over the queries of each bin, (heads, count, keys).

        Args:
            bins: (queries,), int64: to which bin each query belongs.
            count: how many bins there are.
        """
        if self.visible is not None:
            # Unlike a product, it keeps a NaN in its own bin.
            sums = self.weights.new_zeros(self.weights.shape[0], count, self.weights.shape[2])
            return sums.index_add_(1, bins, self.weights)
        queries = self.weights.shape[1]
        size = queries // count
        if queries == size * count and bool((bins == _even(queries, size, bins.device)).all()):
            return self.weights.unflatten(1, (count, size)).sum(dim=2)
        choice = torch.nn.functional.one_hot(bins, count).T.to(self.weights.dtype)
        return choice @ self.weights


@lru_cache(maxsize=8)
def _even(length: int, size: int, device: torch.device) -> Tensor:
    """The bins of places that fall into bins of one size."""
    return torch.arange(length, device=device) // size


class Statistic(ABC):
    """Something gathered from all weights of a problem.

    Attributes:
        finite: whether the numbers that it multiplies with weights are all finite. If not, it is
            told which pairs are visible: a weight of 0 does not take a NaN away.

    Example:
        >>> import torch
        >>> from clearhead.attention.problem import make_problem
        >>> from clearhead.matrix.sweep import sweep
        >>> problem = make_problem(torch.zeros(3, 2), torch.zeros(4, 2), torch.zeros(4, 2))
        >>> maximum = Maximum(problem)
        >>> sweep(problem, [maximum])
        >>> maximum.result
        tensor([[[0.2500, 0.2500, 0.2500]]])
    """

    finite: bool = True

    @abstractmethod
    def take(self, chunk: Chunk) -> None:
        """Take what is needed from a chunk; every weight comes by once."""


class PerQuery(Statistic):
    """A number for each query: `result` is (batch, num_heads, query_len), in the precision of sums."""

    def __init__(self, problem: Problem) -> None:
        self.result: Tensor = stages.upcast(problem.query[:0]).new_zeros(problem.query.shape[:3])

    def take(self, chunk: Chunk) -> None:
        self.result[chunk.place] = self.of(chunk)

    @abstractmethod
    def of(self, chunk: Chunk) -> Tensor:
        """The numbers of the queries of a chunk, (heads, queries)."""


class LogSumExp(PerQuery):
    """log Σ exp of the masked scores, nats; −∞ for a query that may attend to nothing."""

    def of(self, chunk: Chunk) -> Tensor:
        return chunk.logsumexp


class Maximum(PerQuery):
    """The largest weight."""

    def of(self, chunk: Chunk) -> Tensor:
        return chunk.maximum


class Entropy(PerQuery):
    """−Σ weight · ln weight, nats; 0 for a query that may attend to nothing.

    With ln weight = score − best score + ln largest weight, only one logarithm a query is taken.
    The best score goes first, since all scores of a query together may be large, and digits would
    be lost. It uses the scores up, so it comes after all that read them.
    """

    def of(self, chunk: Chunk) -> Tensor:
        if not chunk.scores.shape[-1]:
            return chunk.total
        # In the place of the scores: another buffer would cost as much as the product.
        spread = torch.linalg.vecdot(chunk.scores.sub_(chunk.best_score[..., None]), chunk.weights)
        # Counted down from 0, so that nothing is −0.
        return (0.0 - torch.xlogy(chunk.total, chunk.maximum) - spread).clamp_(min=0.0)


class Distance(PerQuery):
    """Σ weight · |query position − key position|, tokens; the last query sits on the last key."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.offset = problem.kv_len - problem.query_len

    def of(self, chunk: Chunk) -> Tensor:
        # Positions are counted from the first query of the chunk. In the chunk and as many tokens
        # behind it, distances are taken pair by pair. Farther away the sign of p − j is that of −j,
        # so that the sum is ∓ Σ weight · j ± p · Σ weight: products with two vectors, which lose
        # no digits there.
        weights = chunk.weights
        queries, width = weights.shape[1:]
        origin = self.offset + chunk.queries.start
        position = torch.arange(queries, device=weights.device)
        key = torch.arange(chunk.keys.start, chunk.keys.stop, device=weights.device) - origin
        first = chunk.keys.start - origin
        near, far = (max(0, min(edge - first, width)) for edge in (0, 2 * queries))
        steps = (position[:, None] - key[near:far]).abs().to(weights.dtype)
        distance = torch.linalg.vecdot(weights[..., near:far], steps)
        if far - near < width:
            rows, away = weights.flatten(0, 1), key.to(weights.dtype)
            away[near:far] = 0.0  # a product with whole rows is faster than one with parts of them
            total = (rows @ -away.sign()).unflatten(0, weights.shape[:2])
            distance += (rows @ away.abs()).unflatten(0, weights.shape[:2]) + total * position
        return distance


class Near(PerQuery):
    """Σ weight over the keys at most so many tokens away; the last query sits on the last key.

    Args:
        problem: the problem.
        reach: how many tokens on either side.
    """

    def __init__(self, problem: Problem, reach: int) -> None:
        super().__init__(problem)
        self.reach = reach
        self.offset = problem.kv_len - problem.query_len

    def of(self, chunk: Chunk) -> Tensor:
        weights = chunk.weights
        queries, width = weights.shape[1:]
        position = self.offset + torch.arange(
            chunk.queries.start, chunk.queries.stop, device=weights.device
        )
        first = self.offset + chunk.queries.start - self.reach - chunk.keys.start
        low, high = (max(0, min(end, width)) for end in (first, first + queries + 2 * self.reach))
        key = torch.arange(low, high, device=weights.device) + chunk.keys.start
        far = (position[:, None] - key).abs() > self.reach
        if chunk.visible is not None:
            return weights[..., low:high].masked_fill(far, 0.0).sum(dim=-1)
        return torch.linalg.vecdot(weights[..., low:high], (~far).to(weights.dtype))


class OfKey(PerQuery):
    """The weight of each query on one key.

    Args:
        problem: the problem.
        keys: (query_len,), int64: which key; one that is not there has weight 0.
    """

    def __init__(self, problem: Problem, keys: Tensor) -> None:
        super().__init__(problem)
        self.keys = keys

    def of(self, chunk: Chunk) -> Tensor:
        keys = self.keys[chunk.queries] - chunk.keys.start
        width = chunk.weights.shape[-1]
        if not width:
            return chunk.weights.new_zeros(chunk.weights.shape[:-1])
        places = keys.clamp(0, width - 1)[:, None].expand(*chunk.weights.shape[:-1], 1)
        found = chunk.weights.gather(-1, places)[..., 0]
        return found.masked_fill((keys < 0) | (keys >= width), 0.0)


class Mass(Statistic):
    """The weight on sets of keys: `result` is (batch, num_heads, query_len, segments).

    Args:
        problem: the problem.
        member: (batch or 1, kv_len, segments): 1 where a key belongs to a segment, else 0.
    """

    def __init__(self, problem: Problem, member: Tensor) -> None:
        self.member = member
        shape = (*problem.query.shape[:3], member.shape[2])
        self.result = stages.upcast(problem.query[:0]).new_zeros(shape)

    def take(self, chunk: Chunk) -> None:
        member = self.member[chunk.sample if self.member.shape[0] > 1 else 0, chunk.keys]
        self.result[chunk.place] = chunk.times(member)


class Largest(Statistic):
    """The k largest weights of each query and their keys.

    `weights` and `keys` are (batch, num_heads, query_len, k), from the largest weight on; the key
    is −1 where the weight is 0.
    """

    def __init__(self, problem: Problem, k: int) -> None:
        self.k = k
        shape = (*problem.query.shape[:3], k)
        self.weights = stages.upcast(problem.query[:0]).new_zeros(shape)
        self.keys = torch.full(shape, -1, dtype=torch.int64, device=problem.device)

    @property
    def result(self) -> TopK:
        return TopK(self.weights, self.keys)

    def take(self, chunk: Chunk) -> None:
        weights = chunk.weights
        width = weights.shape[-1]
        k = min(self.k, width)
        if k == 0:
            return
        top = _top if chunk.visible is None else _top_of_any
        # The k largest are in the k segments with the largest maxima. Both the segments and the
        # weights of k of them are looked through: there are fewest if they are about as many.
        size = 1 << round(math.log2(width / k) / 2)
        step = width // size
        if step > 2 * k:
            # A segment is every step-th key, so that its maximum is one of columns, which is fast.
            segments = weights[..., : size * step].unflatten(-1, (size, step))
            best = top(segments.amax(dim=-2), k, sorted=False)[1]
            among = best[..., None, :].expand(*best.shape[:-1], size, k)
            candidates = segments.gather(-1, among).flatten(-2)
            rest = width - size * step
            if rest:
                candidates = torch.cat([candidates, weights[..., -rest:]], dim=-1)
            values, places = top(candidates, k)
            keys = best.gather(-1, places % k) + places.div(k, rounding_mode="floor") * step
            if rest:
                keys = torch.where(places < size * k, keys, places + size * (step - k))
        else:
            values, keys = top(weights, k)
        chunk.maximum = values[..., 0]
        chunk.best_score = chunk.scores.gather(-1, keys[..., :1])[..., 0]
        self.weights[(*chunk.place, slice(0, k))] = values
        keys = (keys + chunk.keys.start).masked_fill(values == 0, -1)
        self.keys[(*chunk.place, slice(0, k))] = keys


def _top(weights: Tensor, k: int, *, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest weights of each row, and where they are."""
    if weights.dtype != torch.float32:
        return _top_of_any(weights, k, sorted=sorted)
    # Finite numbers from 0 on come in the order of their bits, and comparing whole numbers takes two
    # thirds of the time.
    bits, places = weights.view(torch.int32).topk(k, dim=-1, sorted=sorted)
    return bits.view(torch.float32), places


def _top_of_any(weights: Tensor, k: int, *, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The same for weights that may be NaN."""
    values, places = weights.topk(k, dim=-1, sorted=sorted)
    return values, places


class Pooled(Statistic):
    """The weights summed over rectangles: `result` is (batch, num_heads, rows, columns).

    Args:
        problem: the problem.
        rows: how many bins the queries fall into, in order, as equal as can be.
        columns: the same for the keys.
    """

    def __init__(self, problem: Problem, rows: int, columns: int) -> None:
        self.row_bins = bins(problem.query_len, rows, problem.device)
        self.column_bins = bins(problem.kv_len, columns, problem.device)
        shape = (*problem.query.shape[:2], rows, columns)
        self.dtype = stages.upcast(problem.query[:0]).dtype
        # A bin may be most of the matrix: too many numbers to add up one by one in float32.
        self.sums = torch.zeros(shape, dtype=torch.float64, device=problem.device)

    @property
    def result(self) -> Tensor:
        return self.sums.to(self.dtype)

    def take(self, chunk: Chunk) -> None:
        rows = self.row_bins[chunk.queries]
        first, last = int(rows[0]), int(rows[-1])
        sums = chunk.row_sums(rows - first, last + 1 - first)
        chunk.column_sums = sums.sum(dim=1)
        into = self.sums[chunk.sample, chunk.heads, first : last + 1]
        count, width = into.shape[-1], sums.shape[-1]
        if width == len(self.column_bins) and width % count == 0:
            # All keys, in bins of one size: neighbours are added, which is much faster.
            into += sums.unflatten(-1, (count, -1)).sum(dim=-1, dtype=torch.float64)
        else:
            into.index_add_(-1, self.column_bins[chunk.keys], sums.double())


class Received(Statistic):
    """What each key gets from all queries of the heads that share it.

    `result` is (batch, num_kv_heads, kv_len).
    """

    def __init__(self, problem: Problem) -> None:
        shape = (problem.batch, problem.num_kv_heads, problem.kv_len)
        self.result = stages.upcast(problem.query[:0]).new_zeros(shape)

    def take(self, chunk: Chunk) -> None:
        sums = chunk.column_sums
        grouped = sums.unflatten(0, (chunk.kv_heads.stop - chunk.kv_heads.start, -1)).sum(dim=1)
        self.result[chunk.sample, chunk.kv_heads, chunk.keys] += grouped


class Context(Statistic):
    """Weights times values: `result` is (batch, num_heads, query_len, value_head_dim), in the
    dtype of the value.

    Args:
        problem: the problem.
        value: (batch, num_kv_heads or num_heads, kv_len, value_head_dim).
    """

    def __init__(self, problem: Problem, value: Tensor) -> None:
        self.value = value
        self.per_head = value.shape[1] == problem.num_heads
        self.finite = stages.all_finite(value)
        shape = (*problem.query.shape[:3], value.shape[3])
        self.result = value.new_zeros(shape)

    def take(self, chunk: Chunk) -> None:
        heads_of_value = chunk.heads if self.per_head else chunk.kv_heads
        value = stages.upcast(self.value[chunk.sample, heads_of_value, chunk.keys])
        heads, queries, keys = chunk.weights.shape
        if chunk.visible is not None:
            value = stages.repeat_kv_heads(value, heads)
            self.result[chunk.place] = stages.context(chunk.weights, value, chunk.visible)
            return
        rows = heads // value.shape[0] * queries
        context = torch.bmm(chunk.weights.view(value.shape[0], rows, keys), value)
        self.result[chunk.place] = context.view(heads, queries, -1)


class TransposedSum(Statistic):
    """The transposed weights times vectors of the queries: `result` is
    (batch, num_heads, kv_len, width).

    Args:
        problem: the problem.
        vectors: (batch, num_heads, query_len, width).
    """

    def __init__(self, problem: Problem, vectors: Tensor) -> None:
        self.vectors = vectors
        self.finite = stages.all_finite(vectors)
        shape = (*problem.query.shape[:2], problem.kv_len, vectors.shape[3])
        self.result = stages.upcast(problem.query[:0]).new_zeros(shape)

    def take(self, chunk: Chunk) -> None:
        vectors = stages.upcast(self.vectors[chunk.place])
        if chunk.visible is None:
            product = torch.bmm(chunk.weights.mT, vectors)
        else:
            product = stages.context(chunk.weights.mT, vectors, chunk.visible.mT)
        self.result[chunk.sample, chunk.heads, chunk.keys] += product


def bins(length: int, count: int, device: torch.device) -> Tensor:
    """To which of `count` bins, in order and as equal as can be, each of `length` places belongs.

    Example:
        >>> bins(7, 3, torch.device("cpu"))
        tensor([0, 0, 0, 1, 1, 2, 2])
    """
    return torch.arange(length, device=device) * count // max(1, length)
