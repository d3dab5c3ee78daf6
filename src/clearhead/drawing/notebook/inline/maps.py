"""The small maps of the heads of a matrix, at a cost that has a bound: a cell of a notebook that
ends in a matrix of 100 000 × 100 000 weights must not work all of them out."""

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.drawing.pooling import bin_sums
from clearhead.matrix.indexing import bins
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary

PAIRS = 1 << 26
"""The weights that are computed in passing, of all matrices that are drawn together."""

PORTION = 1 << 22
FEWEST_QUERIES = 4


class Maps(NamedTuple):
    """The maps of the heads of one sample.

    Attributes:
        shares: (num_heads, rows, columns): which share of its attention a row gives a column; None
            if it would cost too much to know.
        entropy: (num_heads,), averaged over the queries that were looked at, nats; None likewise.
        distance: (num_heads,), likewise, tokens.
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
        """The tokens of a cell of the maps, in words."""
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


def _up_to(length: int, bins: int) -> str:
    return str(length // bins) if length % bins == 0 else f"up to {-(-length // bins)}"


def maps_of(thing: AttentionMatrix | Summary, cells: int, pairs: int = PAIRS) -> Maps:
    """The maps of the first sample, of no more rows and columns than so many.

    Where working every weight out would take more than `pairs`, some queries are looked at, evenly
    spaced, whose weights are exact; where even a few would, none.

    Example:
        >>> query = key = torch.zeros(2, 9, 4)
        >>> maps = maps_of(ch.AttentionMatrix(query, key, mask=ch.causal()), 3)
        >>> maps.shares.shape, maps.grain
        (torch.Size([2, 3, 3]), 'a cell is 3 queries × 3 keys')
    """
    with torch.no_grad():
        return _of_summary(thing, cells) if isinstance(thing, Summary) else _of(thing, cells, pairs)


def is_empty(thing: AttentionMatrix | Summary) -> bool:
    """True if there is not a single weight."""
    return 0 in (thing.batch, thing.num_heads, thing.query_len, thing.kv_len)


def _of_summary(summary: Summary, cells: int) -> Maps:
    if is_empty(summary):
        return Maps(None, None, None, 0, summary.query_len, summary.kv_len)
    first = summary.sample(0)
    entropy, distance = (
        first._statistic(name)[0].cpu().double().mean(dim=-1) for name in ("entropy", "distance")
    )
    pooled = None if first.pooled is None else first.pooled[0].cpu().double()
    return Maps(
        None if pooled is None else _shares(bin_sums(bin_sums(pooled, 1, cells), 2, cells)),
        entropy,
        distance,
        summary.query_len,
        summary.query_len,
        summary.kv_len,
    )


def _of(matrix: AttentionMatrix, cells: int, pairs: int) -> Maps:
    problem = matrix.problem
    query_len, kv_len, heads = problem.query_len, problem.kv_len, problem.num_heads
    unknown = Maps(None, None, None, 0, query_len, kv_len)
    if problem.device.type == "meta" or is_empty(matrix):
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
    row_of, column_of = (
        bins(count, rows, torch.device("cpu")),
        bins(kv_len, columns, torch.device("cpu")),
    )
    pooled = torch.zeros(heads, rows, columns, dtype=torch.float64)
    entropy, distance = torch.zeros(2, heads, dtype=torch.float64)
    for some in torch.arange(count).split(max(1, PORTION // (heads * kv_len))):
        weights = _rows(matrix, picked[some]).double()
        entropy += torch.special.entr(weights).sum(dim=(1, 2))
        distance += (weights * (at[some, None] - place).abs()).sum(dim=(1, 2))
        sums = weights.new_zeros(heads, len(some), columns).index_add_(2, column_of, weights)
        pooled.index_add_(1, row_of[some], sums)
    return Maps(_shares(pooled), entropy / count, distance / count, count, query_len, kv_len)


def _rows(matrix: AttentionMatrix, queries: Tensor) -> Tensor:
    """Weights of some queries of the first sample, (num_heads, queries, kv_len)."""
    leading = {4: (0, slice(None)), 3: (slice(None),), 2: ()}[matrix.ndim]
    part = matrix[(*leading, queries, slice(None))].cpu()
    return part if part.ndim == 3 else part[None]


def _shares(pooled: Tensor) -> Tensor:
    return pooled / pooled.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(pooled.dtype).tiny)
