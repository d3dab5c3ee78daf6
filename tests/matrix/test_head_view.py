"""A view of some heads: the numbers of the matrix, pooled where they are many, and hidden where it hides."""

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.matrix.head_view import FEWEST_QUERIES, HeadView, side
from clearhead.matrix.indexing import bins
from clearhead.matrix.matrix import AttentionMatrix
from tests.drawing.figures.drawn import matrix as grouped
from tests.tolerances import assert_no_worse


def matrix(*leading: int, queries: int = 13, keys: int = 17) -> AttentionMatrix:
    query, key = torch.randn(*leading, queries, 4), torch.randn(*leading, keys, 4)
    return AttentionMatrix(query.double(), key.double(), mask=ch.causal())


def pooled_visible(weights: ch.AttentionMatrix, rows: int, columns: int) -> torch.Tensor:
    """True for each cell that has a visible pair, from the whole mask: (batch, num_heads, rows, columns)."""
    query_len, kv_len = weights.shape[-2:]
    seen = weights.problem.visible()
    assert seen is not None
    seen = seen.expand(weights.shape)
    of_row = bins(query_len, rows, seen.device)
    of_column = bins(kv_len, columns, seen.device)
    found = torch.zeros(*seen.shape[:2], rows, columns, dtype=torch.bool)
    for row in range(rows):
        for column in range(columns):
            part = seen[:, :, of_row == row][..., of_column == column]
            found[:, :, row, column] = part.flatten(2).any(dim=2)
    return found


MASKS = {
    "spans": lambda: ch.causal() & ch.sliding_window(left=9),
    "lengths": lambda: ch.causal() & ch.padding([41, 17]),
    "holes": lambda: ch.padding((torch.arange(43) % 11 < 2).expand(2, -1)),
    "samples": lambda: ch.dense(torch.rand(2, 1, 41, 43) > 0.97),
    "heads": lambda: ch.dense(torch.rand(2, 6, 41, 43) > 0.97),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("most", [13, 64])
def test_a_cell_is_hidden_where_nothing_of_it_is_visible(name: str, most: int) -> None:
    mask = MASKS[name]()
    weights = grouped(query_len=41, kv_len=43, mask=mask)
    for heads in ([0, 1, 2, 3, 4, 5], [4, 1]):
        maps = HeadView(weights, 1, heads).maps(most)
        seen = pooled_visible(weights, *maps.shares.shape[1:])[1, heads]
        assert maps.hidden is not None
        assert maps.hidden.expand(maps.shares.shape).equal(~seen)


def test_a_bias_hides_as_well() -> None:
    bias = torch.zeros(1, 1, 7, 7)
    bias[..., 3] = -torch.inf
    query = torch.randn(2, 3, 7, 5)
    weights = ch.AttentionMatrix(query, query, bias=bias, mask=ch.causal())
    hidden = HeadView(weights, 1, [2]).maps(7).hidden
    assert hidden is not None
    expected = ~torch.ones(7, 7).tril().bool()
    expected[:, 3] = True
    assert hidden[0].equal(expected)


def test_few_tokens_are_the_weights_themselves() -> None:
    weights = grouped(query_len=11, kv_len=13)
    maps = HeadView(weights, 1, [5, 0]).maps(13)
    assert maps.shares.equal(weights[1, [5, 0]])
    assert (maps.pooled, maps.hidden, maps.visible) == (False, None, None)


@pytest.mark.parametrize("tied", [False, True])
def test_many_tokens_are_pooled(tied: bool) -> None:
    """The mean over the queries of a cell of what they give to its keys together."""
    mask = ch.causal() & ch.padding([41, 17]) if tied else ch.causal()
    weights = grouped(query_len=41, kv_len=43, mask=mask)
    maps = HeadView(weights, 1, [3, 4]).maps(8)
    assert maps.pooled
    assert maps.shares.shape == (2, 7, 8)

    def pooled(dense: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.one_hot(bins(41, 7, dense.device)).to(dense)
        columns = torch.nn.functional.one_hot(bins(43, 8, dense.device)).to(dense)
        return rows.T @ dense @ columns / rows.sum(dim=0)[:, None]

    problem = weights.problem
    exact = ch.AttentionMatrix(problem.query.double(), problem.key.double(), mask=mask)
    assert_no_worse(maps.shares, pooled(exact[1, [3, 4]]), pooled(weights[1, [3, 4]]))
    kept = HeadView(weights.summary(pool=(7, 8)), 1, [3, 4]).maps(8)
    torch.testing.assert_close(kept.shares, maps.shares)
    assert kept.hidden is None  # a summary keeps no mask


@pytest.mark.parametrize("tokens", [1, 2, 255, 256, 257, 511, 513, 99_991])
def test_cells_are_of_one_size_save_the_last(tokens: int) -> None:
    count = side(tokens, 256)
    assert 1 <= count <= 256
    sizes = bins(tokens, count, torch.device("cpu")).bincount()
    assert int(sizes.max() - sizes.min()) <= 1
    assert int(sizes.max()) == -(-tokens // 256)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_heads_have_the_numbers_that_the_matrix_has(leading: tuple[int, ...]) -> None:
    weights = matrix(*leading)
    sample, heads = (1 if len(leading) > 1 else 0), ([2, 0] if leading else [0])
    view = HeadView(weights, sample, heads)
    shares = weights.dense().reshape(-1, 3 if leading else 1, 13, 17)[sample, heads]
    assert view.numbers == heads
    torch.testing.assert_close(view.exact().shares, shares)
    torch.testing.assert_close(view.exact(5).shares, shares[:, ::5])
    torch.testing.assert_close(view.statistic("max"), shares.amax(dim=-1))
    received, members = view.received()
    assert members == sorted(heads)
    torch.testing.assert_close(received, shares.sum(dim=1).mean(dim=0))
    assert not view.is_empty


def test_heads_that_share_a_key_are_received_together() -> None:
    query, key = torch.randn(1, 6, 5, 4), torch.randn(1, 2, 5, 4)
    weights = ch.AttentionMatrix(query, key)
    received, members = HeadView(weights, heads=[4]).received()
    assert members == [3, 4, 5]
    torch.testing.assert_close(received.float(), weights.dense()[0, 3:].sum(dim=1).mean(dim=0))


def test_a_number_of_a_query_that_is_padding_is_none() -> None:
    weights = ch.AttentionMatrix(*torch.randn(2, 2, 3, 5, 4), mask=ch.causal() & ch.padding([5, 2]))
    numbers = HeadView(weights, 1).statistic("entropy")
    assert numbers.isnan().tolist() == [[False, False, True, True, True]] * 3


def test_what_is_hidden_is_hidden_in_a_coarser_map() -> None:
    query, key = torch.randn(2, 211, 5), torch.randn(2, 223, 5)
    weights = ch.AttentionMatrix(query, key, mask=ch.causal() & ch.sliding_window(left=20))
    exact = HeadView(weights).exact()
    for most in (7, 50, 211):
        rows, columns = side(211, most), side(223, most)
        coarse, pooled = exact.coarser(rows, columns), HeadView(weights).maps(most)
        torch.testing.assert_close(coarse.shares, pooled.shares)
        assert coarse.hidden is not None
        assert pooled.hidden is not None
        assert coarse.hidden.equal(pooled.hidden)


def first(weights: Tensor) -> Tensor:
    """The heads of the first sample."""
    while weights.ndim > 3:
        weights = weights[0]
    return weights if weights.ndim == 3 else weights[None]


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_few_tokens_are_drawn_pair_by_pair(leading: tuple[int, ...]) -> None:
    weights = matrix(*leading)
    maps = HeadView(weights).glance(20)
    dense = first(weights.dense())
    assert maps.shares is not None
    torch.testing.assert_close(maps.shares, dense)
    torch.testing.assert_close(maps.entropy, first(weights.entropy()[..., None])[..., 0].mean(-1))
    torch.testing.assert_close(maps.distance, first(weights.distance()[..., None])[..., 0].mean(-1))
    assert maps.grain == "a cell is one query × one key"


def test_cells_are_shares_of_their_row() -> None:
    weights = matrix(2)
    maps = HeadView(weights).glance(5)
    pooled = weights.pool(5, 5)
    assert maps.shares is not None
    torch.testing.assert_close(maps.shares, pooled / pooled.sum(-1, keepdim=True))
    assert maps.grain == "a cell is up to 3 queries × up to 4 keys"


def test_where_all_would_be_too_much_some_queries_are_looked_at() -> None:
    weights = matrix(2, queries=31, keys=31)
    maps = HeadView(weights).glance(8, pairs=2 * 31 * 10)
    picked = torch.arange(8) * 31 // 8
    dense = weights.dense()[:, picked]
    assert maps.queries == 8
    assert maps.shares is not None
    assert maps.shares.shape == (2, 8, 8)
    torch.testing.assert_close(maps.entropy, weights.entropy()[:, picked].mean(-1))
    torch.testing.assert_close(maps.distance, weights.distance()[:, picked].mean(-1))
    torch.testing.assert_close(maps.shares[:, :, 0], dense[:, :, :4].sum(-1))
    assert maps.grain == "a row is one of 8 queries, 31 in all; a cell is up to 4 keys"


def test_where_even_a_few_would_be_too_much_there_is_no_map() -> None:
    maps = HeadView(matrix(2)).glance(5, pairs=2 * 17 * (FEWEST_QUERIES - 1))
    assert (maps.shares, maps.entropy, maps.grain) == (None, None, "")


def test_no_tokens_and_no_numbers() -> None:
    empty = AttentionMatrix(torch.zeros(2, 0, 4), torch.zeros(2, 3, 4))
    assert HeadView(empty).glance(5).shares is None
    meta = AttentionMatrix(*torch.zeros(2, 1, 2, 3, 4, device="meta"))
    assert HeadView(meta).glance(5).shares is None


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_a_summary_has_the_same_maps(leading: tuple[int, ...]) -> None:
    weights = matrix(*leading)
    maps = HeadView(weights.summary(pool=(13, 17))).glance(5)
    expected = HeadView(weights).glance(5)
    assert maps.shares is not None
    assert expected.shares is not None
    torch.testing.assert_close(maps.shares, expected.shares)
    torch.testing.assert_close(maps.entropy, expected.entropy)
    assert HeadView(weights.summary()).glance(5).shares is None
