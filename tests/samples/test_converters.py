"""The formats of samples: what is read, and that a file is refused that says more than it has."""

import json
import re
import struct
from pathlib import Path

import pytest
import torch

from clearhead.errors import FileError
from clearhead.samples.converters import CTRANSLATE2, convert_dinov2, read_ctranslate2


def text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def tensor(name: str, shape: tuple[int, ...], kind: int, data: bytes) -> bytes:
    sizes = struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    return text(name) + sizes + struct.pack("<BI", kind, len(data)) + data


def content(*tensors: bytes, aliases: bytes = struct.pack("<I", 0), count: int = -1) -> bytes:
    count = len(tensors) if count < 0 else count
    head = struct.pack("<I", CTRANSLATE2) + text("WhisperSpec") + struct.pack("<II", 3, count)
    return head + b"".join(tensors) + aliases


HALVES = tensor("a/weight", (2, 3), 4, struct.pack("<6e", *range(6)))
NUMBER = tensor("a/heads", (), 2, struct.pack("<h", 7))
ALIAS = struct.pack("<I", 1) + text("b/weight") + text("a/weight")
WHOLE = content(HALVES, NUMBER, aliases=ALIAS)


def test_tensors_are_read_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(WHOLE)
    found = read_ctranslate2(file)
    assert list(found) == ["a/weight", "a/heads", "b/weight"]
    torch.testing.assert_close(found["a/weight"], torch.arange(6).reshape(2, 3).half())
    assert found["b/weight"] is found["a/weight"]
    assert (found["a/heads"].shape, int(found["a/heads"])) == ((), 7)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", CTRANSLATE2 - 1) + WHOLE[4:],
        content(HALVES, count=2**32 - 1),
        content(tensor("a", (2**31,) * 200, 4, b"12")),
        *(content(tensor("a", (2,), kind, b"12")) for kind in (4, 6, 9)),
        content(tensor("a", (0,), 4, b"")),
        content(NUMBER, aliases=ALIAS),
        *(WHOLE[:size] for size in range(len(WHOLE))),
    ],
    ids=len,
)
def test_a_file_is_held_to_its_bytes(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(data)
    start = f"[samples.file] model.bin must be a model of CTranslate2 in version {CTRANSLATE2}: "
    with pytest.raises(FileError, match=re.escape(start)):
        read_ctranslate2(file)


def test_a_graph_of_onnx_gives_the_names_that_its_products_lack(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    drawn = {
        "backbone.norm.weight": torch.randn(3),
        "backbone.dense.bias": torch.randn(5),
        "onnx::MatMul_7": torch.randn(3, 5),
        "patches": torch.randn(1, 4, 3),
        "first": torch.randn(1, 1, 3),
        "head.weight": torch.randn(2, 3),
    }
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "onnx::MatMul_7"], ["product"]),
        make("Add", ["backbone.dense.bias", "product"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(each.numpy(), name) for name, each in drawn.items()]
    sides = [onnx.helper.make_tensor_value_info(name, 1, [1, 3]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "dinov2", sides[:1], sides[1:], constants)
    (tmp_path / "models").mkdir()
    onnx.save(onnx.helper.make_model(graph), tmp_path / "models" / "vit_s_focus.onnx")
    convert_dinov2(tmp_path, tmp_path)
    found = safetensors.load_file(tmp_path / "model.safetensors")
    expected = {
        "norm.weight": drawn["backbone.norm.weight"],
        "dense.bias": drawn["backbone.dense.bias"],
        "dense.weight": drawn["onnx::MatMul_7"].T,
        "embeddings.position_embeddings": torch.cat([drawn["first"], drawn["patches"]], 1),
    }
    assert found.keys() == expected.keys()
    assert all(found[name].equal(each) for name, each in expected.items())
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.hidden_size, config.num_attention_heads) == (384, 6)
    # What a picture is cut to is a whole number of patches.
    pictures = json.loads((tmp_path / "preprocessor_config.json").read_text(encoding="utf-8"))
    assert pictures["crop_size"] == {"height": 224, "width": 224}
    assert 224 % config.patch_size == 0
