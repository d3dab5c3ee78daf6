"""Tiles, held against all of the weights."""

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.drawing.live import tiles
from clearhead.drawing.live.tiles import MapTile, cells_of, exact_tile, make_level, tile_of_level
from clearhead.watching.recording import of_heads
from tests.matrix.test_matrix import PROBLEMS, plain

DTYPE = torch.float64
RECTANGLES = [
    (range(6), range(9)),
    (range(0, 6, 6), range(0, 9, 9)),
    (range(1, 6, 2), range(2, 7, 3)),
    (range(5, 6), range(0, 9, 4)),
    (range(0, 6, 4), range(8, 9)),
]


def pooled(weights: Tensor, rows: range, columns: range) -> Tensor:
    """(queries, keys) in cells, by the plainest way: average over queries of sums over keys."""
    cells = [
        [
            weights[i : min(i + rows.step, rows.stop), j : min(j + columns.step, columns.stop)]
            .sum(dim=1)
            .mean()
            for j in columns
        ]
        for i in rows
    ]
    return torch.tensor(cells, dtype=weights.dtype)


def visible(weights: AttentionMatrix, sample: int, head: int) -> Tensor:
    """(queries, keys): what neither mask nor bias hides."""
    problem = weights.problem
    size = (problem.batch, problem.num_heads, problem.query_len, problem.kv_len)
    seen = torch.ones(size, dtype=torch.bool)
    mask, bias = problem.visible(), problem.bias_block()
    if mask is not None:
        seen &= mask
    if bias is not None:
        seen &= bias > -torch.inf
    return seen[sample, head]


def total(weights: AttentionMatrix) -> Tensor:
    problem = weights.problem
    sizes = (problem.batch, problem.num_heads, problem.query_len)
    return weights.logsumexp.reshape(sizes)


def check(tile: MapTile, weights: AttentionMatrix, sample: int, head: int) -> None:
    problem = weights.problem
    sizes = (problem.batch, problem.num_heads, problem.query_len, problem.kv_len)
    expected = pooled(plain(weights).reshape(sizes)[sample, head], tile.rows, tile.columns)
    # Rounded to float32 at the end, and nowhere before.
    torch.testing.assert_close(tile.values, expected.float(), rtol=2e-7, atol=1e-14, equal_nan=True)
    seen = pooled(visible(weights, sample, head).double(), tile.rows, tile.columns)
    assert tile.hidden.equal(seen == 0)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_tile_is_the_weights_pooled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weights = PROBLEMS[name]()
    problem = weights.problem
    for most in (1 << 20, 7):  # in one chunk, and in chunks of a query or two
        monkeypatch.setattr(tiles, "CHUNK", most)
        for sample in range(problem.batch):
            for head in range(problem.num_heads):
                for rows, columns in RECTANGLES:
                    high, wide = (
                        range(each.start, min(each.stop, size), each.step)
                        for each, size in ((rows, problem.query_len), (columns, problem.kv_len))
                    )
                    tile = exact_tile(
                        problem, total(weights)[sample, head], sample, head, high, wide
                    )
                    check(tile, weights, sample, head)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_level_is_the_weights_pooled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(tiles, "LEVEL_CELLS", 4)
    weights = PROBLEMS[name]()
    problem = weights.problem
    for head in range(problem.num_heads):
        level = make_level(of_heads(problem, [head], ""))
        high, wide = level.step
        for rows, columns in (
            (range(0, problem.query_len, high), range(0, problem.kv_len, wide)),
            (range(0, problem.query_len, 3 * high), range(wide, problem.kv_len, 2 * wide)),
        ):
            for sample in range(problem.batch):
                check(tile_of_level(level, sample, rows, columns), weights, sample, head)


@pytest.mark.parametrize(
    "mask",
    [
        ch.causal(),
        ch.sliding_window(left=17, right=0),
        ch.causal() & ch.documents(torch.arange(311) // 101),
        None,
    ],
    ids=["causal", "window", "documents", "none"],
)
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_longer(mask: ch.Mask | None, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, cells of several chunks, cells that a chunk has several of."""
    torch.manual_seed(0)
    monkeypatch.setattr(tiles, "MOST_QUERIES", 13)
    query, key = (torch.randn(1, heads, 311, 5, dtype=DTYPE) for heads in (3, kv_heads))
    weights = AttentionMatrix(query, key, mask=mask)
    for rows, columns in (
        (range(0, 311, 37), range(0, 311, 23)),
        (range(7, 301, 2), range(11, 307, 5)),
        (range(300, 311), range(3, 23)),
        (range(11), range(290, 311)),
    ):
        tile = exact_tile(weights.problem, total(weights)[0, 2], 0, 2, rows, columns)
        check(tile, weights, 0, 2)


def test_other_lengths() -> None:
    torch.manual_seed(0)
    weights = AttentionMatrix(torch.randn(29, 7, dtype=DTYPE), torch.randn(53, 7, dtype=DTYPE))
    tile = exact_tile(weights.problem, total(weights)[0, 0], 0, 0, range(3, 29, 5), range(0, 53, 7))
    check(tile, weights, 0, 0)


def test_nothing_to_see() -> None:
    weights = AttentionMatrix(
        torch.randn(5, 2, dtype=DTYPE), torch.randn(5, 2, dtype=DTYPE), mask=ch.causal(offset=-3)
    )
    tile = exact_tile(weights.problem, total(weights)[0, 0], 0, 0, range(3), range(5))
    assert tile.hidden.all()
    assert tile.values.equal(torch.zeros(3, 5))


def test_what_is_no_number_stays_none() -> None:
    query, key = torch.randn(2, 6, 3, dtype=DTYPE)
    query[1], key[4] = torch.nan, torch.inf
    weights = AttentionMatrix(query, key, mask=ch.causal())
    tile = exact_tile(weights.problem, total(weights)[0, 0], 0, 0, range(6), range(6))
    check(tile, weights, 0, 0)


def test_half_precision_is_summed_in_single() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 31, 8).half()
    weights = AttentionMatrix(query, key, mask=ch.causal())
    sums = weights.summary().logsumexp
    tile = exact_tile(weights.problem, sums, 0, 0, range(31), range(31))
    torch.testing.assert_close(tile.values, weights.dense())


def test_progress_ends_what_it_raises_in(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[float] = []

    def stop(share: float) -> None:
        done.append(share)
        raise InterruptedError

    weights = AttentionMatrix(*torch.randn(2, 1, 1, 700, 2))
    with pytest.raises(InterruptedError):
        make_level(weights.problem, stop)
    assert len(done) == 1


@pytest.mark.parametrize(
    ("given", "cells"),
    [
        ((0, 10, 10), range(10)),
        ((0, 10, 9), range(0, 10, 2)),
        ((3, 10, 1), range(3, 10, 7)),
        ((0, 50_000, 256, 25), range(0, 50_000, 200)),
        ((50, 101, 256, 25), range(50, 101, 25)),
    ],
)
def test_cells(given: tuple[int, ...], cells: range) -> None:
    assert cells_of(*given) == cells
    assert len(cells) <= given[2]
