"""DINOv2: its outputs are those of ONNX Runtime, and its last layer looks at the person in a photo."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from clearhead.samples import SAMPLES, models
from tests.examples.loading import example
from tests.samples.needing import dinov2

script = example("look_at_photo")


@cache
def weights() -> torch.Tensor:
    return script.looked(dinov2(), script.opened())


@torch.no_grad()
def test_its_outputs_are_those_of_onnx_runtime() -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime", reason="it is not built for every Python")
    sample = dinov2()
    graph = onnx.load(SAMPLES["dinov2"].folder() / "models" / "vit_s_focus.onnx")
    last = "/backbone/layernorm/Add_1_output_0"
    graph.graph.output.append(onnx.helper.make_tensor_value_info(last, 1, [1, 257, 384]))
    session = runtime.InferenceSession(graph.SerializeToString())
    pixels = sample.processor(script.opened(), return_tensors="pt")["pixel_values"]
    (theirs,) = session.run([last], {"input_image": pixels.numpy()})
    found = sample.model(pixels).last_hidden_state
    assert found.shape == (1, 257, 384)
    assert float((found - torch.from_numpy(theirs)).abs().max()) <= 1e-4


@torch.no_grad()
def test_its_weights_are_those_of_eager_attention() -> None:
    mine = script.looked(dinov2(), script.opened(), rows=11)
    folder = models.folder_of("dinov2")
    eager = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    size = {"height": 11 * 14, "width": mine.shape[-1] * 14}
    given: dict[str, Any] = {"size": size, "do_center_crop": False, "return_tensors": "pt"}
    pixels = dinov2().processor(script.opened(), **given)
    dense = eager(**pixels, output_attentions=True).attentions[11][0, :, 0, 1:]
    torch.testing.assert_close(mine.flatten(1), dense, rtol=0, atol=1e-5)


def test_its_heads_look_at_the_person_and_one_at_the_rest() -> None:
    where = script.person(weights()[0])
    shares = [float(where[script.brightest(each)].float().mean()) for each in weights()]
    # By chance it is the share of the person in the photo.
    assert 0.55 <= float(where.float().mean()) <= 0.65
    assert float(where[script.brightest(weights().mean(dim=0))].float().mean()) >= 0.8
    assert min(shares[:3] + shares[4:]) >= 0.75
    assert sorted(shares)[-3] >= 0.9
    assert shares[3] <= 0.2


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "photo.jpg"
    script.draw(script.opened(), weights(), str(file))
    assert file.stat().st_size > 30_000
