import torch

import clearhead as ch
from clearhead.layers.caches import SlidingCache
from tests.layers.caches.texts import Texts, tokens
from tests.refusals import assert_refused


def test_the_memory_is_that_of_the_window() -> None:
    cache = SlidingCache(5, spare=2)
    for new in (1, 23, 1, 4):
        cache.append(*tokens(3, new)[1:])
        # 3 rows, 2 heads, 5 + 2 tokens, 5 + 7 numbers of 4 bytes.
        assert cache.nbytes == 3 * 2 * 7 * 12 * 4


def test_single_tokens_come_back_as_the_ring_itself() -> None:
    cache = SlidingCache(3)
    places, positions = set(), []
    for _ in range(5):
        key, _ = cache.append(*tokens(1, 1)[1:])
        places.add(key.data_ptr())
        positions.append(cache.positions.tolist())
        assert cache.mask().describe() == "full()"
    assert len(places) == 1
    assert positions == [[0], [0, 1], [0, 1, 2], [3, 1, 2], [3, 4, 2]]


def test_a_prompt_comes_back_whole_and_without_a_copy() -> None:
    cache = SlidingCache(3)
    _, key, value = tokens(1, 11)
    kept = cache.append(key, value)
    assert [t.data_ptr() for t in kept] == [key.data_ptr(), value.data_ptr()]
    assert cache.mask().describe() == "sliding_window(left=2, right=None)"
    kept, _ = cache.append(*tokens(1, 2)[1:])
    assert cache.positions.tolist() == [9, 10, 11, 12]
    assert torch.equal(kept[:, :, :2], key[:, :, 9:])


def test_how_far_back_it_can_go() -> None:
    texts = Texts(SlidingCache(4, spare=2), 2)
    texts.append(11)
    texts.truncate(8)
    texts.append(1)
    # The ring held tokens 5 to 10. Token 8 came anew, but the first of the old ones is still 5.
    assert_refused(
        lambda: texts.truncate(7), "cache.truncate", "7 // SlidingCache(4, spare=2) // 9"
    )
    texts.append(1)
    texts.truncate(0)
    texts.append(3)


def test_a_window_of_one_token_holds_nothing_that_is_wanted() -> None:
    texts = Texts(SlidingCache(1), 2)
    cache = texts.cache
    for new in (1, 3):
        query, key, value = tokens(2, new)
        kept_key, kept_value = cache.append(key, value)
        context = ch.attend(query, kept_key, kept_value, mask=ch.causal() & cache.mask())
        assert torch.equal(kept_key, key)
        torch.testing.assert_close(context, value.repeat_interleave(3, dim=1))
    cache.truncate([3, 1])
    assert cache.next_positions(1).tolist() == [[3], [1]]
    cache.truncate(1)
    assert cache.next_positions(1).tolist() == [[1], [1]]
