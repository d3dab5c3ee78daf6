"""Projections in the heads of what they became."""

import pytest
import torch

from clearhead.checking.evidence.raw import _columns


@pytest.mark.parametrize("heads", [2, 4])
def test_turned_heads_are_those_of_their_columns_in_order(heads: int) -> None:
    """Turned by the same angle, so that lengths stay; two query heads of four share a key."""
    flat = torch.randn(2, 3, 2 * 6, dtype=torch.float64)
    own = flat.unflatten(-1, (2, 6)).transpose(1, 2).repeat_interleave(heads // 2, 1)
    turned = torch.cat([-own[..., 3:], own[..., :3]], -1)
    for mine in (own, turned):
        found = _columns(flat, mine)
        assert found is not None
        assert found.shape == own.shape
        assert found.sort(-1).values.equal(own.sort(-1).values)


@pytest.mark.parametrize(("columns", "heads"), [(8, 3), (6, 3), (12, 2)])
def test_columns_that_are_no_whole_heads_are_not_known(columns: int, heads: int) -> None:
    assert _columns(torch.randn(2, 3, columns), torch.randn(2, heads, 3, 4).double()) is None
