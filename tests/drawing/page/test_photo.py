"""A picture whose patches are tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead.drawing.page.head_page import Layer, Run, heads_payload, write_heads
from clearhead.drawing.page.photo import KINDS, read_photo, with_photo
from clearhead.drawing.png import png
from clearhead.errors import ArgumentError
from tests.refusals import refusals

PIXELS = torch.arange(5 * 7 * 3, dtype=torch.uint8).reshape(5, 7, 3)


def test_the_kinds_of_pictures(tmp_path: Path) -> None:
    content = png(PIXELS)
    (tmp_path / "a.png").write_bytes(content)

    class Pillow:
        def convert(self, mode: str) -> "Pillow":
            assert mode == "RGB"
            return self

        def __array__(self) -> Any:
            return PIXELS.numpy()

    floats = PIXELS / 255
    for image in (
        tmp_path / "a.png",
        content,
        PIXELS,
        PIXELS.numpy(),
        floats,
        floats.permute(2, 0, 1),
        Pillow(),
    ):
        photo = read_photo(image, (1, 2), 2)
        assert photo is not None
        assert (photo.content, photo.kind) == (content, "image/png")
        assert photo.tokens == ["[CLS]", "[1]", "0,0", "0,1"]
    flat = read_photo(PIXELS[:3], (1, 2), 0)  # of three rows, with the colours last
    assert flat is not None
    assert flat.content == png(PIXELS[:3])
    jpeg = read_photo(b"\xff\xd8\xff\xe0", (1, 2), 0)
    assert jpeg is not None
    assert jpeg.kind == "image/jpeg"
    assert read_photo(None, None, 0) is None
    assert not any("svg" in kind for kind in KINDS.values())  # which could hold a script


test_what_is_no_picture_is_refused = refusals(
    lambda given: read_photo(*given),
    ((b"<svg onload=alert(1)>", (1, 2), 0), "page.image", "8.0 MB // 21 bytes that are neither"),
    ((b"\xff\xd8\xff" + bytes(8_000_000), (1, 2), 0), "page.image", "8.0 MB // one of 8.0 MB"),
    (("/nowhere.png", (1, 2), 0), "page.image", "'/nowhere.png' // No such file or directory"),
    ((3, (1, 2), 0), "page.image", "int"),
    ((torch.zeros(2, 2), (1, 2), 0), "page.image", "torch.uint8 of shape (2, 2)"),
    ((2 * torch.ones(2, 2, 3), (1, 2), 0), "page.image", "torch.float32 of shape (2, 2, 3)"),
    ((PIXELS.long(), (1, 2), 0), "page.image", "torch.int64 of shape (5, 7, 3)"),
    ((PIXELS, None, 0), "page.grid", "None"),
    ((PIXELS, (0, 2), 0), "page.grid", "(0, 2)"),
    ((PIXELS, (1, 2), -1), "page.grid", "-1"),
    ((None, None, 1), "page.grid", "1"),
)


def test_a_page_has_the_picture_and_a_name_for_each_patch(tmp_path: Path) -> None:
    weights = ch.AttentionMatrix(torch.randn(5, 3), torch.randn(5, 3))
    photo = read_photo(PIXELS, (2, 2), 1)
    assert photo is not None
    payload = with_photo(heads_payload([Run("", [Layer("", weights)])], ""), photo)
    assert payload.data["photo"] == {"kind": "image/png", "grid": (2, 2), "skip": 1}
    assert payload.arrays["photo"].tolist() == list(photo.content)  # pyright: ignore
    file = write_heads(tmp_path / "a.html", [[("", weights)]], image=PIXELS, grid=(2, 2), skip=1)
    assert "<title>Attention</title>" in file.read_text()
    with pytest.raises(ArgumentError) as caught:
        with_photo(heads_payload([Run("", [Layer("", weights)])], ""), photo._replace(skip=2))
    assert str(caught.value) == (
        "[page.grid] grid and skip must be those of a layer: 2 + 2 × 2 = 6 keys; got layers of 5."
    )
