from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.layers.caches import PagedCache
from tests.layers.caches.texts import Texts, tokens
from tests.refusals import assert_refused


def pages_for(lengths: list[int], page_len: int) -> int:
    return sum(-(-length // page_len) for length in lengths)


@given(page_len=st.integers(1, 5), lengths=st.lists(st.integers(0, 11), min_size=1, max_size=4))
def test_a_row_takes_the_pages_that_its_tokens_fill(page_len: int, lengths: list[int]) -> None:
    cache = PagedCache(page_len)
    batch = len(lengths)
    valid = torch.arange(11) < torch.tensor(lengths)[:, None]
    cache.append(*tokens(batch, 11)[1:], valid=valid)
    assert cache.pages_used == pages_for(lengths, page_len)
    cache.append(*tokens(batch, 2)[1:])
    assert cache.pages_used == pages_for([length + 2 for length in lengths], page_len)
    cache.truncate(5)
    assert cache.pages_used == pages_for([min(length, 5) for length in lengths], page_len)
    cache.truncate(0)
    assert cache.pages_used == 0


def test_beams_share_pages_until_they_write() -> None:
    texts = Texts(PagedCache(4), 1)
    cache = texts.cache
    assert isinstance(cache, PagedCache)
    texts.append(10)
    assert cache.pages_used == 3
    texts.reorder([0, 0, 0])
    assert cache.pages_used == 3
    # Two of the three copy the page that is not full; the last one has it for itself.
    texts.append(1)
    assert cache.pages_used == 5
    texts.append(1)
    texts.reorder([1, 1, 1])
    assert cache.pages_used == 3
    # Full pages are shared for good: each beam takes a new one.
    texts.append(1)
    assert cache.pages_used == 6
    texts.reorder([2])
    assert cache.pages_used == 4


def test_a_shared_page_that_was_cut_is_not_written_to() -> None:
    texts = Texts(PagedCache(4), 1)
    texts.append(8)
    texts.reorder([0, 0])
    texts.truncate(6)
    texts.append(1)
    texts.append(5)


def test_a_full_pool_says_so_and_stays_as_it_was() -> None:
    texts = Texts(PagedCache(2, num_pages=5), 2)
    texts.append(3)
    assert_refused(
        lambda: texts.cache.append(*tokens(2, 3)[1:]), "cache.full", "5 // 2 // 1 // 6 // 2"
    )
    texts.append(1)
    texts.append(3, torch.tensor([[True, True, False], [False] * 3]))
    with pytest.raises(ch.errors.TooLargeError):
        texts.cache.append(*tokens(2, 1)[1:])
    texts.truncate(2)
    texts.append(2)


def test_a_page_that_has_to_be_copied_is_counted() -> None:
    texts = Texts(PagedCache(4, num_pages=2), 1)
    texts.append(3)
    texts.reorder([0, 0, 0])
    with pytest.raises(ch.errors.TooLargeError, match=r"1 of them free; 3 more tokens want 2\."):
        texts.cache.append(*tokens(3, 1)[1:])
    texts.reorder([0, 1])
    texts.append(1)


def test_the_first_tokens_may_be_too_many() -> None:
    cache = PagedCache(2, num_pages=3)
    assert_refused(lambda: cache.append(*tokens(2, 5)[1:]), "cache.full", "3 // 2 // 3 // 10 // 6")
    assert cache.nbytes == 0


def test_a_pool_of_fixed_size_stays_in_place() -> None:
    cache = PagedCache(3, num_pages=7)
    sizes = set()
    for _ in range(9):
        cache.append(*tokens(2, 1)[1:])
        sizes.add(cache.nbytes)
    # Beside the 7 pages the empty one; 2 heads, 5 + 7 numbers of 4 bytes.
    assert sizes == {8 * 3 * 2 * 12 * 4}


def test_first_tokens_come_back_as_they_are() -> None:
    cache = PagedCache(3)
    _, key, value = tokens(2, 5)
    kept = cache.append(key, value)
    assert [t.data_ptr() for t in kept] == [key.data_ptr(), value.data_ptr()]


def test_what_is_hidden_is_nobody_elses() -> None:
    """Places of shorter rows come back as zeros, and not as tokens of other rows."""
    cache = PagedCache(2)
    valid = torch.arange(5) < torch.tensor([[5], [1]])
    cache.append(*tokens(2, 5)[1:], valid=valid)
    new = torch.tensor([[True], [False]])
    key, _ = cache.append(*tokens(2, 1)[1:], valid=new)
    hidden = ~cache.mask().to_dense(1, 6)[:, 0, 0]
    assert hidden.sum() == 5
    assert not key.transpose(1, 2)[hidden].any()


@pytest.mark.parametrize(
    "size", [{"page_len": 0}, {"page_len": 2.0}, {"page_len": 2, "num_pages": 0}]
)
def test_what_is_no_size_is_refused(size: dict[str, Any]) -> None:
    with pytest.raises(
        (ch.errors.ArgumentError, ch.errors.ArgumentTypeError), match=r"page_len|num_pages"
    ):
        PagedCache(**size)
