"""Every part against its formula, alone and in a layer, and what is refused."""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead import stages
from clearhead.layers import (
    Differential,
    OutputGate,
    Part,
    QueryKeyNorm,
    Scale,
    ScoreBias,
    Sinks,
    Softcap,
)
from tests.refusals import refusals, run, wrong
from tests.tensors import assert_close

EMBED, HEADS, KV_HEADS, DIM, BATCH, TOKENS = 13, 6, 2, 5, 3, 7


def rms(heads: Tensor, weight: Tensor) -> Tensor:
    return heads / (heads.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weight


PARTS: dict[str, Callable[[], list[Part]]] = {
    "none": list,
    "norm": lambda: [QueryKeyNorm(DIM)],
    "scale": lambda: [Scale(0.7)],
    "softcap": lambda: [Softcap(0.3)],
    "sinks": lambda: [Sinks(HEADS)],
    "alibi": lambda: [ScoreBias(ch.alibi(HEADS))],
    "gate of each number": lambda: [OutputGate(EMBED, HEADS, DIM)],
    "gate of each head": lambda: [OutputGate(EMBED, HEADS, bias=True)],
    "all": lambda: [
        QueryKeyNorm(DIM),
        Scale(0.7),
        Softcap(0.3),
        Sinks(HEADS),
        ScoreBias(ch.alibi(HEADS)),
        OutputGate(EMBED, HEADS, DIM),
    ],
}


def made(parts: Sequence[Part], **options: Any) -> ch.MultiHeadAttention:
    """A layer in float64, in which no trained number is one that would not be noticed."""
    sizes: dict[str, Any] = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
    layer = ch.MultiHeadAttention(EMBED, **(sizes | options), parts=parts).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def defined(layer: ch.MultiHeadAttention, x: Tensor, name: str, visible: Tensor | None) -> Tensor:
    """The output by the formulas, a head at a time where that is plainer."""
    parts = {type(part): part for part in layer.parts}
    query, key, value = (
        (x @ projection.weight.mT).unflatten(-1, (-1, DIM)).transpose(1, 2)
        for projection in (layer.query_projection, layer.key_projection, layer.value_projection)
    )
    if QueryKeyNorm in parts:
        norm: Any = parts[QueryKeyNorm]
        query, key = rms(query, norm.query_norm.weight), rms(key, norm.key_norm.weight)
    gap = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs()
    slopes = torch.tensor([2 ** (-8 * k / 4) for k in range(1, 5)] + [2**-1, 2**-3]).double()
    sinks: Any = parts.get(Sinks)
    steps = stages.compute(
        query,
        stages.repeat_kv_heads(key, HEADS),
        stages.repeat_kv_heads(value, HEADS),
        scale=0.7 if Scale in parts else 1 / math.sqrt(DIM),
        softcap=0.3 if Softcap in parts else None,
        bias=-slopes[:, None, None] * gap if ScoreBias in parts else None,
        sinks=None if sinks is None else sinks.scores,
        visible=visible,
    )
    context = steps.context.transpose(1, 2)
    if OutputGate in parts:
        gate: Any = parts[OutputGate]
        opened = torch.sigmoid(gate.projection(x))
        context = context * opened.view(BATCH, TOKENS, HEADS, -1)
    return layer.output_projection(context.flatten(2))


# No number here is a sum of more than 64 products, six deep.
close = functools.partial(assert_close, terms=6 * 64)


@pytest.mark.parametrize("mask", [None, ch.causal()], ids=["open", "causal"])
@pytest.mark.parametrize("name", PARTS)
def test_agrees_with_the_formula(name: str, mask: ch.Mask | None) -> None:
    layer = made(PARTS[name](), mask=mask)
    x = torch.randn(BATCH, TOKENS, EMBED, dtype=torch.float64, requires_grad=True)
    visible = None if mask is None else mask.to_dense(TOKENS, TOKENS)
    output, expected = layer(x), defined(layer, x, name, visible)
    close(output, expected)
    inputs = [x, *layer.parameters()]
    weight = torch.randn_like(output)
    actual = torch.autograd.grad((output * weight).sum(), inputs)
    for found, wanted in zip(
        actual, torch.autograd.grad((expected * weight).sum(), inputs), strict=True
    ):
        close(found, wanted)


@pytest.mark.parametrize("name", PARTS)
def test_the_trace_and_the_weights_are_those_of_the_layer(name: str) -> None:
    layer = made(PARTS[name](), mask=ch.causal())
    x = torch.randn(BATCH, TOKENS, EMBED, dtype=torch.float64)
    trace = ch.trace(layer, x)
    close(trace["output"], layer(x))
    close(layer.weights(x).dense(), trace["weights"])
    with ch.watch(layer) as seen:
        layer(x)
    close(seen[0].dense(), trace["weights"])


@pytest.mark.parametrize("name", PARTS)
def test_a_part_lives_with_its_layer(name: str) -> None:
    layer = made(PARTS[name](), mask=ch.causal())
    x = torch.randn(TOKENS, EMBED, dtype=torch.float64)
    twin = made(PARTS[name](), mask=ch.causal())
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    with torch.device("meta"):
        assert made(PARTS[name]())(torch.empty(2, TOKENS, EMBED).double()).shape[1] == TOKENS


def test_parts_come_in_their_order() -> None:
    class Doubled(Part):
        def transform_query_key(
            self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
        ) -> tuple[Tensor, Tensor]:
            return 2 * query, key

    x = torch.randn(1, TOKENS, EMBED, dtype=torch.float64)
    plain = made([QueryKeyNorm(DIM)])
    before, after = made([Doubled(), QueryKeyNorm(DIM)]), made([QueryKeyNorm(DIM), Doubled()])
    for layer, name in (before, "parts.1"), (after, "parts.0"):
        layer.load_state_dict(
            {each.replace("parts.0", name): value for each, value in plain.state_dict().items()}
        )
    # A norm takes away what comes before it, but for eps.
    torch.testing.assert_close(before(x), plain(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(after(x), plain(x), rtol=1e-2)


def test_positions_are_handed_to_parts() -> None:
    class Told(Part):
        def transform_query_key(
            self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
        ) -> tuple[Tensor, Tensor]:
            told.append((query_positions.tolist(), key_positions.tolist()))
            return query, key

    told: list[tuple[list[int], list[int]]] = []
    layer = ch.MultiHeadAttention(8, num_heads=2, context_dim=5, parts=[Told()])
    layer(torch.randn(1, 2, 8), torch.randn(1, 3, 5))
    assert told == [([0, 1], [0, 1, 2])]


def test_a_layer_without_parts_is_as_it_was() -> None:
    layer = ch.MultiHeadAttention(8, num_heads=2)
    assert layer.parts == ()
    assert "parts" not in repr(layer)
    assert set(layer.state_dict()) == {
        *(f"{name}_projection.weight" for name in ("query", "key", "value", "output")),
        "output_projection.bias",
    }


test_refusals = refusals(
    run,
    (lambda: QueryKeyNorm(0), "argument.size", "head_dim // 0"),
    (lambda: QueryKeyNorm(4, num_heads=0), "argument.size", "num_heads // 0"),
    (lambda: QueryKeyNorm(4, eps=-1.0), "norm.eps", "-1.0"),
    (lambda: Scale(wrong("a")), "scale.type", "str"),
    (lambda: QueryKeyNorm(4, eps=1.0), "norm.eps", "1.0"),
    (lambda: Softcap(0), "softcap.value", "0"),
    (lambda: Softcap(float("inf")), "softcap.value", "inf"),
    (lambda: ScoreBias(wrong(torch.zeros(3))), "bias.type", "Tensor"),
    (
        lambda: ScoreBias(ch.alibi(slopes=torch.ones(2, requires_grad=True))),
        "bias.type",
        "alibi(2)",
    ),
    (lambda: OutputGate(8, 2, bias=wrong(1)), "bias.type", "bias // 1"),
    (
        lambda: OutputGate(8, 3, 4).transform_context(
            torch.zeros(1, 2, 5, 4), torch.zeros(1, 5, 8)
        ),
        "gate.shape",
        "3 // 4 // (1, 5, 8) // 2 // 4 // (1, 5, 8)",
    ),
    *(
        (
            lambda part=part: ch.MultiHeadAttention(16, num_heads=2, parts=[part])(
                torch.zeros(1, 5, 16)
            ),
            "part.width",
            f"{type(part).__name__} // {width} // 8",
        )
        for width in (4, 16)
        for part in (ch.layers.Rotary(width), QueryKeyNorm(width), Differential(width))
    ),
    (lambda: Differential(4, depth=-1), "differential.depth", "-1"),
    (
        lambda: Differential(4).transform_value(torch.zeros(1, 3, 5, 4)),
        "differential.heads",
        "3",
    ),
    (
        lambda: ch.MultiHeadAttention(8, num_heads=2, parts=wrong([nn.Linear(1, 1)])),
        "parts.type",
        "Linear",
    ),
    (
        lambda: ch.MultiHeadAttention(8, num_heads=2, parts=wrong(Softcap(1.0))),
        "parts.type",
        "Softcap",
    ),
    (
        lambda: ch.MultiHeadAttention(8, num_heads=2, parts=[Softcap(1.0), Softcap(2.0)])(
            torch.zeros(1, 3, 8)
        ),
        "parts.twice",
        "softcap // Softcap // Softcap",
    ),
)
