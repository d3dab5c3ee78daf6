"""The fused calls that a problem is lowered to."""

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.torch_internals import is_concrete, is_tracing
from clearhead.attention.problem import Problem
from clearhead.masks.causal import Causal
from clearhead.masks.spans import Spans
from clearhead.masks.tiles import hull, length, portions

MASK_PORTION = 1 << 22
SLICES_PER_ROW = 3
WORTH_SLICING = 1 << 19
WORTH_SPANS = 1 << 16
"""From how many pairs of queries and keys, of all heads, the spans of a mask save more than they take."""


class Piece(NamedTuple):
    """One fused call: some samples, some queries, some keys."""

    rows: slice
    queries: slice
    keys: slice
    causal: bool
    masked: bool
    whole: bool = False
    """True for the entire problem, so that there is nothing to slice."""


ALL = slice(None)
EVERYTHING = [Piece(ALL, ALL, ALL, causal=False, masked=False, whole=True)]
EVERYTHING_CAUSAL = [Piece(ALL, ALL, ALL, causal=True, masked=False, whole=True)]
EVERYTHING_MASKED = [Piece(ALL, ALL, ALL, causal=False, masked=True, whole=True)]


def lower(problem: Problem) -> list[Piece]:
    """The calls that together are the problem; together they cover every query of every sample."""
    mask = problem.mask
    if problem.bias is None:
        if mask is None:
            return EVERYTHING
        if isinstance(mask, Causal) and mask.offset is None:
            if problem.query.shape[2] == 1:
                return EVERYTHING  # the last token, as a cache asks for it
            if problem.query.shape[2] == problem.key.shape[2]:
                return EVERYTHING_CAUSAL
    spans = None
    if (
        mask is not None
        and problem.query.is_cpu
        and is_concrete(problem.query)
        and not is_tracing()
    ):
        (batch, heads, query_len, _), kv_len = problem.query.shape, problem.key.shape[2]
        if problem.bias is None:
            run = mask.common_run(problem.extent)
            if run is not None:
                return [Piece(slice(0, batch), slice(0, query_len), run, False, False)]
        if batch * heads * query_len * kv_len < WORTH_SPANS:
            return EVERYTHING_MASKED
        spans = problem.spans
        if spans is not None and spans.pieces == 1 and problem.bias is None:
            sliced = _slices(problem, spans)
            if sliced:
                return sliced
    return _portions(problem, spans)


def _slices(problem: Problem, spans: Spans) -> list[Piece]:
    """Rectangles and triangles of queries × keys, if a few of them are the whole mask."""
    start, stop = spans.start[..., 0], spans.stop[..., 0]
    if bool((start == start[:1]).all()) and bool((stop == stop[:1]).all()):
        start, stop = start[:1], stop[:1]
    rows = start.shape[0]
    work = problem.num_heads * problem.query_len * problem.kv_len * problem.batch // rows
    if rows > 1 and work < WORTH_SLICING:
        return []
    # Both edges of the runs stand still (a rectangle), or only the end moves on (a triangle).
    steps = torch.stack([start.diff(dim=1), stop.diff(dim=1)], dim=-1)
    turns = (steps[:, 1:] != steps[:, :-1]).any(-1)
    if int(turns.sum()) > 2 * SLICES_PER_ROW * rows:
        return []
    pieces = []
    for row in range(rows):
        samples = slice(0, problem.batch) if rows == 1 else slice(row, row + 1)
        first = 0
        while first < problem.query_len:
            last = _end_of_run(steps[row], turns[row], first)
            low, high = int(start[row, first]), int(stop[row, first])
            step = steps[row, first].tolist() if last > first else [0, 0]
            queries = slice(first, last + 1)
            if step == [0, 0]:
                pieces.append(Piece(samples, queries, slice(low, high), False, False))
            elif step == [0, 1] and high == low + 1:
                square = slice(low, low + last + 1 - first)
                pieces.append(Piece(samples, queries, square, True, False))
            else:
                return []
            first = last + 1
    return pieces if len(pieces) <= SLICES_PER_ROW * rows else []


def _end_of_run(steps: Tensor, turns: Tensor, first: int) -> int:
    """The last query that goes on from `first` in equal steps."""
    if first >= steps.shape[0]:
        return first
    ahead = turns[first:].nonzero()
    return first + 1 + int(ahead[0]) if ahead.numel() else steps.shape[0]


def _portions(problem: Problem, spans: Spans | None) -> list[Piece]:
    """Portions of queries, each with the keys that they see and their part of the mask."""
    per_query = max(1, _masks(problem) * problem.kv_len)
    if problem.is_one_graph(per_query * problem.query_len, MASK_PORTION):
        return EVERYTHING_MASKED
    portion = max(16, MASK_PORTION // per_query)
    if spans is not None and problem.query_len > portion // 4:
        portion = min(portion, max(256, problem.query_len // 64))
    pieces = []
    for queries in portions(problem.query_len, portion):
        keys = slice(0, problem.kv_len)
        if spans is not None:
            keys = hull(spans.start[:, queries], spans.stop[:, queries])
        pieces.append(Piece(slice(0, problem.batch), queries, keys, False, True))
    return pieces


def in_sight(problem: Problem, pieces: list[Piece]) -> Problem:
    """The problem with the keys alone that a piece reads: there is no call for a look at others."""
    if pieces[0].whole:
        return problem
    runs = [piece.keys for piece in pieces if piece.keys.start < piece.keys.stop]
    if not runs:
        runs = [slice(0, 0)]
    low, high = min([run.start for run in runs]), max([run.stop for run in runs])
    if high - low == problem.key.shape[2]:
        return problem
    key, value = problem.key[:, :, low:high], problem.value[:, :, low:high]
    return problem.replace(key=key, value=value, mask=None)


def mask_numbers(problem: Problem, piece: Piece) -> int:
    """The size of the part of the mask and bias of a piece."""
    queries, keys = lengths_of(problem, piece)
    return _masks(problem) * queries * keys


def lengths_of(problem: Problem, piece: Piece) -> tuple[int, int]:
    """The number of queries and of keys of a piece."""
    if piece.whole:
        return problem.query_len, problem.kv_len
    return length(piece.queries), length(piece.keys)


def place_of(piece: Piece) -> tuple[slice | None, slice | None]:
    """The queries and keys of a piece; None for all."""
    return (None, None) if piece.whole else (piece.queries, piece.keys)


def _masks(problem: Problem) -> int:
    """The number of masks, or biases: one for each sample and head that has its own."""
    heads = 1
    batch = 1
    if problem.mask is not None:
        batch, heads = problem.mask.batch or 1, problem.mask.heads or 1
    if problem.bias is not None:
        corner = problem.bias_block(slice(0, 1), slice(0, 1))
        assert corner is not None
        batch, heads = max(batch, corner.shape[0]), max(heads, corner.shape[1])
    return batch * heads


def assemble(parts: list[Tensor], pieces: list[Piece]) -> Tensor:
    """Put the results of the pieces side by side; they come sample by sample, query by query."""
    if len(parts) == 1:
        return parts[0]
    samples: dict[int, list[Tensor]] = {}
    for part, piece in zip(parts, pieces, strict=True):
        # As the fused kernels lay it out, tokens before heads: what a layer wants next.
        samples.setdefault(piece.rows.start, []).append(part.transpose(1, 2))
    rows = [row[0] if len(row) == 1 else torch.cat(row, dim=1) for row in samples.values()]
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).transpose(1, 2)
