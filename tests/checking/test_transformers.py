"""Attentions of transformers go in as they are, and come back clean."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.bart.modeling_bart import BartAttention
from transformers.models.bert.modeling_bert import BertAttention, BertSelfAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.t5.modeling_t5 import T5Attention

import clearhead as ch

SIZES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 4}
SMALL: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 50,
    "head_dim": 4,
}  # fmt: skip


def configured(name: str, implementation: str = "eager", **sizes: Any) -> Any:
    config = getattr(transformers, name)(**sizes)
    config._attn_implementation = implementation
    return config


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "bert": (lambda: BertSelfAttention(configured("BertConfig", **SIZES)), {"takes": "x"}),
    "bert with padding": (
        lambda: BertAttention(configured("BertConfig", "sdpa", **SIZES)),
        {"takes": "x,mask"},
    ),
    "gpt2": (
        lambda: GPT2Attention(configured("GPT2Config", n_embd=16, n_head=4), layer_idx=0),
        {"takes": "x", "causal": True},
    ),
    "t5, which does not scale": (
        lambda: T5Attention(configured("T5Config", d_model=16, d_kv=4, num_heads=4)),
        {"takes": "x", "scale": 1.0},
    ),
    "bart": (
        lambda: BartAttention(16, 4, config=configured("BartConfig", d_model=16)),
        {"takes": "x,context"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_clean(name: str) -> None:
    make, arguments = CASES[name]
    torch.manual_seed(0)
    report = ch.check(make(), **arguments)
    assert report.ok, f"\n{report}"
    assert "softmax over the keys" in report.passed


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_what_takes_rotary_tables_is_clean_in_its_model(name: str) -> None:
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(configured(f"{name}Config", **SMALL))
    report = ch.check(model, inputs={"input_ids": torch.arange(1, 15).view(2, 7)}, causal=True)
    assert report.ok, f"\n{report}"


def test_a_causal_that_is_missing_is_found() -> None:
    module = BertSelfAttention(configured("BertConfig", **SIZES))

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)[0]

    report = ch.check(Forgetful(), takes="x", causal=True)
    assert [each.code for each in report.findings] == ["mask.missing"]
