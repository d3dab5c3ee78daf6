"""The passage that an answer came from, on shorter texts than those of the page."""

from functools import cache
from typing import Any

import torch

from tests.examples.loading import example as module
from tests.samples.needing import smollm2

example = module("where_answer_came_from")

HEADS = [(18, 6), (17, 3), (18, 7), (17, 4)]
"""The first of those that the page has found on other texts."""


@cache
def reader() -> Any:
    sample = smollm2()
    return example.Reader(sample, example.text(sample.tokenizer, seed=1, tokens=800))


def test_passages_lie_where_they_are_said_to_and_one_holds_the_answer() -> None:
    text, tokenizer = reader().text, smollm2().tokenizer
    assert len(text.spans) == example.PASSAGES
    assert len(text.questions) == 5
    assert text.spans[-1].stop == text.ids.shape[1] <= 830
    passages = [tokenizer.decode(text.ids[0, span]) for span in text.spans]
    for question in text.questions:
        holding = [place for place, each in enumerate(passages) if question.answer in each]
        assert holding == [question.passage]


def test_the_right_passage_is_first() -> None:
    right = {"mass": 0, "relevance": 0}
    for question in reader().text.questions:
        mass, relevance = reader().mass(question), reader().relevance(question)
        assert mass.shape == (30, 9, example.PASSAGES)
        of_heads = torch.stack([mass[head] for head in HEADS]).mean(dim=0)
        largest = torch.stack([relevance[span].max() for span in reader().text.spans])
        right["mass"] += int(of_heads.argmax()) == question.passage
        right["relevance"] += int(largest.argmax()) == question.passage
    assert min(right.values()) >= 4


def test_hiding_the_right_passage_takes_the_answer() -> None:
    """The hidden passage comes back: the cache is as it was."""
    question = reader().text.questions[0]
    with torch.no_grad():
        before = reader().log_probabilities(question)[0]
        lost = reader().knockout(question)
        assert torch.equal(reader().log_probabilities(question)[0], before)
    assert int(lost.argmax()) == question.passage
    assert float(lost.max()) > 3 * float(lost.topk(2).values[1])
