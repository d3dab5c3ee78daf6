"""The link that is worth a first look."""

import torch

from clearhead import AttentionMatrix, causal
from clearhead.drawing.page.head_page import heads_payload
from clearhead.drawing.page.runs import Layer, Run
from clearhead.drawing.page.texts import read_text
from clearhead.matrix.links import are_words, pairs_of_words, telling_links

WORDS = ["[CLS]", "the", "animal", "was", ",", "too", "tired", "here"]


def rows(*weights: tuple[int, int, float]) -> torch.Tensor:
    """A head that looks everywhere alike, but for some links."""
    head = torch.full((8, 8), 1 / 8)
    for query, key, weight in weights:
        head[query] = (1 - weight) / 7
        head[query, key] = weight
    return head


def test_a_key_that_everybody_looks_at_tells_nothing() -> None:
    """The larger weight lost nothing by what its column shows everybody."""
    everybody = rows(*((query, 2, 0.7) for query in range(8)))
    everybody[7, 2] = 0.75
    one = rows((6, 2, 0.6))
    words = are_words(WORDS)[:, None] & are_words(WORDS)
    first, second = telling_links(torch.stack([everybody, one]), words)
    assert first is not None
    assert second is not None
    assert (second.query, second.key, second.strong) == (6, 2, True)
    torch.testing.assert_close(second.contrast, 0.6 - 1 / 8)
    torch.testing.assert_close(second.score, 4 * (0.6 - 1 / 8))
    torch.testing.assert_close(first.contrast, 0.75 - 0.7)
    assert second[:2] > first[:2]


def test_a_far_link_is_before_a_near_one_and_a_strong_before_a_weak() -> None:
    words = are_words(WORDS)[:, None] & are_words(WORDS)
    near_and_far = rows((2, 1, 0.9), (7, 1, 0.6))
    weak = rows((7, 1, 0.49))
    of_both, of_weak = telling_links(torch.stack([near_and_far, weak]), words)
    assert of_both is not None
    assert of_weak is not None
    assert of_both[3:5] == (7, 1)
    assert (of_weak.strong, of_weak.score) == (False, of_weak.contrast)
    assert of_both[:2] > of_weak[:2]


def test_what_is_no_word_or_hidden_or_no_number_is_not_chosen() -> None:
    words = are_words(WORDS)[:, None] & are_words(WORDS)
    weights = rows((7, 0, 0.99), (4, 1, 0.9), (6, 2, 0.8), (5, 1, 0.7))
    weights[6, 2] = torch.nan
    visible = torch.ones(1, 8, 8, dtype=torch.bool)
    visible[0, 5, 1] = False
    (found,) = telling_links(weights[None], words, visible)
    assert found is None or found.weight < 0.5
    assert telling_links(torch.zeros(2, 0, 3), torch.ones(0, 3, dtype=torch.bool)) == [None, None]
    assert telling_links(torch.full((1, 8, 8), 1 / 8), words) == [None]


def test_a_query_with_few_keys_is_left_out_of_a_causal_head() -> None:
    """The third token of a text has nearly nobody else to look at."""
    scores = torch.zeros(1, 1, 8, 8)
    scores[..., 2, 1] = 5.0
    scores[..., 7, 3] = 3.0
    matrix = AttentionMatrix(scores, torch.eye(8)[None, None], scale=1.0, mask=causal())
    read = read_text("tokens", ["a", "b", "c", "d", "e", "f", "g", "h"])
    start = heads_payload([Run("", [Layer("a", matrix)], read)], "").data["start"]
    assert start == {"layer": 0, "head": 0, "query": 7, "key": 3}
    short = AttentionMatrix(scores[..., :3, :3], torch.eye(3)[None, None], scale=1.0, mask=causal())
    read = read_text("tokens", ["a", "b", "c"])
    start = heads_payload([Run("", [Layer("a", short)], read)], "").data["start"]
    assert start == {"layer": 0, "head": 0, "query": 2, "key": 1}


def test_links_are_between_different_words_and_not_to_the_first() -> None:
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[0, [1, 3]] = expected[1, 3] = expected[3, 1] = True
    assert torch.equal(pairs_of_words([True, True, False, True]), expected)
