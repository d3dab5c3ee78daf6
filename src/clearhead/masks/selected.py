"""A mask for some of the queries, keys and heads that it describes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.masks.base import Mask
from clearhead.masks.spans import Extent, Spans


@dataclass(frozen=True, eq=False, repr=False)
class Selected(Mask):
    """Some rows, columns and heads of another mask, which keeps its own positions.

    Args:
        mask: the mask of all queries and keys.
        query_len, kv_len: the numbers of queries and keys of that mask.
        some_rows: int64, (queries,): the indices of the queries; None for all.
        some_columns: int64, (keys,): the indices of the keys; None for all.
        some_heads: the heads, as a slice or as int64 indices; None for all.
    """

    mask: Mask
    query_len: int
    kv_len: int
    some_rows: Tensor | None = None
    some_columns: Tensor | None = None
    some_heads: slice | Tensor | None = None

    @property
    def cross(self) -> bool:
        """True if queries and keys are different tokens, so that no distance is defined between them."""
        return self.mask.cross

    @property
    def batch(self) -> int | None:
        """The batch size that the whole mask is tied to, or None if it fits any."""
        return self.mask.batch

    @property
    def heads(self) -> int | None:
        """The number of selected heads, or None if the whole mask fits any number."""
        if self.mask.heads is None or self.some_heads is None:
            return self.mask.heads
        some = self.some_heads
        return len(some) if isinstance(some, Tensor) else some.stop - some.start

    @property
    def device(self) -> torch.device | None:
        """The device that the whole mask is tied to, or None if it fits any."""
        return self.mask.device

    def check(self, extent: Extent) -> None:
        """Raise the MaskError or DeviceError of the whole mask if it does not fit the whole matrix."""
        if self.some_heads is not None and self.mask.heads is not None:
            extent = extent._replace(num_heads=self.mask.heads)
        self.mask.check(self._whole(extent))

    def _whole(self, extent: Extent) -> Extent:
        """Return the extent with the lengths of the whole mask."""
        return extent._replace(query_len=self.query_len, kv_len=self.kv_len)

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the entries of the whole mask for indices into the selection, as `Mask.visible` describes."""
        query, key = places_in_whole(self.some_rows, self.some_columns, query_index, key_index)
        seen = self.mask.visible(query, key, self._whole(extent))
        if self.some_heads is None or self.mask.heads is None:
            return seen
        return seen[:, self.some_heads]

    def spans(self, extent: Extent) -> Spans | None:
        """Return the runs of the selected queries, as indices into the selected keys.

        None if the whole mask has no spans, or if the selected keys are not strictly ascending.
        """
        columns = self.some_columns
        if columns is not None and bool((columns.diff() <= 0).any()):
            return None
        spans = self.mask.spans(self._whole(extent))
        if spans is None:
            return None
        start, stop = spans.start, spans.stop
        if self.some_rows is not None:
            rows = self.some_rows.to(extent.device)
            start, stop = start[:, rows], stop[:, rows]
        if columns is not None:
            columns = columns.to(extent.device)
            start, stop = (torch.searchsorted(columns, edge.contiguous()) for edge in (start, stop))
        return Spans(start, stop)

    def describe(self) -> str:
        """Return the call that makes the whole mask, as text."""
        return self.mask.describe()


def places_in_whole(
    rows: Tensor | None, columns: Tensor | None, query_index: Tensor, key_index: Tensor
) -> tuple[Tensor, Tensor]:
    """Return query and key indices, given as indices into selected rows and columns, as indices into the whole matrix.

    None for rows or columns leaves these unchanged.
    """
    return (
        query_index if rows is None else rows.to(query_index.device)[query_index],
        key_index if columns is None else columns.to(key_index.device)[key_index],
    )
