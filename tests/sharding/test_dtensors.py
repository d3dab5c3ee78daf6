"""DTensors at the boundary of a call over tokens that ranks share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import clearhead as ch
from clearhead.sharding.dtensors import is_dtensor
from tests.sharding import ranks
from tests.sharding.calls import BATCH, CALLS, NUM_HEADS, TOKENS, VALUE_WIDTH, alone

WIDTH = 8


def calls(group: Any) -> tuple[dict[str, float], dict[str, str]]:
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("cp",))
    where = ch.across(mesh["cp"], tokens=TOKENS, layout="contiguous")
    call, apart = CALLS["window"], {}
    truth = alone(call)
    tensors = call.tensors()
    grad = tensors.pop("grad")
    for how in ("gather", "ring", "heads"):
        way = ch.across(mesh["cp"], tokens=TOKENS, layout="contiguous", how=how)
        given = {name: distribute_tensor(each, mesh, [Shard(2)]) for name, each in tensors.items()}
        leaves = [each.requires_grad_() for each in given.values()]
        context = ch.attend(**given, **call.options(), across=way)
        assert isinstance(context, DTensor)
        assert context.placements == (Shard(2),)
        assert context.shape == (BATCH, NUM_HEADS, TOKENS, VALUE_WIDTH)
        assert context.stride() == torch.empty(context.shape).stride()
        found = torch.autograd.grad(context, leaves, distribute_tensor(grad, mesh, [Shard(2)]))
        apart[f"{how}, context"] = _apart(context, truth.context)
        for name, each in zip(given, found, strict=True):
            apart[f"{how}, {name}"] = _apart(each, truth.grads[name])
    entropy = ch.AttentionMatrix(
        given["query"], given["key"], **call.options(), across=where
    ).entropy()
    whole = ch.AttentionMatrix(tensors["query"], tensors["key"], **call.options()).entropy()
    apart["entropy"] = _apart(entropy.detach(), where.shard(whole, dim=2))
    assert not is_dtensor(entropy)

    torch.manual_seed(0)
    layer = ch.MultiHeadAttention(WIDTH, num_heads=2, mask=ch.causal()).double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    for given_x in (x, x[0]):
        sharded = distribute_tensor(given_x, mesh, [Shard(given_x.ndim - 2)]).requires_grad_()
        output = layer(sharded, across=where)
        apart[f"layer, {x.ndim}"] = _apart(output, layer(given_x))
        (of_x,) = torch.autograd.grad(output.sum(), sharded)
        leaf = given_x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(layer(leaf).sum(), leaf)
        apart[f"gradient of x, {x.ndim}"] = _apart(of_x, expected)
    plain: dict[str, Any] = {name: each.detach().requires_grad_() for name, each in tensors.items()}
    copies = [distribute_tensor(each.detach(), mesh, [Replicate()]) for each in plain.values()]
    query, key, value = (each.requires_grad_() for each in copies)
    context, expected = ch.attend(query, key, value), ch.attend(**plain)
    apart["without across"] = _apart(context, expected)
    ours = torch.autograd.grad(context.sum(), [query, key, value])
    theirs = torch.autograd.grad(expected.sum(), list(plain.values()))
    apart["its gradients"] = max(map(_apart, ours, theirs))
    return apart, refusals(mesh, tensors, layer, x)


def refusals(mesh: Any, tensors: dict[str, Tensor], layer: Any, x: Tensor) -> dict[str, str]:
    texts = {}
    where = ch.across(mesh["cp"], tokens=TOKENS, layout="contiguous")
    zigzag = ch.across(mesh["cp"], tokens=TOKENS, layout="zigzag")
    longer = ch.across(mesh["cp"], tokens=TOKENS + 1, layout="contiguous")
    flat = init_device_mesh("cpu", (3, 1), mesh_dim_names=("cp", "tp"))
    key = where.shard(tensors["key"])
    value = where.shard(tensors["value"])

    def refused(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except (ch.errors.ArgumentError, ch.errors.UnsupportedError) as error:
            texts[name] = str(error)

    def query(*placements: Any, on: Any = mesh) -> Tensor:
        return distribute_tensor(tensors["query"], on, placements)

    for name, placement in (("heads", Shard(1)), ("copies", Replicate())):
        refused(name, lambda p=placement: ch.attend(query(p), key, value, across=where))
    refused("layout", lambda: ch.attend(query(Shard(2)), key, value, across=zigzag))
    refused("length", lambda: ch.attend(query(Shard(2)), key, value, across=longer))
    both = query(Shard(2), Replicate(), on=flat)
    refused("mesh", lambda: ch.attend(both, key, value, across=where))
    alone_here = DTensor.from_local(tensors["query"], flat["tp"], [Shard(2)])
    refused("ranks", lambda: ch.attend(alone_here, key, value, across=where))
    options: dict[str, Any]
    for name, options in (("mask", {"mask": ch.causal()}), ("sinks", {"sinks": torch.zeros(4)})):
        refused(name, lambda o=options: ch.attend(both, both, both, **o))
    refused("two", lambda: ch.attend(both, key, both))
    batch = distribute_tensor(x, mesh, [Shard(0)])
    refused("layer", lambda: layer(batch, across=where))
    return texts


def _apart(actual: Tensor, expected: Tensor) -> float:
    actual = actual.full_tensor() if isinstance(actual, DTensor) else actual
    assert actual.shape == expected.shape
    return float((actual - expected).detach().abs().max())


def test_dtensors_come_back_as_they_lie_or_are_refused() -> None:
    for apart, texts in ranks.run(3, calls):
        assert len(apart) == 17
        assert not {name: far for name, far in apart.items() if not far <= 1e-13}
        begin = "[across.dtensor] query is a DTensor that does not lie as across= says: "
        end = ". Redistribute it, or give this rank's tokens alone, as across.shard makes them."
        plain = (
            "[dtensor.plain] without across= DTensors go into attend all three, and with no mask, bias or "
            "sinks; got {}. Share tokens by across=, or give this rank's "
            "samples or heads alone: query.to_local()."
        )
        assert [texts.pop(name) for name in ("mask", "sinks", "two")] == [
            plain.format(got)
            for got in ("3 of three, with mask", "3 of three, with sinks", "2 of three")
        ]
        assert all(text.endswith(end) for text in texts.values())
        reasons = {name: text.removesuffix(end) for name, text in texts.items()}
        assert reasons == {
            "heads": f"{begin}its placement is Shard(dim=1), and must be its tokens, Shard(dim=2)",
            "copies": f"{begin}its placement is Replicate(), and must be its tokens, Shard(dim=2)",
            "layout": f'{begin}it holds tokens in their order, which is layout="contiguous"',
            "length": f"{begin}it has 37 tokens, and must have 38",
            "mesh": f"{begin}its mesh has 2 dimensions, and must have one",
            "ranks": reasons["ranks"],
            "layer": "[across.dtensor] x is a DTensor that does not lie as across= says: its placement "
            "is Shard(dim=0), and must be its tokens, Shard(dim=1)",
        }
        assert "and must have those of the sharding" in reasons["ranks"]
