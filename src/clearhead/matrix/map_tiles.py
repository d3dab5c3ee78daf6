"""Parts of a head's map, computed exactly from query and key, as one zooms, and the stages of one pair.

Given the logsumexp of its queries, a rectangle of weights costs its own dot products and nothing else.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages
from clearhead.attention.problem import Problem
from clearhead.matrix.pooling import block_sums
from clearhead.matrix.sweep_tiles import part_of_runs


class PairStages(NamedTuple):
    """The stages of one pair.

    Attributes:
        query, key: (head_dim,) each, as they are multiplied: after positions and norms.
        score: their dot product.
        scale: what it is multiplied by.
        scaled: the score times the scale.
        capped: the scaled score, bent by the softcap; None without a softcap.
        bias: what is added; None without a bias.
        masked: with the bias added; −inf where the mask hides the key.
        logsumexp: of the masked scores of the query over all keys, and of the sink.
        weight: exp(masked − logsumexp).
    """

    query: tuple[float, ...]
    key: tuple[float, ...]
    score: float
    scale: float
    scaled: float
    capped: float | None
    bias: float | None
    masked: float
    logsumexp: float
    weight: float


def stages_of_pair(problem: Problem, sample: int, head: int, query: int, key: int) -> PairStages:
    """Return the stages of one pair of a problem, given by its indices, detached; O(kv_len) numbers are formed.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> eye = torch.eye(2)[None, None]
        >>> found = stages_of_pair(make_problem(eye, eye, eye, scale=1.0), 0, 0, 1, 1)
        >>> found.query, found.score, found.bias, round(found.weight, 4)
        ((0.0, 1.0), 1.0, None, 0.7311)
    """
    group = problem.num_heads // problem.num_kv_heads
    one = problem.query[sample, head, query].detach()
    keys = problem.key[sample, head // group].detach()
    queries = slice(query, query + 1)
    with torch.no_grad():
        visible = of_head(problem.visible(queries), sample, head)
        bias = of_head(problem.bias_block(queries), sample, head)
        # One product with all keys: that of a single pair would be summed in another order.
        scores = stages.scores(one[None], keys, problem.factor)
        scaled = stages.scaled_scores(scores, problem.scale)
        capped = stages.capped_scores(scaled, problem.softcap)
        row = stages.masked_scores(capped, bias, visible)
        sinks = None if problem.sinks is None else problem.sinks[head, None]
        weights = stages.weights(row[None], sinks)
        total = stages.logsumexp(row)
        if sinks is not None:
            total = torch.logaddexp(total, stages.upcast(sinks))
    return PairStages(
        query=tuple(one.tolist()),
        key=tuple(keys[key].tolist()),
        score=float(scores[0, key]),
        scale=problem.scale,
        scaled=float(scaled[0, key]),
        capped=None if problem.softcap is None else float(capped[0, key]),
        bias=None if bias is None else float(bias.expand_as(row)[0, key]),
        masked=float(row[0, key]),
        logsumexp=float(total),
        weight=float(weights[0, 0, key]),
    )


def of_head(tensor: Tensor | None, sample: int, head: int) -> Tensor | None:
    """Return the entry of one sample and head, (…), of a tensor (batch or 1, heads or 1, …).

    None if the tensor is None.
    """
    if tensor is None:
        return None
    return tensor[min(sample, len(tensor) - 1), min(head, tensor.shape[1] - 1)]


EXACT_PAIRS = 40_000_000
"""Number of pairs of width 64 up to which a tile is computed from query and key: about 0.15 s on two cores."""

CHUNK = 1 << 20
"""Chunk size in weights of a tile."""

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
        columns: the first key of each column.

    Example:
        >>> MapTile(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool), range(0, 8, 4), range(3))
        MapTile of queries 0 to 7 and keys 0 to 2; one cell = 4 × 1 tokens
    """

    values: Tensor
    hidden: Tensor
    rows: range
    columns: range

    def __repr__(self) -> str:
        """Return one line with the first and last query and key, and the size of a cell."""
        rows, columns = self.rows, self.columns
        return (
            f"MapTile of queries {rows.start} to {rows.stop - 1} and keys {columns.start} to "
            f"{columns.stop - 1}; one cell = {rows.step} × {columns.step} tokens"
        )


def cells_of(first: int, stop: int, most: int) -> range:
    """Return the starts of at most `most` equal cells, as small as possible, that cover first to stop.

    The last may be shorter.

    Example:
        >>> cells_of(10, 30, 4), cells_of(10, 30, 256)
        (range(10, 30, 5), range(10, 30))
    """
    return range(first, stop, max(1, -(-(stop - first) // most)))


def is_exact(problem: Problem, rows: int, columns: int) -> bool:
    """Return True if a tile of `rows` queries and `columns` keys is small enough to be computed from query and key.

    Example:
        >>> from clearhead.attention.problem import make_problem
        >>> problem = make_problem(torch.zeros(9, 64), torch.zeros(9, 64), torch.zeros(9, 64))
        >>> is_exact(problem, 5000, 5000), is_exact(problem, 50_000, 50_000)
        (True, False)
    """
    return rows * columns * max(1.0, problem.query.shape[3] / 64) <= EXACT_PAIRS


def exact_tile(
    problem: Problem, total: Tensor, sample: int, head: int, rows: range, columns: range
) -> MapTile:
    """Return a tile of the map, computed from query and key, without gradients.

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
    """The weights of one head on the keys of some columns, computed in chunks of queries.

    The mask's spans are read at once.

    Args:
        problem: the problem.
        total: (query_len,), the logsumexp of the head's queries, without sinks.
        sample: the index of the sample.
        head: the index of the query head.
        columns: the first key of each column.
    """

    def __init__(
        self, problem: Problem, total: Tensor, sample: int, head: int, columns: range
    ) -> None:
        """Read the mask's spans, and add the sinks to the logsumexp; no weight is computed."""
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
        """Add the weights to `sums` and set `seen` where a pair is visible, in place.

        Both are cells, (rows, columns).
        """
        step = self.columns.step
        for some in _slices(rows, self.keys.stop - self.keys.start):
            weights, first, shown = self._chunk(some)
            weights = block_sums(weights, rows.step)
            cells = slice((some.start - rows.start) // rows.step, None)
            cells = slice(cells.start, cells.start + len(weights))
            _add_columns(sums[cells], weights, first, step)
            seen[cells] |= block_sums(shown.to(torch.int32), rows.step) > 0

    def _chunk(self, some: slice) -> tuple[Tensor, int, Tensor]:
        """Return the weights of the queries in `some`, (queries, keys), their first key, and the visible cells.

        The key counts from the first of the rectangle; the cells are bool, (queries, columns).
        """
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
        """Return which cells of the queries in `some` hold a visible pair, bool, (queries, columns).

        `pairs` is which are visible, bool, (queries, keys); None if all are, or if the mask is one run of keys a query.
        """
        if pairs is not None:
            return block_sums(pairs.mT.to(torch.int32), self.columns.step).mT > 0
        if self.runs is None:
            size = some.stop - some.start, len(self.columns)
            return torch.ones(size, dtype=torch.bool, device=self.problem.device)
        start, stop = (each[some, None] for each in self.runs)
        first = torch.arange(*_ends(self.columns), self.columns.step, device=start.device)
        return (start < first + self.columns.step) & (stop > first) & (start < stop)


def _ends(cells: range) -> tuple[int, int]:
    """Return the start and the stop of a range."""
    return cells.start, cells.stop


def _slices(rows: range, width: int) -> Iterator[slice]:
    """Yield slices that split the queries of rows of cells into chunks, each of whole rows or within one row.

    Args:
        rows: the first query of each row of cells.
        width: the number of keys.
    """
    width = max(1, width)
    most = max(1, min(max(MOST_QUERIES, SMALL // width), CHUNK // width))
    size = most // rows.step * rows.step or most
    for first in range(rows.start, rows.stop, max(size, rows.step)):
        end = min(first + max(size, rows.step), rows.stop)
        for start in range(first, end, size):
            yield slice(start, min(start + size, end))


def _add_columns(into: Tensor, rows: Tensor, first: int, step: int) -> None:
    """Add weights, (rows, keys), summed over cells of `step` keys, to `into`, (rows, columns), in place.

    The first key is number `first` of the columns. Nothing is added for an empty tensor.
    """
    if not rows.numel():
        return
    before, width = first % step, rows.shape[1]
    padded = F.pad(rows, (before, -(before + width) % step))
    cells = padded.unflatten(1, (-1, step)).sum(dim=2, dtype=torch.float64)
    start = first // step
    into[:, start : start + cells.shape[1]] += cells


def _shares(sums: Tensor, rows: range) -> Tensor:
    """Return the sums of each row of cells, (rows, columns), divided by the number of its queries, float32."""
    counts = torch.full((len(rows), 1), float(rows.step), dtype=torch.float64, device=sums.device)
    if len(rows):
        counts[-1] = rows.stop - rows[-1]
    return (sums / counts).float()
