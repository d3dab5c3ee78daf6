"""Whose tokens queries and keys are."""

from typing import Any

import pytest
import torch

from clearhead.drawing.page.texts import TextOffset, offsets, read_text
from tests.refusals import refusals


@pytest.mark.parametrize(
    ("given", "tokens", "ids"),
    [
        (["a", "b", "a"], ("a", "b", "a"), [0, 1, 0]),
        ((5, 3, 5), ("#5", "#3", "#5"), [5, 3, 5]),
        (torch.tensor([5, 3]), ("#5", "#3"), [5, 3]),
        (torch.tensor([[5, 3], [7, 2]]), ("#7", "#2"), [7, 2]),
        ([], (), []),
    ],
)
def test_strings_and_ids(given: Any, tokens: tuple[str, ...], ids: list[int]) -> None:
    text = read_text("tokens", given, sample=1)
    assert text.tokens == tokens
    assert text.ids.tolist() == ids
    assert text.ids.dtype == torch.int64


test_anything_else_is_refused = refusals(
    lambda given: read_text("source_tokens", given),
    *(
        (given, "page.tokens", f"source_tokens // {type(given).__name__}")
        for given in ("a text", b"bytes", 3, [1.5], ["a", 1], torch.zeros(2, 2, 2))
    ),
)


@pytest.mark.parametrize(
    ("layer", "sizes", "counts", "expected"),
    [
        ("layer", (7, 7), (7, None), ((0, 0), (0, 0))),
        ("layer", (2, 7), (7, None), ((0, 5), (0, 0))),
        ("layer", (6, 6), (7, None), ((0, 0), (0, 0))),  # the newest token has not attended yet
        ("layer", (7, 7), (None, None), ((None, 0), (None, 0))),
        ("encoder.0", (5, 5), (7, 5), ((1, 0), (1, 0))),
        ("decoder.0.self_attn", (7, 7), (7, 5), ((0, 0), (0, 0))),
        ("decoder.0.encoder_attn", (7, 5), (7, 5), ((0, 0), (1, 0))),
        ("decoder.0.encoder_attn", (1, 5), (7, 5), ((0, 6), (1, 0))),
        ("encoder.0", (7, 7), (7, 7), ((1, 0), (1, 0))),
        ("decoder.0.self_attn", (7, 7), (7, 7), ((0, 0), (0, 0))),
        ("decoder.0.cross_attention", (7, 7), (7, 7), ((0, 0), (1, 0))),
        ("decoder.0.cross_attention", (7, 5), (None, 5), ((None, 0), (1, 0))),
        ("decoder.0.cross_attention", (5, 5), (None, 5), ((None, 0), (1, 0))),
    ],
)
def test_places(
    layer: str,
    sizes: tuple[int, int],
    counts: tuple[int | None, int | None],
    expected: tuple[tuple[int | None, int], tuple[int | None, int]],
) -> None:
    found = offsets(layer, *sizes, *counts, cross="cross" in layer)
    assert found == (TextOffset(*expected[0]), TextOffset(*expected[1]))


test_tokens_of_another_length = refusals(
    lambda sizes: offsets("layer", *sizes),
    ((7, 7, 5, None), "page.lengths", "layer // 7 // 5 tokens"),
    ((7, 7, 9, None), "page.lengths", "layer // 7 // 9 tokens"),
    ((7, 3, 7, None), "page.lengths", "layer // 3 // 7 tokens"),
    ((7, 3, 7, 4), "page.lengths", "layer // 3 // 7 tokens and 4 source tokens"),
)
