"""The tiles of a sweep: some queries of a sample, the keys that they see and the hidden pairs between them."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.problem import Problem
from clearhead.masks.spans import Spans
from clearhead.masks.tiles import Edges, hull, length, portions, ragged_edges, repeated


class SweepTile(NamedTuple):
    """Some queries of a sample and the keys that one of them sees.

    Attributes:
        queries: which queries.
        keys: which keys; no query of the part sees another.
        hidden: the hidden pairs, which broadcast to (heads, queries, columns).
        empty: (queries,) or (heads, queries), bool: the empty rows; None if there is none.
        tiles: the number of such tiles, each as many tokens later as it has queries.
    """

    queries: slice
    keys: slice
    hidden: Edges
    empty: Tensor | None
    tiles: int = 1


def sweep_tiles(
    problem: Problem, spans: Spans | None, sample: int, queries: int, most_weights: int
) -> Iterator[SweepTile]:
    """Yield the tiles of a sample, in order, with at most `queries` queries each, except for repeating tiles.

    Where the mask repeats and `most_weights` > 0, the tiles are those of `repeated`, several in one item.

    Args:
        problem: the problem.
        spans: the spans of its mask, on the CPU; None without a mask, or if the mask has none.
        sample: the index of the sample.
        queries: the most queries of a tile that does not repeat.
        most_weights: the most weights of one head in an item of repeating tiles, which has at least one tile; 0 for
            none of them.
    """
    if spans is not None:
        row = slice(sample, sample + 1) if spans.start.shape[0] > 1 else slice(0, 1)
        spans = Spans(spans.start[row], spans.stop[row])

    def parts(first: int, last: int) -> Iterator[SweepTile]:
        """Return the tiles of the queries from `first` to `last`."""
        return (_part(problem, spans, sample, some) for some in portions(last, queries, first))

    alike = None
    if most_weights and spans is not None and spans.pieces == 1:
        alike = repeated(spans.start[0, :, 0], spans.stop[0, :, 0])
    if alike is None:
        yield from parts(0, problem.query_len)
        return
    tile = _part(problem, spans, sample, alike.queries)
    first, step = tile.queries.start, length(tile.queries)
    yield from parts(0, first)
    for some in portions(alike.tiles, max(1, most_weights // (step * length(tile.keys)))):
        moved = some.start * step
        here, there = (slice(run.start + moved, run.stop + moved) for run in tile[:2])
        yield tile._replace(queries=here, keys=there, tiles=length(some))
    yield from parts(first + alike.tiles * step, problem.query_len)


def _part(problem: Problem, spans: Spans | None, sample: int, queries: slice) -> SweepTile:
    """Return the tile of a slice of queries of a sample.

    `spans` are those of the sample alone, None if there are none.
    """
    every = slice(0, problem.kv_len)
    if problem.mask is None:
        return SweepTile(queries, every, [], None)
    if spans is not None and spans.pieces == 1:
        return part_of_runs(
            spans.start[0, queries, 0], spans.stop[0, queries, 0], queries, problem.device
        )
    if spans is not None:
        every = hull(spans.start[:, queries], spans.stop[:, queries])
    return _of_mask(problem, sample, queries, every)


def part_of_runs(
    start: Tensor, stop: Tensor, queries: slice, device: torch.device | None = None
) -> SweepTile:
    """Return the tile in which query i sees the keys [start[i], stop[i]); only the ragged edges are marked hidden.

    Rows that see nothing are in `empty`. Its tensors are on `device`, by default that of the runs.
    """
    used = stop > start
    keys = hull(start, stop)
    empty = None if bool(used.all()) else ~used
    if keys.start == keys.stop:
        return SweepTile(queries, keys, [], empty)
    # Empty rows are zeroed as a whole, so that they leave the others their full keys.
    full = slice(int(start[used].max()), int(stop[used].min()))
    if device is not None and device != start.device:
        start, stop = (each.to(device, non_blocking=True) for each in (start, stop))
        empty = None if empty is None else empty.to(device, non_blocking=True)
    return SweepTile(
        queries, keys, ragged_edges(start[:, None], stop[:, None], (keys,), full), empty
    )


def _of_mask(problem: Problem, sample: int, queries: slice, keys: slice) -> SweepTile:
    """Return the tile of these slices of queries and keys, with the mask of the sample evaluated pair by pair.

    The problem must have a mask. On a GPU `empty` is never None, so that nothing waits for the device.
    """
    visible = problem.visible(queries, keys)
    assert visible is not None
    visible = visible[sample if visible.shape[0] > 1 else 0]
    empty = ~visible.any(dim=-1)
    return SweepTile(
        queries,
        keys,
        [(slice(0, keys.stop - keys.start), ~visible)],
        empty if not empty.is_cpu or bool(empty.any()) else None,
    )
