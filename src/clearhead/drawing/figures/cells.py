"""The maps of some heads as the cells of a figure, with hidden cells masked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.errors import ArgumentError
from clearhead.matrix.head_view import HeadMaps


@dataclass(frozen=True, eq=False)
class Cells:
    """The maps of some heads of one sample.

    Attributes:
        shares: (heads, rows, columns): the weights, or, pooled, which share of its attention a
            query of the row's tokens gives to the column's tokens, on average; masked where
            everything is hidden.
        heads: which heads of the layer they are.
        query_len: the number of queries of all rows.
        kv_len: the number of keys of all columns.

    Example:
        >>> cells = Cells.of(HeadMaps(torch.full((1, 2, 2), 0.5), None, 6, 6), [0])
        >>> cells.pooled, cells.detail()
        (True, 'one cell = 3 × 3 tokens')
    """

    shares: np.ma.MaskedArray
    heads: Sequence[int]
    query_len: int
    kv_len: int

    @classmethod
    def of(cls, maps: HeadMaps, heads: Sequence[int]) -> Self:
        """Return the cells of the maps of these heads."""
        return cls(masked(maps.shares, maps.hidden), heads, maps.query_len, maps.kv_len)

    @property
    def pooled(self) -> bool:
        """True if a cell is more than a pair of tokens."""
        return self.shares.shape[1:] != (self.query_len, self.kv_len)

    @property
    def hides(self) -> bool:
        """True if something is hidden."""
        return bool(np.ma.getmaskarray(self.shares).any())

    def detail(self) -> str:
        """Return the size of a cell in tokens, in words; "" if a cell is one pair."""
        if not self.pooled:
            return ""
        rows, columns = self.shares.shape[1:]
        even = self.query_len % rows == 0 and self.kv_len % columns == 0
        tall, wide = round(self.query_len / rows), round(self.kv_len / columns)
        return f"one cell {'=' if even else '≈'} {tall:,} × {wide:,} tokens".replace(",", " ")

    def unit(self) -> str:
        """Return the unit of the numbers for a colour bar, and what cells outside of the scale mean."""
        unit = (
            "share of a query's attention, mean" if self.pooled else "attention weight (share of 1)"
        )
        return "; ".join([unit, *self.blank()])

    def blank(self) -> list[str]:
        """Return the meaning of the cells without a colour of the scale, in words: hidden, no number.

        [] if there are none.
        """
        broken = bool(np.isnan(self.shares.compressed()).any())
        return ["grey: hidden"] * self.hides + ["orange: no number"] * broken


def check_cells(cells: object) -> int | None:
    """Return the largest number of cells along a side of a map, as an int; None for None.

    Raises:
        ArgumentError: code `plot.cells`, for anything else or less than 1.
    """
    count = as_int(cells)
    if cells is not None and (count is None or count < 1):
        raise ArgumentError(
            "plot.cells", f"cells must be a whole number, 1 or more, or None; got {shown(cells)}."
        )
    return count


def masked(numbers: Tensor, hidden: Tensor | None) -> np.ma.MaskedArray:
    """Return numbers as a masked array on the CPU, with hidden cells masked; None hides nothing.

    It shares memory with a tensor that is on the CPU.
    """
    array = numbers.detach().cpu().numpy()
    mask = False if hidden is None else hidden.cpu().expand(array.shape).numpy()
    return np.ma.MaskedArray(array, mask=mask)
