"""Pixels as PNG."""

import io

import torch
from PIL import Image

from clearhead.drawing.colours import png
from clearhead.drawing.notebook.inline.matrices import SHADES


def test_others_read_a_table_of_colours() -> None:
    places = torch.randint(0, 256, (7, 5), dtype=torch.uint8)
    image = Image.open(io.BytesIO(png(places, SHADES, bytes([0, 40]))))
    assert image.size == (5, 7)
    assert image.info["transparency"] == bytes([0, 40])
    shown = image.convert("RGBA").load()
    assert shown is not None
    for row in range(7):
        for column in range(5):
            place = int(places[row, column])
            opacity = {0: 0, 1: 40}.get(place, 255)
            assert shown[column, row] == (*SHADES[place], opacity)


def test_others_read_pixels_in_any_order_of_memory() -> None:
    pixels = torch.randint(0, 256, (3, 7, 5), dtype=torch.uint8).permute(1, 2, 0)
    image = Image.open(io.BytesIO(png(pixels)))
    assert (image.size, image.mode) == ((5, 7), "RGB")
    assert image.tobytes() == bytes(pixels.flatten().tolist())
