"""Tests of the reading of attention with a softmax of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.donut.modeling_donut_swin import DonutSwinModel
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

import clearhead as ch
from clearhead.errors import WatchWarning
from tests.watching.hooks.recording import operations
from tests.watching.models import IDS

SIZES: Any = {"depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "embed_dim": 16}


class Softmaxes(TorchDispatchMode):
    """Keeps the output of each softmax of four dimensions and more."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "_softmax" and made.ndim > 3:
            self.made = [*getattr(self, "made", []), made.clone()]
        return made


def swin_v2() -> nn.Module:
    return transformers.Swinv2Model(transformers.Swinv2Config(image_size=64, **SIZES))


def of_timm(module: str, kind: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        found = pytest.importorskip(f"timm.models.{module}")
        return getattr(found, kind)(img_size=64, num_classes=5, **SIZES)

    return make


def of_torchvision(block: str, merging: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        swin = pytest.importorskip("torchvision.models.swin_transformer")
        sizes = SIZES | {"patch_size": [4, 4], "window_size": [4, 4]}
        kinds = {"block": getattr(swin, block), "downsample_layer": getattr(swin, merging)}
        return swin.SwinTransformer(num_classes=5, **sizes, **kinds)

    return make


def max_vit() -> nn.Module:
    sizes: Any = {"block_channels": [16], "block_layers": [1], "stochastic_depth_prob": 0.0}
    made = pytest.importorskip("torchvision.models.maxvit").MaxVit
    return made((64, 64), stem_channels=16, partition_size=4, head_dim=8, num_classes=5, **sizes)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformers, Swin v2": swin_v2,
    "transformers, Donut": lambda: DonutSwinModel(
        transformers.DonutSwinConfig(image_size=64, **SIZES)
    ),
    "timm, Swin": of_timm("swin_transformer", "SwinTransformer"),
    "timm, Swin v2": of_timm("swin_transformer_v2", "SwinTransformerV2"),
    "timm, Swin v2 CR": of_timm("swin_transformer_v2_cr", "SwinTransformerV2Cr"),
    "torchvision, Swin": of_torchvision("SwinTransformerBlock", "PatchMerging"),
    "torchvision, Swin v2": of_torchvision("SwinTransformerBlockV2", "PatchMergingV2"),
    "torchvision, MaxViT": max_vit,
}


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_windows_with_bias_and_shift(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.randn(2, 3, 64, 64)
    for path, parameter in model.named_parameters():
        if "bias" in path or "mlp" in path:
            parameter.normal_(std=0.5)
    expected, softmaxes = model(x), Softmaxes()
    with softmaxes:
        model(x)
    with ch.watch(model) as seen:
        again = model(x)
    pair = (a if isinstance(a, Tensor) else a[0] for a in (expected, again))
    assert torch.equal(*pair)
    assert not seen.missing
    assert len(seen) == len(softmaxes.made)
    for path, weights in zip(seen, softmaxes.made, strict=True):
        # A row is a window of a sample. Scores are up to about 100, and rounded.
        torch.testing.assert_close(
            seen[path].dense(), weights.view(seen[path].shape), rtol=0, atol=3e-6
        )


@torch.no_grad()
def test_an_edit_changes_the_context_of_a_softmax() -> None:
    torch.manual_seed(0)
    model, x = swin_v2().eval(), torch.randn(1, 3, 64, 64)
    before = vars(Swinv2SelfAttention)["forward"]
    module = next(each for each in model.modules() if isinstance(each, Swinv2SelfAttention))
    plain = model(x)[0]
    with ch.edit(model) as edit:
        edit[0].heads[0].ablate()
        made = model(x)[0]
    module.register_forward_hook(lambda *call: (call[2][0].index_fill(2, torch.arange(8), 0.0),))
    torch.testing.assert_close(made, model(x)[0])
    assert not torch.equal(made, plain)
    assert vars(Swinv2SelfAttention)["forward"] is before


@torch.no_grad()
def test_masks_of_the_scores_are_read() -> None:
    sizes: Any = {
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = transformers.RemBertModel(
        transformers.RemBertConfig(vocab_size=20, input_embedding_size=8, **sizes)
    )
    with ch.watch(model.eval()) as seen:
        model(IDS, attention_mask=(IDS != 4).long().cummin(1).values)
    assert str(seen[0]).endswith("kv_len=7] mask=padding(<valid 2 × 7>)")


class TalkingHeadAttn(nn.Module):
    """Attention that changes its weights before they are used."""

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]
        return ((x @ x.mT).softmax(-1) * 0.5 @ x)[:, 0]


def test_weights_that_are_changed_after_the_softmax_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TalkingHeadAttn, "__module__", "timm.models.cait")
    model = nn.Sequential(TalkingHeadAttn(), ch.MultiHeadAttention(8, num_heads=2))
    with pytest.warns(WatchWarning, match="softmax of its own"), ch.watch(model) as seen:
        model(torch.randn(1, 5, 8))
    assert [each.path for each in seen.missing] == ["0"]


class HeldAttention(nn.Module):
    """Attention by a softmax of its own and by PyTorch's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0] + (x @ x.mT).softmax(-1) @ x


@torch.no_grad()
def test_a_fast_path_in_such_a_class_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeldAttention, "__module__", "timm.layers")
    model = HeldAttention().eval()
    with pytest.warns(WatchWarning), ch.watch(model) as seen, operations() as ran:
        model(torch.randn(1, 5, 8))
    assert ran.count("aten::_native_multi_head_attention") == 1
    assert (seen.layers, [each.path for each in seen.missing]) == (("inner",), [""])
