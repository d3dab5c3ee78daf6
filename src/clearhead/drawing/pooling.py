"""Coarser maps: neighbouring rows or columns put together, in bins as equal as can be."""

import torch
from torch import Tensor

from clearhead.matrix.reductions import bins


def bin_sums(numbers: Tensor, axis: int, most: int) -> Tensor:
    """Sum neighbours along an axis, so that no more than `most` are left.

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


def bin_sizes(length: int, count: int, device: torch.device) -> Tensor:
    """The number of neighbours in each of so many bins, (count,), int64.

    Example:
        >>> bin_sizes(5, 2, torch.device("cpu"))
        tensor([3, 2])
    """
    return bins(length, count, device).bincount(minlength=count)


def row_means(pooled: Tensor, query_len: int) -> Tensor:
    """Divide sums over rectangles, (…, rows, columns), by the queries of their rows: the share of
    its attention that a query of the row gives to the keys of the column, on average.

    Example:
        >>> row_means(torch.ones(1, 2, 2), 5)
        tensor([[[0.3333, 0.3333],
                 [0.5000, 0.5000]]])
    """
    return pooled / bin_sizes(query_len, pooled.shape[-2], pooled.device)[:, None]


def coarser(shares: Tensor, rows: int, columns: int) -> Tensor:
    """Average the rows and sum the columns of a map of shares, (heads, …, …).

    Example:
        >>> coarser(torch.eye(4)[None], 2, 2)
        tensor([[[1., 0.],
                 [0., 1.]]])
    """
    sums = bin_sums(shares, 1, rows)
    if sums is not shares:
        sums = sums / bin_sizes(shares.shape[1], rows, shares.device)[:, None]
    return bin_sums(sums, 2, columns)
