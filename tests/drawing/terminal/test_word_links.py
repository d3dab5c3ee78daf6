"""The heads of a layer, and the one to look at first."""

import math

import pytest
import torch
from torch import Tensor

from clearhead import AttentionMatrix, causal
from clearhead.drawing.terminal.word_links import (
    Choice,
    LayerHeads,
    head_to_show,
    heads_of,
    which_are_words,
)
from clearhead.matrix.links import Link

SHARP = 200.0
"""A score so far above the others that nothing is left for them in float32."""


def matrix_of(scores: Tensor, **options: object) -> AttentionMatrix:
    """The matrix with these scores, (num_heads, tokens, tokens)."""
    heads, tokens, _ = scores.shape
    identity = torch.eye(tokens).expand(1, heads, tokens, tokens)
    return AttentionMatrix(scores[None], identity, scale=1.0, **options)  # type: ignore[arg-type]


def previous_token(tokens: int) -> Tensor:
    """Scores of a head that looks at the token before; the first one looks at itself."""
    scores = torch.zeros(tokens, tokens)
    scores[torch.arange(tokens), (torch.arange(tokens) - 1).clamp_min(0)] = SHARP
    return scores


def numbers(heads: LayerHeads, head: int = 0) -> dict[str, float]:
    """The numbers of one head, by name."""
    of_row = ("entropy", "distance", "first", "previous")
    found = {name: getattr(heads.rows[head], name) for name in of_row}
    return found | {name: getattr(heads, name)[head] for name in ("focus", "special")}


def test_a_head_that_looks_everywhere_alike() -> None:
    special = [True, False, False, False, True]
    heads = heads_of(matrix_of(torch.zeros(1, 5, 5)), special, [not own for own in special])
    assert numbers(heads) == pytest.approx(
        {
            "entropy": math.log(5),
            "focus": 0.0,
            "distance": (10 + 7 + 6 + 7 + 10) / 5 / 5,
            "first": 0.2,
            "previous": 0.2,
            "special": 0.4,
        },
        abs=1e-6,
    )
    assert len(heads.rows) == 1
    assert heads.telling == (None,)


def test_a_head_that_looks_at_the_token_before() -> None:
    heads = heads_of(
        matrix_of(torch.stack([torch.zeros(5, 5), previous_token(5)])), [False] * 5, [True] * 5
    )
    assert numbers(heads, head=1) == pytest.approx(
        {
            "entropy": 0.0,
            "focus": 1.0,
            "distance": 0.8,
            "first": 0.4,
            "previous": 1.0,
            "special": 0.0,
        },
        abs=1e-6,
    )
    assert heads.strongest[1] == Link(head=1, query=2, key=1, weight=1.0)
    assert heads.telling[1] == (True, 1.0, 1.0, 2, 1, 1.0)


def test_a_mask_does_not_count_as_focus() -> None:
    """A causal head that looks at all it may see alike is not focused at all."""
    heads = heads_of(matrix_of(torch.zeros(1, 7, 7), mask=causal()), [False] * 7, [True] * 7)
    most = sum(math.log(count) for count in range(1, 8)) / 7
    assert heads.rows[0].entropy == pytest.approx(most)
    assert heads.focus == (pytest.approx(0.0, abs=1e-6),)


def test_a_query_without_a_choice_does_not_count() -> None:
    """The first of a causal head sees itself alone, which is the first and a special token."""
    scores = torch.zeros(1, 5, 5)
    heads = heads_of(matrix_of(scores, mask=causal()), [True] + [False] * 4, [False] + [True] * 4)
    others = sum(1 / count for count in range(2, 6)) / 4
    expected = {"first": others, "previous": (1 / 3 + 1 / 4 + 1 / 5 + 1 / 2) / 4}
    found = numbers(heads)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["special"] == found["first"]


def test_a_single_token() -> None:
    heads = heads_of(matrix_of(torch.zeros(1, 1, 1)), [False], [True])
    expected = {"entropy": 0.0, "focus": 1.0, "distance": 0.0, "previous": 0.0}
    assert {name: numbers(heads)[name] for name in expected} == expected
    assert heads.strongest == (None,)
    assert head_to_show([heads]) == Choice(layer=0, head=0, link=None)


def test_a_nan_is_shown_and_never_chosen() -> None:
    scores = torch.zeros(2, 3, 3)
    scores[0, 1] = torch.nan
    heads = heads_of(matrix_of(scores), [False] * 3, [True] * 3)
    assert math.isnan(numbers(heads, 0)["entropy"])
    assert not math.isnan(numbers(heads, 1)["entropy"])
    assert heads.strongest[0] is not None
    assert heads.strongest[0][:3] == (0, 0, 1)
    assert head_to_show([heads]).link is not None


def test_words() -> None:
    tokens = ["[CLS]", " the", ".", "##s", "7", "\\xe2", "\\xe2\\x80", "<0xE2>", "猫", ""]
    expected = [False, True, False, True, True, False, False, False, True, False]
    assert list(which_are_words(tokens, [True] + [False] * 9)) == expected


def test_the_head_to_show_has_the_link_that_stands_out() -> None:
    near, far, weak = torch.zeros(3, 8, 8)
    near[3, 2] = SHARP
    far[7, 1] = 3.0
    weak[6, 2] = 1.0
    layers = [
        heads_of(matrix_of(torch.stack(heads)), [False] * 8, [True] * 8)
        for heads in ([near, weak], [weak, far])
    ]
    choice = head_to_show(layers)
    assert (choice.layer, choice.head) == (1, 1)
    assert choice.link is not None
    assert (choice.link.query, choice.link.key, choice.link.distance) == (7, 1, 6)
    assert choice.reason == "for a strong link that few other queries have"
    weakest = head_to_show([heads_of(matrix_of(weak[None]), [False] * 8, [True] * 8)])
    assert weakest.reason == "for the link between words that stands out most"
    alike = head_to_show([heads_of(matrix_of(torch.zeros(1, 8, 8)), [False] * 8, [True] * 8)])
    assert alike.reason == "for the link between words that stands out most"
    nothing = head_to_show([heads_of(matrix_of(weak[None]), [False] * 8, [False] * 8)])
    assert nothing.reason == "as the most focused head; there are no links between words"
