"""Circuits of heads, held against products of the weights that models hold, in float64."""

import math
import re
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
    UnsupportedError,
)
from tests.integrations.models import make

HEADS, KV_HEADS, WIDTH, EMBED = 4, 2, 6, 24


def neox() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "rotary_pct": 0.5,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    config = tf.GPTNeoXConfig(**sizes, vocab_size=50, intermediate_size=31)
    return tf.GPTNeoXForCausalLM(config).eval()


def by_hand(name: str, model: Any, layer: int) -> tuple[list[Tensor], list[Tensor]]:
    """QK without positions, and OV, of each head."""
    attention: Any
    if name == "gpt2":
        attention = model.transformer.h[layer].attn
        query, key, value = attention.c_attn.weight.T.chunk(3)
        output = attention.c_proj.weight.T
    elif name == "gpt_neox":
        attention = model.gpt_neox.layers[layer].attention
        # Each head has its query, key and value beside each other.
        of_heads = attention.query_key_value.weight.view(4, 3, 8, 32)
        query, key, value = (of_heads[:, each].flatten(0, 1) for each in range(3))
        output = attention.dense.weight
    elif name == "bert":
        attention = model.encoder.layer[layer].attention
        names = ("query", "key", "value")
        query, key, value = (getattr(attention.self, each).weight for each in names)
        output = attention.output.dense.weight
    else:
        attention = model.model.layers[layer].self_attn
        query, key, value = (getattr(attention, f"{each}_proj").weight for each in "qkv")
        output = attention.o_proj.weight
    width = 8 if name == "gpt_neox" else WIDTH
    group = query.shape[0] // key.shape[0]
    qk, ov = [], []
    for head in range(HEADS):
        mine, theirs = (slice(each * width, (each + 1) * width) for each in (head, head // group))
        q, k = query[mine], key[theirs]
        if name == "qwen3":
            q = q * attention.q_norm.weight[:, None]
            k = k * attention.k_norm.weight[:, None]
        qk.append(q.T @ k)
        ov.append(output[:, mine] @ value[theirs])
    return qk, ov


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["gpt2", "gpt_neox", "llama", "mistral", "qwen3", "gemma2", "gpt_oss", "bert"]
)
def test_circuits_are_products_of_the_weights_of_a_model(name: str) -> None:
    model = (neox() if name == "gpt_neox" else make(name)).double()
    first, second = (ch.reading.circuits(model, each) for each in (0, -1))
    for layer, found in enumerate((first, second)):
        qk, ov = map(torch.stack, by_hand(name, model, layer))
        if name == "gpt_oss":  # YaRN stretches query and key as well as turning them
            qk = qk * (0.1 * math.log(model.config.rope_parameters["factor"]) + 1) ** 2
        torch.testing.assert_close(found.qk().product(), qk)
        torch.testing.assert_close(found.ov.product(), ov)
        assert len(found.ov.right) == (
            KV_HEADS if name not in ("gpt2", "bert", "gpt_neox") else HEADS
        )
        torch.testing.assert_close(found.qk().norms(), torch.linalg.matrix_norm(qk))
        torch.testing.assert_close(
            found.ov.singular_values(), torch.linalg.svdvals(ov)[:, : found.layer.head_dim]
        )
        values = torch.linalg.eigvals(ov)
        torch.testing.assert_close(
            found.copying(), values.sum(1).real / values.abs().sum(1), rtol=1e-6, atol=1e-6
        )
    _, writes = by_hand(name, model, 0)
    reads, hands_on = by_hand(name, model, 1)
    for into, matrices in {
        "query": [each.T for each in reads],
        "key": reads,
        "value": hands_on,
    }.items():
        scores = first.composition(second, into)  # type: ignore[arg-type]
        for here, written in enumerate(writes):
            for there, read in enumerate(matrices):
                expected = (read @ written).norm() / (read.norm() * written.norm())
                torch.testing.assert_close(scores[here, there], expected)


@torch.no_grad()
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_at_a_distance_are_those_of_the_layer(layout: Any) -> None:
    torch.manual_seed(0)
    rotary = ch.layers.Rotary(WIDTH, layout=layout, rotated_dim=4, base=50.0)
    layer = ch.MultiHeadAttention(
        EMBED, HEADS, num_kv_heads=KV_HEADS, bias=False, parts=[rotary]
    ).double()
    x = torch.randn(9, EMBED, dtype=torch.float64)
    logits = layer.make_problem(x[None])
    scores = logits.query @ logits.key.repeat_interleave(2, dim=1).mT
    circuits = ch.reading.circuits(layer)
    for query, key in ((7, 7), (7, 6), (8, 3), (2, 6)):
        product = circuits.qk(query - key).product()
        torch.testing.assert_close(x[query] @ product @ x[key], scores[0, :, query, key])
    assert not torch.allclose(circuits.qk(1).product(), circuits.qk(2).product())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm", "gemma"])
def test_the_gain_of_a_norm_is_in_what_is_read(kind: str) -> None:
    torch.manual_seed(0)
    model = make("gemma2" if kind == "gemma" else "llama").double()
    block = model.model.layers[0]
    norm = block.input_layernorm if kind == "gemma" else getattr(nn, kind)(EMBED).double()
    nn.init.normal_(norm.weight)
    found = ch.reading.circuits(block.self_attn, norm=norm)
    plain = ch.reading.circuits(block.self_attn)
    gain = torch.diag(norm.weight + 1 if kind == "gemma" else norm.weight)
    if kind == "LayerNorm":
        gain = gain @ (torch.eye(EMBED) - 1 / EMBED).double()
    torch.testing.assert_close(found.ov.product(), plain.ov.product() @ gain, rtol=1e-6, atol=1e-6)
    expected = gain.T @ plain.qk(3).product() @ gain
    torch.testing.assert_close(found.qk(3).product(), expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_copying_is_asked_of_tokens() -> None:
    torch.manual_seed(0)
    layer = ch.MultiHeadAttention(EMBED, HEADS, bias=False).double()
    embedding, unembedding = torch.randn(2, 40, EMBED, dtype=torch.float64)
    circuits = ch.reading.circuits(layer)
    for head, found in enumerate(circuits.copying(embedding, unembedding)):
        values = torch.linalg.eigvals(unembedding @ circuits.ov.product(head) @ embedding.T)
        torch.testing.assert_close(found, (values.sum() / values.abs().sum()).real)
    # A head that hands on what it reads copies, and one that turns it round does the contrary.
    for sign in (1, -1):
        layer.value_projection.weight.copy_(sign * layer.output_projection.weight.T)
        found = ch.reading.circuits(layer).copying(embedding, embedding)
        torch.testing.assert_close(found, torch.full((HEADS,), float(sign)).double())


@torch.no_grad()
def test_a_head_of_the_previous_token_is_known_by_its_weights() -> None:
    """Of rotary pairs that turn by a right angle a token, the score is largest where the key is turned back by one."""
    rotary = ch.layers.Rotary(2, base=10.0)
    layer = ch.MultiHeadAttention(2, 1, parts=[rotary], bias=False)
    turn = torch.tensor([[1.0]]).cos().item(), torch.tensor([[1.0]]).sin().item()
    layer.query_projection.weight.copy_(30 * torch.eye(2))
    layer.key_projection.weight.copy_(torch.tensor([[turn[0], -turn[1]], [turn[1], turn[0]]]))
    circuits = ch.reading.circuits(layer)
    x = torch.tensor([1.0, 0.0])
    by_distance = [float(x @ circuits.qk(each).product(0) @ x) for each in range(5)]
    assert by_distance.index(max(by_distance)) == 1
    found = layer.weights(x.expand(1, 5, 2), mask=ch.causal())[0, 0, -1].flip(0)
    torch.testing.assert_close(found, torch.tensor(by_distance).div(2**0.5).softmax(dim=0))


def test_what_has_no_circuits_is_refused() -> None:
    layer = ch.MultiHeadAttention(EMBED, HEADS)
    circuits, call = ch.reading.circuits(layer), ch.reading.circuits
    given: Any = circuits
    gated = ch.MultiHeadAttention(EMBED, HEADS, parts=[ch.layers.OutputGate(EMBED, EMBED)])
    narrow = ch.reading.circuits(ch.MultiHeadAttention(8, 2))
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: call(3), ArgumentTypeError, "[circuits.model] model must be a torch.nn.Module; got 3."),  # type: ignore[arg-type]
        (lambda: call(layer, norm=3), ArgumentTypeError, "[circuits.norm] norm must be a torch.nn.Module; got 3."),  # type: ignore[arg-type]
        (lambda: call(nn.Sequential(layer)), UnsupportedError, "[circuits.unknown] a Sequential is no attention whose"),
        (lambda: call(gated), UnsupportedError, "[circuits.parts] the circuits of this attention are no products of"),
        (lambda: given.qk("x"), ArgumentTypeError, "[circuits.distance] distance must be a whole number of"),
        (lambda: given.ov.product(4), ArgumentError, "[circuits.head] head must be one of 4, or None for all; got 4."),
        (lambda: given.copying(torch.ones(3, EMBED)), ArgumentError, "[circuits.embedding] embedding and unembedding"),
        (lambda: given.copying(*torch.ones(2, 3, 5)), ShapeError, "[circuits.between] between must have"),
        (lambda: given.copying(torch.ones(3, EMBED), torch.ones(2, EMBED)), ShapeError, "[circuits.between] embedding"),
        (lambda: given.composition(3, "key"), ArgumentTypeError, "[circuits.other] other must be the circuits of"),
        (lambda: given.composition(given, "z"), ArgumentError, '[into.value] into must be one of "query"'),
        (lambda: given.composition(narrow, "key"), ShapeError, "[circuits.width]"),
    ]  # fmt: skip
    for run, kind, text in wrong:
        with pytest.raises(kind, match=re.escape(text)):
            run()
