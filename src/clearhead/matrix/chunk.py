"""Some of the weights during a sweep, and the statistics of them that several reductions need: sums, maxima of rows."""

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class ChunkPlace(NamedTuple):
    """The part of the matrix that a chunk is, as a sample and slices; its attributes are those of `Chunk`."""

    sample: int
    kv_heads: slice
    heads: slice
    queries: slice
    keys: slice
    tiles: int = 1

    @property
    def place(self) -> tuple[int, slice, slice]:
        """The index (sample, heads, queries of all tiles) of the chunk in a tensor (batch, num_heads, query_len, …)."""
        first = self.queries.start
        return self.sample, self.heads, slice(first, first + self.tiles * self.step)

    @property
    def step(self) -> int:
        """The number of tokens from tile to tile: the queries of one."""
        return self.queries.stop - self.queries.start

    def rows_of(self, tensor: Tensor) -> Tensor:
        """Return a view of the chunk's queries in a tensor (batch, num_heads, query_len, …).

        It is (key heads, tiles, heads of a group, queries, …), in the order of the chunk's tensors.
        """
        kv_heads = self.kv_heads.stop - self.kv_heads.start
        rows = tensor[self.place].unflatten(1, (self.tiles, self.step))
        return rows.unflatten(0, (kv_heads, rows.shape[0] // kv_heads)).transpose(1, 2)

    def keys_of(self, tensor: Tensor) -> Tensor:
        """Return the chunk's keys in a tensor (heads, kv_len, width): (heads × tiles, keys, width).

        A view for one tile, a copy otherwise.
        """
        start, stop = self.keys.start, self.keys.stop
        if self.tiles == 1:
            return tensor[:, start:stop]
        every = tensor[:, start : stop + (self.tiles - 1) * self.step]
        return every.unfold(1, stop - start, self.step).mT.flatten(0, 1)

    def of_each_head(self, numbers: Tensor) -> Tensor:
        """Return numbers, (key heads or 1, tiles or 1, heads of a group or 1, n), expanded to (heads × tiles, n)."""
        kv_heads = self.kv_heads.stop - self.kv_heads.start
        group = (self.heads.stop - self.heads.start) // kv_heads
        return numbers.expand(kv_heads, self.tiles, group, -1).flatten(0, 2)


class KeyBlock(NamedTuple):
    """Some keys of a matrix, such as those of one rank.

    Attributes:
        places: int64, (keys,): the index of each among all keys.
        numbers: int64, (kv_len,): the index of each of all keys in the block; −1 if it is not in the block.
    """

    places: Tensor
    numbers: Tensor

    @classmethod
    def of(cls, places: Tensor, kv_len: int) -> "KeyBlock":
        """Return the block with the keys at the int64 indices `places` of a matrix with `kv_len` keys."""
        numbers = places.new_full((kv_len,), -1)
        numbers[places] = torch.arange(len(places), device=places.device)
        return cls(places, numbers)


class Chunk:
    """The weights of some queries, of some heads of one sample.

    Where a mask repeats, a chunk is several tiles, each as many tokens later as a tile has queries. A tile is
    to the tensors of the chunk as a further key head: in them, "heads" are key heads × tiles × heads of a group.

    The tensors are overwritten by the next chunk. `scores`, `weights` and the statistics that are
    cached here (`maximum`, `best_score`, `logsumexp`, `total`, `column_sums`) are what a `Reduction`
    may read, provide or destroy.

    Attributes:
        sample: the sample.
        kv_heads: the key heads.
        heads: the query heads; those that share a key head are neighbours.
        queries: the queries of the first tile.
        keys: their keys; no query of the tile sees another. Of a block of a matrix, those of the block.
        tiles: the number of tiles.
        block: the keys of the block among all; None for all of them.
        scores: (heads, queries, keys), masked, with a very low number where a pair is hidden.
        weights: (heads, queries, keys).
        empty: (queries,) or (heads, queries), bool, True for an empty row; None if there is none.
        sinks: (heads,), or None.
        visible: (heads, queries, keys), bool, where numbers are not all finite; else None.
    """

    def __init__(
        self, extent: ChunkPlace, scores: Tensor, weights: Tensor, empty: Tensor | None
    ) -> None:
        """Store the tensors, which are not copied; `block`, `sinks` and `visible` are None until they are set."""
        self.extent = extent
        self.sample, self.kv_heads, self.heads, self.queries, self.keys, self.tiles = extent
        self.scores, self.weights, self.empty = scores, weights, empty
        self.block: KeyBlock | None = None
        self.sinks: Tensor | None = None
        self.visible: Tensor | None = None

    @property
    def place(self) -> tuple[int, slice, slice]:
        """The index (sample, heads, queries of all tiles) of the chunk in a tensor (batch, num_heads, query_len, …)."""
        return self.extent.place

    @cached_property
    def columns(self) -> slice | Tensor:
        """The positions of the chunk's keys in the whole matrix: a slice, or int64 indices.

        Indices are (keys,) in a block of keys, and (tiles, keys) for several tiles.
        """
        if self.tiles == 1:
            return self.keys if self.block is None else self.block.places[self.keys]
        every = torch.arange(self.keys.start, self.keys.stop, device=self.weights.device)
        return self._starts[:, 0] + every

    @cached_property
    def _starts(self) -> Tensor:
        """The offset of each tile from the first, in tokens, (tiles, 1, 1)."""
        tiles = torch.arange(self.tiles, device=self.weights.device)
        return tiles[:, None, None] * self.extent.step

    def find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices in the chunk of some keys of each query, and whether they are there.

        Int64 and bool, (heads, queries, n). The index of a key that is not there is out of range.

        Args:
            keys: (batch, num_heads, query_len, n), int64: keys of the whole matrix, which may be out of range.
        """
        keys = self.extent.rows_of(keys)
        if self.block is not None:
            numbers = self.block.numbers
            known = (keys >= 0) & (keys < len(numbers))
            keys = numbers[keys.clamp(0, len(numbers) - 1)].where(known, -1)
        keys = (keys - self._starts[..., None] - self.keys.start).flatten(0, 2)
        return keys, (keys >= 0) & (keys < self.weights.shape[-1])

    def whole_keys(self, places: Tensor) -> Tensor:
        """Return the indices in the whole matrix of keys of the chunk, int64; both are (heads, queries, n)."""
        keys = places + (self.extent.of_each_head(self._starts)[..., None] + self.keys.start)
        return keys if self.block is None else self.block.places[keys]

    @cached_property
    def maximum(self) -> Tensor:
        """The largest weight of each query, (heads, queries); 0 for one that sees nothing, or without keys."""
        if not self.weights.shape[-1]:
            return self.weights.new_zeros(self.weights.shape[:-1])
        return self.weights.amax(dim=-1)

    @cached_property
    def best_score(self) -> Tensor:
        """The largest masked score of each query, (heads, queries); HIDDEN of the sweep for one that sees nothing.

        IndexError for a chunk without keys.
        """
        return self.scores.amax(dim=-1)

    @cached_property
    def logsumexp(self) -> Tensor:
        """The logsumexp of the masked scores of each query, without sinks, (heads, queries), in nats.

        −∞ if it sees nothing.
        """
        if not self.scores.shape[-1]:
            return self.scores.new_full(self.scores.shape[:-1], -torch.inf)
        # Any weight and its score tell it; the largest has the most digits.
        total = self.best_score - self.maximum.log()
        return total if self.empty is None else total.masked_fill(self.empty, -torch.inf)

    @cached_property
    def total(self) -> Tensor:
        """The sum of the weights of each query, (heads, queries): 1 minus the weight of the sink.

        0 if it sees nothing.
        """
        if self.visible is not None or not self.weights.shape[-1]:
            return self.weights.sum(dim=-1)
        total = self.weights.new_ones(self.weights.shape[:2])
        if self.sinks is not None:
            total = torch.sigmoid(self.logsumexp - self.sinks[:, None])
        return total if self.empty is None else total.masked_fill(self.empty, 0.0)

    def share_with(self, sinks: Tensor) -> None:
        """Rescale weights and `maximum`, in place, for sinks with these logits, (heads,), and store them as `sinks`."""
        share = torch.sigmoid(self.logsumexp - sinks[:, None])
        self.weights.mul_(share[..., None])
        self.maximum = self.maximum * share
        self.sinks = sinks

    def share_of(self, whole: Tensor) -> None:
        """Rescale the weights, in place, as those of some of the keys among all keys.

        `maximum` and `total` are rescaled too where all numbers are finite. Otherwise they must not have been read.

        Args:
            whole: (heads, queries), the logsumexp over all keys and sinks.
        """
        share = torch.exp(self.logsumexp - whole)
        share = share.masked_fill(self.logsumexp == -torch.inf, 0.0)
        if self.visible is None:
            self.maximum = self.maximum * share
            self.total = share
            self.weights.mul_(share[..., None])
        else:
            self.weights.mul_(share[..., None]).masked_fill_(~self.visible, 0.0)

    @cached_property
    def column_sums(self) -> Tensor:
        """The weight that each key receives from the queries of the chunk, (heads, keys)."""
        every = torch.zeros(self.weights.shape[1], dtype=torch.int64, device="cpu")
        return self.row_sums(every, 1)[:, 0]

    def sums_with(self, columns: slice, factors: Tensor) -> Tensor:
        """Return Σ weight · factor over the keys in the slice `columns`, (heads, queries).

        Factors broadcast to the weights.
        It overwrites the scores: allocating memory takes as long as all of the arithmetic.
        """
        some = self.weights[..., columns]
        place = self.scores.view(-1)[: some.numel()].view(some.shape)
        return torch.mul(some, factors, out=place).sum(dim=-1)

    def times(self, columns: Tensor) -> Tensor:
        """Return weights · columns, (heads, queries, width), for non-negative columns, (keys, width).

        A weight that is NaN makes a result NaN only where its column is above 0.
        """
        rows = self.weights.flatten(0, 1)
        if self.visible is None:
            product = rows @ columns
        else:
            # A NaN is in the columns that count it, and in no other.
            broken = rows.isnan()
            product = rows.masked_fill(broken, 0.0) @ columns
            product = product.masked_fill((broken.to(columns.dtype) @ columns) > 0, torch.nan)
        return product.unflatten(0, self.weights.shape[:2])

    def row_sums(self, bins: Tensor, count: int) -> Tensor:
        """Return the weights summed over the queries of each bin, (heads, count, keys).

        Args:
            bins: (queries,), int64, on the CPU: the bin of each query.
            count: number of bins.
        """
        if self.visible is not None:
            # Unlike a product, it keeps a NaN in its own bin.
            sums = self.weights.new_zeros(self.weights.shape[0], count, self.weights.shape[2])
            return sums.index_add_(1, bins.to(sums.device, non_blocking=True), self.weights)
        queries = self.weights.shape[1]
        size = queries // count
        if queries == size * count and bool((bins == _even(queries, size)).all()):
            return self.weights.unflatten(1, (count, size)).sum(dim=2)
        choice = torch.nn.functional.one_hot(bins, count).T.to(self.weights.dtype)
        return choice.to(self.weights.device, non_blocking=True) @ self.weights


@lru_cache(maxsize=8)
def _even(length: int, size: int) -> Tensor:
    """Return the bin of each of `length` positions, int64 on the CPU, for bins of `size` positions.

    Cached, do not modify.
    """
    return torch.arange(length, device="cpu") // size


FOLD = 8
"""Number of weights of a segment; only the largest of a segment is compared."""


def largest_of_rows(
    weights: Tensor, k: int, top: Callable[..., tuple[Tensor, Tensor]], *, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the k largest weights of each row, (…, k), and their indices.

    `top`, `top_of_finite` or `top_of_any`, computes them for short rows. They are in no order with `sorted=False`. They
    are in the k segments with the largest maxima, which are found the same way, in short rows: `topk` takes five times
    as long for 256 numbers as for 128.
    """
    width = weights.shape[-1]
    step = width // FOLD
    if step < 4 * k:
        return top(weights, k, sorted=sorted)
    # A segment is every step-th key, so that its maximum is one of columns, which is fast.
    segments = weights[..., : FOLD * step].unflatten(-1, (FOLD, step))
    best = largest_of_rows(segments.amax(dim=-2), k, top, sorted=False)[1]
    every = torch.arange(width, device=weights.device)
    places = (best[..., None, :] + every[: FOLD * step : step, None]).flatten(-2)
    if width > FOLD * step:
        rest = every[FOLD * step :].expand(*places.shape[:-1], -1)
        places = torch.cat([places, rest], dim=-1)
    values, among = top(weights.gather(-1, places), k, sorted=sorted)
    return values, places.gather(-1, among)


def top_of_finite(weights: Tensor, k: int, *, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest of finite non-negative weights in each row, (…, k), with their indices.

    They are in any order unless `sorted`. Values of float32 are compared as integers, which is faster.
    """
    if weights.dtype != torch.float32:
        return top_of_any(weights, k, sorted=sorted)
    # Finite numbers from 0 on come in the order of their bits, and comparing whole numbers takes two
    # thirds of the time.
    bits, places = weights.view(torch.int32).topk(k, dim=-1, sorted=sorted)
    return bits.view(torch.float32), places


def top_of_any(weights: Tensor, k: int, *, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest weights of each row, (…, k), and their indices, in any order unless `sorted`.

    NaN counts as largest.
    """
    values, places = weights.topk(k, dim=-1, sorted=sorted)
    return values, places
