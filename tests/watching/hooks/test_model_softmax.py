"""Attention that cannot be read is noticed, and computes the same."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from clearhead.watching.hooks import model_softmax, tap
from tests.watching.hooks.recording import recorded

SCORES = torch.linspace(-2, 3, 42).reshape(2, 3, 7)


@pytest.fixture
def said() -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    found: list[tuple[str, tuple[int, ...]]] = []

    def witness(kind: str, shape: tuple[int, ...]) -> None:
        found.append((kind, shape))

    tap.witnesses.append(witness)
    with recorded(model_softmax):
        yield found
    tap.witnesses.remove(witness)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch": lambda x: torch.softmax(x, -1),
    "method": lambda x: x.softmax(dim=2),
    "functional": lambda x: F.softmax(x, dim=-1),
    "special": lambda x: torch.special.softmax(x, 2),
    "module": nn.Softmax(dim=-1),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_take_a_softmax(way: str, said: list[object]) -> None:
    expected = SCORES.exp() / SCORES.exp().sum(dim=-1, keepdim=True)
    torch.testing.assert_close(WAYS[way](SCORES), expected)
    assert said == [("softmax", (2, 3, 7))]


def test_one_over_another_axis_is_none(said: list[object]) -> None:
    SCORES.softmax(dim=1)
    assert said == []


def test_flex_attention(said: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    # Else PyTorch traces the call before it runs the same operations.
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    query = torch.randn(1, 2, 16, 8)
    flex_attention.flex_attention(query, query, query)
    assert said == [("flex_attention", ())]
    said.clear()
    with tap.guard():  # a part of a call that was reported
        context = flex_attention.flex_attention(query, query, query)
    assert said == []
    torch.testing.assert_close(context, F.scaled_dot_product_attention(query, query, query))


def test_a_patch_of_somebody_else_stays() -> None:
    def theirs(self: Tensor, *args: object, **options: object) -> Tensor:
        return self

    try:
        with recorded(model_softmax):
            Tensor.softmax = theirs
        assert Tensor.softmax is theirs
        with recorded(model_softmax):
            assert Tensor.softmax is not theirs
        assert Tensor.softmax is theirs
    finally:
        del Tensor.softmax  # that of its parent is back
