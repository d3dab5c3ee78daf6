"""Weights that fall alike on all ranks, whatever the layout, and weights that do not."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.ranks.dropped import ENOUGH, Dropped
from clearhead.checking.ranks.placement import Placement, placement

Pattern = Callable[[Placement, torch.Generator], Tensor]
HEADS = 6


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(2, *shape, generator=generator) < 0.4


def by_keys(here: Placement, generator: torch.Generator, steps: int = 0) -> Tensor:
    """One pattern for the rows of every rank, its blocks of keys in the order of the text or of a ring."""
    size, tokens = min(here.counts), len(here.order)
    pattern, gone = draw(generator, HEADS, size, tokens), draw(generator, HEADS, tokens, tokens)
    for rank, rows in enumerate(here.positions):
        columns = torch.arange(tokens)
        if steps:
            ring = [(rank + step * steps) % here.world for step in range(here.world)]
            columns = torch.cat([here.positions[each][:size] for each in ring])
        cells = rows[:size, None], columns
        gone[:, :, *cells] = pattern[..., : len(columns)]
    return gone


def by_heads(here: Placement, generator: torch.Generator) -> Tensor:
    each, tokens = HEADS // here.world, len(here.order)
    return draw(generator, each, tokens, tokens).repeat(1, here.world, 1, 1)


ALIKE: dict[str, Pattern] = {
    "keys": by_keys,
    "ring": lambda here, generator: by_keys(here, generator, 1),
    "ring back": lambda here, generator: by_keys(here, generator, -1),
    "heads": by_heads,
}


def dropped(here: Placement, gone: Tensor, before: Tensor | None = None) -> Dropped:
    weights = torch.ones(gone.shape, dtype=torch.float64) if before is None else before
    return Dropped(weights * ~gone / 0.6, weights, here)


@pytest.mark.parametrize("name", ALIKE)
@settings(max_examples=10)
@given(
    st.sampled_from([(2, "contiguous"), (3, "zigzag"), (2, "zigzag"), (3, "contiguous")]),
    st.integers(0, 99),
)
def test_one_pattern_for_all_ranks(name: str, world: tuple[int, str], seed: int) -> None:
    here = placement(
        12 if name.startswith("ring") else 13, Contract(world=world[0], layout=world[1])
    )
    gone = ALIKE[name](here, torch.Generator().manual_seed(seed))
    assert dropped(here, gone).alike()
    # One rank that has another is enough to tell them apart, be it the first but one or the last.
    for rank in range(1, here.world):
        other = gone.clone()
        rows = here.positions[rank]
        heads = slice(rank * (HEADS // here.world), (rank + 1) * (HEADS // here.world))
        cells = (slice(None), heads) if name == "heads" else (..., rows, slice(None))
        other[cells] = ~other[cells]
        assert not dropped(here, other).alike()


def test_what_cannot_tell() -> None:
    """Nothing that falls, and fewer weights than tell patterns apart."""
    here = placement(12, Contract(world=2))
    generator = torch.Generator().manual_seed(0)
    gone = by_keys(here, generator)
    assert not dropped(here, gone & False).alike()
    few = torch.zeros(gone.shape, dtype=torch.float64)
    few[0, 0, :, : ENOUGH // 6] = 1.0
    assert not dropped(here, gone, few).alike()
    assert dropped(here, gone).kept == pytest.approx(1 / 0.6)
