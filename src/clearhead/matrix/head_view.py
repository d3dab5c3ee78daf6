"""Some heads of one sample of a matrix or a summary, as everything that draws them asks.

A picture needs of a head the same few things wherever it is drawn: its weights or a coarser map of them, which
cells are hidden whole, a number for each query, and its name. They are computed here; a figure, a terminal,
a notebook and a page letter and colour them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.problem import Problem, make_problem
from clearhead.masks.causal import causal
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.indexing import bins
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.matrix.parts import some_heads
from clearhead.matrix.pooling import bin_sums, hidden_cells, row_means, row_shares
from clearhead.matrix.summary import Summary

PAIRS = 1 << 26
"""The weights that are computed for a glance, of all matrices that are looked at together."""

PORTION = 1 << 22
FEWEST_QUERIES = 4


class HeadMaps(NamedTuple):
    """The maps of some heads.

    Attributes:
        shares: (heads, rows, columns): the weights, or, pooled, which share of its attention a query of the row's
            tokens gives to the column's tokens, on average.
        hidden: (heads or 1, rows, columns), bool: the fully hidden cells; None if there are none,
            or if that is not known.
        query_len: the number of queries of all rows.
        kv_len: the number of keys of all columns.
    """

    shares: Tensor
    hidden: Tensor | None
    query_len: int
    kv_len: int

    @property
    def pooled(self) -> bool:
        """True if a cell covers more than one pair of a query and a key."""
        return tuple(self.shares.shape[1:]) != (self.query_len, self.kv_len)

    @property
    def visible(self) -> Tensor | None:
        """The cells that are not fully hidden, bool, of the shape of `hidden`; None where `hidden` is None."""
        return None if self.hidden is None else ~self.hidden

    def coarser(self, rows: int, columns: int) -> "HeadMaps":
        """Return maps of at most `rows` rows and `columns` columns: means over rows, sums over columns.

        A cell is hidden if all of its cells were; axes that are short enough stay.

        Example:
            >>> HeadMaps(torch.eye(4)[None], None, 4, 4).coarser(2, 2).shares
            tensor([[[1., 0.],
                     [0., 1.]]])
        """
        size = self.shares.shape[1]
        shares = bin_sums(self.shares, 1, rows)
        if size > rows:
            shares = row_means(shares, size)
        shares, hidden = bin_sums(shares, 2, columns), self.hidden
        if hidden is not None:
            hidden = bin_sums(bin_sums((~hidden).float(), 1, rows), 2, columns) == 0
        return self._replace(shares=shares, hidden=hidden)


class Glance(NamedTuple):
    """The maps and the averages of heads, as far as they can be known in passing.

    Attributes:
        shares: (num_heads, rows, columns): which share of its attention a row gives a column; None
            if it would cost too much to know.
        entropy: (num_heads,), averaged over the sampled queries, nats; None if there are none.
        distance: (num_heads,), the same average, tokens.
        queries: how many queries were looked at.
        query_len: how many there are.
        kv_len: how many keys there are.
    """

    shares: Tensor | None
    entropy: Tensor | None
    distance: Tensor | None
    queries: int
    query_len: int
    kv_len: int

    @property
    def grain(self) -> str:
        """The size of a cell of the maps in words, such as "a cell is one query × one key"; "" without maps."""
        if self.shares is None:
            return ""
        rows, columns = self.shares.shape[-2:]
        broad = -(-self.kv_len // columns)
        keys = "one key" if broad == 1 else f"{_up_to(self.kv_len, columns)} keys"
        if self.queries < self.query_len:
            return (
                f"a row is one of {self.queries} queries, {self.query_len} in all; a cell is {keys}"
            )
        if rows == self.query_len:
            return f"a cell is one query × {keys}"
        return f"a cell is {_up_to(self.query_len, rows)} queries × {keys}"


class HeadView:
    """Some heads of one sample of a matrix or a summary; results are detached.

    Args:
        weights: their matrix or their summary, of any leading dimensions.
        sample: the row of the batch.
        heads: their places among those that are there; None is all.

    Example:
        >>> view = HeadView(AttentionMatrix(torch.zeros(6, 2), torch.zeros(6, 2)))
        >>> view.maps(2).shares, view.statistic("entropy")[0, 0]
        (tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]]), tensor(1.7918))
    """

    def __init__(
        self,
        weights: AttentionMatrix | Summary,
        sample: int = 0,
        heads: Sequence[int] | None = None,
    ) -> None:
        """Store the weights, the row of the batch, and the indices of the heads, all for None; nothing is computed."""
        self.weights, self.sample = weights, sample
        self.heads = list(range(weights.num_heads) if heads is None else heads)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the heads in their layer, as a list."""
        known = numbers_of_heads(self.weights)
        return [known[each] for each in self.heads]

    @property
    def is_empty(self) -> bool:
        """True if the matrix has no entries, because one of its sizes is 0."""
        one = self.weights
        return 0 in (one.batch, one.num_heads, one.query_len, one.kv_len)

    @torch.no_grad()
    def exact(self, every: int = 1) -> HeadMaps:
        """Return the weights of one query in `every`, starting with the first, pair by pair.

        The view must be of a matrix. `query_len` of the result counts all queries.

        Raises:
            TooLargeError: code `matrix.too-large`.

        Example:
            >>> matrix = AttentionMatrix(torch.zeros(2, 2), torch.zeros(2, 2), mask=ch.causal())
            >>> HeadView(matrix).exact().hidden
            tensor([[[False,  True],
                     [False, False]]])
        """
        problem = self._matrix.problem
        # The leading axes that the user's query did not have are not there to be indexed.
        leading = [[self.sample], self.heads][4 - problem.dims :]
        shares = self._matrix[(*leading, slice(None, None, every), slice(None))]
        hidden = hidden_cells(problem, self.sample, self.heads, problem.query_len, problem.kv_len)
        return HeadMaps(
            shares.reshape(len(self.heads), shares.shape[-2], problem.kv_len),
            None if hidden is None else hidden[:, ::every],
            problem.query_len,
            problem.kv_len,
        )

    @torch.no_grad()
    def maps(self, most: int) -> HeadMaps:
        """Return maps of at most `most` × `most` cells, exact if the matrix is small enough.

        The maps of a summary, which must have `pooled`, are its pooled maps, of any size, which do not record what the
        mask hides.
        """
        weights = self.weights
        if isinstance(weights, Summary):
            return self.pooled_maps(None, 0)
        sizes = weights.query_len, weights.kv_len
        rows, columns = (side(each, most) for each in sizes)
        if (rows, columns) == sizes:
            return self.exact()
        part, place = self._part(weights.problem)
        shares = row_means(matrix_of(part).pool(rows, columns)[place], sizes[0])
        hidden = hidden_cells(weights.problem, self.sample, self.heads, rows, columns)
        return HeadMaps(shares, hidden, *sizes)

    @torch.no_grad()
    def pooled_maps(self, problem: Problem | None, row: int) -> HeadMaps:
        """Return the pooled maps of a summary, with the cells that the mask of sample `row` of `problem` hides.

        Without a problem `hidden` is None. The view must be of a summary with `pooled`.
        """
        assert isinstance(self.weights, Summary)
        pooled = self.weights.pooled
        assert pooled is not None
        sums = pooled.reshape((1,) * (4 - pooled.ndim) + pooled.shape)[self.sample, self.heads]
        hidden = None
        if problem is not None:
            hidden = hidden_cells(problem, row, self.heads, *sums.shape[1:])
        sizes = self.weights.query_len, self.weights.kv_len
        return HeadMaps(row_means(sums, sizes[0]), hidden, *sizes)

    @torch.no_grad()
    def statistic(self, name: str) -> Tensor:
        """Return a statistic of each query, (heads, query_len); NaN for queries known to be padding.

        The name is "entropy", "distance", "max", "max_score", "first" or "previous".
        """
        values = self.weights._statistic(name)[self.sample]
        real = self.weights.real
        if real is not None:
            values = values.masked_fill(~torch.atleast_2d(real)[self.sample], torch.nan)
        return values[self.heads]

    @torch.no_grad()
    def received(self) -> tuple[Tensor, list[int]]:
        """Return the mean weight that each key receives, (kv_len,), float64, and the heads that it is the mean of.

        Heads that share a key are only known together: these are all heads of each group that has one of the view's
        heads, as sorted indices.
        """
        group = self.weights.num_heads // self.weights.num_kv_heads
        shared = sorted({head // group for head in self.heads})
        of_all = self.weights._statistic("received")[self.sample]
        members = [head for each in shared for head in range(each * group, (each + 1) * group)]
        return of_all[shared].double().mean(dim=0) / group, members

    @torch.no_grad()
    def glance(self, cells: int, pairs: int = PAIRS) -> Glance:
        """Return the maps, of at most `cells` rows and columns, and the averages of all heads of the sample.

        If all weights of a matrix are more than `pairs`, only some queries are computed, evenly spaced; if these are
        fewer than FEWEST_QUERIES, or the matrix is empty or on the meta device, all but the lengths is None. Of a
        summary everything is known but maps, which are None without `pooled`.

        Example:
            >>> query = key = torch.zeros(2, 9, 4)
            >>> glance = HeadView(ch.AttentionMatrix(query, key, mask=ch.causal())).glance(3)
            >>> glance.shares.shape, glance.grain
            (torch.Size([2, 3, 3]), 'a cell is 3 queries × 3 keys')
        """
        weights = self.weights
        if isinstance(weights, AttentionMatrix):
            return _at_a_glance(weights, self.sample, cells, pairs, empty=self.is_empty)
        sizes = weights.query_len, weights.kv_len
        if self.is_empty:
            return Glance(None, None, None, 0, *sizes)
        entropy, distance = (
            self.weights._statistic(name)[self.sample].cpu().double().mean(dim=-1)
            for name in ("entropy", "distance")
        )
        pooled = weights.sample(self.sample).pooled
        shares = None
        if pooled is not None:
            found = pooled[0].cpu().double()
            shares = row_shares(bin_sums(bin_sums(found, 1, cells), 2, cells))
        return Glance(shares, entropy, distance, sizes[0], *sizes)

    @property
    def _matrix(self) -> AttentionMatrix:
        """The attention matrix; the view must not be of a summary."""
        assert isinstance(self.weights, AttentionMatrix)
        return self.weights

    def _part(self, problem: Problem) -> tuple[Problem, int]:
        """Return the problem with the view's heads and sample alone, four dimensions, with the index of the sample.

        All samples stay if there is a bias, or if the mask is tied to the batch.
        """
        if self.heads != list(range(problem.num_heads)):
            problem = some_heads(problem, self.heads)
        mask, sample = problem.mask, self.sample
        tied = problem.bias is not None or (mask is not None and mask.batch is not None)
        if tied or problem.batch == 1:
            return problem.replace(dims=4), sample
        one = slice(sample, sample + 1)
        key = problem.key[one]
        return problem.replace(query=problem.query[one], key=key, value=key, dims=4), 0


def side(tokens: int, most: int) -> int:
    """Return the number of cells for `tokens` tokens, 1 or more, at most `most`: all of one size but the last.

    Example:
        >>> side(100, 256), side(5000, 256), side(100_000, 256)
        (100, 250, 256)
    """
    return math.ceil(tokens / math.ceil(tokens / most))


def mask_of_summary(summary: Summary) -> Problem | None:
    """Return a problem without data that has the causal mask, if a summary of one sample implies it; otherwise None.

    A summary does not store its mask. If no query gives weight to a later key, the mask was causal, because without
    a mask no weight is exactly 0. None without `top_k`, and if the maps are too small to tell; `pooled` must be there.
    """
    assert summary.pooled is not None
    if summary.top_k is None or min(summary.pooled.shape[2:]) < 2:
        return None
    queries, keys = summary.query_len, summary.kv_len
    nothing = torch.zeros(1, 1, 1, 1)
    of_keys = nothing.expand(1, 1, keys, 1)
    problem = make_problem(nothing.expand(1, 1, queries, 1), of_keys, of_keys, mask=causal())
    hidden = hidden_cells(problem, 0, [0], *summary.pooled.shape[2:])
    assert hidden is not None
    hidden = hidden.to(summary.pooled.device)
    last = torch.arange(keys - queries, keys, device=summary.top_k.keys.device)[:, None]
    seen = bool((summary.pooled[0] * hidden).any()) or bool((summary.top_k.keys > last).any())
    return problem if bool(hidden.any()) and not seen else None


def _at_a_glance(
    matrix: AttentionMatrix, sample: int, cells: int, pairs: int, *, empty: bool
) -> Glance:
    """Return the glance of all heads of a sample, from at most `pairs` weights.

    All but the lengths is None if `empty`, on the meta device, or if the pairs suffice for few queries only.
    """
    problem = matrix.problem
    query_len, kv_len, heads = problem.query_len, problem.kv_len, problem.num_heads
    unknown = Glance(None, None, None, 0, query_len, kv_len)
    if problem.device.type == "meta" or empty:
        return unknown
    count = min(query_len, max(0, pairs // (heads * kv_len)))
    if count < min(query_len, FEWEST_QUERIES):
        return unknown
    if count < query_len:
        count = min(count, cells)
    picked = torch.arange(count) * query_len // count
    rows, columns = min(cells, count), min(cells, kv_len)
    place = torch.arange(kv_len, dtype=torch.float64)
    at = picked + (kv_len - query_len)
    cpu = torch.device("cpu")
    row_of, column_of = bins(count, rows, cpu), bins(kv_len, columns, cpu)
    pooled = torch.zeros(heads, rows, columns, dtype=torch.float64)
    entropy, distance = torch.zeros(2, heads, dtype=torch.float64)
    leading = [sample, slice(None)][4 - problem.dims :]
    for some in torch.arange(count).split(max(1, PORTION // (heads * kv_len))):
        part = matrix[(*leading, picked[some], slice(None))].cpu().double()
        weights = part.reshape(heads, len(some), kv_len)
        entropy += torch.special.entr(weights).sum(dim=(1, 2))
        distance += (weights * (at[some, None] - place).abs()).sum(dim=(1, 2))
        sums = weights.new_zeros(heads, len(some), columns).index_add_(2, column_of, weights)
        pooled.index_add_(1, row_of[some], sums)
    found = entropy / count, distance / count
    return Glance(row_shares(pooled), *found, count, query_len, kv_len)


def _up_to(length: int, count: int) -> str:
    """Return the size of `count` cells over `length` tokens as text: "5", or "up to 5" if sizes differ."""
    return str(length // count) if length % count == 0 else f"up to {-(-length // count)}"
