"""Indices as users give them; what a matrix makes of them is tested with the matrix."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.matrix.indexing import as_indices, read_pairs, runs, take
from tests.refusals import assert_refused, refusals

CPU = torch.device("cpu")
SIZES = (2, 7, 11)


@pytest.mark.parametrize(
    ("query_index", "key_index", "queries", "keys"),
    [
        (3, -1, [[3]], [[10]]),
        ([3, -7], [0, 4], [[3, 0]], [[0, 4]]),
        ([3, 4, 5], 2, [[3, 4, 5]], [[2, 2, 2]]),
        (2, range(3), [[2, 2, 2]], [[0, 1, 2]]),
        (torch.tensor([[1], [2]]), [5, 6], [[1, 1], [2, 2]], [[5, 6], [5, 6]]),
        (torch.tensor([[1, 2]]), [5, 6], [[1, 2]], [[5, 6]]),
        (torch.tensor([1, 2], dtype=torch.int8), (5, -6), [[1, 2]], [[5, 5]]),
        (np.int64(1), [np.int32(5)], [[1]], [[5]]),
        ([], [], [[]], [[]]),
        ([], 3, [[]], [[]]),
    ],
)
def test_pairs(query_index: Any, key_index: Any, queries: Any, keys: Any) -> None:
    found = read_pairs(query_index, key_index, SIZES)
    assert found[0].tolist() == queries
    assert found[1].tolist() == keys
    assert found[0].dtype == found[1].dtype == torch.int64
    both = (query_index, key_index)
    assert found[2] == all(isinstance(each, int | np.integer) for each in both)


PAIRS = "ints of shape (pairs,) or (batch, pairs)"
test_refused_pairs = refusals(
    lambda pairs: read_pairs(pairs[0], pairs[1], SIZES),
    ((7, 0), "matrix.range", "7 // -2 // 7"),
    (([0, -8], 0), "matrix.range", "-8 // -2 // 7"),
    ((0, torch.tensor([0, 11])), "matrix.range", "11 // -1 // 11"),
    ((0, 10**21), "matrix.range", "1000000000000000000000 // -1 // 11"),
    ((1.0, 0), "matrix.index", "-2 // 1.0"),
    ((True, 0), "matrix.index", "-2 // True"),
    ((0, "a"), "matrix.index", "-1 // 'a'"),
    ((torch.tensor([0.5]), 0), "matrix.index", f"-2 // {PAIRS} // torch.float32 // (1,)"),
    (
        (0, torch.ones(11, dtype=torch.bool)),
        "matrix.index",
        f"-1 // {PAIRS} // torch.bool // (11,)",
    ),
    (
        (torch.zeros(1, 1, 2, dtype=torch.int64), 0),
        "matrix.index",
        f"-2 // {PAIRS} // torch.int64 // (1, 1, 2)",
    ),
    (
        (torch.zeros(2, dtype=torch.int64, device="meta"), 0),
        "matrix.index",
        f"-2 // {PAIRS} // a meta tensor // (2,)",
    ),
    (([0, 1], [0, 1, 2]), "matrix.pairs", "(2,) // (3,)"),
    ((torch.zeros(3, 2, dtype=torch.int64), [0, 1]), "matrix.pairs", "2 // (3, 2)"),
)


def test_there_is_no_pair_where_nothing_is() -> None:
    assert_refused(lambda: read_pairs(0, 0, (1, 3, 0)), "matrix.range", "0 // -1 // 0")
    assert read_pairs([], [], (1, 3, 0))[0].shape == (1, 0)


steps = st.integers(-5, 5).filter(bool) | st.none()
ends = st.integers(-9, 9) | st.none()


@given(ends, ends, steps, st.integers(0, 7))
def test_a_slice_is_that_of_a_list(
    start: int | None, stop: int | None, step: int | None, size: int
) -> None:
    index = slice(start, stop, step)
    assert as_indices(index, size, CPU).tolist() == list(range(size))[index]


def test_all_in_order_is_no_copy() -> None:
    tensor = torch.randn(3, 5)
    assert take(tensor, 1, torch.arange(5)) is tensor
    assert torch.equal(take(tensor, 1, torch.tensor([4, 0])), tensor[:, [4, 0]])
    assert torch.equal(take(tensor, 0, torch.tensor([2, 1, 0])), tensor.flip(0))


@given(st.lists(st.integers(0, 20)))
def test_runs_are_the_rows_in_their_order(rows: list[int]) -> None:
    found = runs(torch.tensor(rows, dtype=torch.int64))
    assert [row for run in found for row in range(run.start, run.stop)] == rows
    assert all(before.stop != after.start for before, after in pairwise(found))
