"""The work of the blockwise kernel: its tiles, and the parts in which each is computed."""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.biases import Bias
from clearhead.attention.problem import Problem
from clearhead.masks.base import Mask
from clearhead.masks.spans import Extent, Spans
from clearhead.masks.tiles import (
    Edges,
    Tile,
    hidden_pairs,
    length,
    portions,
    tiles_of_spans,
    visible_runs,
)

ROWS = 64
"""The rows of scores that the queries of a tile have for each key head, as far as LEAST_QUERIES
allows: with fewer the products are slow, with more a window reads too many keys."""

LEAST_QUERIES = 32

BUFFER = 1 << 20
"""The number of scores at a time, unless a single key head has more."""

SMALL = 1 << 16
"""Samples with masks of their own share a tile while it has fewer scores than this."""

WORTH_CUTTING = 1 << 15
"""A further tile must save at least this number of scores."""


class HeadSlice(NamedTuple):
    """The part of a tile that is computed at once: some samples with all heads, or some heads of one sample.

    `rows` are the samples, `heads` the query heads.
    """

    rows: slice
    heads: slice
    folded: slice
    """The same as indices into batch · num_kv_heads."""


@dataclasses.dataclass(frozen=True)
class Work:
    """The tiles and options of a problem, without its tensors, as both passes use them.

    Attributes:
        extent: all sizes of the problem.
        mask, bias, scale, softcap, dropout: those of the problem.
        spans: the runs of keys of each query; None if the mask has no such description.
        tiles: in the order of the queries.
        seed: of the pattern of dropout.
    """

    extent: Extent
    num_kv_heads: int
    mask: Mask | None
    bias: Bias | None
    scale: float
    softcap: float | None
    dropout: float | None
    spans: Spans | None
    tiles: list[Tile]
    seed: int

    @property
    def group(self) -> int:
        """The number of query heads per key head."""
        return self.extent.num_heads // self.num_kv_heads

    @property
    def largest(self) -> int:
        """The largest number of scores of a part of a tile, and so of scores in memory at once; 0 without tiles."""
        most = 0
        for tile in self.tiles:
            queries, keys = tile.shape
            one = self.group * queries * keys
            many = length(tile.rows) * self.num_kv_heads * one
            most = max(most, min(many, max(one, BUFFER)))
        return most


def work_of(problem: Problem, seed: int = 0) -> Work:
    """Return the work of a problem: its options, and its tiles, for which the mask is read.

    `seed` is that of dropout.
    """
    return Work(
        problem.extent,
        problem.num_kv_heads,
        problem.mask,
        problem.bias,
        problem.scale,
        problem.softcap,
        problem.dropout,
        problem.spans,
        list(_tiles(problem, problem.spans)),
        seed,
    )


def _tiles(problem: Problem, spans: Spans | None) -> Iterator[Tile]:
    """Yield the tiles of queries × keys in which some query sees a key; none if an axis is empty.

    Without spans the mask is read as a tensor, and a tile without a mask is open to all keys. With spans, samples with
    different runs share a tile only while they are small.
    """
    batch, query_len, kv_len = problem.batch, problem.query_len, problem.kv_len
    if not batch * query_len * kv_len:
        return
    queries = max(LEAST_QUERIES, ROWS * problem.num_kv_heads // problem.num_heads)
    every_row, every_key = slice(0, batch), slice(0, kv_len)
    if spans is None:
        for some in portions(query_len, queries):
            visible = problem.visible(some)
            if visible is None:
                yield Tile(every_row, some, (every_key,), every_key)
            elif keys := visible_runs(visible):
                yield Tile(every_row, some, keys, slice(0, 0))
        return
    start, stop = spans.start, spans.stop
    if bool((start == start[:1]).all()) and bool((stop == stop[:1]).all()):
        start, stop, together = start[:1], stop[:1], batch
    else:
        together = max(1, SMALL // (problem.num_heads * min(queries, query_len) * kv_len))
    for rows in portions(batch, together):
        worth = WORTH_CUTTING / (problem.num_heads * length(rows))
        yield from tiles_of_spans(start[rows], stop[rows], rows, kv_len, queries, worth)


def parts(work: Work, bias: Bias | None) -> Iterator[tuple[Tile, HeadSlice, Edges, Tensor | None]]:
    """Yield every part of every tile, in the order of both passes.

    The tile, the slice of heads, the edges and the bias.
    The edges are pairs of a slice of the tile's columns and a bool tensor, True = hidden; [] if all pairs are visible.
    The bias is upcast, (samples or 1, heads or 1, queries, keys or 1), None without one.
    """
    for tile in work.tiles:
        hidden: Edges = []
        if work.mask is not None:
            hidden = hidden_pairs(tile, work.mask, work.spans, work.extent)
        added = _added(work, bias, tile)
        queries, keys = tile.shape
        many = max(1, BUFFER // (work.group * queries * keys))
        for part in _split(work, tile.rows, many):
            some = [(columns, _of_part(where, tile, part)) for columns, where in hidden]
            yield tile, part, some, None if added is None else _of_part(added, tile, part)


def _split(work: Work, rows: slice, many: int) -> Iterator[HeadSlice]:
    """Yield the parts of the samples `rows`, of up to `many` key heads each.

    A part is some samples with all heads if `many` is at least the number of key heads, otherwise some heads of a
    sample.
    """
    kv_heads, group = work.num_kv_heads, work.group
    if many >= kv_heads:
        for first in range(rows.start, rows.stop, many // kv_heads):
            some = slice(first, min(first + many // kv_heads, rows.stop))
            folded = slice(some.start * kv_heads, some.stop * kv_heads)
            yield HeadSlice(some, slice(0, work.extent.num_heads), folded)
        return
    for row in range(rows.start, rows.stop):
        for first in range(0, kv_heads, many):
            last = min(first + many, kv_heads)
            heads = slice(first * group, last * group)
            yield HeadSlice(
                slice(row, row + 1), heads, slice(row * kv_heads + first, row * kv_heads + last)
            )


def _of_part(tensor: Tensor, tile: Tile, part: HeadSlice) -> Tensor:
    """Return the samples and heads of a part from a tensor of its tile, (samples or 1, heads or 1, queries, keys).

    Axes of size 1 stay, so that it broadcasts.
    """
    if tensor.shape[0] > 1:
        first = tile.rows.start
        tensor = tensor[part.rows.start - first : part.rows.stop - first]
    return tensor[:, part.heads] if tensor.shape[1] > 1 else tensor


def _added(work: Work, bias: Bias | None, tile: Tile) -> Tensor | None:
    """Return the bias of a tile, upcast, (samples or 1, heads or 1, queries, keys of the tile or 1).

    None without a bias.
    """
    if bias is None:
        return None
    parts = [bias.block(tile.queries, run, work.extent) for run in tile.keys]
    # A bias that is the same for every key has one column, whatever keys are asked for.
    one = any(part.shape[3] < length(run) for part, run in zip(parts, tile.keys, strict=True))
    added = stages.upcast(parts[0] if one or len(parts) == 1 else torch.cat(parts, dim=3))
    return added[tile.rows] if added.shape[0] > 1 else added


class Folded:
    """Query, key and value with samples and key heads merged into one axis, from which the parts of tiles are read.

    The query heads that share a key head are stacked as rows, so that no key is repeated.

    Args:
        work: the work, for its sizes, scale and softcap.
        query: (batch, num_heads, query_len, head_dim).
        key: (batch, num_kv_heads, kv_len, head_dim).
        value: (batch, num_kv_heads, kv_len, value_head_dim).
    """

    def __init__(self, work: Work, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Fold query, key and value, (batch, heads, tokens, width), as views where their strides allow it."""
        self.query = query.unflatten(1, (work.num_kv_heads, work.group)).flatten(0, 1)
        self.key, self.value = key.flatten(0, 1), value.flatten(0, 1)
        # The cap divides by itself first and multiplies last: the scores come divided.
        self.scale = work.scale if work.softcap is None else work.scale / work.softcap

    def queries(self, tile: Tile, part: HeadSlice) -> Tensor:
        """Return the queries of a part, upcast, (folded heads, group · queries, head_dim).

        They are multiplied by the scale, and divided by the softcap if there is one.
        """
        some = stages.upcast(self.query[part.folded, :, tile.queries])
        return (some * self.scale).flatten(1, 2)

    def keys(self, tile: Tile, part: HeadSlice) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of a part, upcast, (folded heads, keys, head_dim or value_head_dim)."""
        return keys_of(self.key[part.folded], tile), keys_of(self.value[part.folded], tile)


def keys_of(tensor: Tensor, tile: Tile) -> Tensor:
    """Return the rows of (heads, kv_len, width) at the keys of a tile, upcast, (heads, keys of the tile, width)."""
    parts = [tensor[:, run] for run in tile.keys]
    return stages.upcast(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))


class Buffer:
    """Memory for the scores of the largest part of `work`, in the dtype and on the device of `like`.

    Each part overwrites it.
    """

    def __init__(self, work: Work, like: Tensor) -> None:
        """Allocate `work.largest` numbers, in the dtype and on the device of `like`."""
        self.memory = like.new_empty(work.largest)

    def view(self, *shape: int) -> Tensor:
        """Return the first values of the buffer as a tensor of this shape.

        Shared memory, with the values of the last use.
        """
        return self.memory[: math.prod(shape)].view(shape)


class Pattern:
    """The factors of dropout for each part, 1/(1 − dropout) or 0, equal in both passes for the same seed."""

    def __init__(self, work: Work, like: Tensor) -> None:
        """Allocate the buffers for the seed and dropout of `work`, in the dtype and on the device of `like`."""
        self.seed, self.device = work.seed, work.extent.device
        # A Python number would divide what is True in float32, also for factors of float64.
        self.kept = torch.tensor(1.0 - (work.dropout or 0.0), dtype=like.dtype, device="cpu")
        # Integers from −2³¹ up; those below the threshold are dropped.
        share = round((work.dropout or 0.0) * 2**32)
        self.threshold = min(share - 2**31, 2**31 - 1)
        self.factors = Buffer(work, like)
        # Two numbers of 32 bits in each of 64 cost a third of what torch.bernoulli does.
        self.numbers = like.new_empty(-(-work.largest // 2), dtype=torch.int64)

    def view(self, number: int, shape: tuple[int, ...]) -> Tensor:
        """Return the dropout factors of part `number`: 0 or 1 / (1 − dropout), in this shape.

        The next call overwrites them. They depend on the seed and `number`.
        """
        generator = torch.Generator(self.device).manual_seed(self.seed + number)
        count = math.prod(shape)
        numbers = self.numbers[: -(-count // 2)].random_(-(2**63), None, generator=generator)
        kept = numbers.view(torch.int32)[:count].view(shape) >= self.threshold
        return torch.div(kept, self.kept, out=self.factors.view(*shape))


def by_head(part: HeadSlice, scores: Tensor) -> Tensor:
    """Return a view of the scores of a part as (samples, heads, queries, keys).

    Args:
        part: the slice of heads.
        scores: (folded heads, group · queries, keys).
    """
    return scores.view(length(part.rows), length(part.heads), -1, scores.shape[2])


def finish_scores(part: HeadSlice, hidden: Edges, added: Tensor | None, scores: Tensor) -> None:
    """Add the bias to the scores of a part and set hidden pairs to −∞, in place.

    The scores are (folded heads, group · queries, keys); `hidden` and `added` are those of `parts`.
    """
    scores = by_head(part, scores)
    if added is not None:
        scores.add_(added)
    for columns, where in hidden:
        scores[..., columns].masked_fill_(where, -torch.inf)
