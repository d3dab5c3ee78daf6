from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.attention.distance_biases import Alibi
from clearhead.masks.spans import Extent
from tests.memory import held_bytes
from tests.refusals import refusals
from tests.tolerances import assert_no_worse

CPU = torch.device("cpu")


def slopes_of(num_heads: int) -> list[float]:
    bias = ch.alibi(num_heads)
    assert isinstance(bias, Alibi)
    return bias.slopes.tolist()


def halves(*exponents: Fraction | int) -> list[float]:
    """2^-x for each x, as the float32 that is stored."""
    return torch.tensor([2.0 ** -float(x) for x in exponents], dtype=torch.float32).tolist()


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (4, [2, 4, 6, 8]),
        # The two models of the paper, section 3: 1/2, 1/4, … 1/256, and with half steps between.
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, [Fraction(n, 2) for n in range(1, 17)]),
    ],
)
def test_slopes_for_a_power_of_two(num_heads: int, exponents: list[Fraction | int]) -> None:
    assert slopes_of(num_heads) == halves(*exponents)


@pytest.mark.parametrize(
    ("num_heads", "exponents"),
    [
        (3, [4, 8, 2]),
        (5, [2, 4, 6, 8, 1]),
        (6, [2, 4, 6, 8, 1, 3]),
        (7, [2, 4, 6, 8, 1, 3, 5]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, *(Fraction(n, 2) for n in (1, 3, 5, 7))]),
    ],
)
def test_slopes_for_another_number_as_in_the_code_of_the_paper(
    num_heads: int, exponents: list[Fraction | int]
) -> None:
    """Those of the power of two below, then every second one of the power of two above."""
    assert slopes_of(num_heads) == halves(*exponents)


@pytest.mark.parametrize("num_heads", range(1, 40))
def test_no_two_heads_have_the_same_slope(num_heads: int) -> None:
    slopes = slopes_of(num_heads)
    assert len(set(slopes)) == num_heads
    assert all(0 < slope < 1 for slope in slopes)


def alibi_by_pairs(slopes: list[float], query_len: int, kv_len: int) -> Tensor:
    """The formula, pair by pair; the last query sits on the last key."""
    rows = [
        [[-slope * abs(query + kv_len - query_len - key) for key in range(kv_len)]]
        for slope in slopes
        for query in range(query_len)
    ]
    return torch.tensor(rows, dtype=torch.float64).view(1, len(slopes), query_len, kv_len)


@pytest.mark.parametrize(("query_len", "kv_len"), [(5, 5), (1, 7), (3, 7), (7, 3), (0, 3), (3, 0)])
def test_alibi_is_the_formula(query_len: int, kv_len: int) -> None:
    # Powers of two, so that every product is exact.
    bias = ch.alibi(8).to_dense(query_len, kv_len)
    assert bias.dtype == torch.float32
    assert torch.equal(bias.double(), alibi_by_pairs(slopes_of(8), query_len, kv_len))


def test_a_rectangle_of_alibi_is_a_slice_of_the_whole() -> None:
    bias = ch.alibi(3)
    part = bias.block(slice(1, 4), slice(2, 7), Extent(1, 3, 5, 11, CPU))
    assert torch.equal(part, bias.to_dense(5, 11)[:, :, 1:4, 2:7])


def test_alibi_holds_a_number_for_each_head() -> None:
    assert held_bytes(ch.alibi(12)) == 4 * 12


def test_alibi_takes_other_slopes() -> None:
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64)
    bias = ch.alibi(slopes=slopes)
    assert torch.equal(bias.to_dense(2, 3).double(), alibi_by_pairs([0.5, 0.25], 2, 3))
    assert bias.describe() == "alibi(2)"


def test_slopes_in_float64_are_not_rounded() -> None:
    slopes = torch.rand(2, dtype=torch.float64, requires_grad=True)
    query, key, value = torch.randn(3, 1, 2, 7, 3, dtype=torch.float64).unbind()
    apart = (torch.arange(7)[:, None] - torch.arange(7)).abs()
    expected = ch.attend(query, key, value, bias=-slopes.view(1, 2, 1, 1) * apart, kernel="eager")
    for kernel in ("eager", "blockwise"):
        found = ch.attend(query, key, value, bias=ch.alibi(slopes=slopes), kernel=kernel)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    assert torch.autograd.gradcheck(
        lambda slopes: ch.attend(query, key, value, bias=ch.alibi(slopes=slopes)), slopes
    )


def test_the_number_of_heads_may_be_one_of_numpy() -> None:
    int_of_numpy: Any = np.int64(4)
    assert ch.alibi(int_of_numpy).describe() == "alibi(4)"


def test_slopes_that_are_trained_get_their_gradient() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 4).unbind()
    sinks = torch.randn(2)
    slopes = torch.tensor([0.5, 0.3], requires_grad=True)
    assert ch.alibi(slopes=slopes).requires_grad
    assert not ch.alibi(2).requires_grad

    def gradient(kernel: str) -> Tensor:
        context = ch.attend(
            query, key, value, bias=ch.alibi(slopes=slopes), sinks=sinks, kernel=kernel
        )
        return torch.autograd.grad((context * torch.arange(4)).sum(), slopes)[0]

    exact = slopes.detach().double().requires_grad_()
    position = torch.arange(5)
    distance = (position[:, None] - position).abs()
    context = ch.attend(
        query.double(),
        key.double(),
        value.double(),
        bias=-exact.view(1, 2, 1, 1) * distance,
        sinks=sinks.double(),
        kernel="eager",
    )
    (truth,) = torch.autograd.grad((context * torch.arange(4)).sum(), exact)
    assert_no_worse(gradient("auto"), truth, gradient("eager"), what="the gradient of the slopes")


def test_the_slopes_of_the_paper_go_to_any_device() -> None:
    meta = torch.device("meta")
    bias = ch.alibi(4)
    bias.check(Extent(1, 4, 3, 5, meta))
    assert bias.to_dense(3, 5, device="meta").is_meta


@pytest.mark.parametrize(("query_len", "kv_len"), [(5, 7), (7, 5), (1, 11), (3, 0)])
@pytest.mark.parametrize("heads", [1, 3])
def test_a_relative_bias_is_a_number_for_each_distance(
    query_len: int, kv_len: int, heads: int
) -> None:
    values = torch.randn(heads, 7, dtype=torch.float64)
    bias = ch.relative(values)
    whole = bias.to_dense(query_len, kv_len)
    assert whole.shape == (1, heads, query_len, kv_len)
    for i in range(query_len):
        for j in range(kv_len):
            ahead = j - (i + kv_len - query_len)
            assert torch.equal(whole[0, :, i, j], values[:, 3 + max(-3, min(3, ahead))])
    if kv_len > 2:
        part = bias.block(
            slice(1, query_len), slice(2, kv_len), Extent(1, heads, query_len, kv_len, CPU)
        )
        assert torch.equal(part, whole[:, :, 1:, 2:])


def test_a_relative_bias_in_attention() -> None:
    """As the tensor that it stands for, the gradient of its numbers included."""
    values = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    query, key, value = (torch.randn(2, 4, n, 5, dtype=torch.float64) for n in (7, 11, 11))
    bias = ch.relative(values)
    assert bias.requires_grad
    expected = ch.attend(query, key, value, bias=bias.to_dense(7, 11), kernel="eager")
    output = ch.attend(query, key, value, bias=bias, mask=ch.causal(offset=4) | ch.full())
    torch.testing.assert_close(output, expected)
    weight = torch.randn_like(output)
    found, wanted = (
        torch.autograd.grad((each * weight).sum(), values)[0] for each in (output, expected)
    )
    torch.testing.assert_close(found, wanted)
    summed = ch.AttentionMatrix(query, key, bias=ch.relative(values.detach()))
    dense = ch.AttentionMatrix(query, key, bias=bias.to_dense(7, 11).detach())
    torch.testing.assert_close(summed.entropy(), dense.entropy())
    torch.testing.assert_close(summed.at([3, 6], [0, 9]), dense.at([3, 6], [0, 9]))


test_what_is_no_relative_bias = refusals(
    ch.relative,
    ([[1.0]], "relative.type", "list"),
    (torch.zeros(2, 4), "relative.shape", "(2, 4)"),
    (torch.zeros(2, 3, dtype=torch.int64), "relative.dtype", "torch.int64"),
)


test_a_relative_bias_that_does_not_fit = refusals(
    lambda values: ch.attend(*torch.zeros(3, 1, 4, 3, 2), bias=ch.relative(values)),
    (torch.zeros(3, 5), "bias.heads", "relative(3 × 5) // 3 // 4"),
    (torch.zeros(4, 5, dtype=torch.float64), "bias.dtype", "torch.float32 // torch.float64"),
    (torch.zeros(4, 5, device="meta"), "bias.device", "meta // cpu"),
)


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
