"""Whisper: its words in time against those that a synthesiser says, and which heads follow the speech."""

import wave
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers

from clearhead.samples import models
from tests.examples.loading import example
from tests.samples.needing import whisper
from tests.surface import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`examples/aligning_heads.py`, where a synthesiser speaks."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    return _script()


@pytest.fixture
def clock(script: ModuleType) -> ModuleType:
    """`examples/words_in_time.py`."""
    return import_module("words_in_time")


@cache
def _script() -> ModuleType:
    found = example("aligning_heads")
    try:
        found.speak("a")
    except OSError as error:
        pytest.skip(str(error))
    return found


@cache
def held_out() -> list[Any]:
    script = _script()
    return [script.Read(whisper(), script.speak(text)) for text in script.HELD_OUT]


def card() -> list[tuple[int, int]]:
    return [(layer, head) for layer, head in whisper().model.generation_config.alignment_heads]


def starts(script: ModuleType, weights: torch.Tensor) -> torch.Tensor:
    return torch.tensor(script.aligned(weights)) * script.FRAME / script.RATE


def test_it_hears_what_was_said(script: ModuleType, clock: ModuleType, tmp_path: Path) -> None:
    sample, sound = whisper(), script.speak(clock.TEXT).sound
    with wave.open(str(tmp_path / "said.wav"), "wb") as file:
        file.setparams((2, 2, 16_000, 0, "NONE", ""))
        file.writeframes((sound * 2**15).short().repeat_interleave(2).numpy().tobytes())
    heard = clock.read(str(tmp_path / "said.wav")).sound
    torch.testing.assert_close(heard, sound, rtol=0, atol=2**-14)
    said = sample.tokenizer.decode(clock.transcribed(sample, heard))
    assert said == f" {clock.TEXT.replace(',', '')}"


def test_words_begin_when_the_synthesiser_says(script: ModuleType) -> None:
    errors = torch.cat([each.errors(card()) for each in held_out()])
    assert len(errors) >= 60
    assert float(errors.median()) <= 0.15
    assert float(errors.quantile(0.9)) <= 0.30


@torch.no_grad()
def test_the_alignment_is_that_of_eager_weights(script: ModuleType, clock: ModuleType) -> None:
    sample, folder = whisper(), models.folder_of("whisper")
    kind = transformers.WhisperForConditionalGeneration
    eager = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    for text, mine in zip(script.HELD_OUT, held_out(), strict=True):
        ids = clock.whole(sample, clock.tokens_of(sample, text))
        sound = clock.features(sample, mine.sound)
        dense = eager(input_features=sound, decoder_input_ids=ids, output_attentions=True)
        weights = mine.weights(card())
        frames = weights.shape[-1]
        theirs = [dense.cross_attentions[layer][0, head, 1:-1, :frames] for layer, head in card()]
        torch.testing.assert_close(weights, torch.stack(theirs), rtol=0, atol=1e-5)
        assert script.aligned(weights) == script.aligned(torch.stack(theirs))


@torch.no_grad()
def test_the_alignment_is_that_of_transformers(
    script: ModuleType, clock: ModuleType, tmp_path: Path
) -> None:
    sample, sound = whisper(), script.speak(clock.TEXT).sound
    options = {"return_tensors": "pt", "return_attention_mask": True}
    given = sample.processor(sound.numpy(), sampling_rate=script.RATE, **options)
    frames = int(given["attention_mask"].sum()) // 2
    found = sample.model.generate(**given, return_token_timestamps=True)
    tokens, theirs = found["sequences"][0].tolist(), found["token_timestamps"][0]
    # The query that reads a token is the token's there, so that its time is the start of the next one.
    matrices = clock.looked(sample, sound, tokens)
    rows = [matrices[layer][0, head, 2:-1, :frames] for layer, head in card()]
    torch.testing.assert_close(starts(script, torch.stack(rows)), theirs)
    next_ones = [matrices[layer][0, head, 1:-1, :frames] for layer, head in card()]
    torch.testing.assert_close(starts(script, torch.stack(next_ones))[2:-1], theirs[1:-1])
    clock.draw(
        sample,
        script.speak(clock.TEXT),
        tokens,
        torch.stack(next_ones),
        str(tmp_path / "words.png"),
    )
    assert (tmp_path / "words.png").stat().st_size > 10_000


def test_heads_that_follow_the_speech_are_found(script: ModuleType, tmp_path: Path) -> None:
    sample = whisper()
    found = script.scores([script.Read(sample, script.speak(text)) for text in script.TEXTS])
    ranks = sorted(list(found).index(head) for head in card())
    assert ranks[-1] < 12
    # Those that were found are the better ones on other texts.
    theirs, ours = (
        torch.cat([each.errors(heads) for each in held_out()])
        for heads in (card(), list(found)[:8])
    )
    assert float(ours.median()) <= 0.05 < float(theirs.median())
    assert float(ours.quantile(0.9)) <= 0.15
    script.draw(found, card(), str(tmp_path / "heads.png"))
    assert (tmp_path / "heads.png").stat().st_size > 10_000
