"""Layers trained by several processes, on real groups of two: gradients are those of one process."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import clearhead as ch
from clearhead.layers import LatentAttention, OutputGate, QueryKeyNorm, RelativeBias, Rotary, Sinks
from tests.layers.test_inputs import LowRank
from tests.sharding import ranks

WIDTH, BATCH, TOKENS = 12, 4, 7
PROJECTIONS = ("query_projection", "key_projection", "value_projection", "output_projection")


class Model(nn.Module):
    """Layers of several kinds, one after the other, as in a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                ch.MultiHeadAttention(
                    WIDTH,
                    num_heads=4,
                    num_kv_heads=2,
                    mask=ch.causal() & ch.sliding_window(left=3),
                    parts=[QueryKeyNorm(3), OutputGate(WIDTH, 4)],
                ),
                ch.MultiHeadAttention(
                    WIDTH, num_heads=2, parts=[RelativeBias(2, num_buckets=8), Sinks(2)]
                ),
                LatentAttention(
                    WIDTH,
                    num_heads=2,
                    head_dim=4,
                    rotary_dim=2,
                    latent_dim=5,
                    mask=ch.causal(),
                    parts=[Rotary(2)],
                ),
            ]
        )

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, valid=valid)
        return x


def with_low_rank() -> Model:
    """Frozen, with matrices of low rank beside all projections."""
    model = Model().requires_grad_(False)
    for layer in model.layers:
        for name in PROJECTIONS:
            adapted = LowRank(getattr(layer, name))
            nn.init.normal_(adapted.up.weight)
            setattr(layer, name, adapted)
    return model


def by_ddp(model: Model) -> nn.Module:
    return DistributedDataParallel(model)


def by_fsdp(model: Model) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WAYS: dict[str, tuple[Callable[[], Model], Callable[[Model], nn.Module]]] = {
    "ddp": (Model, by_ddp),
    "fully_shard": (Model, by_fsdp),
    "ddp, low rank": (with_low_rank, by_ddp),
    "fully_shard, low rank": (with_low_rank, by_fsdp),
}


def step(model: nn.Module, x: Tensor, valid: Tensor) -> Tensor:
    """The loss of a batch, whose gradients are left in the parameters."""
    loss = model(x, valid)[valid].square().sum() / len(x)
    loss.backward()
    return loss.detach()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def apart(found: Tensor, right: Tensor) -> float:
    return float((found - right).abs().max() / (1.0 + right.abs().max()))


def trained(group: Any) -> dict[str, float]:
    """For each way and parameter, how far its gradient is off, and the output after a step, as a share
    of the largest number."""
    found = {}
    for name, (make, share) in WAYS.items():
        torch.manual_seed(7)
        one = make().double()
        ours = share(copy.deepcopy(one))
        x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
        valid = torch.arange(TOKENS) < torch.tensor([[7], [4], [6], [5]])
        step(one, x, valid)
        mine = slice(2 * group.rank(), 2 * group.rank() + 2)
        step(ours, x[mine], valid[mine])
        gradients = {
            place.removeprefix("module."): each.grad for place, each in ours.named_parameters()
        }
        for place, each in one.named_parameters():
            mine_grad = gradients[place]
            assert (each.grad is None) == (mine_grad is None), place
            if each.grad is not None and mine_grad is not None:
                found[f"{name}, {place}"] = apart(whole(mine_grad), each.grad)
        for model in (one, ours):
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
        output, right = ours(x[mine], valid[mine]), one(x, valid)[mine]
        found[f"{name}, after a step"] = apart(output[valid[mine]], right[valid[mine]])
    return found


def test_gradients_are_those_of_one_process() -> None:
    for found in ranks.run(2, trained):
        assert len(found) > 60
        assert not {name: off for name, off in found.items() if not off <= 1e-12}


def test_low_rank_by_peft() -> None:
    """As the library puts it in: trained, and decoded with a cache."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = Model().double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    valid = torch.ones(2, TOKENS, dtype=torch.bool)
    plain = model(x, valid)
    config = peft.LoraConfig(r=2, target_modules=list(PROJECTIONS), init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    step(adapted, x, valid)
    trained = [name for name, each in adapted.named_parameters() if each.grad is not None]
    assert len(trained) == 2 * 4 * 3
    assert all("lora_" in name for name in trained)
    layer = model.layers[2]
    with torch.no_grad():
        assert not torch.allclose(adapted(x, valid), plain)
        cache = ch.layers.GrowingCache()
        steps = [layer(token, cache=cache) for token in x.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
        expected = adapted(x, valid)
        torch.testing.assert_close(adapted.merge_and_unload()(x, valid), expected)
