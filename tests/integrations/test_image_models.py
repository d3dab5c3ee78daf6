"""Models that read pictures: their patches are found, and what is none is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from clearhead.errors import ModelError
from clearhead.integrations import huggingface
from tests import tiny_models


def test_a_vision_transformer_has_its_class_token_before_its_patches(tmp_path: Path) -> None:
    name, file = str(tiny_models.save_vit(tmp_path)), tiny_models.save_photo(tmp_path)
    pixels = torch.as_tensor(np.array(Image.open(file))).permute(2, 0, 1) / 255
    model = huggingface.load_for_pictures(name)
    reading = model.read(file)
    assert (reading.grid, reading.skip, len(reading.matrices)) == ((3, 5), 1, 2)
    assert reading.tokens[:3] == ("[CLS]", "0,0", "0,1")
    assert reading.tokens[-1] == "2,4"
    assert reading.special == (True,) + (False,) * 15
    torch.testing.assert_close(reading.pixels, pixels, rtol=0, atol=1e-6)
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
    assert (reading.grid, reading.skip, reading.tokens[0]) == ((3, 3), 0, "0,0")
    assert all(path.startswith("encoder.") for path in reading.layers)


def test_what_reads_no_pictures_is_refused_by_name(tmp_path: Path) -> None:
    name = str(tiny_models.save_gpt2(tmp_path))
    with pytest.raises(ModelError) as caught:
        huggingface.load_for_pictures(name)
    assert str(caught.value) == (
        f"[model.no-pictures] the model must read pictures; {name}, GPT2Model, reads input_ids."
    )


def test_tokens_that_are_no_patches_are_refused(tmp_path: Path) -> None:
    config = transformers.SwinConfig(
        image_size=16, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[3, 3], window_size=2
    )
    name = str(tiny_models.save_with_processor(transformers.SwinModel(config), tmp_path, 16, 16))
    with pytest.raises(
        ModelError, match=r"\[model.patches\] the last tokens of a layer must be the"
    ):
        huggingface.load_for_pictures(name).read(tiny_models.save_photo(tmp_path))


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    model = huggingface.load_for_pictures(str(tiny_models.save_vit(tmp_path)))
    for file in (tmp_path / "config.json", tmp_path / "nothing.png"):
        with pytest.raises(ModelError, match=r"\[model.picture\] '.*' must be a picture: "):
            model.read(file)
