"""Parts of a head's map, worked out exactly from query and key, as one zooms.

Given the logsumexp of its queries, a rectangle of weights costs its own dot products and nothing
else. A rectangle too large for that is read from a level: sums over equal squares of the whole map.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages
from clearhead.attention.problem import Problem
from clearhead.matrix.chunk import Chunk
from clearhead.matrix.pairs import of_head
from clearhead.matrix.pooling import block_sums
from clearhead.matrix.reductions import Reduction
from clearhead.matrix.sweep import HIDDEN, part_of_runs, sweep

EXACT_PAIRS = 40_000_000
"""Number of pairs of width 64 up to which a tile is computed from query and key: about 0.15 s on two cores."""

LEVEL_CELLS = 2048
"""Rows and columns of a level at most. At 50 000 tokens one of its cells is 25 × 25 tokens, which
is what a tile of EXACT_PAIRS shows in 256 × 256 cells."""

CHUNK = 1 << 20
"""The weights of a tile that are materialised at a time."""

MOST_QUERIES = 256
"""Queries of a chunk, unless its keys are so few that it would be small."""

SMALL = 1 << 16


class MapTile(NamedTuple):
    """A part of a head's map.

    Attributes:
        values: (rows, columns), float32: which share of its attention a query of the row gives to
            the keys of the column, on average over the row's queries. In a cell of one query and
            one key that is the weight.
        hidden: (rows, columns), bool: cells in which no query may see a key.
        rows: the first query of each row; only the last row may be cut short by the end.
        columns: the first key of each column, likewise.

    Example:
        >>> MapTile(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool), range(0, 8, 4), range(3))
        MapTile of queries 0 to 7 and keys 0 to 2; one cell = 4 × 1 tokens
    """

    values: Tensor
    hidden: Tensor
    rows: range
    columns: range

    @property
    def nbytes(self) -> int:
        """Its memory, in bytes."""
        return self.values.nbytes + self.hidden.nbytes

    def __repr__(self) -> str:
        rows, columns = self.rows, self.columns
        return (
            f"MapTile of queries {rows.start} to {rows.stop - 1} and keys {columns.start} to "
            f"{columns.stop - 1}; one cell = {rows.step} × {columns.step} tokens"
        )


class Level(NamedTuple):
    """The whole map of a head in cells of equal size.

    Attributes:
        sums: (batch, rows, columns), float32: weights summed over cells.
        hidden: (batch or 1, rows, columns), bool: cells in which nothing is visible.
        step: queries and keys of a cell.
    """

    sums: Tensor
    hidden: Tensor
    step: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Its memory, in bytes."""
        return self.sums.nbytes + self.hidden.nbytes


def cells_of(first: int, stop: int, most: int, unit: int = 1) -> range:
    """Equal cells, as few tokens each as makes no more than `most` of them.

    Args:
        first: where the first begins, a multiple of `unit`.
        stop: where the last ends at the latest.
        most: how many cells there may be.
        unit: the number of tokens of a cell is a multiple of this.

    Example:
        >>> cells_of(10, 30, 4), cells_of(10, 30, 256), cells_of(0, 100, 3, unit=25)
        (range(10, 30, 5), range(10, 30), range(0, 100, 50))
    """
    units = -(-(stop - first) // unit)
    return range(first, stop, unit * max(1, -(-units // most)))


def is_exact(problem: Problem, rows: int, columns: int) -> bool:
    """True if a tile of `rows` queries and `columns` keys is computed from query and key.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> problem = make_problem(torch.zeros(9, 64), torch.zeros(9, 64), torch.zeros(9, 64))
        >>> is_exact(problem, 5000, 5000), is_exact(problem, 50_000, 50_000)
        (True, False)
    """
    return rows * columns * max(1.0, problem.query.shape[3] / 64) <= EXACT_PAIRS


def level_step(problem: Problem) -> tuple[int, int]:
    """The queries and the keys of a cell of a level.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> level_step(make_problem(torch.zeros(50_000, 2), torch.zeros(9, 2), torch.zeros(9, 2)))
        (25, 1)
    """
    return max(1, -(-problem.query_len // LEVEL_CELLS)), max(1, -(-problem.kv_len // LEVEL_CELLS))


def make_level(problem: Problem, progress: Callable[[float], None] | None = None) -> Level:
    """The map of a single head in at most LEVEL_CELLS, by one pass over its weights.

    Args:
        problem: of one query head.
        progress: called with the share that is done, 0 to 1; what it raises ends the pass.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> make_level(make_problem(torch.zeros(3, 2), torch.zeros(4, 2), torch.zeros(4, 2))).sums[0, 0]
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    step = level_step(problem)
    stepped = Stepped(problem, step)
    sweep(problem, [stepped], progress)
    sums = stepped.sums.float()
    if stepped.seen is not None:
        hidden = stepped.seen == 0
    elif problem.mask is not None:
        empty = problem.mask.blocks(problem.query_len, problem.kv_len, step).empty
        hidden = (empty[:, 0] if empty.ndim == 4 else empty[None]).to(sums.device)
    else:
        hidden = torch.zeros(1, *sums.shape[1:], dtype=torch.bool, device=sums.device)
    return Level(sums, hidden, step)


class Stepped(Reduction):
    """The weights of one head summed over cells of equal size: `sums` is (batch, rows, columns).

    `seen` has as many numbers: how many pairs of a cell are visible; None where no bias can hide
    one, so that the mask tells.

    Args:
        problem: of one query head.
        step: how many queries and how many keys make a cell.
    """

    reads = frozenset({"scores", "weights"})

    def __init__(self, problem: Problem, step: tuple[int, int]) -> None:
        self.step = step
        rows, columns = -(-problem.query_len // step[0]), -(-problem.kv_len // step[1])
        self.sums = torch.zeros(
            problem.batch, rows, columns, dtype=torch.float64, device=problem.device
        )
        hiding = problem.bias is not None and problem.bias.may_hide
        self.seen = torch.zeros_like(self.sums) if hiding else None

    def update(self, chunk: Chunk) -> None:
        high, wide = self.step
        first, stop = chunk.queries.start, chunk.queries.stop
        cells = torch.arange(first, stop, device="cpu") // high - first // high
        count = -(-stop // high) - first // high
        place = chunk.sample, slice(first // high, first // high + count)
        sums = chunk.row_sums(cells, count)[0]
        _add_columns(self.sums[place], sums, chunk.keys.start, wide)
        if self.seen is not None:
            shown = (chunk.scores[0] > HIDDEN) | chunk.scores[0].isnan()
            counts = sums.new_zeros(sums.shape)
            counts.index_add_(0, cells.to(sums.device), shown.to(sums.dtype))
            _add_columns(self.seen[place], counts, chunk.keys.start, wide)


def tile_of_level(level: Level, sample: int, rows: range, columns: range) -> MapTile:
    """A tile from sums that are there; its cells are made of whole cells of the level.

    Args:
        level: the level, with sums.
        sample: which sample.
        rows: the first query of each row; start and step are multiples of the level's step.
        columns: the same for the keys.

    Example:
        >>> level = Level(torch.ones(1, 2, 2), torch.eye(2).bool()[None], (4, 4))
        >>> tile_of_level(level, 0, range(0, 8, 4), range(0, 8, 4)).values
        tensor([[0.2500, 0.2500],
                [0.2500, 0.2500]])
    """
    high, wide = level.step
    part = (
        slice(rows.start // high, -(-rows.stop // high)),
        slice(columns.start // wide, -(-columns.stop // wide)),
    )
    seen = ~level.hidden[min(sample, len(level.hidden) - 1)][part]
    sums, cells = (
        block_sums(block_sums(each, rows.step // high).mT, columns.step // wide).mT
        for each in (level.sums[sample][part].double(), seen.double())
    )
    return MapTile(_shares(sums, rows), cells == 0, rows, columns)


def exact_tile(
    problem: Problem, total: Tensor, sample: int, head: int, rows: range, columns: range
) -> MapTile:
    """A tile worked out from query and key.

    Args:
        problem: what attends to what.
        total: (query_len,): the logsumexp of the head's queries, nats, sinks not counted.
        sample: which sample.
        head: which query head.
        rows: the first query of each row.
        columns: the first key of each column.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> problem = make_problem(torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, 2))
        >>> total = torch.full((4,), 4.0).log()
        >>> exact_tile(problem, total, 0, 0, range(0, 4, 2), range(0, 4, 2)).values
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    sums = torch.zeros(len(rows), len(columns), dtype=torch.float64, device=problem.device)
    seen = torch.zeros(sums.shape, dtype=torch.bool, device=problem.device)
    if seen.numel():
        with torch.no_grad(), torch.autocast(problem.device.type, enabled=False):
            _Rectangle(problem, total, sample, head, columns).into(sums, seen, rows)
    return MapTile(_shares(sums, rows), ~seen, rows, columns)


class _Rectangle:
    """The weights of some keys, some queries at a time."""

    def __init__(
        self, problem: Problem, total: Tensor, sample: int, head: int, columns: range
    ) -> None:
        self.problem, self.columns = problem, columns
        self.place = sample, head
        self.keys = slice(columns.start, columns.stop)
        kv_head = head * problem.num_kv_heads // problem.num_heads
        self.query, self.key = problem.query[sample, head], problem.key[sample, kv_head]
        if problem.sinks is not None:
            total = torch.logaddexp(total, stages.upcast(problem.sinks)[head])
        # A query that sees nothing: exp(score − ∞) is 0. One with a score that is no number: NaN.
        nothing, broken = total == -torch.inf, total == torch.inf
        self.total = total.masked_fill(broken, torch.nan).masked_fill(nothing, torch.inf)
        self.hiding = problem.bias is not None and problem.bias.may_hide
        self.runs: tuple[Tensor, Tensor] | None = None
        if problem.mask is not None and not self.hiding:
            spans = problem.spans
            if spans is not None and spans.pieces == 1:
                row = min(sample, len(spans.start) - 1)
                start, stop = spans.start[row, :, 0], spans.stop[row, :, 0]
                self.runs = start.clamp(*_ends(columns)), stop.clamp(*_ends(columns))

    def into(self, sums: Tensor, seen: Tensor, rows: range) -> None:
        """Add the weights to `sums`, and to `seen` where a pair is visible; both are (rows, columns)."""
        step = self.columns.step
        for some in _slices(rows, self.keys.stop - self.keys.start):
            weights, first, shown = self._chunk(some)
            weights = block_sums(weights, rows.step)
            cells = slice((some.start - rows.start) // rows.step, None)
            cells = slice(cells.start, cells.start + len(weights))
            _add_columns(sums[cells], weights, first, step)
            seen[cells] |= block_sums(shown.to(torch.int32), rows.step) > 0

    def _chunk(self, some: slice) -> tuple[Tensor, int, Tensor]:
        """The weights, where their keys begin, and (queries, columns): what has a visible pair."""
        problem, keys, hidden, pairs = self.problem, self.keys, [], None
        if self.runs is not None:
            start, stop = (each[some] for each in self.runs)
            part = part_of_runs(start, stop, some)
            keys, hidden = part.keys, part.hidden
            if part.empty is not None:  # of these keys; it may see others
                hidden = [*hidden, (slice(None), part.empty[:, None])]
        elif problem.mask is not None:
            pairs = of_head(problem.visible(some, keys), *self.place)
        query = stages.upcast(self.query[some]) * problem.scale
        scores = query @ stages.upcast(self.key[keys]).mT
        if problem.softcap is not None:
            scores.div_(problem.softcap).tanh_().mul_(problem.softcap)
        bias = of_head(problem.bias_block(some, keys), *self.place)
        if bias is not None:
            scores.add_(bias)
            if self.hiding:
                open_ = bias > -torch.inf
                pairs = open_ if pairs is None else pairs & open_
        weights = scores.sub_(self.total[some, None]).exp_()
        for where, each in hidden:
            weights[:, where].masked_fill_(each, 0.0)
        if pairs is not None:
            weights.masked_fill_(~pairs, 0.0)
        return weights, keys.start - self.keys.start, self._shown(some, pairs)

    def _shown(self, some: slice, pairs: Tensor | None) -> Tensor:
        if pairs is not None:
            return block_sums(pairs.mT.to(torch.int32), self.columns.step).mT > 0
        if self.runs is None:
            size = some.stop - some.start, len(self.columns)
            return torch.ones(size, dtype=torch.bool, device=self.problem.device)
        start, stop = (each[some, None] for each in self.runs)
        first = torch.arange(*_ends(self.columns), self.columns.step, device=start.device)
        return (start < first + self.columns.step) & (stop > first) & (start < stop)


def _ends(cells: range) -> tuple[int, int]:
    return cells.start, cells.stop


def _slices(rows: range, width: int) -> Iterator[slice]:
    """Neighbouring queries, as many as make a chunk: of whole rows, or of one row each."""
    width = max(1, width)
    most = max(1, min(max(MOST_QUERIES, SMALL // width), CHUNK // width))
    size = most // rows.step * rows.step or most
    for first in range(rows.start, rows.stop, max(size, rows.step)):
        end = min(first + max(size, rows.step), rows.stop)
        for start in range(first, end, size):
            yield slice(start, min(start + size, end))


def _add_columns(into: Tensor, rows: Tensor, first: int, step: int) -> None:
    """Add (rows, keys), whose first key is `first`, to cells of `step` keys."""
    if not rows.numel():
        return
    before, width = first % step, rows.shape[1]
    padded = F.pad(rows, (before, -(before + width) % step))
    cells = padded.unflatten(1, (-1, step)).sum(dim=2, dtype=torch.float64)
    start = first // step
    into[:, start : start + cells.shape[1]] += cells


def _shares(sums: Tensor, rows: range) -> Tensor:
    """The weights of each row, averaged over its queries."""
    counts = torch.full((len(rows), 1), float(rows.step), dtype=torch.float64, device=sums.device)
    if len(rows):
        counts[-1] = rows.stop - rows[-1]
    return (sums / counts).float()
