"""Small maps, at a cost that has a bound."""

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.drawing.notebook.inline.maps import FEWEST_QUERIES, maps_of
from clearhead.matrix.matrix import AttentionMatrix


def matrix(*leading: int, queries: int = 13, keys: int = 17) -> AttentionMatrix:
    query, key = torch.randn(*leading, queries, 4), torch.randn(*leading, keys, 4)
    return AttentionMatrix(query.double(), key.double(), mask=ch.causal())


def first(weights: Tensor) -> Tensor:
    """The heads of the first sample."""
    while weights.ndim > 3:
        weights = weights[0]
    return weights if weights.ndim == 3 else weights[None]


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_few_tokens_are_drawn_pair_by_pair(leading: tuple[int, ...]) -> None:
    weights = matrix(*leading)
    maps = maps_of(weights, 20)
    dense = first(weights.dense())
    assert maps.shares is not None
    torch.testing.assert_close(maps.shares, dense)
    torch.testing.assert_close(maps.entropy, first(weights.entropy()[..., None])[..., 0].mean(-1))
    torch.testing.assert_close(maps.distance, first(weights.distance()[..., None])[..., 0].mean(-1))
    assert maps.grain == "a cell is one query × one key"


def test_cells_are_shares_of_their_row() -> None:
    weights = matrix(2)
    maps = maps_of(weights, 5)
    pooled = weights.pool(5, 5)
    assert maps.shares is not None
    torch.testing.assert_close(maps.shares, pooled / pooled.sum(-1, keepdim=True))
    assert maps.grain == "a cell is up to 3 queries × up to 4 keys"


def test_where_all_would_be_too_much_some_queries_are_looked_at() -> None:
    weights = matrix(2, queries=31, keys=31)
    maps = maps_of(weights, 8, pairs=2 * 31 * 10)
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
    maps = maps_of(matrix(2), 5, pairs=2 * 17 * (FEWEST_QUERIES - 1))
    assert (maps.shares, maps.entropy, maps.grain) == (None, None, "")


def test_no_tokens_and_no_numbers() -> None:
    empty = AttentionMatrix(torch.zeros(2, 0, 4), torch.zeros(2, 3, 4))
    assert maps_of(empty, 5).shares is None
    meta = AttentionMatrix(*torch.zeros(2, 1, 2, 3, 4, device="meta"))
    assert maps_of(meta, 5).shares is None


@pytest.mark.parametrize("leading", [(), (2,), (3, 2)])
def test_a_summary_has_the_same_maps(leading: tuple[int, ...]) -> None:
    weights = matrix(*leading)
    maps = maps_of(weights.summary(pool=(13, 17)), 5)
    expected = maps_of(weights, 5)
    assert maps.shares is not None
    assert expected.shares is not None
    torch.testing.assert_close(maps.shares, expected.shares)
    torch.testing.assert_close(maps.entropy, expected.entropy)
    assert maps_of(weights.summary(), 5).shares is None
