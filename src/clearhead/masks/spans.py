"""The keys that each query sees, as a few runs of neighbours.

A mask that is made of positions lets a query see one run of keys, or a few. Written down as
`[start, stop)` per query, that takes O(tokens) memory, and `&`, `|` and `~` work on it directly.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.torch_internals import can_be_read

FEW = 64
"""The number of entries up to which a bool tensor is read faster as a list."""


class Extent(NamedTuple):
    """The sizes, device and precision of the call for which a mask or a bias is evaluated.

    Attributes:
        batch: samples.
        num_heads: query heads.
        query_len: queries, in tokens; the last has the position of the last key.
        kv_len: keys, in tokens.
        device: that of the query.
        dtype: that of the query, which no mask reads.

    Example:
        >>> import clearhead as ch
        >>> ch.causal().common_run(ch.masks.Extent(2, 4, 1, 9, torch.device("cpu")))
        slice(0, 9, None)
    """

    batch: int
    num_heads: int
    query_len: int
    kv_len: int
    device: torch.device
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Spans:
    """Runs of keys, `[start, stop)`, disjoint and in order; an empty run has start = stop.

    `rows` is the batch, or 1 when every sample of the batch has the same runs.

    Attributes:
        start: the first key of each run, int64, (rows, query_len, pieces).
        stop: the key after its last, of the same shape.

    Example:
        >>> import clearhead as ch
        >>> extent = ch.masks.Extent(1, 1, 2, 5, torch.device("cpu"))
        >>> (ch.sliding_window(left=1, right=0) | ch.prefix(1)).spans(extent)
        Spans(start=tensor([[[0, 2],
                 [0, 3]]]), stop=tensor([[[1, 4],
                 [1, 5]]]))
    """

    start: Tensor
    stop: Tensor

    @property
    def pieces(self) -> int:
        """The number of runs of each query, empty ones included."""
        return self.start.shape[-1]


def one_run(start: Tensor, stop: Tensor, kv_len: int) -> Spans:
    """Return spans with a single run per query, clipped to [0, kv_len), empty where stop ≤ start.

    Args:
        start: int64, (rows, query_len), the first key of each query.
        stop: the key after the last; the two broadcast.
        kv_len: the number of keys.
    """
    start, stop = torch.broadcast_tensors(start, stop)
    start = start.clamp(0, kv_len)
    return Spans(start[..., None], torch.maximum(stop.clamp(0, kv_len), start)[..., None])


def run_of_rows(rows: Tensor) -> slice | None:
    """Return the run of keys that are True in a bool tensor, (rows, keys), if it is one and the same in all rows.

    slice(0, 0) if no key is True; None if rows differ or have gaps, and for a tensor that is empty or cannot be read.
    """
    if not rows.numel() or not can_be_read(rows):
        return None
    if rows.numel() <= FEW:
        row, *others = rows.tolist()
        first, count = row.index(True) if True in row else 0, sum(row)
        alike = all(other == row for other in others) and all(row[first : first + count])
        return slice(first, first + count) if alike else None
    row = rows[0]
    first, count = int(row.view(torch.uint8).argmax()), int(row.count_nonzero())
    alike = torch.equal(rows, row.expand_as(rows)) and bool(row[first : first + count].all())
    return slice(first, first + count) if alike else None


def every_key(extent: Extent) -> Spans:
    """Return spans of one run for each query, which has all keys, with one row for all samples."""
    start = torch.zeros(1, extent.query_len, dtype=torch.int64, device=extent.device)
    return one_run(start, start + extent.kv_len, extent.kv_len)


def complement(spans: Spans, kv_len: int) -> Spans:
    """Return the spans of the keys in [0, kv_len) that are in no run of `spans`."""
    edge = spans.start[..., :1]
    start = torch.cat([torch.zeros_like(edge), spans.stop], dim=-1)
    stop = torch.cat([spans.start, torch.full_like(edge, kv_len)], dim=-1)
    return _tidy(start, stop, kv_len)


def intersection(a: Spans, b: Spans, kv_len: int) -> Spans:
    """Return the spans of the keys that are in a run of both; their rows broadcast."""
    start = torch.maximum(a.start[..., :, None], b.start[..., None, :]).flatten(-2)
    stop = torch.minimum(a.stop[..., :, None], b.stop[..., None, :]).flatten(-2)
    return _tidy(start, stop, kv_len)


def union(a: Spans, b: Spans, kv_len: int) -> Spans:
    """Return the spans of the keys that are in a run of at least one; their rows broadcast."""
    outside = intersection(complement(a, kv_len), complement(b, kv_len), kv_len)
    return complement(outside, kv_len)


def _tidy(start: Tensor, stop: Tensor, kv_len: int) -> Spans:
    """Return disjoint runs as spans, in order, empty runs last, without runs that are empty for every query.

    At least one run stays.
    """
    empty = stop <= start
    start = start.masked_fill(empty, kv_len)
    stop = stop.masked_fill(empty, kv_len)
    start, order = start.sort(dim=-1)
    stop = stop.gather(-1, order)
    used = max(1, int((stop > start).sum(-1).max())) if start.numel() else 1
    return Spans(start[..., :used], stop[..., :used])
