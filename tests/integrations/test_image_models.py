"""Models that read pictures: their patches are found, and what is none is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from torch import Tensor, nn

from clearhead.errors import ModelError, WatchError
from clearhead.integrations import huggingface
from clearhead.integrations.image_models import ImageModel
from tests import tiny_models


def test_a_vision_transformer_has_its_class_token_before_its_patches(tmp_path: Path) -> None:
    name, file = str(tiny_models.save_vit(tmp_path)), tiny_models.save_photo(tmp_path)
    pixels = torch.as_tensor(np.array(Image.open(file))).permute(2, 0, 1) / 255
    model = huggingface.load_for_pictures(name)
    reading = model.read(file)
    assert (reading.page["grid"], reading.page["skip"], len(reading.matrices)) == ((3, 5), 1, 2)
    assert reading.tokens[:3] == ("[CLS]", "0,0", "0,1")
    assert reading.tokens[-1] == "2,4"
    assert reading.special == (True,) + (False,) * 15
    torch.testing.assert_close(reading.page["images"], pixels, rtol=0, atol=1e-6)
    eager = transformers.ViTModel.from_pretrained(name, attn_implementation="eager").eval()
    given = model.processor(images=Image.open(file), return_tensors="pt")
    with torch.no_grad():
        dense = eager(**given, output_attentions=True).attentions
    torch.testing.assert_close(reading.matrices[1][0], dense[1][0], rtol=0, atol=1e-5)


def test_the_part_for_pictures_of_a_model_that_reads_both(tmp_path: Path) -> None:
    text = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 9}
    config = transformers.SiglipConfig(
        text_config=text | {"intermediate_size": 24},
        vision_config=tiny_models.VISION | {"image_size": 12},
    )
    name = str(
        tiny_models.save_with_processor(transformers.SiglipModel(config), tmp_path, width=12)
    )
    model = huggingface.load_for_pictures(name)
    reading = model.read(tiny_models.save_photo(tmp_path))
    assert model.part
    # Every token is a patch; the pooling head has a query of its own, and is no layer over them.
    assert (reading.page["grid"], reading.page["skip"]) == ((3, 3), 0)
    assert reading.tokens[0] == "0,0"
    assert all(path.startswith("encoder.") for path in reading.layers)


def test_a_picture_in_a_text_is_what_the_model_saw(tmp_path: Path) -> None:
    """The processor crops the picture, and its image token is each of 3 × 3 patches."""
    name, file = str(tiny_models.save_llava(tmp_path)), tiny_models.save_photo(tmp_path)
    pixels = torch.as_tensor(np.array(Image.open(file))).permute(2, 0, 1) / 255
    model = huggingface.load_for_pictures(name, text=True)
    reading = model.read(file, "The animal<image> was tired")
    assert reading.page is not None
    (image,) = reading.page["images"]
    torch.testing.assert_close(image, pixels[:, :, 4:16], rtol=0, atol=1e-6)
    patches = [each == "<image>" for each in reading.tokens]
    assert (reading.page["grid"], sum(patches)) == ((3, 3), 9)
    assert patches == [each == reading.page["image_token"] for each in reading.page["tokens"]]
    eager: Any = transformers.AutoModel.from_pretrained(name, attn_implementation="eager").eval()
    given = model.processor(
        images=[Image.open(file)], text=["The animal<image> was tired"], return_tensors="pt"
    )
    with torch.no_grad():
        dense = eager(**given, output_attentions=True).attentions
    assert [matrix.shape for matrix in reading.matrices] == [each.shape for each in dense]
    torch.testing.assert_close(reading.matrices[1][0], dense[1][0], rtol=0, atol=1e-5)
    # A text may have as many tokens as the vision tower, which has one before the patches.
    short = model.read(file, "The<image>")
    assert {each.kv_len for path in short.seen for each in short.seen.calls(path)} == {10}
    assert short.layers == reading.layers
    assert short.page is not None
    assert short.page["skip"] == reading.page["skip"] == 1
    # Without its token the picture precedes the text.
    asked = model.read(file, "The animal").tokens
    assert (asked.count("<image>"), asked[-1]) == (9, " animal")


def test_what_reads_no_pictures_is_refused_by_name(tmp_path: Path) -> None:
    name = str(tiny_models.save_gpt2(tmp_path))
    with pytest.raises(ModelError) as caught:
        huggingface.load_for_pictures(name)
    assert str(caught.value) == (
        f"[model.no-pictures] the model must read pictures; {name}, GPT2Model, reads input_ids."
    )
    with pytest.raises(ModelError, match=r"must read pictures in a text; .*, GPT2Model"):
        huggingface.load_for_pictures(name, text=True)


def test_tokens_that_are_no_patches_are_refused(tmp_path: Path) -> None:
    config = transformers.SwinConfig(
        image_size=16, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[3, 3], window_size=2
    )
    name = str(tiny_models.save_with_processor(transformers.SwinModel(config), tmp_path, 16, 16))
    with pytest.raises(
        ModelError, match=r"\[model.patches\] the last tokens of a layer must be the"
    ):
        huggingface.load_for_pictures(name).read(tiny_models.save_photo(tmp_path))


class Patches(nn.Module):
    """Attends over patches of 2 × 2 pixels: from themselves, or from two latents."""

    def __init__(self, patch_size: Any = 2, attends: str = "patches") -> None:
        super().__init__()
        self.config, self.attends = SimpleNamespace(patch_size=patch_size), attends

    def forward(self, pixel_values: Tensor) -> Tensor:
        key = F.unfold(pixel_values, 2, stride=2).mT[:, None]
        if self.attends == "latents":
            return F.scaled_dot_product_attention(key[:, :, :2], key, key)
        if self.attends == "what is bright":
            key = key[:, :, (key > 1).any(dim=-1)[0, 0]]
        if self.attends == "nothing":
            return key
        if self.attends == "a text":
            raise ValueError("you have to specify input_ids")
        return F.scaled_dot_product_attention(key, key, key)


def reading(model: nn.Module, made: Any, tmp_path: Path, **processor: Any) -> Any:
    def process(images: Any, return_tensors: str) -> dict[str, Any]:
        return {"pixel_values": made}

    vars(process).update(processor)
    model_and_more = ImageModel("small", model, process, part=False)
    return model_and_more.read(tiny_models.save_photo(tmp_path))


def test_the_picture_is_what_the_processor_did_not_change(tmp_path: Path) -> None:
    pixels = torch.rand(1, 3, 6, 4)
    plain = reading(Patches(), pixels, tmp_path)
    assert (plain.page["grid"], plain.page["skip"]) == ((3, 2), 0)
    assert torch.equal(plain.page["images"], pixels[0])
    whole = reading(Patches([2, 2]), pixels * 255, tmp_path, do_rescale=False)
    torch.testing.assert_close(whole.page["images"], pixels[0])


PIXELS = torch.rand(1, 3, 6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "made", "code", "text"),
    [
        (Patches(), [PIXELS], "patches", "the processor of small must make one picture of shape (1, 3, "),
        (Patches(), PIXELS.expand(2, -1, -1, -1), "patches", "height, width); got (2, 3, 6, 4)."),
        (Patches(None), PIXELS, "patches", "the configuration of small must have a patch_size; got None."),
        (Patches((2, 0)), PIXELS, "patches", "must have a patch_size; got (2, 0)."),
        (Patches(attends="latents"), PIXELS, "patches", "the last tokens of a layer must be the 3 × 2 patches"),
        (Patches(attends="what is bright"), PIXELS + 0.2, "patches", "of a layer must be the 3 × 2 patches"),
        (Patches(attends="a text"), PIXELS, "unreadable", "small could not read a picture: you have to"),
    ],
)  # fmt: skip
def test_what_a_model_must_make_of_a_picture(
    model: nn.Module, made: Any, code: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        reading(model, made, tmp_path)
    assert caught.value.code == f"model.{code}"
    assert text in str(caught.value)


def test_a_model_that_does_not_attend_is_an_error_of_the_watch(tmp_path: Path) -> None:
    with pytest.raises(WatchError) as caught:
        reading(Patches(attends="nothing"), PIXELS, tmp_path)
    assert caught.value.code == "watch.nothing-seen"


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    model = huggingface.load_for_pictures(str(tiny_models.save_vit(tmp_path)))
    for file in (tmp_path / "config.json", tmp_path / "nothing.png"):
        with pytest.raises(ModelError, match=r"\[model.picture\] '.*' must be a picture: "):
            model.read(file)
