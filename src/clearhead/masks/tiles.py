"""The keys that a tile of queries sees, and its ragged edges.

A tile is some neighbouring queries and the keys that one of them sees. Kernels and sweeps differ in
how large they make it; what it needs to know of a mask is found here.
"""

import bisect
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.masks.base import Mask
from clearhead.masks.spans import Extent, Spans

GAP = 32
"""Runs of keys with fewer keys between them are read as one."""

TILE = 64
"""Queries of a tile where a mask repeats: fewer make short products, more read keys that few of them see."""
WIDE_TILE = 256
"""The same where each query sees `WIDE` keys or more, so that a tile's own keys are a small part."""
WIDE = 1024
LEAST_TILES = 4
"""The least number of tiles that are worth a batch of them, with other calls for the queries next to them."""

Edges = list[tuple[slice, Tensor]]
"""Columns of a tile, and a bool tensor that is True where a pair of theirs is hidden."""


class Tile(NamedTuple):
    """Some queries of some samples, and the keys that one of them sees.

    Attributes:
        rows: the samples.
        queries: the queries.
        keys: the keys, as runs in order; never none.
        full: the keys within these that every query sees.
    """

    rows: slice
    queries: slice
    keys: tuple[slice, ...]
    full: slice

    @property
    def shape(self) -> tuple[int, int]:
        """The number of queries and the number of keys."""
        return length(self.queries), sum(map(length, self.keys))


class Repeated(NamedTuple):
    """Tiles that are alike: the queries of the first, the keys that one of these sees, the number of tiles."""

    queries: slice
    keys: slice
    tiles: int


def length(run: slice) -> int:
    """Return the number of tokens in a run."""
    return run.stop - run.start


def host_spans(mask: Mask, extent: Extent) -> Spans | None:
    """Return the spans of a mask, computed and stored on the CPU; its tensors are copied from their device.

    None if it has none.
    """
    return mask.spans(extent._replace(device=torch.device("cpu")))


def portions(last: int, size: int, first: int = 0) -> list[slice]:
    """Split the tokens of [first, last) into slices of `size`; only the last can be shorter.

    [] if there are no tokens.
    """
    return [slice(start, min(start + size, last)) for start in range(first, last, size)]


def hull(start: Tensor, stop: Tensor) -> slice:
    """Return the shortest slice that contains all nonempty runs [start, stop); slice(0, 0) if all are empty."""
    used = stop > start
    if not bool(used.any()):
        return slice(0, 0)
    return slice(int(start[used].min()), int(stop[used].max()))


def repeated(start: Tensor, stop: Tensor) -> Repeated | None:
    """Return the tiles in which a mask repeats, as a window does; None if there are fewer than `LEAST_TILES`.

    Only the longest stretch of such queries is looked at; None too if its first query sees no key. In each the run of a
    query is that of the query before it, one key on. A tile has WIDE_TILE queries if each sees at least WIDE keys,
    otherwise TILE.

    Args:
        start: (query_len,), the first key of each query; at least one query.
        stop: (query_len,), the key after the last.
    """
    moves = F.pad((start.diff() == 1) & (stop.diff() == 1), (1, 1))
    edges = (~moves).nonzero()[:, 0]
    longest = int(edges.diff().argmax())
    first, last = int(edges[longest]), int(edges[longest + 1])
    size = WIDE_TILE if int(stop[first] - start[first]) >= WIDE else TILE
    count = (last - first) // size
    if count < LEAST_TILES or bool(start[first] >= stop[first]):
        return None
    # Queries that are no whole tile go with those before them.
    first = last - count * size
    keys = slice(int(start[first]), int(stop[first]) + size - 1)
    return Repeated(slice(first, first + size), keys, count)


def ragged_edges(start: Tensor, stop: Tensor, keys: tuple[slice, ...], full: slice) -> Edges:
    """Return the hidden pairs of a tile: slices of its columns, and for each a bool tensor, True = hidden.

    [] if every query sees all keys of the tile. Without `full` keys all columns are one entry.

    Args:
        start: (…, queries, pieces), the first key of each run.
        stop: the same shape, the key after the last of each run.
        keys: the keys of the tile.
        full: the keys that every query sees, of its only run; hidden pairs are on its left and right.

    Returns:
        Tensors of shape (…, queries, columns).
    """
    device = start.device
    if full.start < full.stop:
        # Keys before those that all see come too early for some queries, those after them too late.
        (run,) = keys
        early, late = slice(run.start, full.start), slice(full.stop, run.stop)
        return [
            (
                slice(edge.start - run.start, edge.stop - run.start),
                comes(_indices(edge, device), limit),
            )
            for edge, comes, limit in ((early, torch.lt, start), (late, torch.ge, stop))
            if edge.start < edge.stop
        ]
    key = torch.cat([_indices(run, device) for run in keys])
    seen = (key >= start[..., :1]) & (key < stop[..., :1])
    for piece in range(1, start.shape[-1]):
        seen |= (key >= start[..., piece, None]) & (key < stop[..., piece, None])
    return [(slice(0, key.shape[0]), ~seen)]


def hidden_pairs(tile: Tile, mask: Mask, spans: Spans | None, extent: Extent) -> Edges:
    """Return the hidden pairs of a tile, as `ragged_edges` does, of shape (samples or 1, heads or 1, queries, columns).

    Args:
        tile: the tile.
        mask: the mask, which is evaluated pair by pair if it has no spans.
        spans: those of the mask, or None.
        extent: all of the call.
    """
    if spans is None:
        parts = [mask.block(tile.queries, run, extent) for run in tile.keys]
        visible = parts[0] if len(parts) == 1 else torch.cat(parts, dim=3)
        visible = visible[tile.rows] if visible.shape[0] > 1 else visible
        return [(slice(0, visible.shape[3]), ~visible)]
    rows = tile.rows if spans.start.shape[0] > 1 else slice(0, 1)
    start, stop = (edge[rows, tile.queries] for edge in (spans.start, spans.stop))
    edges = ragged_edges(start, stop, tile.keys, tile.full)
    return [(columns, hidden[:, None]) for columns, hidden in edges]


def visible_runs(visible: Tensor) -> tuple[slice, ...]:
    """Return the runs of keys that at least one query sees, from a mask tensor of four dimensions, merged.

    () if none.
    """
    steps = torch.nn.functional.pad(visible.any(0).any(0).any(0).int(), (1, 1)).diff()
    return merge((steps == 1).nonzero()[:, 0], (steps == -1).nonzero()[:, 0])


def merge(start: Tensor, stop: Tensor) -> tuple[slice, ...]:
    """Return runs of keys as sorted slices, joined where at most GAP keys are between them; () for none.

    Args:
        start: int64, one dimension, the first key of each run.
        stop: the key after the last.
    """
    if not start.numel():
        return ()
    start, order = start.sort()
    stop = stop[order].cummax(0).values
    apart = (start[1:] > stop[:-1] + GAP).nonzero()[:, 0].tolist()
    firsts, lasts = [0, *(place + 1 for place in apart)], [*apart, len(start) - 1]
    pairs = zip(start[firsts].tolist(), stop[lasts].tolist(), strict=True)
    return tuple(slice(low, high) for low, high in pairs)


def tiles_of_spans(
    start: Tensor, stop: Tensor, rows: slice, kv_len: int, most: int, worth: float
) -> Iterator[Tile]:
    """Yield tiles that split the queries of some samples; queries that see nothing may be in none.

    Args:
        start: (samples, query_len, pieces), the first key of each run.
        stop: the same shape, the key after the last of each run.
        rows: the samples.
        kv_len: the number of keys.
        most: the largest number of queries in a tile.
        worth: the number of pairs that one more tile must save.
    """
    used = stop > start
    one_run = start.shape[2] == 1
    # Empty rows get start = kv_len and stop = 0, so that no key is full and all are masked for them.
    starts, stops = start.masked_fill(~used, kv_len), stop.masked_fill(~used, 0)
    low, high = starts.amin((0, 2)), stops.amax((0, 2))
    apart = (high[:-1] <= low[1:]) | (high[1:] <= low[:-1])
    breaks = (apart.nonzero()[:, 0] + 1).tolist()
    low, high = low.tolist(), high.tolist()
    left, right = starts.amax((0, 2)).tolist(), stops.amin((0, 2)).tolist()
    first, query_len = 0, start.shape[1]
    while first < query_len:
        last = min(first + most, query_len)
        near = breaks[bisect.bisect_right(breaks, first) : bisect.bisect_left(breaks, last)]
        last = _best_end(low, high, slice(first, last), near, worth)
        queries = slice(first, last)
        if one_run:
            keys: tuple[slice, ...] = ()
            if min(low[queries]) < max(high[queries]):
                keys = (slice(min(low[queries]), max(high[queries])),)
            full = slice(max(left[queries]), min(right[queries]))
        else:
            some = used[:, queries]
            keys, full = merge(start[:, queries][some], stop[:, queries][some]), slice(0, 0)
        if keys:
            yield Tile(rows, queries, keys, full)
        first = last


def _best_end(
    low: list[int], high: list[int], queries: slice, places: list[int], worth: float
) -> int:
    """Return the query before which a tile ends: the end of `queries`, or the one of `places` that saves most pairs.

    Args:
        low: the first key that each query sees.
        high: the key after the last.
        queries: the longest tile.
        places: the queries at which it may be cut.
        worth: a cut must save more than this number of pairs.
    """

    def pairs(start: int, stop: int) -> int:
        """Return the number of pairs of a tile of queries from `start` to `stop`."""
        return (stop - start) * max(0, max(high[start:stop]) - min(low[start:stop]))

    first, last = queries.start, queries.stop
    best, least = last, pairs(first, last) - worth if places else 0.0
    for place in places:
        together = pairs(first, place) + pairs(place, last)
        if together < least:
            best, least = place, together
    return best


def _indices(run: slice, device: torch.device) -> Tensor:
    """Return the indices of a run as an int64 tensor, (tokens,), on a device."""
    return torch.arange(run.start, run.stop, device=device)
