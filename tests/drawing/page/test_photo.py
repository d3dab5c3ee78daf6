"""Pictures whose patches are tokens."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from PIL import Image

import clearhead as ch
from clearhead.drawing.colours import png
from clearhead.drawing.page import head_page
from clearhead.drawing.page.head_page import write_heads
from clearhead.drawing.page.photo import read_pictures
from tests.refusals import refusals

PIXELS = torch.arange(5 * 7 * 3, dtype=torch.uint8).reshape(5, 7, 3)


def test_the_kinds_of_pictures(tmp_path: Path) -> None:
    content = png(PIXELS)
    (tmp_path / "a.png").write_bytes(content)
    floats = PIXELS / 255
    every = (
        tmp_path / "a.png", content, PIXELS, PIXELS.numpy(), floats, floats.permute(2, 0, 1),
        Image.fromarray(PIXELS.numpy()),
    )  # fmt: skip
    for image in every:
        read = read_pictures({"images": image, "grid": (1, 2), "skip": 2})
        (photo,) = read.photos
        assert photo.content == content
        assert (read.tokens, photo.places) == (["[CLS]", "[1]", "0,0", "0,1"], (2, 3))
    # Of three rows, with the colours last.
    assert read_pictures({"images": PIXELS[:3], "grid": (1, 2)}).photos[0].content == png(
        PIXELS[:3]
    )
    jpeg = read_pictures({"images": b"\xff\xd8\xff\xe0", "grid": (1, 2), "tokens": ["a"]})
    assert (jpeg.tokens, jpeg.source_tokens) == (["a"], ["0,0", "0,1"])
    assert read_pictures({"tokens": ["a"]}) == (["a"], None, (), None, 0)


ONE: dict[str, Any] = {"images": PIXELS, "grid": (1, 2)}
RUN: dict[str, Any] = {"images": PIXELS, "tokens": [1, 9, 9, 9, 9, 2], "image_token": 9}
test_what_is_no_picture_is_refused = refusals(
    lambda given: read_pictures(given),
    (ONE | {"images": b"<svg onload=alert(1)>"}, "page.image", "8.0 MB // 21 bytes // b'<svg'"),
    (ONE | {"images": b"\xff\xd8\xff" + bytes(8_000_000)}, "page.image", r"8.0 MB // 8.0 MB // b'\xff\xd8\xff\x00'"),
    (ONE | {"images": "/nowhere.png"}, "page.image", "'/nowhere.png' // No such file or directory"),
    (ONE | {"images": 3}, "page.image", "int"),
    (ONE | {"images": torch.zeros(2, 2)}, "page.image", "torch.uint8 of shape (2, 2)"),
    (ONE | {"images": 2 * torch.ones(2, 2, 3)}, "page.image", "torch.float32 of shape (2, 2, 3)"),
    (ONE | {"images": PIXELS.long()}, "page.image", "torch.int64 of shape (5, 7, 3)"),
    (ONE | {"grid": None}, "page.grid", "1 // None"),
    (ONE | {"grid": (0, 2)}, "page.grid", "1 // (0, 2)"),
    (ONE | {"grid": [(1, 2), (1, 2)]}, "page.grid", "1 // [(1, 2), (1, 2)]"),
    (ONE | {"skip": -1}, "page.grid", "-1 // None // images"),
    ({"skip": 1}, "page.grid", "1 // None // no images"),
    ({"image_token": 9}, "page.grid", "None // 9 // no images"),
    (RUN | {"grid": (1, 3)}, "page.grid", "1 // 1 × 3 // 4 // 9"),
    (RUN | {"grid": (1, 2), "image_token": 8}, "page.grid", "1 // 1 × 2 // 0 // 8"),
    (RUN | {"images": [PIXELS, PIXELS]}, "page.grid", "2 // 2 × 2 // 4 // 9"),
    (RUN | {"tokens": [9] * 7}, "page.grid", "1 // 2 × 2 // 7 // 9"),
    (RUN | {"grid": torch.tensor([[2, 4, 4]])}, "page.grid", "1 // tensor([[2, 4, 4]])"),
)  # fmt: skip

LAYOUTS: dict[str, tuple[dict[str, Any], list[list[int]], list[tuple[int, int]]]] = {
    "a square": (RUN, [[1, 2, 3, 4]], [(2, 2)]),
    "a grid for each, one after the other": (
        RUN | {"images": [PIXELS, PIXELS], "grid": [(1, 3), (1, 1)]}, [[1, 2, 3], [4]], [(1, 3), (1, 1)],
    ),
    "a token between rows": (
        {**ONE, "tokens": ["a", "i", "i", "n", "i", "i"], "image_token": "i", "grid": (2, 2)}, [[1, 2, 4, 5]], [(2, 2)],
    ),
    "patches before they are merged": (RUN | {"grid": torch.tensor([[1, 2, 8]])}, [[1, 2, 3, 4]], [(1, 4)]),
    "in the source": (
        {**ONE, "source_tokens": ["a", "i", "i"], "tokens": ["b"], "image_token": "i"}, [[1, 2]], [(1, 2)],
    ),
    "a sample of a batch": (
        RUN | {"tokens": torch.tensor([[9, 9, 1], [1, 9, 9]]), "sample": 1, "grid": (2, 1)}, [[1, 2]], [(2, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_where_the_patches_are(name: str) -> None:
    given, places, grids = LAYOUTS[name]
    found = read_pictures({**given})  # pyright: ignore[reportArgumentType]
    assert [list(each.places) for each in found.photos] == places
    assert [each.grid for each in found.photos] == grids
    first = "0,0" if len(grids) == 1 else "1:0,0"
    assert found.photos[0].text[places[0][0]] == first


@pytest.fixture(autouse=True)
def _payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is its payload, and no file."""
    monkeypatch.setattr(head_page, "write_page", lambda path, payload: payload)


def test_a_page_has_the_pictures_and_a_name_for_each_patch(tmp_path: Path) -> None:
    weights = ch.AttentionMatrix(torch.randn(5, 3), torch.randn(5, 3))
    given: Any = {"images": PIXELS, "grid": (2, 2), "skip": 1}
    payload: Any = write_heads(tmp_path / "a.html", [[("", weights)]], **given)
    assert payload.title == "Attention"
    photo = {"content": 0, "grid": (2, 2), "places": (1, 2, 3, 4), "text": 0}
    assert payload.data["photos"] == [photo]
    assert bytes(payload.arrays["photo0"].tolist()) == png(PIXELS)
    with pytest.raises(ch.errors.ArgumentError, match=r"page.grid.*the 6 tokens .*got layers of 5"):
        write_heads(tmp_path / "a.html", [[("", weights)]], **given | {"skip": 2})
    with pytest.raises(ch.errors.ShapeError, match="kv_len=5; got 4 tokens"):
        write_heads(tmp_path / "a.html", [[("", weights)]], **given | {"skip": 0})
    # No layer attends to the source.
    texts: dict[str, Any] = {"tokens": list("abcde"), "images": PIXELS, "grid": (2, 2)}
    with pytest.raises(ch.errors.ArgumentError, match=r"page.grid.*the 4 tokens .*got layers of 5"):
        write_heads(tmp_path / "a.html", [[("", weights)]], **texts)


SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
TF: Any = transformers


class Reader(NamedTuple):
    """A model that reads pictures in a text: its name, its configuration, inputs, and the patches of both pictures.

    `skip` is of its vision tower; None if that has its patches in another order.
    """

    name: str
    config: dict[str, Any]
    inputs: dict[str, Any]
    patches: tuple[int, int] = (4, 4)
    skip: int | None = 0

    def make(self) -> Any:
        torch.manual_seed(0)
        config = getattr(TF, f"{self.name}Config")(**self.config)
        return getattr(TF, f"{self.name}ForConditionalGeneration")(config).eval()

    def call(self) -> dict[str, Any]:
        """Named arguments: a text with one picture in the middle and one near the end."""
        ids = torch.tensor([[5, *[99] * self.patches[0], 6, 7, *[99] * self.patches[1], 8]])
        kinds = {name: (ids == 99).long() for name, each in self.inputs.items() if each is None}
        return {"input_ids": ids} | self.inputs | kinds


ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
LAYERS = ["sliding_attention", "full_attention"]
PIXEL_VALUES = {"pixel_values": torch.randn(2, 3, 28, 28)}
IN_BATCH = {"pixel_values": torch.randn(1, 2, 3, 28, 28)}
GRIDS = {
    "pixel_values": torch.randn(48, 294),
    "image_grid_thw": torch.tensor([[1, 4, 8], [1, 4, 4]]),
}
READERS = [
    Reader("Llava", {
        "text_config": TF.LlamaConfig(**SIZES), "image_token_index": 99, "vision_feature_layer": -1,
        "vision_config": TF.CLIPVisionConfig(**VISION | {"patch_size": 14}, projection_dim=32),
    }, PIXEL_VALUES, skip=1),
    Reader("Gemma3", {
        "text_config": TF.Gemma3TextConfig(**SIZES, sliding_window=4, layer_types=LAYERS),
        "vision_config": TF.SiglipVisionConfig(**VISION | {"vision_use_head": False}), "mm_tokens_per_image": 4,
        "image_token_index": 99, "image_token_id": 99, "boi_token_index": 98, "eoi_token_index": 97,
    }, PIXEL_VALUES | {"token_type_ids": None}),
    Reader("Qwen2_5_VL", {
        "text_config": SIZES | {"rope_parameters": ROPE}, "image_token_id": 99, "video_token_id": 98,
        "vision_start_token_id": 97, "vision_end_token_id": 96,
        "vision_config": {
            "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32,
            "patch_size": 7, "window_size": 28, "fullatt_block_indexes": [0],
        },
    }, GRIDS | {"mm_token_type_ids": None}, (8, 4), None),
    *(Reader(name, {
        "text_config": TF.LlamaConfig(**SIZES), "vision_config": VISION, "image_token_id": 99, "scale_factor": 2,
    }, IN_BATCH) for name in ("Idefics3", "SmolVLM")),
    Reader("InternVL", {
        "text_config": TF.Qwen2Config(**SIZES), "vision_config": TF.InternVLVisionConfig(**VISION),
        "image_token_id": 99, "downsample_ratio": 0.5,
    }, PIXEL_VALUES, skip=1),
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=[each.name for each in READERS])
def test_a_model_that_reads_pictures_in_a_text(reader: Reader, tmp_path: Path) -> None:
    """Two pictures, one of them in the middle: the page has each word's attention to each patch, and the tower's."""
    model = reader.make()
    with torch.no_grad(), ch.watch(model) as seen:
        sequences = model.generate(**reader.call(), max_new_tokens=3, do_sample=False)
    images = [torch.rand(28, 28, 3), torch.rand(3, 28, 28)]
    options: Any = {"images": images, "image_token": 99, "tokens": sequences, "skip": reader.skip}
    options["grid"] = reader.inputs.get("image_grid_thw")
    payload: Any = seen.to_html(tmp_path / "a.html", **options)
    assert payload.to_bytes()
    tower, first, last = seen
    towers = [] if reader.skip is None else [tower] * 2
    assert [each["name"] for each in payload.data["layers"]] == [*towers, first, last]
    assert ("of other tokens" in payload.data["note"]) == (reader.skip is None)
    photos, texts = payload.data["photos"], payload.data["texts"]
    assert [len(each["places"]) for each in photos[:2]] == list(reader.patches)
    assert [each["content"] for each in photos] == [0, 1] * (len(photos) // 2)
    weights, shown = seen[last][0, 3], payload.arrays[f"{1 + len(towers)}/3/weights"]
    for photo in photos[:2]:
        assert torch.equal(shown[-1, photo["places"]], weights[-1, photo["places"]])
    for row, (photo, layer) in enumerate(zip(photos[2:], payload.data["layers"], strict=False)):
        length, side = seen[tower].kv_len, photo["grid"][0]
        assert torch.equal(payload.arrays[f"{row}/3/weights"], seen[tower][row, 3])
        assert (layer["call"], layer["query"], layer["key"]["text"]) == (
            row,
            layer["key"],
            photo["text"],
        )
        assert (side * side, photo["places"][-1]) == (length - (reader.skip or 0), length - 1)
        assert texts[photo["text"]][photo["places"][side]] == f"{row + 1}:1,0"
