"""Maps as PNG."""

import base64

import torch

from clearhead.drawing.colours import colour
from clearhead.drawing.notebook.inline.matrices import (
    GAP,
    LEVELS,
    SHADES,
    enlarged,
    picture,
    shade,
    side_by_side,
)
from tests.drawing.notebook.inline.reading import Markup, pixels


def test_the_table_of_colours_is_the_scale() -> None:
    assert len(SHADES) == 256
    assert SHADES[2] == colour(0.0, light=True)
    assert SHADES[-1] == colour(1.0, light=True)


def test_shades_grow_with_the_root() -> None:
    shares = torch.tensor([0.0, 1e-9, 0.25, 1.0, 7.0, torch.nan])
    middle = round(0.5 * (LEVELS - 1)) + 2
    assert shade(shares).tolist() == [2, 2, middle, 255, 255, 1]


def test_cells_are_squares_and_maps_have_a_gap() -> None:
    places = torch.tensor([[1, 2]], dtype=torch.uint8)
    assert enlarged(places, 2).tolist() == [[1, 1, 2, 2], [1, 1, 2, 2]]
    assert side_by_side([places, places]).tolist() == [[1, 2, *[0] * GAP, 1, 2]]
    assert side_by_side([places]).tolist() == [[1, 2]]


def test_a_picture_says_its_size_and_what_it_is() -> None:
    (image,) = Markup(picture(torch.zeros(3, 5, dtype=torch.uint8), 'a "map"', border=True)).images
    assert (image["width"], image["height"], image["alt"]) == ("5", "3", 'a "map"')
    assert pixels(image["src"]).shape == (3, 5)
    assert base64.b64decode(image["src"].partition(",")[2])
