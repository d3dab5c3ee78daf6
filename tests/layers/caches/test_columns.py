"""Caches that keep every token in a column of its own."""

from collections.abc import Callable

import pytest
import torch

import clearhead as ch
from clearhead.layers.caches import GrowingCache, QuantisedCache, StaticCache
from clearhead.layers.caches.columns import ColumnCache
from tests.layers.caches.texts import tokens

COLUMNS: list[Callable[[], ColumnCache]] = [GrowingCache, lambda: StaticCache(23), QuantisedCache]
columns = pytest.mark.parametrize("make", COLUMNS, ids=["growing", "static", "quantised"])


@columns
def test_padding_keeps_its_column_and_has_no_position(make: Callable[[], ColumnCache]) -> None:
    cache = make()
    valid = torch.tensor([[False, False, True], [True, True, False]])
    cache.append(*tokens(2, 3)[1:], valid=valid)
    cache.append(*tokens(2, 2)[1:])
    assert cache.positions.tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 2, 3]]
    expected = torch.cat([valid, torch.ones(2, 2, dtype=torch.bool)], dim=1)
    assert torch.equal(cache.mask().to_dense(1, 5)[:, 0, 0], expected)


@columns
def test_padding_may_come_late(make: Callable[[], ColumnCache]) -> None:
    cache = make()
    cache.append(*tokens(2, 3)[1:])
    assert cache.mask().describe() == "full()"
    assert cache.positions.tolist() == [0, 1, 2]
    cache.append(*tokens(2, 1)[1:], valid=torch.tensor([[False], [True]]))
    assert cache.positions.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert cache.next_positions(1).tolist() == [[3], [4]]


@columns
def test_cut_to_nothing_the_padding_is_gone(make: Callable[[], ColumnCache]) -> None:
    cache = make()
    cache.append(*tokens(2, 3)[1:], valid=torch.tensor([[False, True, True], [True] * 3]))
    cache.truncate(0)
    assert cache.mask().describe() == "full()"
    cache.append(*tokens(2, 2)[1:])
    assert cache.positions.tolist() == [0, 1]


@pytest.mark.parametrize("make", COLUMNS[:2], ids=["growing", "static"])
def test_what_comes_back_is_a_view_of_one_memory(make: Callable[[], ColumnCache]) -> None:
    cache = make()
    # Six tokens fit into what the first five set aside.
    first = cache.append(*tokens(2, 5)[1:])
    second = cache.append(*tokens(2, 1)[1:])
    for before, after in zip(first, second, strict=True):
        assert before.data_ptr() == after.data_ptr()
        assert torch.equal(after[:, :, :5], before)


def test_an_empty_mask_is_no_padding() -> None:
    assert isinstance(GrowingCache().mask(), type(ch.full()))
