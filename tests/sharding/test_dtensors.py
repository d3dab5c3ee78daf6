"""DTensors without `across=`, and their refusal beside anything else."""

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import clearhead as ch
from tests.sharding import ranks
from tests.sharding.calls import CALLS, TOKENS


def calls(group: Any) -> tuple[float, list[str]]:
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("cp",))
    tensors = CALLS["plain"].tensors()
    grad = tensors.pop("grad")
    plain = [each.requires_grad_() for each in tensors.values()]
    given = [
        distribute_tensor(each.detach(), mesh, [Replicate()]).requires_grad_() for each in plain
    ]
    run: Any = ch.attend
    found, expected = (run(*each) for each in (given, plain))
    of_given = torch.autograd.grad(found, given, distribute_tensor(grad, mesh, [Replicate()]))
    pairs: Any = zip(
        (found, *of_given), (expected, *torch.autograd.grad(expected, plain, grad)), strict=True
    )
    apart = max(float((one.full_tensor() - other).detach().abs().max()) for one, other in pairs)
    where = ch.across(mesh["cp"], tokens=TOKENS, layout="contiguous")
    shared = [distribute_tensor(each.detach(), mesh, [Shard(2)]) for each in plain]
    refused: list[Any] = [
        (given, {"mask": ch.padding(3)}),
        (given, {"sinks": torch.zeros(8).double()}),
        ([given[0], *plain[1:]], {}),
        (shared, {"across": where}),
        (shared, {"across": ch.across(world=1, tokens=TOKENS)}),
    ]
    texts = []
    for inputs, options in refused:
        try:
            ch.attend(*inputs, **options)
        except ch.errors.UnsupportedError as error:
            texts.append(str(error).partition("; got ")[2].partition(". Give")[0])
    return apart, texts


def test_dtensors_go_all_three_and_alone() -> None:
    for apart, texts in ranks.run(3, calls):
        assert apart <= 1e-13
        assert texts == [
            f"{count} of three{options}"
            for count, options in (
                (3, ", with mask"),
                (3, ", with sinks"),
                (1, ""),
                (3, ", with across="),
                (3, ", with across="),
            )
        ]
