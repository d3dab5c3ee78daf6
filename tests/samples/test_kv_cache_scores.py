"""Scores for KV-cache compression, held against the formulas of kvpress on eager weights."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.examples.loading import example as module
from tests.samples.needing import eager_smollm2, smollm2

example = module("kv_cache_scores")


LICENSE = Path(__file__).parents[2] / "LICENSE"


@cache
def ids() -> Tensor:
    return smollm2().tokenizer(LICENSE.read_text(), return_tensors="pt")["input_ids"][:, :257]


@cache
def dense() -> tuple[Tensor, ...]:
    with torch.no_grad():
        return eager_smollm2()(ids(), output_attentions=True, use_cache=False).attentions


def of_kvpress(name: str, attentions: Tensor) -> Tensor:
    """As kvpress 0.5.5 has it: ObservedAttentionPress, SnapKVPress and TOVAPress."""
    length = attentions.shape[-1]
    if name == "H2O":
        scores = attentions.sum(2) / torch.arange(length, 0, -1)
        return scores.view(1, 3, 3, length).mean(2)
    if name == "SnapKV":
        scores = attentions[..., -64:, :-64].mean(dim=-2)
        scores = torch.nn.functional.avg_pool1d(scores, kernel_size=5, padding=2, stride=1)
        scores = scores.view(1, 3, 3, length - 64).mean(2)
        return torch.nn.functional.pad(scores, (0, 64), value=scores.max().item() + 1)
    scores = attentions[..., -1, :-1].mean(1, keepdim=True).repeat(1, 3, 1)
    return torch.nn.functional.pad(scores, (0, 1), value=scores.max().item() + 1)


@pytest.mark.parametrize("name", ["H2O", "SnapKV", "TOVA"])
def test_scores_and_kept_keys_are_those_of_eager(name: str) -> None:
    model: Any = smollm2().model
    with torch.no_grad(), example.watching(model, name) as seen:
        model(ids(), use_cache=False)
    assert len(seen) == len(dense()) == 30
    for found, weights in zip(seen.values(), dense(), strict=True):
        expected = of_kvpress(name, weights)
        assert found.shape == (1, 3, 257)
        assert float((found - expected).abs().max()) <= 1e-5
        assert torch.equal(example.kept(found), example.kept(expected))


def test_a_press_has_the_scores_when_its_hook_runs() -> None:
    """As kvpress calls it: in a hook behind each layer's attention, while the model runs."""
    model: Any = smollm2().model
    found: list[Tensor] = []
    with torch.no_grad(), example.watching(model, "TOVA") as seen:
        press = example.press(model, seen)()

        def hook(module: Any, args: Any, output: Any) -> None:
            none: Any = None
            found.append(press.score(module, none, none, none, output[1], {}))

        hooks = [each.self_attn.register_forward_hook(hook) for each in model.model.layers]
        model(ids()[:, :99], use_cache=False)
    for each in hooks:
        each.remove()
    assert all(torch.equal(one, two) for one, two in zip(found, seen.values(), strict=True))
    assert len(found) == 30
