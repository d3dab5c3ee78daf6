"""Cells: the numbers of the matrix, pooled where they are many, and hidden where it hides."""

from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.drawing.figures.cells import Cells, of_weights, side
from clearhead.matrix.indexing import bins
from tests.drawing.figures.drawn import matrix
from tests.tolerances import assert_no_worse


def pooled_visible(
    mask: ch.Mask, weights: ch.AttentionMatrix, rows: int, columns: int
) -> torch.Tensor:
    """True for each cell that has a visible pair, from the whole mask: (batch, num_heads, rows, columns)."""
    query_len, kv_len = weights.shape[-2:]
    seen = weights.problem.visible()
    assert seen is not None
    seen = seen.expand(weights.shape)
    of_row = bins(query_len, rows, seen.device)
    of_column = bins(kv_len, columns, seen.device)
    found = torch.zeros(*seen.shape[:2], rows, columns, dtype=torch.bool)
    for row in range(rows):
        for column in range(columns):
            part = seen[:, :, of_row == row][..., of_column == column]
            found[:, :, row, column] = part.flatten(2).any(dim=2)
    return found


MASKS = {
    "spans": lambda: ch.causal() & ch.sliding_window(left=9),
    "lengths": lambda: ch.causal() & ch.padding([41, 17]),
    "holes": lambda: ch.padding((torch.arange(43) % 11 < 2).expand(2, -1)),
    "samples": lambda: ch.dense(torch.rand(2, 1, 41, 43) > 0.97),
    "heads": lambda: ch.dense(torch.rand(2, 6, 41, 43) > 0.97),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("most", [13, 64])
def test_a_cell_is_hidden_where_nothing_of_it_is_visible(name: str, most: int) -> None:
    mask = MASKS[name]()
    weights = matrix(query_len=41, kv_len=43, mask=mask)
    for heads in ([0, 1, 2, 3, 4, 5], [4, 1]):
        cells = of_weights(weights, 1, heads, most)
        seen = pooled_visible(mask, weights, *cells.shares.shape[1:])[1, heads]
        assert np.ma.getmaskarray(cells.shares).tolist() == (~seen).tolist()
    assert cells.hides


def test_a_bias_hides_as_well() -> None:
    bias = torch.zeros(1, 1, 7, 7)
    bias[..., 3] = -torch.inf
    query = torch.randn(2, 3, 7, 5)
    weights = ch.AttentionMatrix(query, query, bias=bias, mask=ch.causal())
    hidden = np.ma.getmaskarray(of_weights(weights, 1, [2], 7).shares)[0]
    expected = ~torch.ones(7, 7).tril().bool()
    expected[:, 3] = True
    assert hidden.tolist() == expected.tolist()


def test_few_tokens_are_the_weights_themselves() -> None:
    weights = matrix(query_len=11, kv_len=13)
    cells = of_weights(weights, 1, [5, 0], 13)
    assert torch.from_numpy(cells.shares.data).equal(weights[1, [5, 0]])
    assert (cells.pooled, cells.detail(), cells.hides) == (False, "", False)
    assert cells.unit() == "attention weight (share of 1)"


@pytest.mark.parametrize("tied", [False, True])
def test_many_tokens_are_pooled(tied: bool) -> None:
    """The mean over the queries of a cell of what they give to its keys together."""
    mask = ch.causal() & ch.padding([41, 17]) if tied else ch.causal()
    weights = matrix(query_len=41, kv_len=43, mask=mask)
    cells = of_weights(weights, 1, [3, 4], 8)
    assert cells.shares.shape == (2, 7, 8)

    def pooled(dense: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.one_hot(bins(41, 7, dense.device)).to(dense)
        columns = torch.nn.functional.one_hot(bins(43, 8, dense.device)).to(dense)
        return rows.T @ dense @ columns / rows.sum(dim=0)[:, None]

    problem = weights.problem
    exact = ch.AttentionMatrix(problem.query.double(), problem.key.double(), mask=mask)
    drawn = torch.from_numpy(cells.shares.data)
    assert_no_worse(drawn, pooled(exact[1, [3, 4]]), pooled(weights[1, [3, 4]]))
    assert cells.detail() == "one cell ≈ 6 × 5 tokens"
    assert cells.unit() == "share of a query's attention, mean; grey: hidden"


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
    cells = of_weights(ch.AttentionMatrix(query, query.nan_to_num(), mask=ch.causal()), 0, [0], 3)
    assert cells.blank() == ["grey: hidden", "orange: no number"]
    assert np.ma.getmaskarray(cells.shares)[0].tolist() == [
        [False, True, True],
        [False, False, True],
        [False, False, False],
    ]


@pytest.mark.parametrize("tokens", [1, 2, 255, 256, 257, 511, 513, 99_991])
def test_cells_are_of_one_size_save_the_last(tokens: int) -> None:
    count = side(tokens, 256)
    assert 1 <= count <= 256
    sizes = bins(tokens, count, torch.device("cpu")).bincount()
    assert int(sizes.max() - sizes.min()) <= 1
    assert int(sizes.max()) == -(-tokens // 256)


def test_sizes_are_written_with_a_gap() -> None:
    cells = Cells(np.ma.zeros((1, 10, 10)), [0], 300_000, 20_000)
    assert cells.detail() == "one cell = 30 000 × 2 000 tokens"


@pytest.mark.parametrize("cells", [0, -1, 2.5, "many", True])
def test_a_number_of_cells_that_is_none(cells: Any) -> None:
    for draw in (matrix().plot, lambda **given: ch.causal().plot(3, 3, **given)):
        with pytest.raises(ch.ArgumentError, match="cells must be a whole number, 1 or more") as no:
            draw(cells=cells)
        assert no.value.code == "plot.cells"
