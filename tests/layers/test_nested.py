"""Nested tensors: every sequence is what it is alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.kernels import _lowering
from clearhead.layers import MultiHeadAttention, Part

WIDTH, LENGTHS = 12, (5, 1, 0, 11, 3)

PARTS: dict[str, Callable[[], list[Part]]] = {
    "plain": list,
    "rotary": lambda: [ch.layers.Rotary(3 * 2), ch.layers.OutputGate(WIDTH, 2)],
    "rotary for long texts": lambda: [
        ch.layers.Rotary(6, scaling=ch.layers.Dynamic(4.0, original_len=6))
    ],
    "buckets": lambda: [ch.layers.RelativeBias(2, num_buckets=8, max_distance=9)],
    "softcap": lambda: [ch.layers.Softcap(2.0)],
}
MASKS: dict[str, ch.Mask | None] = {
    "none": None,
    "causal": ch.causal(),
    "window": ch.causal() & ch.sliding_window(left=2),
    "prefix": ch.causal() | ch.prefix(3),
}


def made(parts: str = "plain", mask: str = "causal") -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, num_heads=2, mask=MASKS[mask], parts=PARTS[parts]())


def sequences() -> list[Tensor]:
    return [torch.randn(length, WIDTH) for length in LENGTHS]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("parts", PARTS)
def test_every_sequence_is_what_it_is_alone(parts: str, mask: str) -> None:
    layer, given = made(parts, mask), sequences()
    nested = torch.nested.nested_tensor(given, layout=torch.jagged, requires_grad=True)
    found = layer(nested)
    assert found.layout == torch.jagged
    assert [len(each) for each in found.unbind()] == list(LENGTHS)
    leaves = [each.clone().requires_grad_() for each in given]
    # Lengths that stretch frequencies are those of the longest of a call.
    longest = max(LENGTHS)
    for index, leaf in enumerate(leaves):
        if parts == "rotary for long texts" and len(leaf) != longest:
            continue
        alone = layer(leaf)
        torch.testing.assert_close(found.unbind()[index], alone)
        alone.square().sum().backward()
    found.values().square().sum().backward()
    assert nested.grad is not None
    for index, leaf in enumerate(leaves):
        if leaf.grad is not None:
            torch.testing.assert_close(nested.grad.unbind()[index], leaf.grad)


@torch.no_grad()
def test_the_cost_is_that_of_the_sequences() -> None:
    layer = made()
    nested = torch.nested.nested_tensor([torch.randn(300, WIDTH)] * 5, layout=torch.jagged)
    pieces = _lowering.lower(layer.make_problem(nested))
    sizes = [(each.queries, each.keys) for each in pieces]
    pairs = sum((q.stop - q.start) * (k.stop - k.start) for q, k in sizes)
    assert pairs < 2 * 5 * 300**2
    weights = layer.weights(nested)
    assert weights.shape == (1, 2, 1500, 1500)
    assert float(weights[0, 0, 700, :600].sum()) == 0.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda layer, x: layer(x, valid=torch.ones(2, 3, dtype=torch.bool)),
            "[layer.nested] a nested x must be of layout torch.jagged and shape (batch, tokens, "
            "width), without context, valid, positions, cache; got layout torch.jagged, 3 dimensions, with "
            "valid.",
        ),
        (
            lambda layer, x: layer(x, x),
            "[layer.nested] a nested x must be of layout torch.jagged and shape (batch, tokens, "
            "width), without context, valid, positions, cache; got layout torch.jagged, 3 dimensions, with "
            "context.",
        ),
    ],
)
def test_refusals(call: Callable[[Any, Tensor], Any], text: str) -> None:
    nested = torch.nested.nested_tensor(sequences(), layout=torch.jagged)
    with pytest.raises(ch.UnsupportedError) as raised:
        call(made(), nested)
    assert str(raised.value) == text


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_older_layout_is_refused() -> None:
    nested = torch.nested.nested_tensor(sequences())
    with pytest.raises(ch.UnsupportedError) as raised:
        made()(nested)
    assert str(raised.value) == (
        "[layer.nested] a nested x must be of layout torch.jagged and shape (batch, tokens, "
        "width), without context, valid, positions, cache; got layout torch.strided, 3 dimensions."
    )
