"""The fused calls that a problem is lowered to, and the number of marked keys that they show each query."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import can_read_now, is_concrete, is_tracing
from clearhead.attention.problem import Problem
from clearhead.masks.algebra import goes_by_distance
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.spans import Spans
from clearhead.masks.tiles import host_spans, hull, length, portions, repeated

MASK_PORTION = 1 << 22
MOST_CALLS = 16
"""Up to how many rectangles and triangles of a sample each is a call; more documents are called together."""
WORTH_SLICING = 1 << 19
STRIP = 256
"""Queries of a portion where a strip is the part of mask and bias: more read keys that few of them see."""
WORTH_SPANS = 1 << 16
"""From how many pairs of queries and keys, of all heads, the spans of a mask save more than they take."""


class Piece(NamedTuple):
    """One fused call: some samples, some queries, some keys.

    `causal` is the flag of PyTorch's kernel, for as many keys as queries; `masked` is True if the call takes a part of
    mask and bias as a tensor.
    """

    rows: slice
    queries: slice
    keys: slice
    causal: bool
    masked: bool
    whole: bool = False
    """True for the entire problem, so that there is nothing to slice."""
    tiles: int = 1
    """As many neighbouring tiles of these queries and keys, each as many tokens on as a tile has queries, in one
    call: their keys may overlap."""
    strip: bool = False
    """True where the distance says all of mask and bias, so that a number for each distance is their part."""

    @property
    def is_open(self) -> bool:
        """True if every query of the piece sees all of its keys."""
        return not (self.causal or self.masked)

    @property
    def all_keys(self) -> slice:
        """The keys that the piece reads, those of all of its tiles."""
        return slice(self.keys.start, self.keys.stop + (self.tiles - 1) * length(self.queries))


ALL = slice(None)
EVERYTHING = [Piece(ALL, ALL, ALL, causal=False, masked=False, whole=True)]
EVERYTHING_CAUSAL = [Piece(ALL, ALL, ALL, causal=True, masked=False, whole=True)]
EVERYTHING_MASKED = [Piece(ALL, ALL, ALL, causal=False, masked=True, whole=True)]


def lower(problem: Problem) -> list[Piece]:
    """Return the pieces, calls of PyTorch's kernel, that together compute each query of the problem once.

    Pieces come sample by sample, query by query. One of EVERYTHING, EVERYTHING_CAUSAL and EVERYTHING_MASKED is returned
    if a single call on the whole tensors does. Spans are read only if the host knows them.
    """
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
    if mask is not None and are_spans_known(problem, mask):
        (batch, heads, query_len, _), kv_len = problem.query.shape, problem.key.shape[2]
        if problem.bias is None:
            run = mask.common_run(problem.extent)
            if run is not None:
                return [Piece(slice(0, batch), slice(0, query_len), run, False, False)]
        if batch * heads * query_len * kv_len < WORTH_SPANS:
            return EVERYTHING_MASKED
        spans = problem.spans if problem.query.is_cpu else host_spans(mask, problem.extent)
        if spans is not None and spans.pieces == 1 and problem.bias is None:
            pieces = _slices(problem, spans) or _tiled(problem, spans)
            if pieces:
                return pieces
    return _portions(problem, spans)


def are_spans_known(problem: Problem, mask: Mask) -> bool:
    """Return True if the host knows the spans of the mask without reading a device.

    The tensors must be concrete, and PyTorch must not trace.
    """
    query = problem.query
    return (query.is_cpu or mask.device is None) and is_concrete(query) and not is_tracing()


def _slices(problem: Problem, spans: Spans) -> list[Piece]:
    """Return the mask as rectangles and triangles of queries × keys, sample by sample.

    [] if they do not cover the mask exactly, if there are more than MOST_CALLS a sample that are not documents, or if
    samples have different masks and too few pairs to be worth it. The mask must have one run of keys per query.
    """
    start, stop = _distinct(spans)
    rows, query_len = start.shape
    work = problem.num_heads * problem.query_len * problem.kv_len * problem.batch // rows
    if rows > 1 and work < WORTH_SLICING:
        return []
    # From query to query both edges of a rectangle stay, and those of a triangle but for the end, which moves on.
    step = stop.diff(dim=1)
    is_step = (start.diff(dim=1) == 0) & ((step == 0) | (step == 1))
    joins = is_step.clone()
    joins[:, 1:] &= ~is_step[:, :-1] | (step[:, 1:] == step[:, :-1])
    row, first = F.pad(~joins, (1, 0), value=True).nonzero().unbind(1)
    lengths = (row * query_len + first).diff(append=row.new_tensor([rows * query_len]))
    low, high = start[row, first], stop[row, first]
    grows = (F.pad(step, (0, 1))[row, first] == 1) & (lengths > 1)
    is_document = torch.where(grows, high == low + 1, (high - low == lengths) | (high == low))
    if bool((grows & ~is_document).any()) or int((~is_document).sum()) > MOST_CALLS * rows:
        return []
    high = torch.where(grows, low + lengths, high)
    columns = (each.tolist() for each in (row, first, lengths, low, high, grows))
    pieces = []
    for row, first, size, low, high, causal in zip(*columns, strict=True):
        samples = slice(0, problem.batch) if rows == 1 else slice(row, row + 1)
        pieces.append(Piece(samples, slice(first, first + size), slice(low, high), causal, False))
    return pieces


def _distinct(spans: Spans) -> tuple[Tensor, Tensor]:
    """Return the start and the stop of the first run of keys of each query, (rows, query_len).

    `rows` is 1 if all samples are equal, and both are 0 for a query that sees nothing.
    """
    start, stop = spans.start[..., 0], spans.stop[..., 0]
    if bool((start == start[:1]).all()) and bool((stop == stop[:1]).all()):
        start, stop = start[:1], stop[:1]
    empty = start == stop
    return start.masked_fill(empty, 0), stop.masked_fill(empty, 0)


def _tiled(problem: Problem, spans: Spans) -> list[Piece]:
    """Return the identical tiles of a window as one piece, and the other queries as chunks.

    [] if the mask has no such tiles, or if the samples differ.
    """
    start, stop = _distinct(spans)
    alike = repeated(start[0], stop[0]) if len(start) == 1 else None
    if alike is None:
        return []
    queries, keys, tiles = alike
    piece = Piece(slice(0, problem.batch), queries, keys, False, True, tiles=tiles)
    before = slice(0, queries.start)
    after = slice(queries.start + tiles * length(queries), problem.query_len)
    return [*_portions(problem, spans, before), piece, *_portions(problem, spans, after)]


def _portions(problem: Problem, spans: Spans | None, part: slice | None = None) -> list[Piece]:
    """Return chunks of queries, of all or of `part`, each with the keys that it sees and its part of the mask.

    EVERYTHING_MASKED if one chunk, which is no strip, has all pairs, or if `is_one_graph` says so. Without spans each
    chunk has all keys.
    """
    per_query = max(1, _mask_count(problem) * problem.kv_len)
    if problem.is_one_graph(per_query * problem.query_len, MASK_PORTION):
        return EVERYTHING_MASKED
    strip = _goes_by_distance(problem)
    if strip:
        portion = problem.query_len if problem.mask is None else STRIP
    else:
        portion = max(16, MASK_PORTION // per_query)
        if spans is not None and problem.query_len > portion // 4:
            portion = min(portion, max(256, problem.query_len // 64))
    pieces = []
    first, last = (0, problem.query_len) if part is None else (part.start, part.stop)
    for queries in portions(last, portion, first):
        keys = slice(0, problem.kv_len)
        if spans is not None:
            keys = hull(spans.start[:, queries], spans.stop[:, queries])
        pieces.append(Piece(slice(0, problem.batch), queries, keys, False, True, strip=strip))
    if (
        len(pieces) == 1
        and not strip
        and lengths_of(problem, pieces[0]) == problem.query.shape[2:3] + problem.key.shape[2:3]
    ):
        return EVERYTHING_MASKED
    return pieces


def _goes_by_distance(problem: Problem) -> bool:
    """Return True if there is a bias, it and the mask depend on the distance alone, and each query sees a key.

    False if the bias may hide a key and is not known to be above −∞, or if nothing can be read at once.
    """
    bias, mask = problem.bias, problem.mask
    if bias is None or not bias.by_distance or not can_read_now(problem.query):
        return False
    if bias.may_hide and (bias.numbers is None or not bool((bias.numbers > -torch.inf).all())):
        return False
    if mask is None:
        return True
    spans = problem.spans if goes_by_distance(mask) else None
    return spans is not None and bool((spans.stop > spans.start).any(dim=2).all())


def cut_to_read_keys(problem: Problem, pieces: list[Piece]) -> Problem:
    """Return the problem, without its mask, cut to the keys from the first to the last that the pieces read.

    The problem itself if that is every key; no key if no piece reads one. The pieces do not index the result.
    """
    if pieces[0].whole:
        return problem
    runs = [piece.all_keys for piece in pieces if piece.keys.start < piece.keys.stop]
    if not runs:
        runs = [slice(0, 0)]
    low, high = min([run.start for run in runs]), max([run.stop for run in runs])
    if high - low == problem.key.shape[2]:
        return problem
    key, value = problem.key[:, :, low:high], problem.value[:, :, low:high]
    return problem.replace(key=key, value=value, mask=None)


def mask_numbers(problem: Problem, piece: Piece) -> int:
    """Return the number of entries of the mask or bias tensor of a piece, over all samples and heads that differ."""
    queries, keys = lengths_of(problem, piece)
    return _mask_count(problem) * (queries + keys - 1 if piece.strip else queries * keys)


def lengths_of(problem: Problem, piece: Piece) -> tuple[int, int]:
    """Return the number of queries and the number of keys of a piece, in one tile if it has several."""
    if piece.whole:
        return problem.query_len, problem.kv_len
    return length(piece.queries), length(piece.keys)


def place_of(piece: Piece) -> tuple[slice | None, slice | None]:
    """Return the slices of queries and keys of a piece; None for both if the piece is the whole problem."""
    return (None, None) if piece.whole else (piece.queries, piece.keys)


def _mask_count(problem: Problem) -> int:
    """Return the number of different masks or biases: samples × heads, where an axis that all share counts as 1."""
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
    """Return the results of the pieces as one tensor, (batch, num_heads, query_len, width).

    The pieces come sample by sample, query by query. A single part is returned unchanged.
    """
    if len(parts) == 1:
        return parts[0]
    samples: dict[int, list[Tensor]] = {}
    for part, piece in zip(parts, pieces, strict=True):
        # As the fused kernels lay it out, tokens before heads: what a layer wants next.
        samples.setdefault(piece.rows.start, []).append(part.transpose(1, 2))
    rows = [row[0] if len(row) == 1 else torch.cat(row, dim=1) for row in samples.values()]
    return (rows[0] if len(rows) == 1 else torch.cat(rows)).transpose(1, 2)


def count(problem: Problem, pieces: list[Piece], marks: Tensor) -> Tensor:
    """Count the marked keys that each query may attend to, by mark: (batch, num_heads, query_len, marks).

    Args:
        problem: the problem.
        pieces: those that it is lowered to.
        marks: 0.0 or 1.0, (batch, num_kv_heads, kv_len, marks).
    """
    mask, spans = problem.mask, None
    if not pieces[0].whole and mask is not None and are_spans_known(problem, mask):
        spans = problem.spans if problem.query.is_cpu else host_spans(mask, problem.extent)
    if spans is not None:
        return stages.repeat_kv_heads(_count_in_runs(spans, marks), problem.num_heads)
    marks = stages.repeat_kv_heads(marks, problem.num_heads)
    return assemble([_count_in_piece(problem, piece, marks) for piece in pieces], pieces)


def _count_in_runs(spans: Spans, marks: Tensor) -> Tensor:
    """Count the marked keys in each query's runs, (batch, heads, queries, marks).

    The marks are (batch, heads, kv_len, marks).
    """
    batch, heads, _, width = marks.shape
    sums, counted = F.pad(marks, (0, 0, 1, 0)).cumsum(dim=2), 0.0
    for run in range(spans.pieces):
        until, before = (
            sums.gather(2, edge[:, None, :, run, None].expand(batch, heads, -1, width))
            for edge in (
                each.to(marks.device, non_blocking=True) for each in (spans.stop, spans.start)
            )
        )
        counted = until - before + counted
    assert isinstance(counted, Tensor)
    return counted


def _count_in_piece(problem: Problem, piece: Piece, marks: Tensor) -> Tensor:
    """Count the marked keys that each query of a piece may attend to, (samples, num_heads, queries, marks).

    The marks are (batch, num_heads, kv_len, marks).
    """
    marks = marks[piece.rows, :, piece.keys]
    if piece.causal:
        return marks.cumsum(dim=2)
    visible = problem.visible(*place_of(piece)) if piece.masked else None
    if visible is None:
        queries, _ = lengths_of(problem, piece)
        return marks.sum(dim=2, keepdim=True).expand(-1, -1, queries, -1)
    return visible.float() @ marks
