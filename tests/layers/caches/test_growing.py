import torch

from clearhead.layers.caches import GrowingCache
from tests.layers.caches.texts import tokens


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
