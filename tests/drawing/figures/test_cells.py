"""Cells: masked where something is hidden, and their grain in words."""

from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.drawing.figures.cells import Cells
from clearhead.matrix.head_view import HeadMaps, HeadView
from tests.drawing.figures.drawn import matrix


def test_the_matrix_is_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(self: object, index: object) -> None:
        raise AssertionError("the matrix was indexed")

    monkeypatch.setattr(ch.AttentionMatrix, "__getitem__", whole)
    query = torch.randn(1, 2, 3_000, 4)
    axes = ch.AttentionMatrix(query, query, mask=ch.causal()).plot(head=1)
    assert axes.images[0].get_array().shape == (250, 250)
    assert axes.get_xlabel() == "attended to (key)\none cell = 12 × 12 tokens"


def test_no_number_is_not_called_hidden() -> None:
    query = torch.randn(1, 1, 3, 5)
    query[..., 1, :] = torch.nan
    weights = ch.AttentionMatrix(query, query.nan_to_num(), mask=ch.causal())
    cells = Cells.of(HeadView(weights).maps(3), [0])
    assert cells.blank() == ["grey: hidden", "orange: no number"]
    assert np.ma.getmaskarray(cells.shares)[0].tolist() == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]


def test_a_grain_is_said_where_there_is_one() -> None:
    cells = Cells.of(HeadMaps(torch.rand(2, 11, 13), None, 11, 13), [5, 0])
    assert (cells.pooled, cells.detail(), cells.hides) == (False, "", False)
    assert cells.unit() == "attention weight (share of 1)"
    cells = Cells.of(HeadMaps(torch.rand(2, 7, 8), torch.eye(7, 8)[None] > 0, 41, 43), [3, 4])
    assert cells.detail() == "one cell ≈ 6 × 5 tokens"
    assert cells.unit() == "share of a query's attention, mean; grey: hidden"


def test_sizes_are_written_with_a_gap() -> None:
    cells = Cells(np.ma.zeros((1, 10, 10)), [0], 300_000, 20_000)
    assert cells.detail() == "one cell = 30 000 × 2 000 tokens"


@pytest.mark.parametrize("cells", [0, -1, 2.5, "many", True])
def test_a_number_of_cells_that_is_none(cells: Any) -> None:
    for draw in (matrix().plot, lambda **given: ch.causal().plot(3, 3, **given)):
        with pytest.raises(
            ch.errors.ArgumentError, match="cells must be a whole number, 1 or more"
        ) as no:
            draw(cells=cells)
        assert no.value.code == "plot.cells"
