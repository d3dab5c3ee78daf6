"""The kernel of each layer of a watched model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.integrations.attention import register
from tests.refusals import assert_refused

X = torch.randn(1, 5, 8)


class Calls(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def kernels(model: nn.Module, *inputs: Any, keep: Any = "matrix", **named: Any) -> Any:
    with torch.no_grad(), ch.watch(model, keep=keep) as seen:
        model(*inputs, **named)
    return seen.plan()


@pytest.mark.parametrize("keep", ["matrix", "summary", "total", lambda path, matrix: None])
def test_of_our_layers_the_kernel_and_the_reasons(keep: Any) -> None:
    softcap = ch.MultiHeadAttention(8, num_heads=2, parts=[ch.layers.Softcap(30.0)])
    model = nn.Sequential(ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal()), softcap)
    found = kernels(model, X, keep=keep)
    assert found["kernel"] == ["fused", "blockwise"]
    assert found["calls"].tolist() == [1, 1]
    assert found[0].how == "one fused call on cpu, with the causal flag"
    assert found[1].plan == softcap.plan(X)
    assert found[1].plan.reasons["fused"] == ("softcap: PyTorch's fused attention has none",)
    assert "blockwise" in repr(found)
    assert "reasons" not in repr(found)


def test_a_kernel_that_was_asked_for() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with torch.no_grad(), ch.watch(layer) as seen:
        layer(X, kernel="eager")
        layer(X, kernel="eager")
    [row] = seen.plan()
    assert (row.kernel, row.calls) == ("eager", 2)
    assert row.plan is not None
    assert row.plan.reasons["fused"] == ('kernel="eager" was asked for',)


def test_of_other_models_the_function() -> None:
    encoder = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    assert kernels(Calls(), X)["kernel"] == ["scaled_dot_product_attention"]
    assert kernels(encoder, X)["kernel"] == ["fast path of nn.TransformerEncoderLayer"]
    assert kernels(attention, X, X, X)["kernel"] == ["fast path of nn.MultiheadAttention"]
    with torch.enable_grad():
        training = nn.MultiheadAttention(8, 2, batch_first=True)
        with ch.watch(training) as seen:
            training(X, X, X)
            training(X, X, X, need_weights=False)
    found = seen.plan()
    assert found["kernel"] == [
        "nn.MultiheadAttention, with its weights",
        "scaled_dot_product_attention",
    ]
    assert found["layer_number"].tolist() == [0, 0]
    assert "how" not in repr(found).splitlines()[0]


@pytest.mark.parametrize(
    ("implementation", "kernel"), [("sdpa", "sdpa"), ("eager", "eager"), ("clearhead", "fused")]
)
def test_of_transformers_the_implementation(implementation: str, kernel: str) -> None:
    register()
    config = transformers.LlamaConfig(
        vocab_size=19,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = transformers.LlamaModel(config).eval()
    model.set_attn_implementation(implementation)
    found = kernels(model, torch.arange(5)[None])
    assert found["kernel"] == [kernel] * 2
    assert found["layer"] == ["layers.0.self_attn", "layers.1.self_attn"]


def test_what_no_watch_has_seen_has_none(tmp_path: Path) -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    with torch.no_grad(), ch.watch(layer, keep="total") as seen:
        layer(X)
    assert len(seen[:].plan()) == 1
    assert_refused(lambda: seen.merge(seen).plan(), "watch.plan")
    assert_refused(lambda: ch.load(seen.save(tmp_path / "run")).plan(), "watch.plan")
