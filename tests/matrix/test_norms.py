"""Norms of weighted values against the matrix of all of them, which they never make."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.errors import ArgumentTypeError, DtypeError
from clearhead.matrix.norms import Norms
from tests.refusals import assert_refused, wrong

HEADS, QUERIES, KEYS, WIDE = 6, 5, 7, 4


def dense(matrix: AttentionMatrix, output: Tensor | None) -> Tensor:
    """weights · ‖value · W‖, of all pairs at once."""
    heads = matrix.num_heads
    assert matrix.value is not None
    each = matrix.value[(None,) * (4 - matrix.ndim)]
    each = each.repeat_interleave(heads // each.shape[1], dim=1)
    if output is not None:
        each = each @ output.view(output.shape[0], heads, -1).permute(1, 2, 0)
    weights = matrix.dense()
    return weights * each.norm(dim=-1)[:, :, None].reshape(
        *weights.shape[:-2], 1, weights.shape[-1]
    )


def matrix_with_value(dims: int = 4, kv_heads: int = 2, **options: Any) -> AttentionMatrix:
    heads, shared = (2, HEADS)[4 - dims :], (2, kv_heads)[4 - dims :]
    query = torch.randn(*heads, QUERIES, 3, dtype=torch.float64)
    key, value = (torch.randn(*shared, KEYS, width, dtype=torch.float64) for width in (3, WIDE))
    return AttentionMatrix(query, key, value=value, **options)


SINKS = torch.linspace(-1, 1, HEADS, dtype=torch.float64)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"mask": ch.causal() & ch.padding([KEYS, KEYS - 2])},
    "an empty row": {"mask": ch.sliding_window(left=1) & ch.padding([KEYS, 3])},
    "softcap": {"softcap": 2.0, "scale": 3.0},
    "sinks": {"mask": ch.causal(), "sinks": SINKS},
    "a bias": {
        "bias": torch.linspace(-2, 2, QUERIES * KEYS, dtype=torch.float64).view(QUERIES, KEYS)
    },
    "alibi": {"bias": ch.alibi(HEADS), "mask": ch.causal()},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_shares_are_rows_divided_by_their_sums(name: str) -> None:
    torch.manual_seed(0)
    matrix = matrix_with_value(**OPTIONS[name])
    shares = matrix.norms().shares()
    expected = dense(matrix, None)
    expected = expected / expected.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(shares.dense(), expected)
    torch.testing.assert_close(shares.at([0, 4], [3, 1]), expected[..., [0, 4], [3, 1]])
    assert shares.logsumexp.isfinite().any()  # once it is known, pairs are computed one by one
    torch.testing.assert_close(shares.at([0, 4], [3, 1]), expected[..., [0, 4], [3, 1]])
    torch.testing.assert_close(shares.entropy(), -torch.xlogy(expected, expected).sum(dim=-1))
    grouped = expected.sum(dim=-2).unflatten(1, (2, -1)).sum(dim=2)
    torch.testing.assert_close(shares.received(), grouped)
    assert (matrix.real is None) == (shares.real is None)
    assert shares.value is matrix.value


def test_a_value_behind_the_mask_is_not_taken() -> None:
    """Nor is it where it is no number; where it is seen, it is no number there alone."""
    query, key, value = torch.randn(3, 1, 2, 5, 3).unbind()
    value[0, 0, 3] = torch.nan
    matrix = AttentionMatrix(query, key, mask=ch.causal(), value=value)
    norms = matrix.norms()
    broken = torch.zeros(1, 2, 5, 5, dtype=torch.bool)
    broken[0, 0, 3:, 3] = True
    assert norms.dense().isnan().equal(broken)
    assert norms.pool(5, 5).isnan().equal(broken)
    assert norms.received().isnan().equal(broken.any(dim=-2))
    assert norms.total().isnan().equal(broken.any(dim=-1))
    assert norms.at([2, 3], [3, 3]).isnan()[0].tolist() == [[False, True], [False, False]]
    assert norms.top_k(2).weights[0, 0, :3].isfinite().all()


def test_values_of_nothing() -> None:
    query, key = torch.randn(2, 1, 2, 4, 3).unbind()
    value = torch.ones(1, 2, 4, 3)
    value[0, 0] = 0.0
    value[0, 1, 2] = 0.0
    matrix = AttentionMatrix(query, key, value=value)
    norms = matrix.norms()
    assert norms.total()[0, 0].eq(0).all()
    shares = norms.shares()
    torch.testing.assert_close(shares[0, 0], matrix[0, 0])
    assert shares[0, 1, :, 2].max() < 1e-30


def test_the_gradient_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    output = torch.randn(7, 6, dtype=torch.float64)
    matrix = AttentionMatrix(*given[:2], value=given[2], mask=ch.causal())
    norms, expected = matrix.norms(output), dense(matrix, output)
    for found, wanted in (
        (norms.received(), expected.sum(dim=-2)),
        (norms.total(), expected.sum(dim=-1)),
        (norms[0, 1, 3], expected[0, 1, 3]),
        (norms.at([4], [1]), expected[..., [4], [1]]),
    ):
        one = torch.autograd.grad(found.square().sum(), given, retain_graph=True)
        other = torch.autograd.grad(wanted.square().sum(), given, retain_graph=True)
        for mine, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_what_is_refused() -> None:
    matrix = matrix_with_value()
    bare = AttentionMatrix(torch.zeros(3, 4), torch.zeros(3, 4))
    assert_refused(bare.norms, "norms.value", "… // …")
    assert_refused(lambda: matrix.norms(torch.zeros(24, 23)), "norms.output", "… // 24 // (24, 23)")
    assert_refused(
        lambda: matrix.norms(wrong([1.0])), "output.type", "output // a torch.Tensor // list"
    )
    others = (
        (torch.zeros(24, 24, dtype=torch.complex64), "torch.complex64 on cpu"),
        (torch.zeros(24, 24, device="meta"), "torch.float32 on meta"),
    )
    for output, said in others:
        text = f"[norms.dtype] output must be of real numbers; got {said}."
        with pytest.raises(DtypeError, match=f"^{re.escape(text)}$"):
            matrix.norms(output)
    with pytest.raises(ArgumentTypeError, match=r"^\[cross.type\] cross must be True or False"):
        AttentionMatrix(torch.zeros(3, 4), torch.zeros(3, 4), cross="no")  # type: ignore[arg-type]
    norms: Norms = matrix.norms()
    assert_refused(lambda: norms.top_k(0), "top-k.value", "7 // 0")
    assert_refused(lambda: norms.pool(QUERIES + 1, 2), "pool.size", "rows // queries // 5 // 6")
