from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.errors import ArgumentTypeError, DeviceError
from clearhead.masks.per_row import MOST_TOKENS, PerRow


@pytest.mark.parametrize(
    "value", [3, np.int64(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
)
def test_one_number(value: Any) -> None:
    read = PerRow.read(value, "length")
    assert read.value == 3
    assert (read.batch, read.device, read.describe()) == (None, None, "3")
    assert read.limits() == (3, 3)
    assert read.on(torch.device("cpu"), -1, 1) == 3


@pytest.mark.parametrize(
    "value",
    [[1, 4], (1, 4), range(1, 5, 3), [np.int32(1), 4], torch.tensor([1, 4], dtype=torch.int16)],
)
def test_one_number_per_row(value: Any) -> None:
    read = PerRow.read(value, "length")
    assert read.batch == 2
    assert read.describe() == "[1, 4]"
    assert read.limits() == (1, 4)
    placed = read.on(torch.device("cpu"), -1, 1, 1)
    assert isinstance(placed, torch.Tensor)
    assert (placed.dtype, placed.tolist()) == (torch.int64, [[[1]], [[4]]])


@given(st.lists(st.integers(-(2**70), 2**70)))
def test_numbers_are_kept_as_far_as_a_sum_of_them_fits(numbers: list[int]) -> None:
    kept = [max(-MOST_TOKENS, min(MOST_TOKENS, each)) for each in numbers]
    read = PerRow.read(numbers, "offset")
    assert read.batch == len(numbers)
    assert read.limits() == ((min(kept), max(kept)) if kept else None)
    placed = read.on(torch.device("cpu"), -1)
    assert isinstance(placed, torch.Tensor)
    assert placed.tolist() == kept
    fitting = [max(-(2**63), min(2**63 - 1, each)) for each in numbers]
    of_tensor = PerRow.read(torch.tensor(fitting, dtype=torch.int64), "offset")
    assert of_tensor.limits() == read.limits()
    for number, one in zip(numbers, kept, strict=True):
        assert PerRow.read(number, "offset").value == one


def test_what_happens_to_a_tensor_later_does_not_reach_the_mask() -> None:
    lengths = torch.tensor([1, 2])
    mask = ch.padding(lengths)
    lengths.fill_(9)
    assert mask.to_dense(1, 3)[:, 0, 0].tolist() == [[True, False, False], [True, True, False]]


def test_plain_numbers_go_to_any_device_and_a_tensor_stays_on_its_own() -> None:
    meta = torch.device("meta")
    PerRow.read([1, 4], "length").check_device(meta)
    tied = PerRow.read(torch.tensor([1, 4]), "length")
    assert tied.device == torch.device("cpu")
    with pytest.raises(DeviceError, match=r"its length is on cpu, the query on meta"):
        tied.check_device(meta)


def test_a_tensor_without_numbers_is_described_by_their_count() -> None:
    read = PerRow.read(torch.zeros(3, dtype=torch.int64, device="meta"), "length")
    assert read.describe() == "<3 numbers>"
    assert read.limits() is None


@pytest.mark.parametrize(
    "value",
    [None, True, "12", Fraction(1, 1), {1, 2}, [1, True], [[1], [2]], np.ones(2), torch.ones(1)],
)
def test_what_is_not_whole_numbers_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^\[mask\.not-whole\] length must "):
        PerRow.read(value, "length")
