"""Layers whose projections PyTorch's own plan splits over ranks, held against the layer of one process."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import clearhead as ch
from clearhead.layers import (
    GrowingCache,
    LatentAttention,
    OutputGate,
    QueryKeyNorm,
    RelativeBias,
    Rotary,
    ScoreBias,
    Sinks,
)
from tests.sharding import ranks

TOKENS, WIDTH = 11, 12


def drawn(**options: Any) -> ch.MultiHeadAttention:
    torch.manual_seed(7)
    options = {"num_kv_heads": 2, "parts": [QueryKeyNorm(4), Rotary(4)]} | options
    return ch.MultiHeadAttention(
        WIDTH, num_heads=6, head_dim=4, mask=ch.causal(), **options
    ).double()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def results(layer: ch.MultiHeadAttention) -> dict[str, Tensor]:
    """The output, the output step by step with a cache, and every gradient."""
    x = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(4)).double()
    x.requires_grad_()
    output = layer(x)
    output.sin().sum().backward()
    cache = GrowingCache()
    with torch.no_grad():
        steps = [layer(some, cache=cache) for some in x.split([4, 1, 1, 5], dim=1)]
    found = {"output": output.detach(), "cached": torch.cat(steps, dim=1), "x": x.grad}
    found |= {name: each.grad for name, each in layer.named_parameters()}
    return {name: whole(each) for name, each in found.items() if each is not None}


def distances(group: Any) -> dict[str, Any]:
    """The largest difference between two ranks and one process, of each result; what is refused."""
    mesh = DeviceMesh.from_group(group, "cpu")
    split: dict[str, ParallelStyle] = {
        f"{name}_projection": ColwiseParallel() for name in ("query", "key", "value")
    }
    split |= {"output_projection": RowwiseParallel()}

    def shared(layer: nn.Module) -> Any:
        return parallelize_module(layer, mesh, split)

    expected, actual = results(drawn()), results(shared(drawn()))
    assert expected.keys() == actual.keys()
    found: dict[str, Any] = {}
    for name, tensor in actual.items():
        if "norm" in name:  # every rank has it whole, and the gradient of its own heads
            torch.distributed.all_reduce(tensor, group=group)
        assert tensor.shape == expected[name].shape, name
        found[name] = float((tensor - expected[name]).abs().max())
    x = torch.randn(1, TOKENS, WIDTH).double()
    refused = {
        "sinks": drawn(parts=[Sinks(6)]),
        "alibi": drawn(parts=[ScoreBias(ch.alibi(6))]),
        "relative": drawn(parts=[RelativeBias(6)]),
        "gate": drawn(parts=[OutputGate(WIDTH, 6)]),
        "one key head": drawn(num_kv_heads=1),
        "latent": LatentAttention(WIDTH, 6, head_dim=4, rotary_dim=2, latent_dim=5).double(),
    }
    for name, layer in refused.items():
        with pytest.raises(ch.errors.ShapeError) as raised:
            shared(layer)(x)
        found[name] = str(raised.value)
    return found


def test_outputs_and_gradients_are_those_of_one_process() -> None:
    for found in ranks.run(2, distances):
        texts = {name: found.pop(name) for name in list(found) if isinstance(found[name], str)}
        assert len(found) == 10
        assert not {name: far for name, far in found.items() if not far <= 1e-13}
        codes = [text.partition("]")[0] for text in texts.values()]
        assert codes == ["[sinks.shape", "[bias.heads", "[bias.heads", "[gate.shape"] + 2 * [
            "[layer.projected"
        ]
        assert texts["one key head"] == (
            "[layer.projected] key_projection must give num_heads × head_dim = 1 × 4 numbers a token, or in "
            "tensor parallelism an equal share of them; it gives 2."
        )
        assert texts["latent"] == (
            "[layer.projected] query_projection must give num_heads × head_dim = 6 × 6 numbers a token; it "
            "gives 18."
        )
