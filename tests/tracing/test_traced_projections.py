"""The linear maps of a trace: each makes its stage, and one that does not is left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import (
    Cache,
    Differential,
    FixedCache,
    GrowingCache,
    Part,
    QuantisedCache,
    QueryKeyNorm,
    Rotary,
    SlidingCache,
)

X = torch.randn(1, 7, 8, generator=torch.Generator().manual_seed(0))


def layer(*parts: Part) -> ch.MultiHeadAttention:
    mask = ch.causal() & ch.sliding_window(left=2)
    return ch.MultiHeadAttention(8, num_heads=2, mask=mask, parts=parts).requires_grad_(False)


class Rounding(GrowingCache):
    """Keeps its keys with one digit."""

    def append(self, key: Tensor, *given: Any, **more: Any) -> Any:
        return super().append(key.round(decimals=1), *given, **more)


class Shifted(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class OfValue(Part):
    def transform_value(self, value: Tensor) -> Tensor:
        return 2 * value


CACHES: dict[str, tuple[Callable[[], Cache], bool, bool]] = {
    # Whether the keys of four more tokens are the last, as they were made, and those of one then.
    "growing": (GrowingCache, True, True),
    "ring": (lambda: SlidingCache(3), True, False),
    "of fixed length": (lambda: FixedCache(9), False, False),
    "of fewer bits": (QuantisedCache, False, False),
}


@pytest.mark.parametrize("name", CACHES)
def test_keys_that_a_cache_has_elsewhere_have_no_map(name: str) -> None:
    make, *shown = CACHES[name]
    for parts in ((), (Rotary(4),), (QueryKeyNorm(4), OfValue())):
        attention, cache = layer(*parts), make()
        attention(X[:, :2], cache=cache)
        for piece, known in zip(X[:, 2:].split([4, 1], dim=1), shown, strict=True):
            steps = ch.trace(attention, piece, cache=cache)
            names = ["query", "key", "value", "output"] if known else ["query", "output"]
            assert list(steps.projections) == names, parts
            if known and not parts:
                made = steps.projections["key"]
                rows = (made.input[:, None] @ made.weight).expand(1, 2, -1, 4)
                torch.testing.assert_close(steps["key"][:, :, -rows.shape[2] :], rows)
            attention(piece, cache=cache)


def test_a_key_that_is_not_that_of_its_map_has_none() -> None:
    assert list(ch.trace(layer(), X, cache=Rounding()).projections) == ["query", "value", "output"]
    differential = ch.MultiHeadAttention(8, num_heads=2, parts=[Differential(4)])
    assert list(ch.trace(differential, X).projections) == ["query", "key", "output"]
    shifted = layer()
    shifted.key_projection, shifted.output_projection = Shifted(8, 8), Shifted(8, 8)
    assert list(ch.trace(shifted, X).projections) == ["query", "value"]


def test_what_a_part_does_to_a_value_is_not_known() -> None:
    projections = ch.trace(layer(OfValue(), Rotary(4)), X).projections
    assert (projections["value"].parts, projections["value"].changes) == ("OfValue, Rotary", None)
    assert projections["key"].changes == ({"part": "Rotary", "layout": "half", "turned": 4},)
    # A norm of all heads side by side is none of a row.
    wide = ch.trace(layer(QueryKeyNorm(4, num_heads=2)), X).projections
    assert [wide[name].changes for name in ("query", "key", "value")] == [None, None, None]
    assert wide["query"].parts == "QueryKeyNorm"
