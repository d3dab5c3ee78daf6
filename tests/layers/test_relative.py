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


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 5), (12, 17), (4, 3)])
def test_it_is_that_of_t5(bidirectional: bool, buckets: int, farthest: int) -> None:
    config = transformers.T5Config(
        d_model=12, d_kv=4, num_heads=HEADS, relative_attention_num_buckets=buckets,
        relative_attention_max_distance=farthest, is_decoder=not bidirectional,
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True)
    ours = RelativeBias(
        HEADS, num_buckets=buckets, max_distance=farthest, bidirectional=bidirectional
    )
    ours.load_state_dict({"table": theirs.relative_attention_bias.weight})
    bias: Any = ours.attend_options(torch.arange(3), torch.arange(3))["bias"]
    assert bias.values.shape == (HEADS, 2 * farthest + 1)
    for query_len, kv_len in (7, 7), (1, 1), (150, 150), (5, 141):
        expected = theirs.compute_bias(query_len, kv_len, past_seen_tokens=kv_len - query_len)
        assert torch.equal(bias.to_dense(query_len, kv_len), expected)


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
