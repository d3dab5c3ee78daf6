"""The logits after each layer, held against the streams of plain hooks, in float64."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn

import clearhead as ch
from clearhead.errors import UnsupportedError
from tests.reading.test_logit_shares import (
    IDS,
    LEN,
    MODELS,
    SIZES,
    Behind,
    Ours,
    gemma2,
    logits,
    made,
)
from tests.refusals import refusals

CAP = 3.0
"""Far below the logits, so that it changes them."""

# The model, the paths of its blocks, of its last norm and its unembedding.
LENSES: dict[str, tuple[Callable[[], nn.Module], str, str, str]] = {
    name: (MODELS[name][0], blocks, *MODELS[name][2:])
    for name, blocks in (
        ("llama", "model.layers.{}"),
        ("qwen3", "model.layers.{}"),
        ("gpt2", "transformer.h.{}"),
        ("ours", "blocks.{}"),
    )
} | {"gemma2": (gemma2(CAP), "model.layers.{}", "model.norm", "lm_head")}


def by_hand(model: nn.Module, name: str) -> Tensor:
    """(layers, batch, query_len, vocabulary)."""
    _, blocks, norm, unembedding = LENSES[name]
    modules: dict[str, Any] = dict(model.named_modules())
    streams: list[Tensor] = []
    hooks = [
        modules[blocks.format(at)].register_forward_hook(
            lambda module, args, output: streams.append(
                output if isinstance(output, Tensor) else output[0]
            )
        )
        for at in range(2)
    ]
    model(IDS)
    for hook in hooks:
        hook.remove()
    found = torch.stack([modules[unembedding](modules[norm](each)) for each in streams])
    return CAP * torch.tanh(found / CAP) if name == "gemma2" else found


@pytest.mark.parametrize("name", LENSES)
@torch.no_grad()
def test_each_layer_has_the_logits_of_plain_hooks_and_the_last_those_of_the_model(
    name: str,
) -> None:
    model = made(LENSES[name][0])
    want, output = by_hand(model, name), logits(model(IDS))
    found = ch.reading.lens(model, IDS, query=None)
    torch.testing.assert_close(found.logits, want, rtol=1e-10, atol=1e-10)
    assert torch.equal(found.logits[-1], output)
    for query in (-1, 2):
        one = ch.reading.lens(model, IDS, query=query)
        at = query % LEN
        torch.testing.assert_close(one.logits[:, :, 0], want[:, :, at], rtol=1e-10, atol=1e-10)
        assert torch.equal(one.logits[-1, :, 0], output[:, at])
        assert set(one["query"].tolist()) == {at}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_the_last_layer_is_the_output_in_other_dtypes(dtype: torch.dtype) -> None:
    model = made(MODELS["llama"][0]).to(dtype)
    found = ch.reading.lens(model, {"input_ids": IDS})
    assert found.logits.dtype == dtype
    assert torch.equal(found.logits[-1, :, 0], logits(model(IDS))[:, -1])


@torch.no_grad()
def test_the_rows_are_the_highest_tokens() -> None:
    found = ch.reading.lens(made(Ours), IDS, query=None, top=3)
    assert len(found) == 2 * 2 * LEN * 3
    shares = found.logits.softmax(dim=-1)
    for row in found:
        at = ["blocks.0.attention", "blocks.1.attention"].index(row.layer), row.sample, row.query
        order = found.logits[at].argsort(descending=True)
        assert row.token == order[row.rank]
        assert row.logit == found.logits[(*at, row.token)]
        assert row.probability == pytest.approx(float(shares[(*at, row.token)]), abs=1e-12)
    assert found["rank"].tolist() == [0, 1, 2] * (2 * 2 * LEN)
    assert found.top(1).logits is found.logits
    assert len(ch.reading.lens(made(Ours), IDS, top=999)) == 2 * 2 * 50


@torch.no_grad()
def test_a_target_is_followed_in_each_sample() -> None:
    found = ch.reading.lens(made(Ours), IDS, target=torch.tensor([3, 9]))
    assert found["token"].tolist() == [3, 9, 3, 9]
    for row in found:
        at = found.logits[int(row.layer.split(".")[1]), row.sample, 0]
        assert row.logit == at[row.token]
        assert at.argsort(descending=True)[row.rank] == row.token
    assert ch.reading.lens(made(Ours), IDS, target=3)["token"].tolist() == [3] * 4


class Added(Ours):
    """More than the stream makes the logits."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + 1


class Summed(Ours):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).sum(dim=1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            Behind,
            "[logits.stream] what the model adds to a logit is not known: the last norm reads something else than "
            "'blocks.1' gives.",
        ),
        (
            lambda: tf.BertForMaskedLM(tf.BertConfig(**SIZES)),
            "[logits.stream] what 'bert.encoder.layer.",
        ),
        (
            Summed,
            "[lens.unembedding] the logits of Summed after a layer are not known: no linear layer that reads the "
            "output of a norm makes them.",
        ),
    ],
)
@torch.no_grad()
def test_a_model_without_such_a_stream_or_unembedding_is_refused(
    make: Callable[[], nn.Module], text: str
) -> None:
    model = made(make)
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        ch.reading.lens(model, IDS)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


class Recurrent(Ours):
    """The logits rest on how often it was called."""

    calls = 0

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(ids) + 100 * self.calls


class Narrow(Ours):
    """It makes its logits for one copy of its samples, whatever there are."""

    def forward(self, ids: Tensor) -> Tensor:
        found = super().forward(ids)
        return found[: len(ids)] + 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Recurrent, "made again of the last stream, they are off by"),
        (Narrow, "what the model gives for several streams is not of that size"),
    ],
)
@torch.no_grad()
def test_logits_that_are_not_of_the_stream_alone_are_refused(
    make: Callable[[], nn.Module], reason: str
) -> None:
    text = f"[lens.unembedding] the logits of {make.__name__} after a layer are not known: {reason}"
    model = made(make)
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        ch.reading.lens(model, IDS)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


@torch.no_grad()
def test_what_is_added_to_all_logits_is_in_those_of_each_layer() -> None:
    plain, added = made(Ours), made(Added)
    got, want = ch.reading.lens(added, IDS).logits, ch.reading.lens(plain, IDS).logits + 1
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


test_what_does_not_fit_is_refused = refusals(
    lambda given: ch.reading.lens(made(Ours), IDS, **given),
    ({"target": "a"}, "logits.target", "target // 'a'"),
    ({"target": 50}, "logits.target", "target // 49 // 2 // 50"),
    ({"query": 1.5}, "logits.query", "1.5"),
    ({"query": 6}, "logits.query", "6 // 6"),
    ({"top": 0}, "argument.size", "top // 0"),
)
