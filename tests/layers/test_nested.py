"""Nested tensors: every sequence is what it is alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.attention.kernels import _lowering
from clearhead.layers import MultiHeadAttention, Part
from tests.layers.caches.texts import KINDS

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


def nested_of(given: list[Tensor]) -> Tensor:
    return torch.nested.nested_tensor(given, layout=torch.jagged)


def padded(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows = nn.utils.rnn.pad_sequence(given, batch_first=True)
    lengths = torch.tensor([len(each) for each in given])
    return rows, torch.arange(rows.shape[1]) < lengths[:, None]


@pytest.mark.parametrize("parts", ["plain", "rotary", "softcap"])
@pytest.mark.parametrize("which", ["both", "x", "context"])
def test_beside_a_context_it_is_the_padded_batch(parts: str, which: str) -> None:
    layer = made(parts, "none").double()
    given = [each.double() for each in sequences()]
    others = [torch.randn(length, WIDTH).double() for length in (2, 7, 3, 1, 0)]
    (x, real), (context, valid) = padded(given), padded(others)
    expected = layer(x, context, valid=valid)
    leaves = [each.clone().requires_grad_() for each in (*given, *others)]
    mine, theirs = leaves[: len(given)], leaves[len(given) :]
    queries = torch.nested.as_nested_tensor(mine, layout=torch.jagged) if which != "context" else x
    keys = torch.nested.as_nested_tensor(theirs, layout=torch.jagged) if which != "x" else context
    found = layer(queries, keys, valid=valid if which == "x" else None)
    values = found[real] if which == "context" else found.values()
    torch.testing.assert_close(values, expected[real])
    dense = [each.clone().requires_grad_() for each in (x, context)]
    layer(*dense, valid=valid)[real].square().sum().backward()
    values.square().sum().backward()
    for rows, parts_of, shown in ((dense[0], mine, "context"), (dense[1], theirs, "x")):
        for row, leaf in enumerate(parts_of):
            if which != shown and len(leaf):
                torch.testing.assert_close(leaf.grad, rows.grad[row, : len(leaf)])  # pyright: ignore
    cached = ch.layers.GrowingCache()
    with torch.no_grad():
        for _ in range(2):
            again = layer(queries, keys, valid=valid if which == "x" else None, cache=cached)
            again = again[real] if which == "context" else again.values()
            torch.testing.assert_close(again, expected[real])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("quantised", "sliding")])
@pytest.mark.parametrize("parts", ["rotary", "buckets"])
@torch.no_grad()
def test_beside_a_cache_it_is_the_padded_batch(parts: str, kind: str) -> None:
    layer = made(parts, "window" if kind.startswith("sliding") else "causal").double().eval()
    cache, text = KINDS[kind](), [torch.zeros(0, WIDTH).double() for _ in range(3)]
    for lengths in ((5, 1, 3), (1, 1, 1), (2, 0, 3)):
        new = [torch.randn(length, WIDTH).double() for length in lengths]
        text = [torch.cat(pair) for pair in zip(text, new, strict=True)]
        found = layer(nested_of(new), cache=cache)
        for row, (some, all_of_it) in enumerate(zip(new, text, strict=True)):
            alone = layer(all_of_it)[len(all_of_it) - len(some) :]
            torch.testing.assert_close(found.unbind()[row], alone)
    step = torch.randn(3, 1, WIDTH).double()  # tokens that are no nested tensor go on from there
    found = layer(step, cache=cache)
    for row, all_of_it in enumerate(text):
        torch.testing.assert_close(found[row], layer(torch.cat([all_of_it, step[row]]))[-1:])


@torch.no_grad()
def test_a_part_of_another_has_gaps() -> None:
    layer, rows = made("rotary"), torch.randn(3, 9, WIDTH)
    start, length = torch.tensor([0, 4, 2]), torch.tensor([3, 5, 1])
    part = torch.nested.narrow(rows, 1, start, length, layout=torch.jagged)
    found = layer(part).unbind()
    for row in range(3):
        some = rows[row, start[row] : start[row] + length[row]]
        torch.testing.assert_close(found[row], layer(some))


REFUSED = (
    "[layer.nested] a nested tensor must be of layout torch.jagged and shape (batch, tokens, width), "
    "and comes without valid and positions: it has no padding, and the tokens of each sequence are "
    "counted; got layout torch.{}, 3 dimensions{}. To give them, pad it: "
    "torch.nested.to_padded_tensor(x, 0.0)."
)
ONES = torch.ones(5, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda layer, x: layer(x, valid=ONES), ", with valid"),
        (lambda layer, x: layer(x, positions=torch.arange(3)), ", with positions"),
        (lambda layer, x: layer(torch.randn(5, 3, WIDTH), x, valid=ONES), ", with valid"),
    ],
)
def test_refusals(call: Callable[[Any, Tensor], Any], text: str) -> None:
    with pytest.raises(ch.errors.UnsupportedError) as raised:
        call(made(), nested_of(sequences()))
    assert str(raised.value) == REFUSED.format("jagged", text)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_older_layout_is_refused() -> None:
    with pytest.raises(ch.errors.UnsupportedError) as raised:
        made()(torch.nested.nested_tensor(sequences()))
    assert str(raised.value) == REFUSED.format("strided", "")
