"""Maps as PNG."""

import torch

from clearhead.drawing.colours import colour
from clearhead.drawing.notebook.inline.matrices import (
    GAP,
    LEVELS,
    SHADES,
    enlarged,
    shade,
    side_by_side,
)


def test_shades_grow_with_the_root() -> None:
    shares = torch.tensor([0.0, 1e-9, 0.25, 1.0, 7.0, torch.nan])
    middle = round(0.5 * (LEVELS - 1)) + 2
    assert shade(shares).tolist() == [2, 2, middle, 255, 255, 1]
    assert SHADES[2] == colour(0.0, light=True)
    assert SHADES[-1] == colour(1.0, light=True)


def test_cells_are_squares_and_maps_have_a_gap() -> None:
    places = torch.tensor([[1, 2]], dtype=torch.uint8)
    assert enlarged(places, 2).tolist() == [[1, 1, 2, 2], [1, 1, 2, 2]]
    assert side_by_side([places, places]).tolist() == [[1, 2, *[0] * GAP, 1, 2]]
    assert side_by_side([places]).tolist() == [[1, 2]]
