"""The example learns to translate, and no better than the misspellings allow."""

from typing import Any

import pytest
import torch

import clearhead as ch
from tests.examples.loading import example


@pytest.fixture(scope="module")
def translating() -> Any:
    return example("translate")


@torch.no_grad()
def on_new_sentences(translating: Any, model: Any) -> float:
    return float(translating.loss(model.eval(), 4096))


def test_it_learns_by_looking_at_the_sentence(translating: Any) -> None:
    torch.manual_seed(0)
    model, least = translating.Translator(), translating.least_loss()
    translating.train(model, 150, batch=32)
    # 4 096 sentences of six letters: the misspellings of a sample vary by about 0.01.
    assert least - 0.03 <= on_new_sentences(translating, model) <= least + 0.1
    source, target, valid = translating.sentences(64)
    assert (
        float((translating.translate(model, source, valid) == target)[valid].float().mean()) > 0.8
    )

    # With nothing to look at, a letter can only be guessed.
    blind = translating.Translator()
    torch.nn.init.zeros_(blind.looking.output_projection.weight)
    blind.looking.output_projection.requires_grad_(False)
    translating.train(blind, 15, batch=32)
    assert on_new_sentences(translating, blind) > 2.4

    # And one that sees what it is to write is better than the misspellings allow.
    leaking = translating.Translator()
    leaking.writing.mask = ch.full()
    translating.train(leaking, 70, batch=32)
    assert on_new_sentences(translating, leaking) < least - 0.03


@torch.no_grad()
def test_step_by_step_is_at_once(translating: Any) -> None:
    torch.manual_seed(0)
    model = translating.Translator().eval()
    source, target, valid = translating.sentences(5)
    sentence = model.read(source, valid)
    at_once = model.write(sentence, valid, target)
    caches = ch.layers.GrowingCache(), ch.layers.GrowingCache()
    steps = [
        model.write(sentence, valid, letter, place, caches)
        for place, letter in enumerate(target.split(1, dim=1))
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once)
    # What only fills a sentence up is of no account.
    other = torch.where(valid, source, 0)
    torch.testing.assert_close(model.write(model.read(other, valid), valid, target), at_once)
