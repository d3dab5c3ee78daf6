"""As a file for other runtimes: one operator of ONNX for the attention of a layer."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import clearhead as ch


def exported(layer: torch.nn.Module, x: torch.Tensor, *, opset: int = 23) -> Any:
    sizes = {"x": {0: "batch", 1: "tokens"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        return torch.onnx.export(
            layer, (x,), dynamo=True, opset_version=opset, dynamic_shapes=sizes, verbose=False
        )


class Each(torch.nn.ModuleList):
    """The outputs of several layers: exporting takes seconds, whatever is exported."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer in self)


def session(program: Any) -> Any:
    runtime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime for every Python")
    return runtime.InferenceSession(program.model_proto.SerializeToString())


def test_a_layer_is_one_attention_of_onnx() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.reference import ReferenceEvaluator

    layers = Each(
        ch.MultiHeadAttention(16, num_heads=4, num_kv_heads=2, mask=mask, bias=mask is not None)
        for mask in (None, ch.causal())
    ).eval()
    program = exported(layers, torch.randn(2, 5, 16))
    nodes = list(program.model.graph)
    assert not {"Softmax", "Where", "IsNaN"} & {node.op_type for node in nodes}
    attentions = [node for node in nodes if node.op_type == "Attention"]
    assert [node.attributes["is_causal"].value for node in attentions] == [0, 1]
    assert [node.attributes["scale"].value for node in attentions] == [0.5, 0.5]
    # Of other sizes than those it was exported with.
    x = torch.randn(3, 7, 16)
    for started in (lambda: ReferenceEvaluator(program.model_proto), lambda: session(program)):
        found: Any = started().run(None, {"x": x.numpy()})
        for ours, theirs in zip(layers(x), found, strict=True):
            torch.testing.assert_close(torch.from_numpy(theirs), ours.detach())


VARIANTS: dict[str, Callable[[], ch.MultiHeadAttention]] = {
    name: lambda options=options: ch.MultiHeadAttention(16, num_heads=2, **options)
    for name, options in {
        "window": {"mask": ch.causal() & ch.sliding_window(left=2)},
        "rotary": {"mask": ch.causal(), "parts": [ch.layers.Rotary(8)]},
        "relative": {"parts": [ch.layers.RelativeBias(2)]},
        "prefix, rotary, softcap, alibi, sinks": {
            "mask": ch.causal() | ch.prefix(2),
            "parts": [
                ch.layers.Rotary(8),
                ch.layers.Softcap(3.0),
                ch.layers.ScoreBias(ch.alibi(2)),
                ch.layers.Sinks(2),
            ],
        },
        "window, norm, gate, scale, other widths": {
            "mask": ch.causal() & ch.sliding_window(left=2),
            "head_dim": 4,
            "value_head_dim": 6,
            "parts": [ch.layers.QueryKeyNorm(4), ch.layers.OutputGate(16, 2), ch.layers.Scale(0.3)],
        },
    }.items()
}


@pytest.mark.parametrize(
    ("names", "opset"),
    [
        # The operator with a mask and with a bias, and what is written out without it.
        (["window, norm, gate, scale, other widths", "relative"], 23),
        (["prefix, rotary, softcap, alibi, sinks"], 18),
    ],
    ids=["with the operator", "without"],
)
def test_onnx_runtime_runs_what_was_exported(names: list[str], opset: int) -> None:
    layers = Each(VARIANTS[name]() for name in names).eval()
    program = exported(layers, torch.randn(2, 5, 16), opset=opset)
    # Of other sizes than those it was exported with.
    inputs = torch.randn(3, 7, 16), torch.randn(5, 2, 16), torch.randn(1, 11, 16)
    module, run = program.exported_program.module(), session(program).run
    for x in inputs:
        outputs = dict(zip(names, layers(x), strict=True))
        for name, found in zip(names, module(x), strict=True):
            torch.testing.assert_close(
                found, outputs[name], msg=lambda text, n=name: f"{n}: {text}"
            )
        for name, found in zip(names, run(None, {"x": x.numpy()}), strict=True):
            torch.testing.assert_close(
                torch.from_numpy(found),
                outputs[name].detach(),
                rtol=1e-4,
                atol=1e-5,
                msg=lambda text, n=name: f"{n}: {text}",
            )


class Step(torch.nn.Module):
    """A step whose cache goes in and comes out."""

    def __init__(self, layer: ch.MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, length: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = ch.layers.FixedCache.of(keys, values, length)
        output = self.layer(x, cache=cache)
        return (output, *cache.state())


@pytest.mark.parametrize(("name", "opset"), [("rotary", 23), ("window", 18)])
@torch.no_grad()
def test_onnx_runtime_runs_64_steps_with_a_cache(name: str, opset: int) -> None:
    layer, x = VARIANTS[name]().eval(), torch.randn(2, 64, 16)
    empty = torch.zeros(2, 2, 70, 8), torch.zeros(2, 2, 70, 8), torch.tensor(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            Step(layer), (x[:, :1], *empty), dynamo=True, opset_version=opset, verbose=False
        )
    runs, steps = session(program), []
    names, state = [each.name for each in runs.get_inputs()], [each.numpy() for each in empty]
    for token in x.split(1, dim=1):
        output, *state = runs.run(None, dict(zip(names, [token.numpy(), *state], strict=True)))
        steps.append(torch.from_numpy(output))
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x), rtol=1e-4, atol=1e-5)
