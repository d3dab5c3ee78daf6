"""Libraries that make the process group: a step on one text that ranks share."""

import os
import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist

import clearhead as ch
from tests.sharding import ranks

TOKENS, WIDTH = 13, 8


def accelerated(group: Any, port: int) -> tuple[str, list[float]]:
    """A step under accelerate, in the environment that its launcher makes."""
    import accelerate

    rank, world = group.rank(), group.size()
    dist.barrier()
    dist.destroy_process_group()
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {name: str(number) for name, number in variables.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    accelerator = accelerate.Accelerator(cpu=True)
    where = ch.across(dist.group.WORLD, tokens=TOKENS, mask=ch.causal())

    torch.manual_seed(0)
    parts = [ch.layers.Rotary(4)]
    alone = ch.MultiHeadAttention(WIDTH, num_heads=2, mask=ch.causal(), parts=parts).double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    expected = torch.autograd.grad(alone(x).square().mean(), list(alone.parameters()))
    layer = accelerator.prepare(alone)
    output = layer(where.shard(x), across=where)
    # DistributedDataParallel takes the mean of the gradients, and the loss is a share of the whole.
    accelerator.backward(output.square().sum() / x.numel() * where.world)
    found = [each.grad for each in layer.parameters()]
    return type(layer).__name__, [
        float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)
    ]


def test_a_step_under_accelerate_is_that_of_one_process() -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, apart in ranks.run(2, accelerated, port):
        assert name == "DistributedDataParallel"
        assert len(apart) == 5
        assert max(apart) <= 1e-13


def test_without_a_process_group_the_error_says_so() -> None:
    with pytest.raises(ch.errors.ArgumentError) as caught:
        ch.across(dist.group.WORLD, tokens=5)
    assert str(caught.value) == (
        "[across.world] across takes a mesh, or world=…, 1 to 1048576, and rank=…, one of them; got "
        "world=None, rank=0. torch.distributed.group.WORLD is None until init_process_group."
    )
