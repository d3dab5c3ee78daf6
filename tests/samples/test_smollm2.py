"""SmolLM2: the figures of its page, which are other people's or follow from a loss."""

import statistics
from functools import cache

import pytest
import torch

import clearhead as ch
from tests.examples.loading import example as module
from tests.samples.needing import eager_smollm2, smollm2

example = module("induction_heads")


@cache
def table() -> ch.types.Table:
    model = smollm2().model
    return example.table_of(model, example.repeated(model.config.vocab_size))


def test_it_is_the_model_that_it_says() -> None:
    model, tokenizer = smollm2().model, smollm2().tokenizer
    sizes = [model.config.num_hidden_layers, model.config.num_attention_heads]
    assert [*sizes, model.config.num_key_value_heads] == [30, 9, 3]
    ids = tokenizer("The capital of France is", return_tensors="pt")
    said = model.generate(**ids, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(said[0]).endswith(" Paris")


def test_its_induction_heads_are_the_known_ones() -> None:
    found = {(row.layer, row.head): row.induction or 0.0 for row in table()}
    assert found["model.layers.18.self_attn", 6] >= 0.9
    assert found["model.layers.17.self_attn", 3] >= 0.75
    assert example.strongest(table())[0] == ("model.layers.18.self_attn", 6)
    # The same from dense eager weights: the mean weight on the token behind the last occurrence.
    ids = example.repeated(smollm2().model.config.vocab_size)
    with torch.no_grad():
        weights = eager_smollm2()(ids, output_attentions=True).attentions[18][:, 6]
    mean = weights.diagonal(1 - example.HALF, dim1=1, dim2=2)[:, 1:].mean()
    assert found["model.layers.18.self_attn", 6] == pytest.approx(float(mean), abs=1e-3)


@torch.no_grad()
def test_its_sinks_are_those_of_dense_weights() -> None:
    model, tokenizer = smollm2().model, smollm2().tokenizer
    ids = tokenizer(example.TEXT, return_tensors="pt")["input_ids"]
    found = example.sinks(example.table_of(model, ids))
    dense = eager_smollm2()(ids, output_attentions=True).attentions
    # Of the queries that have the choice, which the first token has not.
    means = torch.stack([each[0, :, 1:, 0].mean(dim=1) for each in dense])
    layers = [f"model.layers.{layer}.self_attn" for layer in range(30)]
    assert found == [(layers[row], column) for row, column in (means > 0.5).nonzero().tolist()]
    assert len(found) >= 72


def test_its_loss_on_repeats_needs_its_induction_heads() -> None:
    model = smollm2().model
    ids = example.repeated(model.config.vocab_size)
    whole = example.loss_without(model, ids, [])
    without = example.loss_without(model, ids, example.strongest(table())) - whole
    others = [
        abs(example.loss_without(model, ids, example.random_heads(table(), seed=seed)) - whole)
        for seed in range(7)
    ]
    assert without > 2.5 * max(others)
    assert without > 20 * statistics.median(others)
