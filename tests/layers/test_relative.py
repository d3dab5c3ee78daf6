"""Relative positions against those of T5, and what is refused."""

from typing import Any

import pytest
import torch
import transformers
from transformers.models.t5.modeling_t5 import T5Attention

import clearhead as ch
from clearhead.layers import RelativeBias
from tests.refusals import refusals, run, wrong

HEADS = 3


def both(bidirectional: bool, buckets: int, farthest: int) -> tuple[RelativeBias, T5Attention]:
    """Our part and an attention of T5 with the same table."""
    config = transformers.T5Config(
        d_model=12,
        d_kv=4,
        num_heads=HEADS,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=farthest,
        is_decoder=not bidirectional,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True)
    ours = RelativeBias(
        HEADS, num_buckets=buckets, max_distance=farthest, bidirectional=bidirectional
    )
    ours.load_state_dict({"table": theirs.relative_attention_bias.weight})
    return ours, theirs


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 5), (12, 17), (4, 3)])
def test_it_is_that_of_t5(bidirectional: bool, buckets: int, farthest: int) -> None:
    ours, theirs = both(bidirectional, buckets, farthest)
    bias: Any = ours.attend_options(torch.arange(3), torch.arange(3))["bias"]
    assert bias.values.shape == (HEADS, 2 * farthest + 1)
    for query_len, kv_len in (7, 7), (1, 1), (150, 150), (5, 141):
        expected = theirs.compute_bias(query_len, kv_len, past_seen_tokens=kv_len - query_len)
        assert torch.equal(bias.to_dense(query_len, kv_len), expected)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_layer_is_that_of_t5(bidirectional: bool) -> None:
    """T5 scales no scores. The gradient reaches the table."""
    part, theirs = both(bidirectional, 8, 5)
    theirs.double().eval()
    layer = ch.MultiHeadAttention(
        12,
        num_heads=HEADS,
        output_bias=False,
        mask=None if bidirectional else ch.causal(),
        parts=[part, ch.layers.Scale(1.0)],
    ).double()
    names = {"query": "q", "key": "k", "value": "v", "output": "o"}
    with torch.no_grad():
        for ours, name in names.items():
            getattr(layer, f"{ours}_projection").weight.copy_(getattr(theirs, name).weight)
        part.table.copy_(theirs.relative_attention_bias.weight)
    x = torch.randn(2, 11, 12, dtype=torch.float64)
    hidden = torch.full((11, 11), -torch.inf).double().triu(1)
    expected = theirs(x, mask=None if bidirectional else hidden)[0]
    output = layer(x)
    bound = 64 * 12 * torch.finfo(torch.float64).eps * float(expected.detach().abs().max())
    torch.testing.assert_close(output, expected, rtol=0, atol=bound)
    weight = torch.randn_like(output)
    (mine,) = torch.autograd.grad((output * weight).sum(), part.table)
    (table,) = torch.autograd.grad((expected * weight).sum(), theirs.relative_attention_bias.weight)
    bound *= float(table.abs().max()) * 12
    torch.testing.assert_close(mine, table, rtol=0, atol=bound)


def test_it_is_described() -> None:
    part = RelativeBias(2, num_buckets=4, max_distance=3)
    assert repr(part) == "RelativeBias(2, num_buckets=4, max_distance=3, bidirectional=True)"
    layer = ch.MultiHeadAttention(8, num_heads=2, parts=[part])
    problem = layer.make_problem(torch.randn(1, 5, 8))
    assert "bias=relative(2 × 7)" in problem.describe()
    assert list(part.state_dict()) == ["table"]


test_refusals = refusals(
    run,
    (lambda: RelativeBias(2, num_buckets=5), "relative.buckets", "5 // 128"),
    (lambda: RelativeBias(2, num_buckets=32, max_distance=8), "relative.buckets", "32 // 8"),
    (lambda: RelativeBias(0), "argument.size", "num_heads // 0"),
    (lambda: RelativeBias(2, bidirectional=wrong(1)), "bidirectional.type", "bidirectional // 1"),
)
