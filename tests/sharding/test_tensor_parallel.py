"""Layers whose heads ranks share, held against the layer of one process."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import clearhead as ch
from clearhead.layers import (
    Differential,
    LatentAttention,
    OutputGate,
    Part,
    QueryKeyNorm,
    RelativeBias,
    Rotary,
    ScoreBias,
    Sinks,
    Softcap,
    clip_grad_norm,
    tensor_parallel,
)
from tests.sharding import ranks

TOKENS, WIDTH = 11, 12
Layer = ch.MultiHeadAttention | LatentAttention


def layer(heads: int = 6, kv_heads: int = 6, **options: Any) -> ch.MultiHeadAttention:
    options = {"mask": ch.causal(), "head_dim": 4} | options
    return ch.MultiHeadAttention(WIDTH, num_heads=heads, num_kv_heads=kv_heads, **options)


def latent(**options: Any) -> LatentAttention:
    sizes = {"num_heads": 6, "head_dim": 4, "rotary_dim": 2, "latent_dim": 5, "value_head_dim": 3}
    return LatentAttention(WIDTH, **sizes, mask=ch.causal(), parts=[Rotary(2)], **options)


def by_head() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(1, 6, TOKENS, TOKENS, generator=generator) > 0.5


LAYERS: dict[str, Callable[[], Layer]] = {
    "plain": lambda: layer(bias=True, value_head_dim=3, output_dim=7),
    "grouped": lambda: layer(kv_heads=3, parts=[QueryKeyNorm(4), Rotary(4)]),
    "fewer key heads": lambda: layer(kv_heads=2, parts=[QueryKeyNorm(4)]),
    "one key head": lambda: layer(kv_heads=1, bias=True),
    "uneven": lambda: layer(heads=10, kv_heads=5, parts=[Sinks(10)]),
    "biases": lambda: layer(
        parts=[RelativeBias(6, num_buckets=8, max_distance=16), Softcap(2.0), Sinks(6)]
    ),
    "alibi": lambda: layer(parts=[ScoreBias(ch.alibi(6))]),
    "relative": lambda: layer(parts=[ScoreBias(ch.relative(torch.randn(6, 5)))]),
    "gate": lambda: layer(kv_heads=2, parts=[OutputGate(WIDTH, 6, 4, bias=True)]),
    "gate of heads": lambda: layer(parts=[OutputGate(WIDTH, 6)]),
    "differential": lambda: layer(kv_heads=2, parts=[Rotary(4), Differential(4)]),
    "differential, even": lambda: layer(heads=12, kv_heads=12, parts=[Differential(4)]),
    "mask of heads": lambda: layer(mask=by_head()),
    "no mask": lambda: layer(mask=None, output_bias=False),
    "latent": latent,
    "latent of queries": lambda: latent(query_latent_dim=7, bias=True),
}


def made(name: str) -> Layer:
    torch.manual_seed(7)
    one = LAYERS[name]().double()
    for parameter in one.parameters():
        # Norms and sinks begin at numbers that hide a mistake.
        torch.nn.init.normal_(parameter, std=0.5)
    return one


def grads(one: Layer, x: Tensor, **options: Any) -> dict[str, Tensor]:
    leaf = x.clone().requires_grad_()
    output = one(leaf, **options)
    toward = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(x)
    names, wanted = zip(*one.named_parameters(), strict=True)
    found = torch.autograd.grad(output, [leaf, *wanted], toward)
    every = {"output": output.detach()} | dict(zip(("x", *names), found, strict=True))
    return {name: whole(tensor) for name, tensor in every.items()}


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def apart(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float((actual - expected).detach().abs().max())


def of_layers(group: Any) -> dict[str, float]:
    found = {}
    x = torch.randn(
        2, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    for name in LAYERS:
        if group.size() == 4 and name not in ("one key head", "uneven", "gate", "latent"):
            continue
        one = made(name)
        mine = made(name)
        if group.rank():
            nn.init.zeros_(mine.output_projection.weight)  # the weights are those of rank 0
        assert tensor_parallel(mine, group) is mine
        truth, actual = grads(one, x), grads(mine, x)
        assert truth.keys() == actual.keys()
        for each, tensor in actual.items():
            found[f"{name}, {each}"] = apart(tensor, truth[each])
        assert mine.heads is not None
        entropy = mine.heads.gather(mine.weights(x).entropy().detach(), dim=1)
        found[f"{name}, entropy"] = apart(entropy, one.weights(x).entropy())
        if isinstance(one.mask, type(ch.causal())):
            found[f"{name}, cached"] = apart(cached(mine, x), cached(one, x))
            valid = torch.ones(2, TOKENS, dtype=torch.bool)
            valid[1, :4] = False
            found[f"{name}, padded"] = apart(mine(x, valid=valid), one(x, valid=valid))
    return found


@torch.no_grad()
def cached(one: Layer, x: Tensor) -> Tensor:
    cache = ch.layers.GrowingCache()
    return torch.cat([one(some, cache=cache) for some in x.split([4, 1, 1, 5], dim=1)], dim=1)


def two_dimensions(group: Any) -> dict[str, float]:
    """Heads over one dimension of a mesh, FSDP2 over the other: a model before and after a step."""
    found = of_layers(group)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rank = mesh["dp"].get_local_rank()
    torch.manual_seed(5)
    x = torch.randn(4, TOKENS, WIDTH, dtype=torch.float64)
    one = nn.ModuleDict({name: made(name) for name in ("grouped", "fewer key heads", "latent")})
    mine = nn.ModuleDict()
    for name, each in copy.deepcopy(one).items():
        assert isinstance(each, Layer)
        mine[name] = tensor_parallel(each, mesh["tp"])
        fully_shard(each, mesh=mesh["dp"])
    losses = []
    for model, rows in ((one, slice(0, 4)), (mine, slice(2 * rank, 2 * rank + 2))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            losses.append(sum(each(x[rows]).square().mean() for each in model.values()))
            losses[-1].backward()
            optimizer.step()
    for (name, parameter), (_, other) in zip(
        one.named_parameters(), mine.named_parameters(), strict=True
    ):
        assert parameter.grad is not None
        assert other.grad is not None
        found[f"FSDP, gradient of {name}"] = apart(whole(other.grad), parameter.grad)
        found[f"FSDP, {name}"] = apart(whole(other), parameter)
    total = losses[3].detach() / 2
    dist.all_reduce(total, group=mesh["dp"].get_group())
    found["FSDP, loss"] = apart(total, losses[1])
    options = StateDictOptions(full_state_dict=True)
    for name, tensor in get_model_state_dict(mine, options=options).items():
        assert isinstance(tensor, Tensor)
        found[f"FSDP, saved {name}"] = apart(tensor, one.state_dict()[name])
    # Tokens over one dimension and heads over the other.
    where = ch.across(mesh["dp"], tokens=TOKENS, layout="zigzag")
    for name in ("grouped", "mask of heads", "alibi"):
        both = tensor_parallel(made(name), mesh["tp"])
        output = where.gather(both(where.shard(x), across=where).detach())
        found[f"across, {name}"] = apart(output, made(name)(x))
    # One rank has 1 head, too few for the ranks of its tokens, and the other 2: both refuse.
    uneven = tensor_parallel(layer(heads=3, kv_heads=3).double(), mesh["tp"])
    where = ch.across(mesh["dp"], tokens=TOKENS, how="heads")
    with pytest.raises(ch.UnsupportedError, match="leaves a rank with 1 heads, fewer than the 2"):
        uneven(where.shard(x), across=where)
    return found


NORMS = ((2.0, 1e3), (2.0, 1e-2), (1.0, 1e-2), (math.inf, 1e-2))
"""The p of a norm, and the largest that it may be."""


def clipped(group: Any) -> dict[str, float]:
    """Gradients that are clipped, of a model with plain layers, alone and under FSDP2."""
    found = {}
    mesh = init_device_mesh("cpu", (group.size() // 2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    for norm_type, limit in NORMS[group.size() // 2 - 1 :]:
        torch.manual_seed(2)
        one = nn.Sequential(nn.Linear(WIDTH, WIDTH), made("uneven"), made("grouped")).double()
        mine = copy.deepcopy(one)
        for each in (mine[1], mine[2]):
            assert isinstance(each, ch.MultiHeadAttention)
            tensor_parallel(each, mesh["tp"])
        if group.size() == 4:
            fully_shard(mine[1], mesh=mesh["dp"])
            fully_shard(mine[2], mesh=mesh["dp"])
        norms = []
        for model in (one, mine):
            model(x).sin().sum().backward()
            norms.append(clip_grad_norm(model.parameters(), limit, norm_type))
        name = f"norm {norm_type} to {limit}"
        found[name] = apart(norms[1], norms[0]) / float(norms[0])
        theirs = torch.nn.utils.get_total_norm(
            [p.grad for p in one.parameters() if p.grad is not None]
        )
        for (path, parameter), other in zip(one.named_parameters(), mine.parameters(), strict=True):
            assert parameter.grad is not None
            assert other.grad is not None
            found[f"{name}, {path}"] = apart(whole(other.grad), parameter.grad) / float(theirs)
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_clipped_gradients_are_those_of_one_process(world: int) -> None:
    for found in ranks.run(world, clipped):
        assert len(found) > 40
        assert not {name: far for name, far in found.items() if not far <= 1e-13}


@pytest.mark.parametrize(("world", "work"), [(3, of_layers), (4, two_dimensions)])
def test_layers_are_those_of_one_process(
    world: int, work: Callable[[Any], dict[str, float]]
) -> None:
    for found in ranks.run(world, work):
        assert len(found) > (130 if work is of_layers else 90)
        assert not {name: far for name, far in found.items() if not far <= 1e-13}


def edited(one: Layer, x: Tensor) -> Tensor:
    with ch.edit(one) as edit:
        edit[""].heads[1].ablate()
        return one(x)


def other_calls(group: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    single = [dist.new_group([rank]) for rank in range(group.size())][group.rank()]
    x = torch.randn(
        2, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    patterns, outputs = [], []
    for some in (group, single):
        torch.manual_seed(3)
        # Pairs of heads that belong together, on one rank, are not neighbours.
        one = layer(dropout=0.4, parts=[Differential(4)]).double()
        tensor_parallel(one, some)
        torch.manual_seed(9)
        with ch.watch(one) as seen:
            outputs.append(one(x))
        patterns.append(torch.autograd.grad(outputs[-1].square().sum(), one.key_projection.weight))
        heads = one.heads
        assert heads is not None
        found[f"heads of {heads.world}"] = heads.positions.tolist()
        found[f"watched by {heads.world}"] = heads.gather(seen[""].entropy().detach(), dim=1)
        found["text"], found["matrix"] = one.extra_repr(), repr(seen[""])
        numbers = seen[""].heads
        assert numbers is not None
        found[f"numbers by {heads.world}"] = numbers.tolist()
        found[f"rows by {heads.world}"] = [row.head for row in seen.table()]
    found["dropout"] = apart(*outputs), apart(*(whole(each) for (each,) in patterns))
    one.eval()
    found["without dropout"] = apart(one(x), outputs[0])

    cross, both = (
        ch.MultiHeadAttention(WIDTH, num_heads=4, context_dim=5, num_kv_heads=2).double()
        for _ in range(2)
    )
    both.load_state_dict(cross.state_dict())
    tensor_parallel(cross, group)
    dist.broadcast_object_list(state := [both.state_dict()], src=0, group=group)
    both.load_state_dict(state[0])
    context = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    leaves = [context.clone().requires_grad_() for _ in range(2)]
    (cross(x, leaves[0]).sum() + both(x, leaves[1]).sum()).backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    found["context"] = apart(leaves[0].grad, leaves[1].grad)
    trace = ch.trace(cross, x, context)
    found["trace"] = apart(trace["output"], both(x, context))
    found["plan"] = cross.plan(x, context).kernel
    found["saved"] = [
        apart(whole(tensor), both.state_dict()[name]) for name, tensor in cross.state_dict().items()
    ]
    fresh = tensor_parallel(copy.deepcopy(both), group)
    fresh.load_state_dict(cross.state_dict())
    found["loaded"] = apart(fresh(x, context), both(x, context))

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), tensor_parallel(layer(kv_heads=3), group))
    compiled, leaves = torch.compile(model.double(), backend="eager"), [x.clone(), x.clone()]
    for leaf, run in zip(leaves, (compiled, model), strict=True):
        run(leaf.requires_grad_()).sin().sum().backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    found["compiled"] = max(apart(compiled(x), model(x)), apart(leaves[0].grad, leaves[1].grad))
    torch._dynamo.reset()
    with pytest.raises(Unsupported) as graph:
        torch.compile(model, backend="eager", fullgraph=True)(x)
    found["one graph"] = str(graph.value)

    def refused(name: str, call: Callable[[], Any]) -> None:
        with pytest.raises(ch.ClearheadError) as caught:
            call()
        found[name] = str(caught.value)

    class Silent(Part):
        """A part that says nothing of its heads."""

    adapted = layer()
    adapted.key_projection = nn.Sequential(adapted.key_projection)  # type: ignore[assignment]
    refused("few heads", lambda: tensor_parallel(layer(heads=1, kv_heads=1), group))
    pairs = lambda: layer(heads=2, kv_heads=2, parts=[Differential(4)])  # noqa: E731
    refused("few pairs", lambda: tensor_parallel(pairs(), group))
    odd = lambda: layer(heads=5, kv_heads=5, parts=[Differential(4)])  # noqa: E731
    refused("odd heads", lambda: tensor_parallel(odd(), group))
    refused("part", lambda: tensor_parallel(layer(parts=[Silent()]), group))
    refused("adapted", lambda: tensor_parallel(adapted, group))
    refused("twice", lambda: tensor_parallel(one, group))
    refused("module", lambda: tensor_parallel(nn.Linear(2, 2), group))  # type: ignore[type-var]
    refused("bias", lambda: tensor_parallel(layer(parts=[ScoreBias(ch.alibi(5))]), group))
    refused("gate", lambda: tensor_parallel(layer(parts=[OutputGate(WIDTH, 3)]), group))
    refused("differ", lambda: tensor_parallel(layer(heads=4 + 2 * group.rank(), kv_heads=2), group))
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "dp"))
    refused("mesh", lambda: tensor_parallel(layer(), mesh))
    refused("converted", cross.to_torch)
    refused("edit", lambda: edited(one.eval(), x))
    one.train()
    refused("kernel", lambda: one(x, kernel="eager"))
    where = ch.across(group, tokens=TOKENS)
    refused("across", lambda: one(where.shard(x), across=where))
    return found


def test_what_else_such_a_layer_does_and_refuses() -> None:
    first, last = ranks.run(2, other_calls)
    assert first["heads of 2"] == [0, 3], first["heads of 2"]
    assert last["heads of 2"] == [1, 2, 4, 5]
    assert first["text"].endswith("dropout=0.4, of 6 heads on 1 ranks")
    for found in (first, last):
        assert found["heads of 1"] == found["numbers by 1"] == list(range(6))
        assert found["numbers by 2"] == found["rows by 2"] == found["heads of 2"]
        assert found["matrix"].endswith("with heads [0, 1, 2, 3, 4, 5] mask=causal()")
        assert apart(found["watched by 2"], found["watched by 1"]) <= 1e-13
        assert max(found["dropout"]) <= 1e-13
        assert found["without dropout"] > 1e-3
        assert max(found[name] for name in ("context", "trace", "loaded", "compiled")) <= 1e-13
        assert max(found["saved"]) == 0
        assert found["plan"] == "fused"
    texts = {
        "one graph": "a layer of tensor_parallel runs outside of the graph",
        "few heads": "[parallel.refused] tensor_parallel cannot share the heads of this layer.\n"
        "  - 1 heads are fewer than 2 ranks",
        "few pairs": "  - 2 heads, 1 pairs that belong together, are fewer than 2 ranks",
        "odd heads": "  - 5 heads are not 2 blocks of as many",
        "part": "  - Silent does not say which axes of its parameters are heads: give the class head_axes",
        "adapted": "  - key_projection is no plain nn.Linear: Sequential\n"
        "  - the parameter key_projection.0.weight is none that tensor_parallel knows",
        "twice": "  - the parameter query_projection.weight is a DTensor already; share heads first",
        "module": "[parallel.layer] tensor_parallel takes a MultiHeadAttention or a LatentAttention; "
        "got Linear.",
        "bias": "[bias.heads] the bias alibi(5) is for 5 heads; the query has num_heads=6.",
        "gate": "[gate.shape] this gate is for 3 heads; the layer has 6.",
        "differ": "[across.differ]",
        "mesh": "[across.mesh] mesh must have one dimension; got 2: tp, dp. Name the one that shares "
        'heads, such as mesh["tp"].',
        "converted": "[convert.refused] this layer has some of the heads, tensor_parallel;",
        "edit": "[edit.parallel] the heads of the model are shared among ranks, and some of them are",
        "kernel": "[across.dropout] where ranks share a matrix, dropout is drawn by the place",
        "across": "[parallel.dropout] a layer whose heads are shared, tensor_parallel, takes across= "
        "without dropout; this one is in training mode, with dropout=0.4.",
    }
    for name, text in texts.items():
        assert text in first[name], first[name]
        assert text in last[name], last[name]
