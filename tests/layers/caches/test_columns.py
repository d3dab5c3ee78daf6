"""Caches that keep every token in a column of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.layers.caches import GrowingCache, QuantisedCache, StaticCache
from clearhead.layers.caches.columns import ColumnCache
from tests.layers.caches.texts import Texts, tokens
from tests.refusals import assert_refused

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
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


def test_memory_doubles_and_so_moves_seldom() -> None:
    cache = GrowingCache()
    places = set()
    sizes = set()
    for _ in range(257):
        key, _ = cache.append(*tokens(1, 1)[1:])
        places.add((key.data_ptr(), cache.nbytes))
        sizes.add(cache.nbytes)
    # 2, 6, 14, … columns, of 2 heads × (5 + 7) numbers of 4 bytes: each time 2 (n + 1).
    assert sorted(sizes) == [columns * 2 * 12 * 4 for columns in (2, 6, 14, 30, 62, 126, 254, 510)]
    assert len(places) == len(sizes)


def test_the_step_after_a_prompt_moves_nothing() -> None:
    cache = GrowingCache()
    prompt, _ = cache.append(*tokens(2, 13)[1:])
    step, _ = cache.append(*tokens(2, 13)[1:])
    assert step.data_ptr() == prompt.data_ptr()


def test_what_was_given_back_outlives_a_move() -> None:
    cache = GrowingCache()
    _, key, value = tokens(1, 2)
    early, _ = cache.append(key, value)
    for _ in range(7):
        cache.append(*tokens(1, 3)[1:])
    assert torch.equal(early, key)


def test_what_was_given_is_not_held_on_to() -> None:
    cache = GrowingCache()
    _, key, value = tokens(1, 2)
    expected = key.clone()
    kept, _ = cache.append(key, value)
    key.zero_()
    assert torch.equal(kept, expected)


def test_a_full_cache_says_so_and_stays_as_it_was() -> None:
    texts = Texts(StaticCache(7), 2)
    texts.append(5)
    assert_refused(lambda: texts.cache.append(*tokens(2, 3)[1:]), "cache.full", "7 // 5 // 3")
    texts.append(2)
    texts.truncate(6)
    texts.append(1)


def test_a_first_prompt_that_is_too_long() -> None:
    cache = StaticCache(2)
    assert_refused(lambda: cache.append(*tokens(2, 3)[1:]), "cache.full", "2 // 0 // 3")
    assert cache.nbytes == 0


def test_the_memory_is_set_aside_once() -> None:
    cache = StaticCache(11)
    key, value = cache.append(*tokens(3, 2)[1:])
    places = key.data_ptr(), value.data_ptr()
    # 3 rows, 2 heads, 11 tokens, 5 + 7 numbers of 4 bytes.
    assert cache.nbytes == 3 * 2 * 11 * 12 * 4
    cache.append(*tokens(3, 5)[1:])
    cache.reorder([2, 2, 0])
    cache.truncate(3)
    kept = cache.append(*tokens(3, 4)[1:])
    assert tuple(tensor.data_ptr() for tensor in kept) == places
    cache.reset()
    kept = cache.append(*tokens(3, 1)[1:])
    assert tuple(tensor.data_ptr() for tensor in kept) == places
    assert cache.nbytes == 3 * 2 * 11 * 12 * 4


def test_a_reset_wipes_the_memory() -> None:
    cache = StaticCache(5)
    key, value = cache.append(*tokens(1, 3)[1:])
    cache.reset()
    assert not key.any()
    assert not value.any()


@pytest.mark.parametrize("max_len", [0, -3, 2.0, True])
def test_what_is_no_size_is_refused(max_len: Any) -> None:
    with pytest.raises((ch.errors.ArgumentError, ch.errors.ArgumentTypeError), match="max_len"):
        StaticCache(max_len)


@given(
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-320, 300),
    new=st.integers(1, 5),
)
def test_no_number_is_off_by_more_than_the_error(
    dtype: torch.dtype, exponent: int, new: int
) -> None:
    """From the smallest numbers of a dtype to the largest."""
    cache = QuantisedCache()
    largest = torch.finfo(dtype).max
    key, value = (
        (tensor.double() * 10.0**exponent).clamp(-largest, largest).to(dtype)
        for tensor in tokens(2, new)[1:]
    )
    for exact, kept in zip((key, value), cache.append(key, value), strict=True):
        assert kept.dtype == dtype
        assert float((kept.double() - exact.double()).abs().max()) <= cache.error


def test_the_error_is_half_a_step_of_the_coarsest_scale() -> None:
    cache = QuantisedCache()
    assert cache.error == 0.0
    key = torch.tensor([[254.0, 1.0, -3.0]]).view(1, 1, 1, 3)
    kept, _ = cache.append(key, key)
    # Steps of 2: halves go to the even number of steps.
    assert kept.flatten().tolist() == [254.0, 0.0, -4.0]
    eps = torch.finfo(torch.float32).eps
    assert 1.0 <= cache.error <= 1.0 + 255 * eps
    cache.append(key / 2, key / 2)
    assert cache.error >= 1.0
    cache.append(2 * key, 2 * key)
    assert cache.error >= 2.0
    cache.truncate(1)
    assert cache.error <= 1.0 + 255 * eps


def test_padding_does_not_count() -> None:
    cache = QuantisedCache()
    _, key, value = tokens(1, 2)
    key[:, :, 0] = 1e6
    cache.append(key, value, valid=torch.tensor([[False, True]]))
    largest = float(max(key[:, :, 1].abs().max(), value[:, :, 1].abs().max()))
    assert cache.error <= largest / 127


def test_a_scale_belongs_to_one_head_of_one_token() -> None:
    cache = QuantisedCache()
    _, key, value = tokens(2, 3)
    key[0, 1, 2] *= 1e6
    kept, _ = cache.append(key, value)
    off = (kept - key).abs()
    half = key.abs().amax(dim=3, keepdim=True) / 254
    assert (off <= half * (1 + 1e-4)).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_comes_back_as_nan(bad: float) -> None:
    cache = QuantisedCache()
    _, key, value = tokens(1, 3)
    key[0, 1, 2, 3] = bad
    kept, kept_value = cache.append(key, value)
    expected = torch.zeros(1, 2, 3, 5, dtype=torch.bool)
    expected[0, 1, 2] = True
    assert torch.equal(kept.isnan(), expected)
    assert kept_value.isfinite().all()


def test_zeros_come_back_as_zeros() -> None:
    cache = QuantisedCache()
    kept, _ = cache.append(torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 7))
    assert not kept.any()


def test_it_takes_little_more_than_a_quarter() -> None:
    quantised, growing = QuantisedCache(), GrowingCache()
    key = torch.randn(1, 2, 13, 64)
    for cache in (quantised, growing):
        cache.append(key, key)
    # A byte for each of 64 numbers, and a scale of 4 bytes, against 4 bytes for each.
    assert quantised.nbytes * 4 * 64 == growing.nbytes * (64 + 4)
