from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import clearhead as ch
from clearhead.attention.distance_biases import Alibi
from clearhead.masks.spans import Extent
from tests.memory import held_bytes

CPU = torch.device("cpu")


def slopes_of(num_heads: int) -> list[float]:
    bias = ch.alibi(num_heads)
    assert isinstance(bias, Alibi)
    return bias.slopes.tolist()


def halves(*exponents: Fraction | int) -> list[float]:
    """2^-x for each x, as the float32 that is stored."""
    return torch.tensor([2.0 ** -float(x) for x in exponents], dtype=torch.float32).tolist()


@pytest.mark.parametrize(
    "exponents",
    [
        [8],
        [4, 8],
        # The two models of the paper, section 3: 1/2, 1/4, … 1/256, and with half steps between.
        [1, 2, 3, 4, 5, 6, 7, 8],
        [Fraction(n, 2) for n in range(1, 17)],
        # Those of the power of two below, then every second one of the power of two above, as in its code.
        [4, 8, 2],
        [2, 4, 6, 8, 1],
        [2, 4, 6, 8, 1, 3],
        [1, 2, 3, 4, 5, 6, 7, 8, *(Fraction(n, 2) for n in (1, 3, 5, 7))],
    ],
    ids=len,
)
def test_slopes_of_the_paper(exponents: list[Fraction | int]) -> None:
    assert slopes_of(len(exponents)) == halves(*exponents)


def test_alibi_holds_a_number_for_each_head() -> None:
    assert held_bytes(ch.alibi(12)) == 4 * 12


def test_the_number_of_heads_may_be_one_of_numpy() -> None:
    int_of_numpy: Any = np.int64(4)
    assert ch.alibi(int_of_numpy).describe() == "alibi(4)"


def test_the_slopes_of_the_paper_go_to_any_device() -> None:
    meta = torch.device("meta")
    bias = ch.alibi(4)
    bias.check(Extent(1, 4, 3, 5, meta))
    assert bias.to_dense(3, 5, device="meta").is_meta


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 6), st.integers(0, 6), st.data())
def test_a_bias_by_distance_is_that_of_each_pair(
    heads: int, reach: int, query_len: int, kv_len: int, data: st.DataObject
) -> None:
    """And some of its heads are those heads."""
    values, slopes = torch.randn(heads, 2 * reach + 1), torch.randn(heads)
    some = torch.tensor(
        data.draw(st.lists(st.integers(0, heads - 1), min_size=1, max_size=3))
    ).long()
    ahead = torch.arange(kv_len) - (torch.arange(query_len)[:, None] + kv_len - query_len)
    for bias, expected in (
        (ch.relative(values), values[:, ahead.clamp(-reach, reach) + reach]),
        (ch.alibi(slopes=slopes), -slopes[:, None, None] * ahead.abs()),
    ):
        assert torch.equal(bias.to_dense(query_len, kv_len)[0], expected)
        found = bias.of_heads(some).to_dense(query_len, kv_len)[0]
        assert torch.equal(found.expand(expected[some].shape), expected[some])
