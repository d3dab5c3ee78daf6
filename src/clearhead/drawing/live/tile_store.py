"""Tiles for many people at once: each is worked out once, and a bounded number of bytes is kept.

The whole map of a head takes a pass over all of its weights. Of a long text that is seconds, so a
thread does it, and its progress is reported to whoever asks meanwhile.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._text import shown
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentError, SelectionError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.pairs import PairStages, stages_of_pair
from clearhead.matrix.parts import some_heads
from clearhead.matrix.tiles import (
    Level,
    MapTile,
    cells_of,
    exact_tile,
    is_exact,
    make_level,
    tile_of_level,
)

MOST_CELLS = 1024
"""Rows and columns of a tile at most."""

TILE_BYTES, LEVEL_BYTES = 8 << 20, 512 << 20
"""Bytes of tiles, and of whole maps, that are cached: some 25 views, which take a fraction of a second
each to make again, and at 50 000 tokens some 25 heads."""

MOST_WANTED = 4
"""Heads whose maps are waited for; who has looked at more of them does not wait for the first."""

LINKS = 12


class Pending(NamedTuple):
    """A head whose weights are being swept.

    Attributes:
        done: which share of the work is done, 0 to 1.
    """

    done: float


class TokenNumbers(NamedTuple):
    """The strongest links of one token in one head, as a query or as a key.

    Attributes:
        links: the largest weights, from the largest on: (place of the other token, weight).
        total: the sum of all of its weights: for a query 1 less what a sink takes, for a key what
            it receives from all queries.
        entropy: of a query, how spread it is, in nats; None for a key.
    """

    links: tuple[tuple[int, float], ...]
    total: float
    entropy: float | None


class Tiles:
    """Exact tiles of the heads of some layers, at any length. May be asked by several threads.

    The logsumexp of each matrix is worked out at once, unless a summary has found it already.

    Args:
        matrices: of each layer; None for one whose query and key are not known.
        sample: which sample of the batch.
        tile_bytes: how much is kept of tiles.
        level_bytes: how much is kept of whole maps; one is kept in any case.

    Example:
        >>> query = key = torch.randn(1, 2, 7, 4)
        >>> tiles = Tiles([AttentionMatrix(query, key)])
        >>> tiles.tile(0, 1, (0, 7), (2, 6), (4, 4))
        MapTile of queries 0 to 6 and keys 2 to 5; one cell = 2 × 1 tokens
        >>> tiles.close()
    """

    def __init__(
        self,
        matrices: Sequence[AttentionMatrix | None],
        *,
        sample: int = 0,
        tile_bytes: int = TILE_BYTES,
        level_bytes: int = LEVEL_BYTES,
    ) -> None:
        self._layers = [None if each is None else (each.problem, _total(each)) for each in matrices]
        self._sample = sample
        self._changed = threading.Condition()
        self._computing = threading.Lock()
        self._tiles = _Kept(tile_bytes)
        self._levels = _Kept(level_bytes)
        self._running: dict[Any, Future[Any]] = {}
        self._wanted: list[tuple[int, int]] = []
        self._done: dict[tuple[int, int], float] = {}
        self._failed: dict[tuple[int, int], Exception] = {}
        self._worker: threading.Thread | None = None
        self._closed = False

    def tile(
        self,
        layer: int,
        head: int,
        rows: tuple[int, int],
        columns: tuple[int, int],
        cells: tuple[int, int],
    ) -> MapTile | Pending | None:
        """Return a part of a head's map in at most `cells` cells, or None where nothing is known of it.

        Worked out from query and key where that takes a fraction of a second. A larger part has
        larger cells than it might, and begins and ends where those do.

        Args:
            layer: which matrix.
            head: which query head.
            rows: from this query up to that, the second not included.
            columns: the same for the keys.
            cells: how many rows and columns of cells, each 1 to MOST_CELLS.

        Raises:
            SelectionError: code `tile.head`, for a layer or a head that is not there.
            ArgumentError: codes `tile.range` and `tile.cells`.
        """
        known = self._layer(layer, head)
        if known is None:
            return None
        problem, total = known
        _check_range("rows", rows, problem.query_len)
        _check_range("columns", columns, problem.kv_len)
        for name, count in zip(("rows", "columns"), cells, strict=True):
            number = as_int(count)
            if number is None or not 1 <= number <= MOST_CELLS:
                raise ArgumentError(
                    "tile.cells",
                    f"a tile has 1 to {MOST_CELLS} {name} of cells; got {shown(count)}.",
                )
        if is_exact(problem, rows[1] - rows[0], columns[1] - columns[0]):
            high, wide = cells_of(*rows, cells[0]), cells_of(*columns, cells[1])
            return self._once(
                (layer, head, high, wide),
                lambda: exact_tile(
                    problem, total[self._sample, head], self._sample, head, high, wide
                ),
            )
        level = self._level(layer, head)
        if isinstance(level, Pending):
            return level
        high = _cells_of_level(rows, cells[0], level.step[0], problem.query_len)
        wide = _cells_of_level(columns, cells[1], level.step[1], problem.kv_len)
        return tile_of_level(level, self._sample, high, wide)

    def token(self, layer: int, head: int, place: int, *, as_key: bool) -> TokenNumbers | None:
        """The numbers of a token: as a query, what it looks at; as a key, who looks at it.

        None where nothing is known of the layer.

        Raises:
            SelectionError: codes `tile.head` and `tile.token`, for what is not there.
        """
        known = self._layer(layer, head)
        if known is None:
            return None
        problem, total = known
        _check_token(problem, place, as_key=as_key)
        rows, columns = range(place, place + 1), range(problem.kv_len)
        if as_key:
            rows, columns = range(problem.query_len), rows
        with self._computing:
            tile = exact_tile(problem, total[self._sample, head], self._sample, head, rows, columns)
        weights = tile.values.flatten().double()
        best = weights.topk(min(LINKS, len(weights)))
        links = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        entropy = None if as_key else float(torch.special.entr(weights).sum())
        return TokenNumbers(
            tuple(link for link in links if link[1] != 0), float(weights.sum()), entropy
        )

    def pair(self, layer: int, head: int, query: int, key: int) -> PairStages | None:
        """The stages of one pair, from its query and key to its weight; None where they are not known.

        Raises:
            SelectionError: codes `tile.head` and `tile.token`, for what is not there.
        """
        known = self._layer(layer, head)
        if known is None:
            return None
        problem, _ = known
        _check_token(problem, query, as_key=False)
        _check_token(problem, key, as_key=True)
        with self._computing:
            return stages_of_pair(problem, self._sample, head, query, key)

    def close(self) -> None:
        """Stop what is being worked out, and wait until it has."""
        with self._changed:
            self._closed = True
            worker = self._worker
            self._changed.notify_all()
        if worker is not None:
            worker.join()

    def _layer(self, layer: int, head: int) -> tuple[Problem, Tensor] | None:
        count = len(self._layers)
        if not 0 <= layer < count:
            raise SelectionError("tile.head", f"there are {count} layers; got number {layer}.")
        known = self._layers[layer]
        if known is not None and not 0 <= head < known[0].num_heads:
            raise SelectionError(
                "tile.head", f"layer {layer} has {known[0].num_heads} heads; got number {head}."
            )
        return known

    def _level(self, layer: int, head: int) -> Level | Pending:
        """The whole map of a head, or how far it is."""
        place = layer, head
        with self._changed:
            level = self._levels.get(place)
            if level is not None:
                return level
            if place in self._failed:
                raise self._failed.pop(place)  # and whoever asks next may have more luck
            # Who asks last is served first.
            if place in self._wanted:
                self._wanted.remove(place)
            if place not in self._done:
                self._wanted = [*self._wanted, place][-MOST_WANTED:]
            if self._worker is None and not self._closed:
                self._worker = threading.Thread(target=self._work, name="clearhead levels")
                self._worker.start()
            return Pending(self._done.get(place, 0.0))

    def _one_head(self, layer: int, head: int) -> Problem:
        known = self._layers[layer]
        assert known is not None
        return some_heads(known[0], [head])

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed or not self._wanted:
                    # Whoever asks next begins another: a thread that waits would keep the
                    # interpreter of a notebook from ending.
                    self._worker = None
                    return
                place = self._wanted.pop()
                self._done[place] = 0.0

            def progress(done: float, place: tuple[int, int] = place) -> None:
                self._done[place] = done
                if self._closed:
                    raise _ClosedError
                with self._computing:  # a tile that is waited for goes first
                    pass

            try:
                level = make_level(self._one_head(*place), progress)
            except _ClosedError:
                return
            except Exception as error:
                # Reported to whoever asks; the other heads go on.
                with self._changed:
                    self._failed[place] = error
                    del self._done[place]
                continue
            with self._changed:
                self._levels.put(place, level)
                del self._done[place]

    def _once(self, key: Any, make: Callable[[], MapTile]) -> MapTile:
        """Single-flight memoisation: concurrent callers share one computation."""
        with self._changed:
            found = self._tiles.get(key)
            if found is not None:
                return found
            future = self._running.get(key)
            own = future is None
            if future is None:
                future = self._running[key] = Future()
        if not own:
            return future.result()
        try:
            with self._computing:
                made = make()
        except BaseException as error:
            with self._changed:
                del self._running[key]
            future.set_exception(error)
            raise
        with self._changed:
            self._tiles.put(key, made)
            del self._running[key]
        future.set_result(made)
        return made


class _ClosedError(Exception):
    """Cancel a pass that is no longer waited for."""


class _Kept:
    """An LRU cache of at most `most` bytes, which always holds the last entry."""

    def __init__(self, most: int) -> None:
        self.most, self.nbytes = most, 0
        self._items: OrderedDict[Any, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Any) -> Any:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Any, item: Any) -> None:
        self._items[key] = item
        self.nbytes += item.nbytes
        while self.nbytes > self.most and len(self._items) > 1:
            self.nbytes -= self._items.popitem(last=False)[1].nbytes


def _total(matrix: AttentionMatrix) -> Tensor:
    """(batch, num_heads, query_len), nats."""
    problem = matrix.problem
    with torch.no_grad():
        return matrix.logsumexp.reshape(problem.batch, problem.num_heads, problem.query_len)


def _cells_of_level(asked: tuple[int, int], most: int, step: int, size: int) -> range:
    """The cells of a tile that are made of whole cells of a level, and cover what was asked for."""
    first, stop = asked
    return cells_of(first // step * step, min(size, -(-stop // step) * step), most, step)


def _check_token(problem: Problem, place: int, *, as_key: bool) -> None:
    size = problem.kv_len if as_key else problem.query_len
    if not 0 <= place < size:
        axis = "keys" if as_key else "queries"
        raise SelectionError("tile.token", f"there are {size} {axis}; got number {place}.")


def _check_range(name: str, given: tuple[int, int], size: int) -> None:
    first, stop = (as_int(each) for each in given)
    if first is None or stop is None or not 0 <= first < stop <= size:
        raise ArgumentError(
            "tile.range",
            f"{name} must be from 0 on, upwards and up to {size} tokens; got {shown(given[0])} to "
            f"{shown(given[1])}.",
        )
