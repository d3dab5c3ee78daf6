"""Whole models of transformers whose attentions are layers of ours, behind their own calls."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import clearhead as ch
from tests.integrations.models import VOCABULARY
from tests.layers.test_converting import (
    BERT_TYPES,
    MODEL_TYPES,
    READS_TWICE,
    SEES,
    T5_TYPES,
    config_of,
)
from tests.refusals import assert_refused

TOKENS, NEW = 7, 3
# The attention of XGLM does not say that its model is causal, and runs in float32 only.
TEXT = ["xglm", *(kind for kind in MODEL_TYPES if kind not in (*SEES, "whisper"))]
ENCODERS = (*BERT_TYPES, "distilbert", "clip_text_model")
TWO_SIDED = (*READS_TWICE, *T5_TYPES)


def language_model(kind: str, implementation: str = "eager", **sizes: Any) -> Any:
    """A small model that continues a text, in float32: eager gives NaN for padding in float64."""
    if kind in ENCODERS:
        factory: Any = AutoModel
    else:
        factory = AutoModelForSeq2SeqLM if kind in TWO_SIDED else AutoModelForCausalLM
    torch.manual_seed(0)
    config = config_of(kind, **sizes)
    model = factory.from_config(config, attn_implementation=implementation).eval()
    for parameter in model.parameters():
        mean, std = (round(parameter.mean().item()), 0.1) if parameter.ndim == 1 else (0, 0.3)
        nn.init.normal_(parameter, mean=mean, std=std)
    return model


def asked(kind: str, model: Any, *, attentions: bool = True) -> dict[str, Tensor]:
    """The answers of a model to a batch with padding on the left: its output, its generation, gradients."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (3, TOKENS), generator=generator)
    real = torch.ones_like(ids)
    real[1, :3] = 0
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": real}
    answers = {}
    if kind not in ENCODERS:
        answers["generated"] = model.generate(
            **given, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
    if kind in TWO_SIDED:
        given["decoder_input_ids"] = ids[:, :5]
    model.zero_grad()
    output = model(**given, output_attentions=attentions)
    shown = output[0] if kind in TWO_SIDED else output[0][real.bool()]
    shown.square().mean().backward()
    answers["output"] = shown.detach()
    answers["gradient"] = model.get_input_embeddings().weight.grad.clone()
    names = ("decoder_attentions", "attentions")
    weights = next((output[name] for name in names if name in output), None)
    for index, each in enumerate(weights or ()):
        answers[f"weights {index}"] = each[0].detach()  # the row without padding
    return answers


def same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        largest = max(1.0, float(tensor.abs().max()))
        atol = (1e-4 if name == "gradient" else 1e-5) * largest
        torch.testing.assert_close(actual[name], tensor, rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("kind", TEXT)
def test_a_model_runs_as_before(kind: str) -> None:
    model = language_model(kind)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    expected = asked(kind, model)
    conversion = ch.convert(model)
    assert conversion.left == {}
    assert conversion.layers
    same(asked(kind, model), expected)
    conversion.undo()
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], each) for name, each in before.items())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"multi_query": True, "new_decoder_architecture": False},
        {"alibi": True},
        {"multi_query": False, "new_decoder_architecture": False, "num_kv_heads": 6, "alibi": True},
    ],
)
def test_every_falcon(sizes: dict[str, Any], implementation: str) -> None:
    model = language_model("falcon", implementation, **sizes)
    attentions = implementation == "eager"
    expected = asked("falcon", model, attentions=attentions)
    assert ch.convert(model).left == {}
    same(asked("falcon", model, attentions=attentions), expected)


def test_chunks_and_temperature_beyond_the_first_of_them() -> None:
    sizes = {"attention_chunk_size": 4, "layer_types": ["chunked_attention", "full_attention"]}
    model = language_model("llama4_text", **sizes)
    expected = asked("llama4_text", model)
    conversion = ch.convert(model)
    assert conversion.left == {}
    same(asked("llama4_text", model), expected)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_windows_that_no_mask_tells(kind: str) -> None:
    """The models hand flash-attention padding alone, and the window as a number."""
    model = language_model(kind, "sdpa", sliding_window=3)
    expected = asked(kind, model, attentions=False)
    assert ch.convert(model).left == {}
    model.config._attn_implementation = "flash_attention_2"
    same(asked(kind, model, attentions=False), expected)


@pytest.mark.parametrize(
    ("kind", "implementation", "other"),
    [
        ("llama", "sdpa", "clearhead"),
        ("gemma3_text", "clearhead", "sdpa"),
        ("gpt2", "sdpa", "clearhead"),
        ("t5", "clearhead", "sdpa"),
        ("bart", "sdpa", "clearhead"),
        ("bert", "clearhead", "sdpa"),
        ("llama4_text", "sdpa", "clearhead"),
        ("deepseek_v3", "clearhead", "sdpa"),
    ],
)
def test_other_implementations(kind: str, implementation: str, other: str) -> None:
    """A model that was converted on one of them, and then runs on another."""
    from clearhead.integrations import attention

    attention.register()
    model = language_model(kind, "sdpa")
    model.set_attn_implementation(implementation)
    output = {name: each for name, each in asked(kind, model).items() if "weights" not in name}
    conversion = ch.convert(model)
    assert conversion.left == {}
    for _ in range(2):
        same({name: each for name, each in asked(kind, model).items() if name in output}, output)
        model.set_attn_implementation(other)


@pytest.mark.parametrize("kind", [*SEES, "whisper"])
def test_models_of_pictures_and_sounds(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = AutoModel.from_config(config_of(kind), attn_implementation="eager").eval()
    left = ["head.attention"] if kind == "siglip_vision_model" else []  # a module of PyTorch
    assert list(ch.convert(model).left) == left
    assert any(isinstance(each, ch.MultiHeadAttention) for each in model.modules())


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "t5", "gpt2", "bloom", "falcon", "llama4_text"]
)
def test_every_way_to_generate(kind: str) -> None:
    model = language_model(kind)
    ids = torch.randint(3, VOCABULARY, (2, TOKENS))
    ways: list[dict[str, Any]] = [
        {"num_beams": 3},
        {"use_cache": False},
        {"cache_implementation": "static", "disable_compile": True},
    ]

    def generated() -> list[Tensor]:
        sizes = {"max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        return [
            model.generate(ids, attention_mask=mask, do_sample=False, **sizes, **way)
            for way in ways
        ]

    expected = generated()
    ch.convert(model)
    for ours, theirs in zip(generated(), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_the_attentions_of_a_model_that_was_asked_for_them_before() -> None:
    """transformers collects them by hooks, which it sets once."""
    model = language_model("llama")
    ids = torch.arange(3, 8)[None]
    expected = model(ids, output_attentions=True).attentions
    conversion = ch.convert(model)
    for _ in range(2):
        actual = model(ids, output_attentions=True).attentions
        assert len(actual) == len(expected) == 2
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        conversion.undo()


def test_dropout_and_half_precision() -> None:
    model = language_model("gpt2", resid_pdrop=0.2).to(torch.bfloat16)
    ids = torch.arange(3, 12)[None]
    expected = model(ids).logits
    conversion = ch.convert(model)
    adapter = model.transformer.h[0].attn
    assert (adapter.layer.dropout, adapter.output_dropout) == (0.25, 0.2)
    torch.testing.assert_close(model(ids).logits, expected, rtol=0.1, atol=0.1)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model.float()
    conversion.undo()
    assert model.transformer.h[0].attn.c_attn.weight.dtype == torch.float32
    assert model(ids).logits.dtype == torch.float32


@torch.no_grad()
def test_a_converted_model_is_watched_and_its_attention_compiles() -> None:
    model = language_model("llama", "sdpa")
    ids = torch.arange(3, 9)[None]
    expected = model(ids).logits
    ch.convert(model)
    with ch.watch(model) as seen:
        model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert list(seen) == [f"model.layers.{index}.self_attn" for index in (0, 1)]
    model.model.layers[1].self_attn.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(model(ids, use_cache=False).logits, expected, rtol=0, atol=1e-5)


def test_a_model_that_rotates_in_a_way_of_its_own() -> None:
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = transformers.GPTJConfig(**sizes, rotary_dim=4)
    (reason,) = ch.convert(transformers.GPTJModel(config)).left.values()
    assert "left over: embed_positions" in reason


def test_a_call_without_what_the_layer_needs() -> None:
    model = language_model("llama")
    ch.convert(model)
    adapter = model.model.layers[0].self_attn
    assert_refused(lambda: adapter(torch.zeros(1, 2, 24)), "convert.positions", "LlamaAttention")
    adapter.layer.parts.append(ch.layers.ScoreBias(ch.alibi(4)))
    assert_refused(lambda: model(torch.arange(5)[None]), "convert.option", "bias")
