"""Numbers in a byte or two."""

import pytest
import torch

from clearhead.drawing.page.payload import BYTE, WORD, rounded
from tests.drawing.page.restoring import restored


@pytest.mark.parametrize("levels", [3, 45, BYTE, WORD])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_the_root_moves_by_half_a_step_at_most(levels: int, power: int) -> None:
    values = torch.rand(3, 11, 13, generator=torch.Generator().manual_seed(0)) ** 4
    codes, about = rounded(values, levels, power=power)
    top = torch.tensor(about["top"])[:, None, None]
    assert torch.equal(top[:, 0, 0], values.flatten(1).amax(1))
    there = restored(codes, about)
    apart = ((there / top) ** (1 / power) - (values / top) ** (1 / power)).abs()
    assert float(apart.max()) <= 0.5 / levels + 1e-5  # of the root in float32
    assert codes.dtype == (torch.uint8 if levels <= BYTE else torch.uint16)


def test_the_error_is_what_the_docstring_says() -> None:
    values = torch.linspace(0, 0.7, 1009)[None]
    codes, about = rounded(values, 100)
    error = (restored(codes, about) - values).abs()
    assert bool((error <= (values * 0.7).sqrt() / 100 + 0.7 / (4 * 100**2) + 1e-7).all())


def test_hidden_and_no_number_are_told_apart() -> None:
    values = torch.tensor([[0.0, 0.5, torch.nan, torch.inf, -1e-9]])
    hidden = torch.tensor([[True, False, False, False, False]])
    codes, about = rounded(values, 10, hidden=hidden)
    assert codes.tolist() == [[0, 11, 12, 12, 1]]
    assert about["top"] == [0.5]
    there = restored(codes, about)
    assert there[0, :2].tolist() == [0.0, 0.5]
    assert there[0, 2:4].isnan().all()


def test_of_nothing_comes_nothing() -> None:
    codes, about = rounded(torch.zeros(2, 3), 10)
    assert (codes.tolist(), about["top"]) == ([[1, 1, 1], [1, 1, 1]], [0.0, 0.0])
    codes, about = rounded(torch.zeros(2, 0), 10)
    assert (tuple(codes.shape), about["top"]) == ((2, 0), [0.0, 0.0])
