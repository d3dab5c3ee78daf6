import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.layers.caches import GrowingCache, QuantisedCache
from tests.layers.caches.texts import tokens

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


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
