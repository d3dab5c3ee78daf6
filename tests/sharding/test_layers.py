"""Layers over tokens that ranks share, held against one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import clearhead as ch
from clearhead.layers import (
    Differential,
    LatentAttention,
    OutputGate,
    QueryKeyNorm,
    RelativeBias,
    Rotary,
    Sinks,
    Softcap,
)
from tests.sharding import ranks

TOKENS, WIDTH = 29, 16
MASK = ch.causal() & ch.documents(lengths=[11, 18])


def layer(heads: int = 4, kv_heads: int = 2, **options: Any) -> ch.MultiHeadAttention:
    return ch.MultiHeadAttention(WIDTH, num_heads=heads, num_kv_heads=kv_heads, **options)


Layer = ch.MultiHeadAttention | LatentAttention

LAYERS: dict[str, Callable[[], Layer]] = {
    "plain": layer,
    "window": lambda: layer(mask=ch.causal() & ch.sliding_window(left=3)),
    "rotary": lambda: layer(mask=ch.causal(), parts=[QueryKeyNorm(4), Rotary(4)]),
    "stretched": lambda: layer(
        mask=ch.causal(),
        parts=[Rotary(4, scaling=ch.layers.Dynamic(2.0, original_len=8))],
    ),
    "many parts": lambda: layer(
        mask=MASK, parts=[RelativeBias(4, num_buckets=8, max_distance=16), Softcap(2.0), Sinks(4)]
    ),
    "gate": lambda: layer(mask=ch.causal(), parts=[Rotary(4), OutputGate(WIDTH, 4, 4)]),
    "differential": lambda: layer(mask=ch.causal(), parts=[Rotary(4), Differential(4)]),
    "alibi": lambda: layer(mask=ch.causal(), parts=[ch.layers.ScoreBias(ch.alibi(4))]),
    "latent": lambda: LatentAttention(
        WIDTH,
        num_heads=4,
        head_dim=4,
        rotary_dim=2,
        latent_dim=6,
        mask=ch.causal(),
        parts=[Rotary(2)],
    ),
}


def of_layers(group: Any, how: str) -> dict[str, float]:
    found = {}
    for name, make in LAYERS.items():
        torch.manual_seed(7)
        one = make().double()
        x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
        toward = torch.randn_like(x)
        where = ch.across(group, tokens=TOKENS, mask=ch.causal(), layout="zigzag", how=how)
        truth = grads(one, x, toward)
        mine = grads(one, where.shard(x), where.shard(toward), across=where)
        for each, tensor in mine.items():
            if each not in ("output", "x"):
                dist.all_reduce(tensor, group=group)
            expected = where.shard(truth[each]) if each in ("output", "x") else truth[each]
            found[f"{name}, {each}"] = float((tensor - expected).abs().max())
        weights = one.weights(where.shard(x), across=where)
        entropy = where.shard(one.weights(x).entropy(), 2)
        found[f"{name}, entropy"] = float((weights.entropy() - entropy).abs().max())
    return found


def grads(one: Layer, x: Tensor, toward: Tensor, **options: Any) -> dict[str, Tensor]:
    leaf = x.clone().requires_grad_()
    output = one(leaf, **options)
    names, wanted = zip(*one.named_parameters(), strict=True)
    found = torch.autograd.grad(output, [leaf, *wanted], toward)
    return {"output": output.detach()} | dict(zip(("x", *names), found, strict=True))


@pytest.mark.parametrize(("world", "how"), [(3, "gather"), (2, "ring"), (2, "heads")])
def test_layers_are_those_of_one_process(world: int, how: str) -> None:
    for found in ranks.run(world, of_layers, how):
        assert len(found) > 50
        assert not {name: apart for name, apart in found.items() if not apart <= 1e-13}


def other_calls(group: Any) -> list[Any]:
    torch.manual_seed(7)
    one = layer(mask=ch.causal(), dropout=0.5).eval()
    where = ch.across(group, tokens=TOKENS)
    x = where.shard(torch.randn(TOKENS, WIDTH))
    found: list[Any] = [str(one.plan(x, across=where)).splitlines()[0]]
    cross = layer().double()
    context = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    queries = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    of_context = ch.across(group, tokens=7)
    output = cross(where.shard(queries), of_context.shard(context), across=(where, of_context))
    found.append(float((output - where.shard(cross(queries, context))).abs().max()))
    last = group.rank() == group.size() - 1
    for refused in (
        lambda: one(x, across=where, cache=ch.layers.GrowingCache()),
        lambda: one(x, across=where, valid=torch.ones(x.shape[:1], dtype=torch.bool)),
        lambda: one(x[:-1] if last else x, across=where),
        lambda: one.train(not last)(x, across=where),
        lambda: watched(one.eval(), x, where) if last else one.eval()(x, across=where),
    ):
        try:
            refused()
        except ch.errors.ClearheadError as error:
            found.append(f"{type(error).__name__} {error}")
    return found


def watched(one: ch.MultiHeadAttention, x: Tensor, where: ch.types.Sharding) -> None:
    with ch.watch(one):
        one(x, across=where)


def test_what_layers_take_and_refuse() -> None:
    first, last = ranks.run(2, other_calls)
    assert first[0].startswith("gather over 2 ranks")
    assert first[1] <= 1e-14
    text = "UnsupportedError [layer.across] across= goes without cache, valid, positions; got "
    assert first[2].startswith(f"{text}cache. Padding of all tokens is mask=clearhead.padding(…).")
    assert first[3].startswith(f"{text}valid.")
    assert first[4].startswith("RankError [across.rank] rank 1 refused this call: [across.rows]")
    assert last[4].startswith(
        "ShapeError [across.rows] rank 1 has 14 tokens; got a tensor of shape"
    )
    assert first[5].startswith("RankError [across.differ] the calls of the ranks differ. ")
    assert last[5].startswith("RankError [across.differ]")
    assert first[6].startswith("RankError [across.rank] rank 1 refused this call: [watch.across]")
    assert last[6].startswith(
        "WatchError [watch.across] calls with across= are neither watched nor edited"
    )
