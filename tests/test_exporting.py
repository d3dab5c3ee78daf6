"""As a file for other runtimes: one operator of ONNX for the attention of a layer."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import clearhead as ch

DYNAMIC: Any = torch.export.Dim.DYNAMIC


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


OPEN = {"x": {1: DYNAMIC}, "keys": {2: DYNAMIC}, "values": {2: DYNAMIC}, "length": None}
"""Of a step any number of tokens, in a cache of any room."""


@pytest.mark.parametrize(("name", "opset"), [("rotary", 23), ("window", 18)])
@torch.no_grad()
def test_onnx_runtime_runs_64_steps_with_a_cache(name: str, opset: int) -> None:
    layer, x = VARIANTS[name]().eval(), torch.randn(2, 64, 16)
    empty = torch.zeros(2, 2, 9, 8), torch.zeros(2, 2, 9, 8), torch.tensor(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program: Any = torch.onnx.export(
            Step(layer),
            (torch.randn(2, 3, 16), *empty),
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=OPEN,
            verbose=False,
        )
    runs, module = session(program), program.exported_program.module()
    names = [each.name for each in runs.get_inputs()]

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        inputs = {key: each.numpy() for key, each in zip(names, given, strict=True)}
        return [torch.from_numpy(each) for each in runs.run(None, inputs)]

    # A prompt, a draft, and a token at a time.
    for parts, room in (([1] * 64, 70), ([7, 1, 3, *[1] * 11, 42], 64)):
        for step in (run, module):
            state: Any = torch.zeros(2, 2, room, 8), torch.zeros(2, 2, room, 8), torch.tensor(0)
            outputs = []
            for part in x.split(parts, dim=1):
                output, *state = step(part.contiguous(), *state)
                outputs.append(output)
            found = torch.cat(outputs, dim=1)
            torch.testing.assert_close(found, layer(x), rtol=1e-4, atol=1e-5)


MASKS: dict[str, Callable[[int], ch.Mask]] = {
    "window": lambda tokens: ch.causal() & ch.sliding_window(left=tokens // 2),
    "offset": lambda tokens: ch.causal(offset=tokens - 2),
    "prefix": lambda tokens: ch.causal() | ch.prefix(tokens // 2),
    "padding": lambda tokens: ch.padding(tokens - 1),
    "documents": lambda tokens: ch.documents(lengths=[2, tokens - 2]),
    "dense": lambda tokens: ch.dense(ch.causal().to_dense(tokens, tokens)),
}


class Masked(torch.nn.Module):
    """Attention under masks of numbers that go by the length of the text."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(ch.attend(x, x, x, mask=make(x.shape[2])) for make in MASKS.values())


def test_the_numbers_of_a_mask_may_be_open_sizes() -> None:
    sizes = {"x": {2: DYNAMIC}}
    module = torch.export.export(
        Masked(), (torch.randn(1, 2, 6, 8),), dynamic_shapes=sizes
    ).module()
    for tokens in (4, 6, 11):
        x = torch.randn(1, 2, tokens, 8)
        for name, ours, found in zip(MASKS, Masked()(x), module(x), strict=True):
            torch.testing.assert_close(found, ours, msg=lambda text, name=name: f"{name}: {text}")
