"""The Python calls of the smallest calls, which are most of their time, where they are asked again."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch

import clearhead as ch

SOURCE = str(Path(ch.__file__).parent)


def _calls(function: Callable[[], object]) -> int:
    """The number of calls of functions of the package, after some to warm up."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call" and frame.f_code.co_filename.startswith(SOURCE)

    for _ in range(3):
        function()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return counted


def _attend(mask: Callable[[], ch.Mask | None] = lambda: None) -> Callable[[], object]:
    query, key, value = torch.randn(3, 1, 4, 16, 16).unbind()
    return lambda: ch.attend(query, key, value, mask=mask())


def _few(queries: int, mask: ch.Mask) -> Callable[[], object]:
    query, (key, value) = torch.randn(2, 4, queries, 16), torch.randn(2, 2, 4, 16, 16).unbind()
    return lambda: ch.attend(query, key, value, mask=mask)


def _layer() -> Callable[[], object]:
    layer, x = ch.MultiHeadAttention(16, num_heads=2), torch.randn(1, 5, 16)
    return lambda: layer(x)


def _step() -> Callable[[], object]:
    layer = ch.MultiHeadAttention(16, num_heads=2, mask=ch.causal()).eval()
    cache, x = ch.layers.StaticCache(16), torch.randn(1, 1, 16)
    return lambda: layer(x, cache=cache)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (_attend, 6),
        (lambda: _attend(ch.causal), 9),
        (lambda: _attend(lambda: ch.causal() & ch.padding(torch.ones(1, 16).bool())), 29),
        (lambda: _few(1, ch.sliding_window(left=7, right=0)), 7),
        (lambda: _few(16, ch.causal() & ch.padding([12, 7])), 6),
        (_layer, 55),
        (_step, 25),
    ],
)
def test_a_small_call_makes_few(make: Callable[[], Callable[[], object]], most: int) -> None:
    call = make()
    with torch.inference_mode():
        assert _calls(call) <= most
