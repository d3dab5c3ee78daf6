"""Models that read text: their tokens, their matrices, and texts that they cannot read."""

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import clearhead as ch
from clearhead.errors import ModelError
from clearhead.integrations import huggingface
from clearhead.integrations.huggingface import load
from clearhead.integrations.text_models import (
    TextModel,
    _from_bytes,
    check_place,
    quiet,
    readable_tokens,
)
from clearhead.matrix.roles import roles
from tests import tiny_models
from tests.memory import LargestTensor
from tests.refusals import assert_refused, refusals
from tests.tolerances import assert_no_worse

SENTENCE = "The animal didn't cross the street because it was too tired"


@pytest.fixture(scope="module")
def minilm() -> TextModel:
    return load()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_gpt2(tmp_path_factory.mktemp("gpt2"))


def test_the_packaged_model_reads_a_sentence(minilm: TextModel) -> None:
    reading = minilm.read(SENTENCE)
    words = re.findall(r"\w+|'", SENTENCE.lower())
    assert reading.tokens == ("[CLS]", *words, "[SEP]")
    assert reading.special == (True, *[False] * len(words), True)
    assert reading.layers == tuple(f"encoder.layer.{i}.attention.self" for i in range(6))
    assert {tuple(matrix.shape) for matrix in reading.matrices} == {(1, 12, 15, 15)}
    assert (minilm.name, minilm.max_tokens) == ("all-MiniLM-L6-v2", 512)
    assert not minilm.encoder_only
    assert not minilm.model.training


def test_the_weights_are_those_of_the_model(minilm: TextModel) -> None:
    """transformers gives them itself, on another path that holds them all."""
    ids = torch.tensor([minilm.tokenizer(SENTENCE)["input_ids"]])
    folder = huggingface._packaged()
    plain = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    exact = transformers.AutoModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float64
    )
    with torch.no_grad():
        theirs = plain(input_ids=ids, output_attentions=True).attentions
        truth = exact(input_ids=ids, output_attentions=True).attentions
    for matrix, weights, reference in zip(
        minilm.read(SENTENCE).matrices, theirs, truth, strict=True
    ):
        assert_no_worse(matrix.dense(), reference, weights)


@pytest.mark.parametrize(
    ("save", "layers", "heads", "encoder_only"),
    [
        (tiny_models.save_gpt2, ["h.0.attn", "h.1.attn"], 4, False),
        (tiny_models.save_llama, ["layers.0.self_attn", "layers.1.self_attn"], 4, False),
        (tiny_models.save_roberta, [f"encoder.layer.{i}.attention.self" for i in (0, 1)], 2, False),
        (tiny_models.save_albert, ["encoder.albert_layer_groups.0.albert_layers.0.attention"] * 3, 2, False),
        (tiny_models.save_bart, ["layers.0.self_attn", "layers.1.self_attn"], 2, True),
    ],
)  # fmt: skip
def test_other_architectures(
    tmp_path: Path, save: Callable[[Path], Path], layers: list[str], heads: int, encoder_only: bool
) -> None:
    model = load(str(save(tmp_path)))
    reading = model.read("The animal did")
    assert [token.strip() for token in reading.tokens] == ["The", "animal", "did"]
    assert list(reading.layers) == layers
    assert {tuple(matrix.shape) for matrix in reading.matrices} == {(1, heads, 3, 3)}
    assert model.encoder_only == encoder_only
    causal = save in (tiny_models.save_gpt2, tiny_models.save_llama)
    future = reading.matrices[0].dense()[0].triu(1)
    assert bool((future == 0).all()) == causal


def test_tokens_are_readable(tmp_path: Path) -> None:
    byte_level = load(str(tiny_models.save_gpt2(tmp_path / "gpt2"))).tokenizer
    ids = byte_level("The animal é\n<|end|>")["input_ids"]
    words = "The", " animal", " ", r"\xc3", r"\xa9", "\n", "<|end|>"
    assert readable_tokens(byte_level, ids) == words
    metaspace = load(str(tiny_models.save_llama(tmp_path / "llama"))).tokenizer
    ids = metaspace("The animal é")["input_ids"]
    assert readable_tokens(metaspace, ids) == (" The", " animal", " ", "<0xC3>", "<0xA9>")
    # Whole characters of a byte-level token are text.
    assert [_from_bytes(each) for each in ("ĠcafÃ©", "çĮ«", "猫")] == [" café", "猫", "猫"]


def test_the_logs_of_others_are_silent_and_then_as_they_were() -> None:
    logs = transformers.utils.logging
    log, before = logging.getLogger("torchao"), logs.is_progress_bar_enabled()
    try:
        for bars in (True, False):
            (logs.enable_progress_bar if bars else logs.disable_progress_bar)()
            for progress in (True, False):
                with quiet(progress=progress):
                    assert not log.isEnabledFor(logging.WARNING)
                    assert log.isEnabledFor(logging.ERROR)
                    assert logs.is_progress_bar_enabled() == (bars and progress)
                assert log.isEnabledFor(logging.WARNING)
                assert logs.is_progress_bar_enabled() == bars
    finally:
        (logs.enable_progress_bar if before else logs.disable_progress_bar)()


class _Tokenizer:
    """One that finds the same tokens in every text."""

    all_special_ids = ()

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.ids}


def of_tokens(*ids: int) -> TextModel:
    return TextModel("model", load().model, _Tokenizer(list(ids)), False, None)


test_a_text_that_cannot_be_read_is_refused = refusals(
    lambda given: given[0]().read(given[1]),
    ((load, ""), "model.no-text"),
    ((load, "  \n\t "), "model.no-text"),
    ((of_tokens, "word"), "model.no-text", "model"),
    ((load, "caf\udce9"), "model.text"),
    ((load, "\ud800"), "model.text"),
    ((load, "\udfff"), "model.text"),
    ((load, 3), "text.type", "int"),
    ((load, "word " * 511), "model.too-long", "512 // all-MiniLM-L6-v2 // 513"),
    # The tokenizer of another model.
    (
        (lambda: of_tokens(1, 50_000), "a stranger"),
        "model.unreadable",
        "model // index out of range in self",
    ),
)


def test_a_text_of_the_greatest_length_is_read(minilm: TextModel) -> None:
    assert len(minilm.read("word " * 510).tokens) == 512


def test_what_heads_write_is_that_of_the_whole_model(gpt2: Path) -> None:
    reader = load(str(gpt2), logits=True)
    found = reader.writes("was too tired", query=None)
    ids = torch.tensor([reader.tokenizer("was too tired")["input_ids"]])
    model = transformers.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    assert found.lists() == ch.reading.writes(model, ids, query=None).lists()
    last = reader.writes("was too tired")
    assert set(last["query"].tolist()) == {ids.shape[1] - 1}
    assert tuple(dict.fromkeys(last["layer"])) == reader.read("was too tired").layers
    words = [reader.word(token) for token in ids[0].tolist()]
    assert tuple(words) == reader.read("was too tired").tokens
    assert reader.word(10**6) == "1000000"


@pytest.mark.parametrize("save", [tiny_models.save_llama, tiny_models.save_bart])
def test_a_model_that_makes_no_logits_is_refused(
    tmp_path: Path, save: Callable[[Path], Path]
) -> None:
    folder = str(save(tmp_path))
    assert_refused(lambda: load(folder, logits=True), "model.logits", folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return load(str(tiny_models.save_llama(tmp_path_factory.mktemp("llama"))))


def test_a_long_text_has_the_numbers_of_its_matrices(llama: TextModel) -> None:
    text = " ".join([tiny_models.TEXT] * 9)
    short, long = llama.read(text), llama.read_long(text)
    assert long.tokens == short.tokens
    assert (long.layers, long.heads) == (short.layers, (4, 4))
    assert llama.count(text) == len(long.tokens) == 108
    for matrix, summary in zip(short.matrices, long.summaries.values(), strict=True):
        torch.testing.assert_close(summary.entropy, matrix.entropy())
        torch.testing.assert_close(summary.received, matrix.received())
        torch.testing.assert_close(summary.pooled, matrix.pool(64, 64))
        ids = torch.tensor([llama.tokenizer(text)["input_ids"]])
        assert summary.roles is not None
        torch.testing.assert_close(summary.roles.induction, roles(matrix, ids).induction)


def test_a_layer_and_a_head_of_a_long_text(llama: TextModel) -> None:
    text = " ".join([tiny_models.TEXT] * 9)
    whole = llama.read_long(text)
    layer = llama.read_long(text, layer=1)
    head = llama.read_long(text, layer=1, head=2, pool=5)
    assert list(layer.summaries) == list(head.summaries) == [1]
    torch.testing.assert_close(layer.summaries[1].max, whole.summaries[1].max)
    torch.testing.assert_close(head.summaries[1].max, whole.summaries[1].max[:, 2:3])
    assert head.summaries[1].pooled is not None
    assert head.summaries[1].pooled.shape == (1, 1, 5, 5)


def test_a_module_that_attends_several_times(tmp_path: Path) -> None:
    albert = load(str(tiny_models.save_albert(tmp_path)))
    whole = albert.read_long(tiny_models.TEXT)
    assert len(whole.layers) == len(whole.summaries) == 3
    assert len(set(whole.layers)) == 1
    for layer in range(3):
        alone = albert.read_long(tiny_models.TEXT, layer=layer).summaries[layer]
        torch.testing.assert_close(alone.entropy, whole.summaries[layer].entropy)


def test_the_memory_of_a_long_text_grows_with_its_tokens(llama: TextModel) -> None:
    text = " ".join([tiny_models.TEXT] * 150)
    tokens = llama.count(text)
    with LargestTensor() as memory:
        llama.read_long(text, layer=1)
    assert tokens == 1800
    # The sweep works in buffers of some rows; one head's matrix would be four bytes a pair.
    assert memory.largest < 4 * tokens**2


def test_a_long_text_says_how_far_it_is(llama: TextModel) -> None:
    steps: list[tuple[str, float]] = []
    llama.read_long(
        tiny_models.TEXT, layer=1, progress=lambda doing, done: steps.append((doing, done))
    )
    doing = [each for each, _ in steps]
    assert doing[0].startswith("reading")
    assert doing[-1] == "layer 1"
    assert [done for each, done in steps if each == doing[0]] == [0.5, 1.0]
    assert steps[-1][1] == 1.0


test_a_place_that_is_not_there = refusals(
    lambda place: check_place(place[0], place[1], [4, 4]),
    ((2, None), "show.layer", "1 // 2"),
    ((-1, None), "show.layer", "1 // -1"),
    ((0, 4), "show.head", "3 // 4"),
)


def test_a_model_that_reads_no_text_is_refused(tmp_path: Path, gpt2: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="tokenizer") as refusal:
        load(str(tmp_path))
    assert refusal.value.code == "model.no-tokenizer"
    shutil.copy(gpt2 / "tokenizer.json", tmp_path)
    shutil.copy(gpt2 / "tokenizer_config.json", tmp_path)
    with pytest.raises(ModelError, match="could not read a text alone") as refusal:
        load(str(tmp_path)).read("word")
    assert refusal.value.code == "model.unreadable"


def test_a_model_that_attends_to_something_else_is_refused(gpt2: Path) -> None:
    class Halves(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            x = torch.zeros(1, 2, input_ids.shape[1] // 2, 4)
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    odd = TextModel("odd", Halves(), load(str(gpt2)).tokenizer, False, None)
    with pytest.raises(ModelError, match="from 3 tokens to the same") as refusal:
        odd.read("The animal did")
    assert refusal.value.code == "model.shape"
