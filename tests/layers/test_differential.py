"""Differential attention, against the layer of another library and its formula."""

import math

import pytest
import torch
import transformers
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention

import clearhead as ch
from clearhead.layers import Differential

TOKENS = 7


def test_differential_attention_is_that_of_transformers() -> None:
    """The layer of a model of theirs, without positions; their weights, under our names."""
    config = transformers.DiffLlamaConfig(
        hidden_size=24, num_attention_heads=8, num_key_value_heads=4, head_dim=3
    )
    config._attn_implementation = "eager"
    theirs = DiffLlamaAttention(config, layer_idx=2).double().eval()
    ours = ch.MultiHeadAttention(
        24,
        num_heads=8,
        num_kv_heads=4,
        output_bias=False,
        parts=[Differential(3, depth=2, eps=config.rms_norm_eps)],
        mask=ch.causal(),
    ).double()
    found = theirs.state_dict()
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    state = {f"{ours}_projection.weight": found[f"{name}.weight"] for ours, name in names.items()}
    pairs = [found[f"lambda_{name}"] for name in ("q1", "k1", "q2", "k2")]
    ours.load_state_dict(state | {"parts.0.pairs": torch.stack(pairs)})
    x = torch.randn(2, TOKENS, 24, dtype=torch.float64)
    positions = torch.ones(1, TOKENS, 3).double(), torch.zeros(1, TOKENS, 3).double()
    hidden = torch.full((TOKENS, TOKENS), -torch.inf).double().triu(1)
    # They work λ out in float32.
    torch.testing.assert_close(ours(x), theirs(x, positions, hidden)[0], rtol=1e-6, atol=1e-7)


def test_differential_attention_alone() -> None:
    """If both heads of a pair look alike, (1 − λ) of one is left, and the norm takes
    that away."""
    part = Differential(2, depth=0)
    with torch.no_grad():
        part.pairs.copy_(torch.tensor([[1.0, 2.0], [0.5, 0.25], [1.0, 0.0], [0.0, 1.0]]))
    assert part.factor().item() == pytest.approx(math.exp(1) - 1 + 0.2)
    context = torch.tensor([3.0, 4.0, 0.0, 0.0]).expand(1, 2, 1, 4)
    assert part.transform_context(context, context).flatten().tolist() == pytest.approx(
        [-0.8 * number / 2.5 for number in (3.0, 4.0, 0.0, 0.0)], rel=1e-4
    )
