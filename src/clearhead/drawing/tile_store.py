"""Tiles for many people at once: each is worked out once, and a bounded number of bytes is kept.

What a head's tiles start from, its logsumexp and its whole map in large cells, takes a pass over
all of its weights. Of a long text that is seconds, so a thread does it, and whoever asks meanwhile
is told how far it is.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import torch

from clearhead.drawing.tiles import (
    Level,
    Tile,
    cells_of,
    exact_tile,
    is_exact,
    make_level,
    tile_of_level,
)
from clearhead.errors import ArgumentError, SelectionError
from clearhead.matrix import AttentionMatrix
from clearhead.routes.keeping import of_heads
from clearhead.shapes import whole

MOST_CELLS = 1024
"""Rows and columns of a tile at most."""

TILE_BYTES, LEVEL_BYTES = 64 << 20, 512 << 20
"""What is kept of tiles, and of levels: at 50 000 tokens that is some 25 heads."""

LINKS = 12

Made = TypeVar("Made")


class Pending(NamedTuple):
    """A head whose weights are being gone over.

    Attributes:
        done: which share of the work is done, 0 to 1.
    """

    done: float


class TokenNumbers(NamedTuple):
    """What one token looks at, or is looked at by, in one head.

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

    Args:
        matrices: of each layer.
        sample: which sample of the batch.
        tile_bytes: how much is kept of tiles.
        level_bytes: how much is kept of what they start from; one head is kept in any case.

    Example:
        >>> query = key = torch.randn(1, 2, 7, 4)
        >>> tiles = Tiles([AttentionMatrix(query, key)])
        >>> tiles.tile(0, 1, (0, 7), (2, 6), (4, 4))
        Tile of queries 0 to 6 and keys 2 to 5; one cell = 2 × 1 tokens
        >>> tiles.close()
    """

    def __init__(
        self,
        matrices: Sequence[AttentionMatrix],
        *,
        sample: int = 0,
        tile_bytes: int = TILE_BYTES,
        level_bytes: int = LEVEL_BYTES,
    ) -> None:
        self._problems = [matrix.problem for matrix in matrices]
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
    ) -> Tile | Pending:
        """A part of a head's map, in at most so many cells.

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
        problem = self._problem(layer, head)
        _check_range("rows", rows, problem.query_len)
        _check_range("columns", columns, problem.kv_len)
        for name, count in zip(("rows", "columns"), cells, strict=True):
            number = whole(count)
            if number is None or not 1 <= number <= MOST_CELLS:
                raise ArgumentError(
                    "tile.cells",
                    f"a tile has 1 to {MOST_CELLS} {name} of cells; got {count!r}.",
                )
        level = self._level(layer, head)
        if isinstance(level, Pending):
            return level
        exact = is_exact(problem, rows[1] - rows[0], columns[1] - columns[0])
        if exact:
            high, wide = cells_of(*rows, cells[0]), cells_of(*columns, cells[1])
        else:
            high, wide = (
                cells_of(first // step * step, min(size, -(-stop // step) * step), most, step)
                for (first, stop), step, most, size in zip(
                    (rows, columns),
                    level.step,
                    cells,
                    (problem.query_len, problem.kv_len),
                    strict=True,
                )
            )

        def make() -> Tile:
            if not exact:
                return tile_of_level(level, self._sample, high, wide)
            return exact_tile(problem, level.total[self._sample], self._sample, head, high, wide)

        return self._once(self._tiles, ("tile", layer, head, high, wide), make)

    def token(self, layer: int, head: int, place: int, *, as_key: bool) -> TokenNumbers | Pending:
        """The numbers of a token: as a query, what it looks at; as a key, who looks at it.

        Raises:
            SelectionError: codes `tile.head` and `tile.token`, for what is not there.
        """
        problem = self._problem(layer, head)
        size = problem.kv_len if as_key else problem.query_len
        if not 0 <= place < size:
            axis = "keys" if as_key else "queries"
            raise SelectionError("tile.token", f"there are {size} {axis}; got number {place}.")
        level = self._level(layer, head)
        if isinstance(level, Pending):
            return level
        rows, columns = range(place, place + 1), range(problem.kv_len)
        if as_key:
            rows, columns = range(problem.query_len), rows
        total = level.total[self._sample]
        with self._computing:
            tile = exact_tile(problem, total, self._sample, head, rows, columns)
        weights = tile.values.flatten().double()
        best = weights.topk(min(LINKS, len(weights)))
        links = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        entropy = None if as_key else float(torch.special.entr(weights).sum())
        return TokenNumbers(
            tuple(link for link in links if link[1] != 0), float(weights.sum()), entropy
        )

    def close(self) -> None:
        """Stop what is being worked out, and wait until it has."""
        with self._changed:
            self._closed = True
            worker = self._worker
            self._changed.notify_all()
        if worker is not None:
            worker.join()

    def _problem(self, layer: int, head: int) -> Any:
        count = len(self._problems)
        if not 0 <= layer < count:
            raise SelectionError("tile.head", f"there are {count} layers; got number {layer}.")
        problem = self._problems[layer]
        if not 0 <= head < problem.num_heads:
            raise SelectionError(
                "tile.head",
                f"layer {layer} has {problem.num_heads} heads; got number {head}.",
            )
        return problem

    def _level(self, layer: int, head: int) -> Level | Pending:
        """What the tiles of a head start from, or how far it is."""
        place, problem = (layer, head), self._problems[layer]
        with self._changed:
            level = self._levels.get(place)
            if level is not None:
                return level
        if is_exact(problem, problem.batch * problem.query_len, problem.kv_len):
            return self._once(self._levels, place, lambda: self._make_level(place, None))
        with self._changed:
            if place in self._failed:
                raise self._failed[place]
            # Who asks last is served first.
            if place in self._wanted:
                self._wanted.remove(place)
            if place not in self._done:
                self._wanted.append(place)
                self._changed.notify_all()
            if self._worker is None and not self._closed:
                self._worker = threading.Thread(target=self._work, name="clearhead levels")
                self._worker.start()
            return Pending(self._done.get(place, 0.0))

    def _make_level(
        self, place: tuple[int, int], progress: Callable[[float], None] | None
    ) -> Level:
        layer, head = place
        return make_level(of_heads(self._problems[layer], [head], f"layer {layer}"), progress)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._wanted)
                if self._closed:
                    return
                place = self._wanted.pop()
                self._done[place] = 0.0

            def progress(done: float, place: tuple[int, int] = place) -> None:
                self._done[place] = done
                if self._closed:
                    raise _ClosedError
                with self._computing:  # a tile that somebody waits for goes first
                    pass

            try:
                level = self._make_level(place, progress)
            except _ClosedError:
                return
            except Exception as error:
                # Told to whoever asks; the other heads go on.
                with self._changed:
                    self._failed[place] = error
                    del self._done[place]
                continue
            with self._changed:
                self._levels.put(place, level)
                del self._done[place]

    def _once(self, kept: "_Kept", key: Any, make: Callable[[], Made]) -> Made:
        """What is kept, or what is made now; who asks for what is being made waits for it."""
        with self._changed:
            found = kept.get(key)
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
            kept.put(key, made)
            del self._running[key]
        future.set_result(made)
        return made


class _ClosedError(Exception):
    """Ends a pass that nobody waits for any more."""


class _Kept:
    """What was asked for last, up to so many bytes, and the last one in any case."""

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


def _check_range(name: str, given: tuple[int, int], size: int) -> None:
    first, stop = (whole(each) for each in given)
    if first is None or stop is None or not 0 <= first < stop <= size:
        raise ArgumentError(
            "tile.range",
            f"{name} must be from 0 on, upwards and up to {size} tokens; got {given[0]!r} to "
            f"{given[1]!r}.",
        )
