"""A picture whose patches are tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead as ch
from clearhead.drawing.page.head_page import Layer, Run, heads_payload, write_heads
from clearhead.drawing.page.media import (
    KINDS,
    PAIRS,
    read_media,
    read_photo,
    read_sound,
    with_media,
)
from clearhead.drawing.png import png
from clearhead.errors import ArgumentError
from tests.refusals import refusals

PIXELS = torch.arange(5 * 7 * 3, dtype=torch.uint8).reshape(5, 7, 3)


def test_the_kinds_of_pictures(tmp_path: Path) -> None:
    content = png(PIXELS)
    (tmp_path / "a.png").write_bytes(content)

    class Pillow:
        size = (7, 5)

        def convert(self, mode: str) -> "Pillow":
            assert mode == "RGB"
            return self

        def tobytes(self) -> bytes:
            return PIXELS.numpy().tobytes()

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
    ((torch.zeros(2, 2), (1, 2), 0), "page.image", "torch.float32 of shape (2, 2) from 0 to 0"),
    (
        (2 * torch.ones(2, 2, 3), (1, 2), 0),
        "page.image",
        "torch.float32 of shape (2, 2, 3) from 2 to 2",
    ),
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
    payload = with_media(heads_payload([Run("", [Layer("", weights)])], ""), photo)
    assert payload.data["photo"] == {"kind": "image/png", "grid": (2, 2), "skip": 1}
    assert payload.arrays["photo"].tolist() == list(photo.content)  # pyright: ignore
    file = write_heads(tmp_path / "a.html", [[("", weights)]], image=PIXELS, grid=(2, 2), skip=1)
    assert "<title>Attention</title>" in file.read_text()
    with pytest.raises(ArgumentError) as caught:
        with_media(heads_payload([Run("", [Layer("", weights)])], ""), photo._replace(skip=2))
    assert str(caught.value) == (
        "[page.grid] grid and skip must be those of a layer: 2 + 2 × 2 = 6 keys; got layers of 5."
    )


RAMP = torch.linspace(-0.5, 0.25, 7 * PAIRS)


def test_the_outline_has_the_smallest_and_the_largest_sample_of_each_part() -> None:
    sound = read_sound(0.5, (RAMP, 700), 11)
    assert sound.wave is not None
    parts = RAMP[: int(5.5 * 700)]  # what is behind the keys is not drawn
    assert sound.seconds == 5.5
    low, high = sound.wave.double() / 127.5 - 1
    first, last = int(3 / PAIRS * len(parts)), int(4 / PAIRS * len(parts))
    near = pytest.approx(float(parts[first:last].min()) / 0.5, abs=2 / 255)
    assert float(low[3]) == near
    assert float(high[-1]) == pytest.approx(float(parts[-1]) / 0.5, abs=2 / 255)
    assert bool((low <= high).all())


def test_times_as_they_are_given() -> None:
    same = read_sound(0.25, None, 3)
    assert torch.equal(same.times, torch.tensor([0.0, 0.25, 0.5, 0.75]))
    assert same.entry == {"sound": {"seconds": 0.75, "keys": 3, "heard": 3, "wave": False}}
    assert list(same.arrays) == ["times"]
    others = read_sound([0.0, 1.0, 1.5], ([3, -7, 1], 2), 99)
    assert torch.equal(others.times, torch.tensor([0.0, 1.0, 1.5, 2.0]))
    assert others.entry == {"sound": {"seconds": 1.5, "keys": 3, "heard": 2, "wave": True}}
    silent = read_sound(1, (torch.zeros(5), 5), 1)
    assert silent.wave is not None
    assert set(silent.wave.flatten().tolist()) == {128}


TIMES = (
    "[page.sound] times must be the seconds of a key, above 0, or where each key begins, two or more that "
    "increase from 0 or above; got "
)
AUDIO = (
    "[page.sound] audio must be finite samples of shape (len,), one or more, and how many there are per "
    "second, such as (samples, 16_000); got "
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": 0}, f"{TIMES}0."),
        ({"times": 1e300}, f"{TIMES}1e+300."),
        ({"times": [0.0, 1e39]}, f"{TIMES}[0.0, 1e+39]."),
        ({"times": "soon"}, f"{TIMES}'soon'."),
        ({"times": [0.0, 0.0]}, f"{TIMES}[0.0, 0.0]."),
        ({"times": 1, "audio": torch.zeros(3)}, f"{AUDIO}NoneType and None."),
        ({"times": 1, "audio": (torch.zeros(2, 3), 3)}, f"{AUDIO}samples of shape (2, 3) and 3."),
        ({"times": 1, "audio": ([1.0, float("nan")], 3)}, f"{AUDIO}list and 3."),
        ({"times": 1, "audio": ([1.0], 0)}, f"{AUDIO}list and 0."),
        (
            {"audio": ([1.0], 1)},
            "[page.sound] audio needs the seconds of the keys as well, times=; got none.",
        ),
        (
            {"times": 1, "image": torch.ones(2, 2, 3), "grid": (1, 3)},
            "[page.sound] the keys are the patches of a picture, image=, or have times=; got both.",
        ),
        (
            {"times": [0, 1], "tokens": ["a", "b", "c"]},
            "[page.sound] times must be as many as the keys of a layer; got 2, and layers of 3.",
        ),
    ],
)
def test_what_is_no_sound_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    weights = ch.AttentionMatrix(torch.randn(3, 2), torch.randn(3, 2))
    with pytest.raises(ArgumentError) as caught:
        weights.to_html(tmp_path / "a.html", **options)
    assert str(caught.value) == message


def test_the_seconds_are_those_of_the_keys_between_two_texts() -> None:
    """Of a speech model: its words are few, and moments many."""
    own = ch.AttentionMatrix(torch.randn(5, 2), torch.randn(5, 2))
    crossing = ch.AttentionMatrix(torch.randn(5, 2), torch.randn(3, 2), cross=True)
    media = read_media([("", own), ("", crossing)], {"times": 0.5})
    assert media is not None
    assert media.tokens == ["0.00s", "0.50s", "1.00s"]
    longest = read_media([("", own)], {"times": 0.5})
    assert longest is not None
    assert len(longest.tokens) == 5


def test_every_weight_of_few_words_over_many_moments_is_there() -> None:
    """1500 moments are those of 30 seconds of Whisper."""
    weights = ch.AttentionMatrix(torch.randn(2, 7, 3), torch.randn(2, 1500, 3), cross=True)
    media = read_media([("", weights)], {"times": 0.02})
    payload = with_media(heads_payload([Run("", [Layer("", weights)])], ""), media)
    assert payload.data["layers"][0]["weights"]["shape"] == [7, 1500]
    assert payload.data["sound"]["keys"] == 1500
    longer = ch.AttentionMatrix(torch.randn(2, 7, 3), torch.randn(2, 4097, 3), cross=True)
    payload = heads_payload([Run("", [Layer("", longer)])], "")
    assert "weights" not in payload.data["layers"][0]
