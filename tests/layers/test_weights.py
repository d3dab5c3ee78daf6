"""Weights of projections: as parameters, offloaded, with low rank added to them, quantised, and none."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import UnsupportedError
from clearhead.layers.converting.weights import weights_of, without_accelerate
from tests.layers.test_inputs import ShownLowRank as LowRank

IDS = torch.arange(3, 12)[None]


class Bent(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x).relu()


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def offloaded(model: nn.Module) -> nn.Module:
    accelerate = pytest.importorskip("accelerate", reason="it comes with the extra samples")
    return accelerate.cpu_offload(model, execution_device="cpu")


def with_low_rank(model: Any) -> nn.Module:
    for block in model.model.layers:
        for name in ("q_proj", "o_proj"):
            setattr(block.self_attn, name, LowRank(getattr(block.self_attn, name)))
    return model


def quantised(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)


def test_plain_weights_are_the_parameters() -> None:
    plain, conv = nn.Linear(5, 3), transformers.pytorch_utils.Conv1D(3, 5)
    for each, weight in ((plain, plain.weight), (conv, conv.weight.mT)):
        read = weights_of(each)
        assert not isinstance(read, str)
        assert read[0].data_ptr() == weight.data_ptr()
        assert read[0].equal(weight)
        assert read[1] is not None
        assert read[1].equal(each.bias)


@torch.no_grad()
def test_what_is_added_and_what_is_worked_out_is_in_the_weight() -> None:
    low = LowRank(nn.Linear(5, 3))
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    own = nn.Linear(5, 3)
    own.forward = lambda input: 2 * nn.functional.linear(input, own.weight)
    x = torch.randn(4, 5)
    for each in (low, normed, own):
        read = weights_of(each)
        assert not isinstance(read, str)
        torch.testing.assert_close(nn.functional.linear(x, *read), each(x))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Bent(5, 3), "which is not linear: a product is off by "),
        (lambda: nn.Linear(5, 3, device="meta"), "has its weight on the meta device"),
        (lambda: nn.Conv1d(5, 3, 1), "it is a torch.nn.modules.conv.Conv1d"),
        (lambda: nn.Bilinear(5, 5, 3), "it is a torch.nn.modules.linear.Bilinear"),
        (lambda: nn.Parameter(torch.ones(3, 5)), "it is a torch.nn.parameter.Parameter"),
        (lambda: LowRank(nn.Linear(5, 3).half()), "could not be run on the identity: "),
    ],
)
def test_what_cannot_be_read_says_why(make: Callable[[], Any], reason: str) -> None:
    read = weights_of(make())
    assert isinstance(read, str)
    assert reason in read


@torch.no_grad()
@pytest.mark.parametrize("change", [offloaded, with_low_rank])
def test_weights_elsewhere_are_read_as_they_are(change: Callable[[Any], Any]) -> None:
    """Every function that reads a projection gives the numbers of a model with the same weights as parameters."""
    model = change(llama())
    plain = llama()
    if change is with_low_rank:
        for mine, theirs in zip(model.model.layers, plain.model.layers, strict=True):
            for name in ("q_proj", "o_proj"):
                setattr(theirs.self_attn, name, getattr(mine.self_attn, name).merged())
    found = []
    for each in (model, plain):
        with ch.watch(each, values=True, contexts=True) as seen:
            each(IDS)
        circuits = ch.reading.circuits(each, 1)
        found.append(
            [
                seen.norms(0, each).shares().dense(),
                seen.results(1, each).total(),
                ch.reading.logits_of(each, IDS, target=3)["logit"],
                ch.reading.lens(each, IDS, top=2).logits,
                ch.reading.writes(each, IDS, top=2)["logit"],
                circuits.ov.product(1),
                circuits.qk(2).product(1),
            ]
        )
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    for reason in ch.convert(model).left.values():
        assert "is offloaded, quantised, or a sum with others" in reason


@torch.no_grad()
def test_dynamic_int8_is_read_and_its_rounding_is_told() -> None:
    model = quantised(llama())
    with ch.watch(model, contexts=True, values=True) as seen:
        model(IDS)
    layer: Any = model.get_submodule(seen.layers[0])
    weight = layer.o_proj.weight().dequantize()
    results = seen.results(0, model)
    context = seen[0].context
    assert context is not None
    want = nn.functional.linear(context.transpose(1, 2).flatten(2), weight)
    torch.testing.assert_close(results.total(), want, rtol=1e-4, atol=1e-5)
    assert seen.norms(0, model).shape == (1, 4, 9, 9)
    output = ch.reading.circuits(model, 0).layer.output_projection.weight
    torch.testing.assert_close(output, weight, rtol=1e-4, atol=1e-6)
    text = "unembedding, a torch.ao.nn.quantized.dynamic.modules.linear.Linear, rounds: a logit is off by 0.0"
    with pytest.raises(UnsupportedError, match=text):
        ch.reading.logits_of(model, IDS, target=3)
    with pytest.raises(UnsupportedError, match="made again of the last stream, they are off by"):
        ch.reading.lens(model, IDS)


@torch.no_grad()
def test_hooks_of_accelerate_that_offload_nothing_change_nothing() -> None:
    accelerate = pytest.importorskip("accelerate", reason="it comes with the extra samples")
    model = llama()
    plain = model(IDS).logits
    accelerate.dispatch_model(model, device_map={"": "cpu"}, force_hooks=True)
    attention = model.model.layers[0].self_attn
    assert without_accelerate(attention) is not attention
    read = weights_of(attention.q_proj)
    assert not isinstance(read, str)
    assert read[0].data_ptr() == attention.q_proj.weight.data_ptr()
    ch.convert(model)
    torch.testing.assert_close(model(IDS).logits, plain)


@torch.no_grad()
def test_hooks_that_transformers_leaves_behind_change_nothing() -> None:
    model = llama()
    model.set_attn_implementation("eager")
    before = ch.reading.circuits(model, 0).ov.product(0)
    model(IDS, output_attentions=True)
    assert model.model.layers[0].self_attn._forward_hooks
    assert ch.reading.circuits(model, 0).ov.product(0).equal(before)
    model.model.layers[0].self_attn.register_forward_hook(lambda *given: None)
    with pytest.raises(UnsupportedError, match="the module has a hook, which may change"):
        ch.reading.circuits(model, 0)
