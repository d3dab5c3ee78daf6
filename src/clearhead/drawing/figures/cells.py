"""The weights of some heads as cells of a map: exact where they are few, pooled where they are not."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._common.text import shown
from clearhead.attention.problem import Problem
from clearhead.drawing.pooling import hidden_cells, row_means
from clearhead.errors import ArgumentError
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.watching.recording import of_heads


@dataclass(frozen=True, eq=False)
class Cells:
    """The maps of some heads of one sample.

    Attributes:
        shares: (heads, rows, columns): the weights, or, pooled, which share of its attention a
            query of the row's tokens gives to the column's tokens, on average; masked where
            everything is hidden.
        heads: which heads of the layer they are.
        query_len: how many queries the rows are.
        kv_len: how many keys the columns are.

    Example:
        >>> weights = AttentionMatrix(torch.zeros(6, 2), torch.zeros(6, 2))
        >>> cells = of_weights(weights, 0, [0], 2)
        >>> cells.pooled, cells.detail(), cells.shares.tolist()
        (True, 'one cell = 3 × 3 tokens', [[[0.5, 0.5], [0.5, 0.5]]])
    """

    shares: np.ma.MaskedArray
    heads: list[int]
    query_len: int
    kv_len: int

    @property
    def pooled(self) -> bool:
        """True if a cell is more than a pair of tokens."""
        return self.shares.shape[1:] != (self.query_len, self.kv_len)

    @property
    def hides(self) -> bool:
        """True if something is hidden."""
        return bool(np.ma.getmaskarray(self.shares).any())

    def detail(self) -> str:
        """The tokens of a cell, in words; "" for one."""
        if not self.pooled:
            return ""
        rows, columns = self.shares.shape[1:]
        even = self.query_len % rows == 0 and self.kv_len % columns == 0
        tall, wide = round(self.query_len / rows), round(self.kv_len / columns)
        return f"one cell {'=' if even else '≈'} {tall:,} × {wide:,} tokens".replace(",", " ")

    def unit(self) -> str:
        """The unit of the numbers, for a colour bar."""
        unit = (
            "share of a query's attention, mean" if self.pooled else "attention weight (share of 1)"
        )
        return "; ".join([unit, *self.blank()])

    def blank(self) -> list[str]:
        """The meaning of the cells that have no colour of the scale."""
        broken = bool(np.isnan(self.shares.compressed()).any())
        return ["grey: hidden"] * self.hides + ["orange: no number"] * broken


def check_cells(cells: object) -> int | None:
    """Check the most cells that a side of a map may have.

    Raises:
        ArgumentError: code `plot.cells`.
    """
    count = as_int(cells)
    if cells is not None and (count is None or count < 1):
        raise ArgumentError(
            "plot.cells", f"cells must be a whole number, 1 or more, or None; got {shown(cells)}."
        )
    return count


def side(tokens: int, most: int) -> int:
    """The number of cells for so many tokens: the most that are of one size, save the last ones.

    Example:
        >>> side(100, 256), side(5000, 256), side(100_000, 256)
        (100, 250, 256)
    """
    return math.ceil(tokens / math.ceil(tokens / most))


def of_weights(matrix: AttentionMatrix, sample: int, heads: list[int], most: int) -> Cells:
    """Some heads of a sample as maps of at most so many cells a side."""
    problem = matrix.problem
    query_len, kv_len = problem.query_len, problem.kv_len
    rows, columns = side(query_len, most), side(kv_len, most)
    with torch.no_grad():
        if (rows, columns) == (query_len, kv_len):
            # The leading axes that the user's query did not have are not there to be indexed.
            leading = [[sample], heads][4 - problem.dims :]
            shares = matrix[(*leading, slice(None), slice(None))]
            shares = shares.reshape(len(heads), rows, columns)
        else:
            part, place = _part(problem, sample, heads)
            shares = row_means(matrix_of(part).pool(rows, columns)[place], query_len)
        hidden = hidden_cells(problem, sample, heads, rows, columns)
    return Cells(masked(shares, hidden), heads, query_len, kv_len)


def of_pooled(pooled: Tensor, sample: int, heads: list[int], query_len: int, kv_len: int) -> Cells:
    """Some heads of a sample of a map that a summary kept; what is hidden is not known of it."""
    maps = pooled.reshape((1,) * (4 - pooled.ndim) + pooled.shape)[sample, heads]
    return Cells(masked(row_means(maps, query_len), None), heads, query_len, kv_len)


def masked(numbers: Tensor, hidden: Tensor | None) -> np.ma.MaskedArray:
    """Numbers as an array for a figure, some of them hidden."""
    array = numbers.detach().cpu().numpy()
    mask = False if hidden is None else hidden.cpu().expand(array.shape).numpy()
    return np.ma.MaskedArray(array, mask=mask)


def _part(problem: Problem, sample: int, heads: list[int]) -> tuple[Problem, int]:
    """The problem of these heads, of this sample alone if nothing ties it to others, and its index there."""
    if heads != list(range(problem.num_heads)):
        problem = of_heads(problem, heads, "")
    tied = problem.bias is not None or (problem.mask is not None and problem.mask.batch is not None)
    if tied or problem.batch == 1:
        return problem.replace(dims=4), sample
    one = slice(sample, sample + 1)
    key = problem.key[one]
    return problem.replace(query=problem.query[one], key=key, value=key, dims=4), 0
