# pyright: basic
"""Whole models of ids: the attention in them, what leaks, padding on both sides, the cache."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

import clearhead as ch

LENGTH = 64


class Block(nn.Module):
    """A layer before its norm, as in GPT-2, with a mask of real tokens."""

    hidden = -1e9

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def visible(self, tokens, mask):
        past = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        return past if mask is None else past & mask[:, None, None]

    def forward(self, x, mask):
        split = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~self.visible(x.shape[1], mask), self.hidden).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        return x + self.feed(self.second(x))


class Model(nn.Module):
    """Learned positions, two layers, a head over the vocabulary."""

    block = Block

    def __init__(self, width=16, heads=2, vocabulary=31):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width, heads), self.block(width, heads)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, mask=None):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


class Future(Block):
    def visible(self, tokens, mask):
        return torch.ones(tokens, tokens, dtype=torch.bool).tril(1)


class Ignoring(Block):
    def visible(self, tokens, mask):
        return super().visible(tokens, None)


def made(block=Block):
    torch.manual_seed(0)
    return type("Model", (Model,), {"block": block})()


def llama(kind=LlamaForCausalLM):
    torch.manual_seed(0)
    return kind(
        LlamaConfig(
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
            intermediate_size=16, vocab_size=31, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def found(report):
    return [each.code for each in report.findings]


def test_a_right_model_is_right_and_left_as_it_was():
    model = made().train()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    report = ch.check(model, takes="ids", causal=True)
    assert report.ok, f"\n{report}"
    assert {"causal", "heads", "softmax over the keys", "scale 1/√8"} <= set(report.passed)
    assert report.name == "Model"
    assert model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_class_and_a_function_are_taken_as_well():
    model = made()
    assert ch.check(Model, takes="ids", causal=True).ok
    assert ch.check(lambda ids: model(ids), takes="ids", causal=True).ok


def test_a_layer_that_sees_the_next_token_is_named():
    assert found(ch.check(made(Future), takes="ids", causal=True)) == ["mask.off-by-one"]


class Mixing(Model):
    """Its vectors are put in another order before the first layer."""

    def mixed(self, x):
        return x.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)

    def forward(self, ids, mask=None):
        x = self.mixed(self.tokens(ids)) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


class Centred(Mixing):
    """The mean is over the samples."""

    def mixed(self, x):
        return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize("kind", [Mixing, Centred])
def test_samples_that_are_mixed_before_the_attention_are_no_wrong_merge(kind):
    torch.manual_seed(0)
    assert found(ch.check(kind(), takes="ids", causal=True)) == ["law.samples"]


def test_padding_is_looked_at_on_both_sides():
    report = ch.check(made(), takes="ids,mask", causal=True)
    assert report.ok, f"\n{report}"
    assert "padding" in report.passed
    assert "positions count the padding" in str(report)


class Marked(Model):
    """The mask marks the padding, by the name that PyTorch has for it."""

    def forward(self, ids, key_padding_mask=None):
        return super().forward(ids, None if key_padding_mask is None else ~key_padding_mask)


def test_a_key_padding_mask_is_true_for_padding():
    torch.manual_seed(0)
    report = ch.check(Marked(), takes="ids,mask", causal=True)
    assert report.ok, f"\n{report}"
    assert "padding" in report.passed


def test_padding_that_only_causality_hides_is_named():
    report = ch.check(made(Ignoring), takes="ids,mask", causal=True)
    assert found(report) == ["mask.padding-ignored"]


def test_nan_of_padding_queries_that_reaches_real_tokens_is_named():
    model = made()
    vars(model.blocks[0])[
        "hidden"
    ] = -torch.inf  # the NaN goes into the keys and values of the next one
    report = ch.check(model, takes="ids,mask", causal=True)
    assert "output.non-finite" in found(report)
    assert "padded on the left" in report.findings[0].measured


class Restarting(LlamaForCausalLM):
    """The positions of a cached step begin at 0 again."""

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None):
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_ids=torch.arange(input_ids.shape[1])[None],  # type: ignore[arg-type]
        )


class Forgetting(LlamaForCausalLM):
    """No cache comes back."""

    def forward(self, input_ids, past_key_values=None, use_cache=None):
        return CausalLMOutputWithPast(logits=super().forward(input_ids=input_ids).logits)


def test_a_cache_is_held_against_all_tokens_at_once():
    report = ch.check(llama(), takes="ids,mask", causal=True)
    assert report.ok, f"\n{report}"
    assert {"decoding with the cache", "padding"} <= set(report.passed)
    assert found(ch.check(llama(Restarting), takes="ids", causal=True)) == ["cache.wrong"]


def test_a_cache_that_never_comes_is_not_judged():
    report = ch.check(llama(Forgetting), takes="ids", causal=True)
    assert report.outcome == "not judged"
    assert "gives no cache" in " ".join(report.unverified)


def refusal(*args, **keywords):
    with pytest.raises(ch.errors.ClearheadError) as caught:
        ch.check(*args, **keywords)
    return str(caught.value)


def test_what_embeds_no_ids_is_refused():
    assert refusal(nn.Linear(3, 3), takes="ids") == (
        "[check.ids] takes='ids' wants a model that embeds its ids by an nn.Embedding; Linear has none. If it "
        "takes vectors, takes='x'."
    )
    assert refusal(lambda ids: ids * 1.0, takes="ids") == (
        "[check.ids] takes='ids' wants a model that embeds its ids by an nn.Embedding; <lambda> is none."
    )

    class Elsewhere(Model):
        def forward(self, ids):
            return self.tokens(ids + 1)

    assert refusal(Elsewhere(), takes="ids") == (
        "[check.ids] takes='ids' wants a model that embeds its ids by an nn.Embedding; Elsewhere has 2, none of "
        "which is handed them. If it takes vectors, takes='x'."
    )


def test_what_cannot_be_called_with_ids_is_refused():
    class Two(Model):
        def forward(self, ids, segments):
            return super().forward(ids)

    text = refusal(Two(), takes="ids")
    assert text.startswith("[check.call] Two was called with takes='ids' and raised TypeError: ")
    assert "missing 1 required positional argument: 'segments'" in text
    text = refusal(Two(), takes="ids,mask")
    assert "no parameter of segments is a mask of tokens" in text


class Unused(nn.Module):
    """A table of no rows is a table all the same."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(0, 4)

    def forward(self, ids):
        return ids


def test_a_table_without_rows_embeds_no_ids():
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(Unused(), takes="ids")
    assert caught.value.code == "check.ids"
    assert "Unused has 1, none of which is handed them" in str(caught.value)
