"""The linear maps of a trace: each makes its stage, and one that does not is left out."""

import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import (
    Differential,
    GrowingCache,
    Part,
    QueryKeyNorm,
    Rotary,
)

X = torch.randn(1, 7, 8, generator=torch.Generator().manual_seed(0))


def layer(*parts: Part) -> ch.MultiHeadAttention:
    mask = ch.causal() & ch.sliding_window(left=2)
    return ch.MultiHeadAttention(8, num_heads=2, mask=mask, parts=parts).requires_grad_(False)


class Shifted(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class OfValue(Part):
    def transform_value(self, value: Tensor) -> Tensor:
        return 2 * value


def test_keys_of_a_cache_have_no_map() -> None:
    for parts in ((), (Rotary(4),), (QueryKeyNorm(4), OfValue())):
        attention, cache = layer(*parts), GrowingCache()
        for piece in X.split([2, 5], dim=1):
            steps = ch.trace(attention, piece, cache=cache)
            assert list(steps.projections) == ["query", "output"], parts
            attention(piece, cache=cache)


def test_a_key_that_is_not_that_of_its_map_has_none() -> None:
    differential = ch.MultiHeadAttention(8, num_heads=2, parts=[Differential(4)])
    assert list(ch.trace(differential, X).projections) == ["query", "key", "output"]
    shifted = layer()
    shifted.key_projection, shifted.output_projection = Shifted(8, 8), Shifted(8, 8)
    assert list(ch.trace(shifted, X).projections) == ["query", "value"]


def test_parts_that_change_a_projection_are_named() -> None:
    projections = ch.trace(layer(OfValue(), Rotary(4)), X).projections
    assert [projections[name].parts for name in ("key", "value")] == ["OfValue, Rotary"] * 2
    wide = ch.trace(layer(QueryKeyNorm(4, num_heads=2)), X).projections
    assert wide["query"].parts == "QueryKeyNorm"
