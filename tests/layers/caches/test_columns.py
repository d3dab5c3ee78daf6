"""Caches that keep every token in a column of its own."""

from collections.abc import Callable

import pytest
import torch

from clearhead.layers.caches import FixedCache, GrowingCache, StaticCache
from clearhead.layers.caches.columns import ColumnCache
from tests.layers.caches.texts import Texts, tokens
from tests.refusals import assert_refused

COLUMNS: list[Callable[[], ColumnCache]] = [GrowingCache, lambda: StaticCache(23)]
columns = pytest.mark.parametrize("make", COLUMNS, ids=["growing", "static"])
fixed = pytest.mark.parametrize("kind", [StaticCache, FixedCache])


@columns
def test_padding_keeps_its_column_and_has_no_position(make: Callable[[], ColumnCache]) -> None:
    cache = make()
    cache.append(*tokens(2, 1)[1:])
    assert cache.mask().describe() == "full()"
    assert cache.positions.tolist() == [0]
    valid = torch.tensor([[False, False, True], [True, True, False]])
    cache.append(*tokens(2, 3)[1:], valid=valid)
    cache.append(*tokens(2, 2)[1:])
    assert cache.positions.tolist() == [[0, 1, 1, 1, 2, 3], [0, 1, 2, 3, 3, 4]]
    expected = torch.ones(2, 6, dtype=torch.bool)
    expected[:, 1:4] = valid
    assert torch.equal(cache.mask().to_dense(1, 6)[:, 0, 0], expected)
    # Cut to nothing, the padding is gone.
    cache.truncate(0)
    assert cache.mask().describe() == "full()"
    cache.append(*tokens(2, 2)[1:])
    assert cache.positions.tolist() == [0, 1]


@columns
def test_what_comes_back_is_a_view_of_one_memory(make: Callable[[], ColumnCache]) -> None:
    cache = make()
    # Ten tokens fit into what the first five set aside.
    first = cache.append(*tokens(2, 5)[1:])
    second = cache.append(*tokens(2, 5)[1:])
    for before, after in zip(first, second, strict=True):
        assert before.data_ptr() == after.data_ptr()
        assert torch.equal(after[:, :, :5], before)


def test_memory_doubles_and_so_moves_seldom() -> None:
    cache = GrowingCache()
    places, sizes = set(), set()
    for _ in range(257):
        key, _ = cache.append(*tokens(1, 1)[1:])
        places.add((key.data_ptr(), cache.nbytes))
        sizes.add(cache.nbytes)
    # 2, 6, 14, … columns, of 2 heads × (5 + 7) numbers of 4 bytes: each time 2 (n + 1).
    assert sorted(sizes) == [columns * 2 * 12 * 4 for columns in (2, 6, 14, 30, 62, 126, 254, 510)]
    assert len(places) == len(sizes)


def test_what_was_given_is_not_held_on_to_and_what_came_back_outlives_a_move() -> None:
    cache = GrowingCache()
    _, key, value = tokens(1, 2)
    expected = key.clone()
    early, _ = cache.append(key, value)
    key.zero_()
    for _ in range(7):
        cache.append(*tokens(1, 3)[1:])
    assert torch.equal(early, expected)


@fixed
def test_a_full_cache_says_so_and_stays_as_it_was(kind: Callable[[int], ColumnCache]) -> None:
    texts = Texts(kind(7), 2)
    assert_refused(lambda: texts.cache.append(*tokens(2, 8)[1:]), "cache.full", "7 // 0 // 8")
    assert texts.cache.nbytes == 0
    texts.append(5)
    assert_refused(lambda: texts.cache.append(*tokens(2, 3)[1:]), "cache.full", "7 // 5 // 3")
    texts.append(2)
    texts.truncate(6)
    texts.append(1)


@fixed
def test_the_memory_is_set_aside_once(kind: Callable[[int], ColumnCache]) -> None:
    cache = kind(11)
    key, value = cache.append(*tokens(3, 2)[1:])
    places = [key.data_ptr(), value.data_ptr()]
    # 3 rows, 2 heads, 11 tokens, 5 + 7 numbers of 4 bytes.
    assert cache.nbytes == 3 * 2 * 11 * 12 * 4
    cache.append(*tokens(3, 5)[1:])
    cache.reorder([2, 2, 0])
    cache.truncate(3)
    assert [each.data_ptr() for each in cache.append(*tokens(3, 4)[1:])] == places
    cache.reset()
    assert not key.any()
    assert not value.any()
    kept = cache.append(*tokens(3, 1)[1:])
    assert [each.data_ptr() for each in kept] == places
    assert [each.shape[2] for each in kept] == [11 if kind is FixedCache else 1] * 2
    assert cache.nbytes == 3 * 2 * 11 * 12 * 4
