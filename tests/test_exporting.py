"""As a file for other runtimes: one operator of ONNX for the attention of a layer."""

import warnings
from collections import Counter
from typing import Any

import pytest
import torch

import clearhead as ch


def exported(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    sizes = {"x": {0: "batch", 1: "tokens"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        return torch.onnx.export(
            layer, (x,), dynamo=True, opset_version=23, dynamic_shapes=sizes, verbose=False
        )


@pytest.mark.parametrize(
    ("mask", "is_causal"), [(None, 0), (ch.causal(), 1)], ids=["no mask", "causal"]
)
def test_a_layer_is_one_attention_of_onnx(mask: ch.Mask | None, is_causal: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.reference import ReferenceEvaluator

    layer = ch.MultiHeadAttention(16, num_heads=4, num_kv_heads=2, mask=mask).eval()
    program = exported(layer, torch.randn(2, 5, 16))
    nodes = list(program.model.graph)
    assert Counter(node.op_type for node in nodes)["Attention"] == 1
    assert not {"Softmax", "Where", "IsNaN"} & {node.op_type for node in nodes}
    (attention,) = (node for node in nodes if node.op_type == "Attention")
    assert attention.attributes["is_causal"].value == is_causal
    assert attention.attributes["scale"].value == 0.5
    # Of other sizes than those it was exported with.
    x = torch.randn(3, 7, 16)
    (found,) = ReferenceEvaluator(program.model_proto).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(x).detach())
