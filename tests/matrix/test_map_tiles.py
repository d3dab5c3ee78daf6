"""Tiles, held against all of the weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.matrix import map_tiles
from clearhead.matrix.map_tiles import MapTile, cells_of, exact_tile
from tests.matrix.test_laws import Drawn, matrices
from tests.matrix.test_matrix import plain

DTYPE = torch.float64


def pooled(weights: Tensor, rows: range, columns: range) -> Tensor:
    """(queries, keys) in cells, token by token: average over queries of sums over keys."""
    part = weights[rows.start : rows.stop, columns.start : columns.stop]
    row, column = (
        torch.arange(max(0, cells.stop - cells.start)) // cells.step for cells in (rows, columns)
    )
    sums = part.new_zeros(len(rows), part.shape[1]).index_add_(0, row, part)
    sums = sums.new_zeros(len(rows), len(columns)).index_add_(1, column, sums)
    return sums / row.bincount()[:, None]


class Whole:
    """All of a matrix, to hold tiles against: the weights, what is seen of them, and each query's logsumexp."""

    def __init__(self, weights: AttentionMatrix) -> None:
        problem = weights.problem
        sizes = (problem.batch, problem.num_heads, problem.query_len, problem.kv_len)
        self.weights, self.total = (
            plain(weights).reshape(sizes),
            weights.logsumexp.reshape(sizes[:3]),
        )
        self.seen = torch.ones(sizes, dtype=torch.bool)
        mask, bias = problem.visible(), problem.bias_block()
        if mask is not None:
            self.seen &= mask
        if bias is not None:
            self.seen &= bias > -torch.inf

    def check(self, tile: MapTile, sample: int, head: int) -> None:
        expected = pooled(self.weights[sample, head], tile.rows, tile.columns)
        # Rounded to float32 at the end, and nowhere before.
        torch.testing.assert_close(
            tile.values, expected.float(), rtol=2e-7, atol=1e-14, equal_nan=True
        )
        seen = pooled(self.seen[sample, head].double(), tile.rows, tile.columns)
        assert tile.hidden.equal(seen == 0)


@st.composite
def cells(draw: st.DrawFn, size: int) -> range:
    """Some tokens of so many, in cells of so many."""
    first = draw(st.integers(0, size - 1))
    return range(first, draw(st.integers(first + 1, size)), draw(st.integers(1, size)))


@given(matrices, st.sampled_from([7, 1 << 20]), st.data())
def test_a_tile_is_the_weights_pooled(each: Drawn, most: int, data: st.DataObject) -> None:
    """In chunks of a query or two, and in one."""
    weights, whole = each.matrix, Whole(each.matrix)
    sample, head = (data.draw(st.integers(0, size - 1)) for size in weights.shape[:2])
    rows, columns = (data.draw(cells(size)) for size in weights.shape[2:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_tiles, "CHUNK", most)
        tile = exact_tile(weights.problem, whole.total[sample, head], sample, head, rows, columns)
    whole.check(tile, sample, head)


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
    monkeypatch.setattr(map_tiles, "MOST_QUERIES", 13)
    query, key = (torch.randn(1, heads, 311, 5, dtype=DTYPE) for heads in (3, kv_heads))
    weights = AttentionMatrix(query, key, mask=mask)
    whole = Whole(weights)
    for rows, columns in (
        (range(0, 311, 37), range(0, 311, 23)),
        (range(7, 301, 2), range(11, 307, 5)),
        (range(300, 311), range(3, 23)),
        (range(11), range(290, 311)),
    ):
        whole.check(exact_tile(weights.problem, whole.total[0, 2], 0, 2, rows, columns), 0, 2)


def test_what_is_no_number_stays_none() -> None:
    query, key = torch.randn(2, 6, 3, dtype=DTYPE)
    query[1], key[4] = torch.nan, torch.inf
    weights = AttentionMatrix(query, key, mask=ch.causal())
    whole = Whole(weights)
    whole.check(exact_tile(weights.problem, whole.total[0, 0], 0, 0, range(6), range(6)), 0, 0)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((0, 10, 10), range(10)),
        ((0, 10, 9), range(0, 10, 2)),
        ((3, 10, 1), range(3, 10, 7)),
    ],
)
def test_cells(asked: tuple[int, ...], expected: range) -> None:
    assert cells_of(*asked) == expected
    assert len(expected) <= asked[2]
