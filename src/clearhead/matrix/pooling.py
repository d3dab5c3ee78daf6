"""Coarser maps: neighbouring rows or columns put together, in bins as equal as can be or in blocks of one size."""

import math

import torch
from torch import Tensor

from clearhead.attention.problem import Problem
from clearhead.matrix.indexing import bins
from clearhead.matrix.parts import visible_pairs

PORTION = 1 << 21
"""Chunk size in pairs, for a mask that is read as a tensor."""


def bin_sums(numbers: Tensor, axis: int, most: int) -> Tensor:
    """Return sums of neighbours along an axis, `most` of them in bins as equal as can be; unchanged if it is no longer.

    Example:
        >>> bin_sums(torch.ones(5, 2), 0, 2)
        tensor([[3., 3.],
                [2., 2.]])
    """
    size = numbers.shape[axis]
    if size <= most:
        return numbers
    shape = [*numbers.shape]
    shape[axis] = most
    return numbers.new_zeros(shape).index_add_(axis, bins(size, most, numbers.device), numbers)


def block_sums(numbers: Tensor, step: int) -> Tensor:
    """Return the sums of each `step` neighbouring rows; the last sum may have fewer rows.

    The tensor itself for a step of 1.

    Example:
        >>> block_sums(torch.ones(5, 1), 2).tolist()
        [[2.0], [2.0], [1.0]]
    """
    if step == 1:
        return numbers
    if len(numbers) <= step:
        return numbers.sum(dim=0, keepdim=True)
    whole = len(numbers) // step * step
    sums = numbers[:whole].unflatten(0, (-1, step)).sum(dim=1)
    rest = numbers[whole:]
    return torch.cat([sums, rest.sum(dim=0, keepdim=True)]) if len(rest) else sums


def in_blocks(shares: Tensor, high: int, wide: int) -> Tensor:
    """Return a map, (query_len, kv_len), with each `high` rows averaged and each `wide` columns summed.

    A cell is still a share of one.

    Example:
        >>> in_blocks(torch.eye(4), 2, 2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    counts = block_sums(torch.ones_like(shares[:, :1]), high)
    return block_sums((block_sums(shares, high) / counts).mT, wide).mT


def row_means(pooled: Tensor, query_len: int) -> Tensor:
    """Return sums over rectangles, (…, rows, columns), divided by the number of queries in their rows.

    A cell is then the share that a query of the row gives to the keys of the column, on average.

    Example:
        >>> row_means(torch.ones(1, 2, 2), 5)
        tensor([[[0.3333, 0.3333],
                 [0.5000, 0.5000]]])
    """
    rows = pooled.shape[-2]
    return pooled / bins(query_len, rows, pooled.device).bincount(minlength=rows)[:, None]


def row_shares(pooled: Tensor) -> Tensor:
    """Return sums over rectangles divided by the sums of their rows: each row sums to 1, and a row of zeros stays so.

    Example:
        >>> row_shares(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        tensor([[0.2500, 0.7500],
                [0.0000, 0.0000]])
    """
    return pooled / pooled.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(pooled.dtype).tiny)


def hidden_cells(
    problem: Problem, sample: int, heads: list[int], rows: int, columns: int
) -> Tensor | None:
    """Return the cells that are fully hidden, bool, (heads or 1, rows, columns); None if nothing can hide, or no pairs.

    Args:
        problem: the problem, whose mask and bias are read.
        sample: the index of a sample.
        heads: the indices of the heads.
        rows: the number of rows of cells.
        columns: the number of columns.
    """
    mask = problem.mask
    hides = problem.bias is not None and problem.bias.may_hide
    if (mask is None and not hides) or not problem.query_len * problem.kv_len:
        return None
    device = problem.device
    row_of = bins(problem.query_len, rows, device)
    column_of = bins(problem.kv_len, columns, device)
    if mask is not None and not hides:
        spans = problem.spans
        if spans is not None:
            each = sample if len(spans.start) > 1 else 0
            return ~_entered(spans.start[each], spans.stop[each], row_of, column_of)[None]
    leading = (problem.batch, problem.num_heads) if mask is None or hides else mask.leading
    seen: Tensor | float = 0.0
    portion = max(1, PORTION // max(1, math.prod(leading) * problem.kv_len))
    for start in range(0, problem.query_len, portion):
        queries = slice(start, min(start + portion, problem.query_len))
        visible = visible_pairs(problem, queries)
        assert visible is not None
        visible = visible[sample if len(visible) > 1 else 0]
        visible = visible[heads] if len(visible) > 1 else visible
        counts = bin_sums(visible.float(), 2, columns)
        seen = seen + counts.new_zeros(len(counts), rows, columns).index_add_(
            1, row_of[queries], counts
        )
    return seen == 0 if isinstance(seen, Tensor) else None


def _entered(start: Tensor, stop: Tensor, row_of: Tensor, column_of: Tensor) -> Tensor:
    """Return the cells, bool, (rows, columns), that contain a visible pair.

    Rows and columns ascend, as from `bins`, and there is at least one of each: the last gives their number.

    Args:
        start: (query_len, pieces), the first key of each run of a query.
        stop: the key after the last.
        row_of: the row of each query.
        column_of: the column of each key.
    """
    rows, columns = int(row_of[-1]) + 1, int(column_of[-1]) + 1
    query, piece = (stop > start).nonzero(as_tuple=True)
    steps = torch.zeros(rows * (columns + 1), dtype=torch.int64, device=start.device)
    line = row_of[query] * (columns + 1)
    ones = torch.ones_like(line)
    steps.index_add_(0, line + column_of[start[query, piece]], ones)
    steps.index_add_(0, line + column_of[stop[query, piece] - 1] + 1, -ones)
    return steps.view(rows, columns + 1).cumsum(dim=1)[:, :columns] > 0
