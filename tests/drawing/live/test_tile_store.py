"""Tiles that are kept, and asked for by several threads at once."""

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.attention.problem import Problem
from clearhead.drawing.live import tile_store
from clearhead.drawing.live.tile_store import Pending, Tiles, TokenNumbers
from clearhead.errors import ArgumentError, ClearheadError, SelectionError
from clearhead.matrix import tiles
from clearhead.matrix.sweep import Progress
from clearhead.matrix.tiles import Level, MapTile, make_level
from tests.matrix.test_tiles import Whole
from tests.refusals import assert_refused

LENGTH = 61


def matrix() -> AttentionMatrix:
    torch.manual_seed(0)
    query, key = torch.randn(1, 4, LENGTH, 3).double(), torch.randn(1, 2, LENGTH, 3).double()
    return AttentionMatrix(query, key, mask=ch.causal())


@pytest.fixture
def store() -> Iterator[Tiles]:
    made = Tiles([matrix(), matrix()])
    yield made
    made.close()


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if LENGTH were too long for one tile."""
    monkeypatch.setattr(tiles, "EXACT_PAIRS", 400)
    monkeypatch.setattr(tiles, "LEVEL_CELLS", 16)


def wait_for(store: Tiles, *given: object) -> MapTile:
    for _ in range(10_000):
        tile = store.tile(*given)  # pyright: ignore[reportArgumentType]
        if isinstance(tile, MapTile):
            return tile
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_a_tile(store: Tiles) -> None:
    tile = store.tile(1, 3, (10, 40), (5, 9), (7, 100))
    assert isinstance(tile, MapTile)
    assert (tile.rows, tile.columns) == (range(10, 40, 5), range(5, 9))
    Whole(matrix()).check(tile, 0, 3)
    assert store.tile(1, 3, (10, 40), (5, 9), (7, 100)) is tile


@pytest.mark.usefixtures("long")
def test_a_long_one_is_read_from_a_level_and_then_exact(store: Tiles) -> None:
    first = store.tile(0, 2, (0, LENGTH), (0, LENGTH), (16, 16))
    assert isinstance(first, Pending)
    assert 0 <= first.done <= 1
    whole = wait_for(store, 0, 2, (0, LENGTH), (0, LENGTH), (16, 16))
    assert (whole.rows, whole.columns) == (range(0, LENGTH, 4), range(0, LENGTH, 4))
    Whole(matrix()).check(whole, 0, 2)
    # It begins and ends where the cells of the level do.
    part = store.tile(0, 2, (6, 47), (3, 51), (4, 8))
    assert isinstance(part, MapTile)
    assert (part.rows, part.columns) == (range(4, 48, 12), range(0, 52, 8))
    Whole(matrix()).check(part, 0, 2)
    near = store.tile(0, 2, (6, 26), (3, 23), (32, 32))
    assert isinstance(near, MapTile)
    assert (near.rows, near.columns) == (range(6, 26), range(3, 23))
    Whole(matrix()).check(near, 0, 2)


@pytest.mark.usefixtures("long")
def test_the_head_asked_for_last_comes_first(store: Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    made, go = [], threading.Event()

    def slowly(problem: Problem, progress: Progress | None = None) -> Level:
        assert go.wait(100)
        made.append(problem.query)
        return make_level(problem, progress)

    monkeypatch.setattr(tile_store, "make_level", slowly)
    everything = ((0, LENGTH), (0, LENGTH), (4, 4))
    monkeypatch.setattr(tile_store, "MOST_WANTED", 2)
    for head in (0, 3, 1, 2, 1):
        assert isinstance(store.tile(0, head, *everything), Pending)
        while store._wanted[:1] == [(0, 0)]:  # until the first is taken up
            time.sleep(0.001)
    go.set()
    for head in range(3):
        wait_for(store, 0, head, *everything)
    query = matrix().problem.query
    order = [next(head for head in range(4) if each[0, 0].equal(query[0, head])) for each in made]
    assert order == [0, 1, 2]  # 3 was given up


@pytest.mark.usefixtures("long")
def test_what_goes_wrong_is_told_to_who_asks(store: Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(problem: Problem, progress: Progress | None = None) -> Level:
        raise MemoryError("too much")

    monkeypatch.setattr(tile_store, "make_level", fails)
    with pytest.raises(MemoryError, match="too much"):
        wait_for(store, 0, 0, (0, LENGTH), (0, LENGTH), (4, 4))
    monkeypatch.undo()
    wait_for(store, 0, 1, (0, LENGTH), (0, LENGTH), (4, 4))


@pytest.mark.usefixtures("long")
def test_closing_ends_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(problem: Problem, progress: Progress | None = None) -> Level:
        assert progress is not None
        begun.set()
        try:
            while True:
                progress(0.5)
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr(tile_store, "make_level", endless)
    store = Tiles([matrix()])
    store.tile(0, 0, (0, LENGTH), (0, LENGTH), (4, 4))
    assert begun.wait(100)
    while store.tile(0, 0, (0, LENGTH), (0, LENGTH), (4, 4)) != Pending(0.5):
        time.sleep(0.001)
    store.close()
    assert ended.is_set()
    assert "clearhead levels" not in [thread.name for thread in threading.enumerate()]


def test_each_tile_is_worked_out_once(store: Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole = [], tile_store.exact_tile

    def slowly(*given: object) -> MapTile:
        made.append(given)
        time.sleep(0.05)
        return whole(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(tile_store, "exact_tile", slowly)
    ask = ((0, 30), (0, 30), (30, 30))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda head: store.tile(0, head, *ask), [0, 1] * 8))
    assert len(made) == 2
    assert len({id(each) for each in found}) == 2


def test_an_error_reaches_everybody_and_is_not_kept(
    store: Tiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object) -> MapTile:
        time.sleep(0.05)
        raise MemoryError

    monkeypatch.setattr(tile_store, "exact_tile", fails)
    ask = (0, 0, (0, 30), (0, 30), (30, 30))
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(store.tile, *ask) for _ in range(4)]
    assert all(isinstance(each.exception(), MemoryError) for each in futures)
    monkeypatch.undo()
    assert isinstance(store.tile(*ask), MapTile)


@pytest.mark.parametrize("most", [160, 200])
def test_what_is_kept_is_bounded(most: int) -> None:
    """A tile of 4 × 4 cells is 80 bytes: 16 of float32 and 16 of bool."""
    store = Tiles([matrix()], tile_bytes=most)
    tiles = [store.tile(0, 0, (i, i + 4), (0, 4), (4, 4)) for i in range(3)]
    assert len(store._tiles) == 2
    assert store._tiles.nbytes == 160
    assert store.tile(0, 0, (2, 6), (0, 4), (4, 4)) is tiles[2]
    assert store.tile(0, 0, (0, 4), (0, 4), (4, 4)) is not tiles[0]
    store.close()


@pytest.mark.usefixtures("long")
def test_one_whole_map_is_kept_in_any_case() -> None:
    store = Tiles([matrix()], level_bytes=1)
    for head in (0, 1):
        wait_for(store, 0, head, (0, LENGTH), (0, LENGTH), (4, 4))
        assert len(store._levels) == 1
    store.close()


def test_a_layer_without_query_and_key() -> None:
    store = Tiles([None, matrix()])
    assert store.tile(0, 7, (0, 4), (0, 4), (4, 4)) is None
    assert store.token(0, 7, 3, as_key=True) is None
    assert isinstance(store.tile(1, 0, (0, 4), (0, 4), (4, 4)), MapTile)
    store.close()


def test_the_numbers_of_a_token(store: Tiles) -> None:
    weights = matrix().dense()[0, 3]
    query = store.token(0, 3, 40, as_key=False)
    assert isinstance(query, TokenNumbers)
    best = weights[40].topk(12)
    assert [place for place, _ in query.links] == best.indices.tolist()
    assert [weight for _, weight in query.links] == pytest.approx(best.values.tolist(), rel=1e-6)
    assert query.total == pytest.approx(1.0, rel=1e-6)
    assert query.entropy == pytest.approx(float(matrix().entropy()[0, 3, 40]), rel=1e-6)
    key = store.token(0, 3, 40, as_key=True)
    assert isinstance(key, TokenNumbers)
    assert key.links[0][0] == int(weights[:, 40].argmax())
    assert key.total == pytest.approx(float(weights[:, 40].sum()), rel=1e-6)
    assert key.entropy is None
    first = store.token(0, 3, 0, as_key=False)
    assert isinstance(first, TokenNumbers)
    assert [place for place, _ in first.links] == [0]  # a weight of 0 is no link


def test_a_key_that_no_query_looks_at() -> None:
    store = Tiles([ch.AttentionMatrix(torch.zeros(2, 0, 4), torch.zeros(2, 3, 4))])
    assert store.token(0, 1, 2, as_key=True) == TokenNumbers((), 0.0, None)
    store.close()


def test_the_stages_of_a_pair_are_those_of_a_trace() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 7, 3), torch.randn(2, 2, 7, 3)
    options = {"mask": ch.causal(), "softcap": 2.0, "bias": ch.alibi(4), "sinks": torch.randn(4)}
    store = Tiles([AttentionMatrix(query, key, **options)], sample=1)
    traced = ch.trace(ch.attend, query, key, key, **options)
    for head, row, column in ((3, 5, 2), (0, 6, 6), (2, 1, 4)):
        found = store.pair(0, head, row, column)
        assert found is not None
        place = (1, head, row, column)
        for stage, value in (
            ("scores", found.score),
            ("scaled_scores", found.scaled),
            ("capped_scores", found.capped),
            ("masked_scores", found.masked),
            ("weights", found.weight),
        ):
            assert value == pytest.approx(float(traced[stage][place]), rel=1e-6, abs=1e-9)
        assert found.query == tuple(query[1, head, row].tolist())
        assert found.key == tuple(key[1, head // 2, column].tolist())
        assert found.weight == pytest.approx(math.exp(found.masked - found.logsumexp), rel=1e-5)
        assert found.bias == pytest.approx(-(0.25 ** (head + 1)) * abs(row - column))
    assert_refused(lambda: store.pair(0, 0, 1, 7), "tile.token", " // 7 keys // 7")
    assert Tiles([None]).pair(0, 0, 1, 1) is None
    store.close()


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        ((2, 0), SelectionError, "[tile.head] there are 2 layers; got number 2."),
        ((-1, 0), SelectionError, "[tile.head] there are 2 layers; got number -1."),
        ((0, 4), SelectionError, "[tile.head] layer 0 has 4 heads; got number 4."),
    ],
)
def test_no_such_head(
    store: Tiles, ask: tuple[int, int], error: type[ClearheadError], message: str
) -> None:
    with pytest.raises(error) as caught:
        store.tile(*ask, (0, 5), (0, 5), (5, 5))
    assert str(caught.value) == message
    with pytest.raises(error):
        store.token(*ask, 0, as_key=True)


@pytest.mark.parametrize("rows", [(5, 1), (3, 3), (-1, 4), (0, 62), (0.5, 3), (0, float("nan"))])
def test_a_range_that_is_none(store: Tiles, rows: tuple[int, int]) -> None:
    for ranges in ((rows, (0, 5)), ((0, 5), rows)):
        with pytest.raises(ArgumentError, match=r"up to 61 tokens; got") as caught:
            store.tile(0, 0, *ranges, (5, 5))
        assert caught.value.code == "tile.range"


@pytest.mark.parametrize("cells", [0, -3, 1025, 2.0])
def test_a_number_of_cells_that_is_none(store: Tiles, cells: int) -> None:
    for name, both in (("rows", (cells, 5)), ("columns", (5, cells))):
        with pytest.raises(ArgumentError) as caught:
            store.tile(0, 0, (0, 5), (0, 5), both)
        assert str(caught.value) == (
            f"[tile.cells] a tile has 1 to 1024 {name} of cells; got {cells!r}."
        )


def test_no_such_token(store: Tiles) -> None:
    with pytest.raises(SelectionError) as caught:
        store.token(0, 0, 61, as_key=False)
    assert str(caught.value) == "[tile.token] there are 61 queries; got number 61."
    assert_refused(lambda: store.token(0, 0, -1, as_key=True), "tile.token", " // 61 keys // -1")
