import copy

import pytest
import torch

from clearhead.layers.caches import FixedCache
from tests.layers.caches.texts import tokens


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
