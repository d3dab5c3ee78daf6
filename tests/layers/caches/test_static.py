from typing import Any

import pytest

import clearhead as ch
from clearhead.layers.caches import StaticCache
from tests.layers.caches.texts import Texts, tokens


def test_a_full_cache_says_so_and_stays_as_it_was() -> None:
    texts = Texts(StaticCache(7), 2)
    texts.append(5)
    with pytest.raises(ch.TooLargeError) as caught:
        texts.cache.append(*tokens(2, 3)[1:])
    assert str(caught.value) == (
        "[cache.full] the cache has room for max_len=7 tokens and holds 5; got 3 more."
    )
    texts.append(2)
    texts.truncate(6)
    texts.append(1)


def test_a_first_prompt_that_is_too_long() -> None:
    cache = StaticCache(2)
    with pytest.raises(ch.TooLargeError, match="holds 0; got 3 more"):
        cache.append(*tokens(2, 3)[1:])
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
    with pytest.raises((ch.ArgumentError, ch.ArgumentTypeError), match="max_len"):
        StaticCache(max_len)
