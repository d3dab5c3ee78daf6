import copy

import pytest
import torch

import clearhead as ch
from clearhead.layers.caches import FixedCache
from tests.layers.caches.texts import Texts, tokens
from tests.refusals import assert_refused


def test_all_of_its_memory_comes_back_at_every_step() -> None:
    cache = FixedCache(11)
    first = cache.append(*tokens(3, 5)[1:])
    places = [each.data_ptr() for each in first]
    for _ in range(2):
        kept = cache.append(*tokens(3, 2)[1:])
        assert [each.data_ptr() for each in kept] == places
        assert [each.shape[2] for each in kept] == [11, 11]
    assert len(cache) == 9
    cache.reorder([2, 2, 0])
    cache.truncate(3)
    assert [each.data_ptr() for each in cache.append(*tokens(3, 1)[1:])] == places
    cache.reset()
    assert len(cache) == 0


def test_a_full_cache_says_so_and_stays_as_it_was() -> None:
    texts = Texts(FixedCache(7), 2)
    texts.append(5)
    assert_refused(lambda: texts.cache.append(*tokens(2, 3)[1:]), "cache.full", "7 // 5 // 3")
    texts.append(2)


@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
def test_its_tensors_are_the_cache(padded: bool) -> None:
    cache = FixedCache(11)
    valid = torch.tensor([[False, True, True], [True, True, True]]) if padded else None
    cache.append(*tokens(2, 3)[1:], valid=valid)
    again = FixedCache.of(*copy.deepcopy(cache.state()))
    _, key, value = tokens(2, 2)
    for ours, theirs in zip(cache.append(key, value), again.append(key, value), strict=True):
        assert torch.equal(ours, theirs)
    assert len(cache) == len(again) == 5
    assert torch.equal(cache.positions, again.positions)
    assert cache.next_positions(1).tolist() == again.next_positions(1).tolist()
    assert torch.equal(cache.mask().to_dense(2, 11), again.mask().to_dense(2, 11))


def test_the_last_token_sees_what_is_held() -> None:
    cache = FixedCache(7)
    for held in (1, 2, 7):
        cache.append(*tokens(2, held - len(cache))[1:])
        mask = cache.mask()
        run = mask.common_run(mask.extent(1, 7))
        assert run == slice(0, held)
        assert mask.to_dense(1, 7)[0].tolist() == [key < held for key in range(7)]
        assert mask.common_run(mask.extent(2, 7)) is None


def test_what_is_cut_is_no_padding_and_its_tensors_stay_in_place() -> None:
    cache = FixedCache(7)
    cache.append(*tokens(2, 5)[1:], valid=torch.arange(5) < torch.tensor([[5], [2]]))
    places = [each.data_ptr() for each in cache.state()]
    for length, real in ((4, [7, 5]), ([4, 3], [7, 5]), ([1, 3], [5, 6])):
        cache.truncate(length)
        *_, valid = cache.state()
        assert valid.sum(-1).tolist() == real
    assert [each.data_ptr() for each in cache.state()] == places


KEYS = torch.zeros(2, 2, 7, 4)


def test_tensors_that_are_no_cache_are_refused() -> None:
    assert_refused(FixedCache(7).state, "cache.empty")
    assert_refused(
        lambda: FixedCache.of(KEYS, KEYS, torch.tensor([3])), "length.type", "torch.int64 // (1,)"
    )
    with pytest.raises(ch.errors.ShapeError, match=r"cache\.shape"):
        FixedCache.of(KEYS, KEYS[:1], torch.tensor(3))
    with pytest.raises(ch.errors.ShapeError, match=r"cache\.valid"):
        FixedCache.of(KEYS, KEYS, torch.tensor(3), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ch.errors.ArgumentTypeError):
        FixedCache.of(KEYS, KEYS, 3)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def test_a_context_is_refused() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    assert_refused(
        lambda: layer(torch.randn(1, 3, 8), torch.randn(1, 4, 8), cache=FixedCache(5)),
        "layer.cache-kind",
        "FixedCache(5)",
    )
