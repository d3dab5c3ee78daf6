"""The results of the heads, held against the product of context and projection written out."""

import re

import pytest
import torch

from clearhead.errors import ArgumentTypeError
from clearhead.matrix.head_results import HeadResults
from tests.refusals import assert_refused, wrong

BATCH, HEADS, LEN, WIDTH, EMBED = 2, 3, 5, 4, 7


def parts() -> tuple[HeadResults, torch.Tensor, torch.Tensor]:
    context = torch.randn(BATCH, HEADS, LEN, WIDTH, dtype=torch.float64)
    weight = torch.randn(EMBED, HEADS * WIDTH, dtype=torch.float64)
    bias = torch.randn(EMBED, dtype=torch.float64)
    dense = torch.stack(
        [context[:, h] @ weight[:, h * WIDTH : (h + 1) * WIDTH].mT for h in range(HEADS)], dim=1
    )
    return HeadResults(context, weight, bias), dense, bias


def test_each_part_is_that_of_the_product() -> None:
    results, dense, _ = parts()
    assert results.shape == dense.shape
    torch.testing.assert_close(results.dense(), dense)
    for index in (0, (1, 2), (slice(None), [0, 2], -1), (..., 3), (0, 1, 2, 3), (1, slice(1, 3))):
        torch.testing.assert_close(results[index], dense[index])
    assert repr(results) == "HeadResults [batch=2, num_heads=3, query_len=5, embed_dim=7] of z · W"


def test_the_total_is_the_sum_and_the_bias() -> None:
    results, dense, bias = parts()
    torch.testing.assert_close(results.total(), dense.sum(dim=1) + bias)
    plain = HeadResults(results.context, torch.zeros(EMBED, HEADS * WIDTH), None)
    assert bool((plain.total() == 0).all())


def test_norms_and_directions_are_those_of_the_product() -> None:
    results, dense, _ = parts()
    torch.testing.assert_close(results.norms(), dense.norm(dim=-1))
    one, each = torch.randn(EMBED), torch.randn(BATCH, LEN, EMBED, dtype=torch.float64)
    torch.testing.assert_close(results.along(one), dense @ one.double())
    torch.testing.assert_close(results.along(each), (dense * each[:, None]).sum(dim=-1))


def test_a_projection_to_fewer_than_a_head_has() -> None:
    context, weight = torch.randn(1, 2, 3, 6), torch.randn(4, 12)
    results = HeadResults(context, weight, None)
    torch.testing.assert_close(results.norms(), results.dense().norm(dim=-1))


def test_sixteen_bits_are_upcast() -> None:
    results = HeadResults(torch.ones(1, 1, 2, 3).bfloat16(), torch.ones(4, 3).bfloat16(), None)
    assert results.dense().dtype == torch.float32


def test_what_does_not_fit_is_refused() -> None:
    results, *_ = parts()
    assert_refused(lambda: results[0, 3], "matrix.range", "3 // 1 // 3")
    assert_refused(
        lambda: results.along(torch.zeros(2, EMBED)),
        "results.direction",
        "7 // (2, 5, 7) // (2, 7)",
    )
    assert_refused(
        lambda: results.along(wrong(3)), "direction.type", "direction // a torch.Tensor // int"
    )
    with pytest.raises(ArgumentTypeError, match=re.escape("a HeadResults is no tensor")):
        torch.as_tensor(results)
