"""Calls of attention by their names, each with tensors of all tokens: what one process computes, and
what the ranks of a group do."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import clearhead as ch

TOKENS = 37
BATCH, NUM_HEADS, NUM_KV_HEADS, WIDTH, VALUE_WIDTH = 2, 8, 2, 5, 3


@dataclass
class Call:
    """Options of `attend` for a number of queries and keys; tensors in it may be trained."""

    options: Callable[[], dict[str, Any]] = dict
    tokens: int = TOKENS
    kv_len: int | None = None
    dtype: torch.dtype = torch.float64
    heads: tuple[int, int] = (NUM_HEADS, NUM_KV_HEADS)
    leading: tuple[int, ...] = (BATCH,)
    only: tuple[str, ...] = ("gather", "ring", "heads")
    kernel: str = "auto"

    def tensors(self) -> dict[str, Tensor]:
        """Query, key, value and the gradient of the context, the same on every rank."""
        torch.manual_seed(self.tokens)
        heads, kv_heads = self.heads
        keys = self.tokens if self.kv_len is None else self.kv_len
        shapes = {
            "query": (*self.leading, heads, self.tokens, WIDTH),
            "key": (*self.leading, kv_heads, keys, WIDTH),
            "value": (*self.leading, kv_heads, keys, VALUE_WIDTH),
            "grad": (*self.leading, heads, self.tokens, VALUE_WIDTH),
        }
        return {name: torch.randn(shape, dtype=self.dtype) for name, shape in shapes.items()}


def trained(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def ids() -> Tensor:
    return torch.arange(TOKENS) * 5 // TOKENS


def dense() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    mask = torch.rand(BATCH, NUM_HEADS, TOKENS, TOKENS, generator=generator) > 0.6
    mask[:, :, 5] = False  # an empty row
    return mask


def holes() -> Tensor:
    valid = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    valid[0, 3:9] = False
    valid[1, 30:] = False
    return valid


CALLS: dict[str, Call] = {
    "plain": Call(),
    "causal": Call(lambda: {"mask": ch.causal()}),
    "window": Call(lambda: {"mask": ch.causal() & ch.sliding_window(left=4)}),
    "documents": Call(lambda: {"mask": ch.causal() & ch.documents(ids())}),
    "prefix": Call(lambda: {"mask": ch.causal() | ch.prefix([4, 9])}),
    "padding": Call(lambda: {"mask": ch.causal() & ch.padding([30, 0])}),
    "holes": Call(lambda: {"mask": ch.padding(holes())}),
    "not": Call(lambda: {"mask": ~ch.sliding_window(left=2, right=1)}),
    "dense": Call(lambda: {"mask": dense()}),
    "bias": Call(lambda: {"bias": trained(1, NUM_HEADS, TOKENS, TOKENS), "mask": ch.causal()}),
    "bias of keys": Call(lambda: {"bias": trained(BATCH, 1, 1, TOKENS)}),
    "alibi": Call(lambda: {"bias": ch.alibi(NUM_HEADS), "mask": ch.causal()}),
    "relative": Call(lambda: {"bias": ch.relative(trained(NUM_HEADS, 9)), "mask": ch.causal()}),
    "softcap": Call(lambda: {"softcap": 0.7, "mask": ch.causal(), "scale": 0.9}),
    "sinks": Call(lambda: {"sinks": trained(NUM_HEADS), "mask": ch.causal()}),
    "everything": Call(
        lambda: {
            "sinks": trained(NUM_HEADS),
            "softcap": 2.0,
            "bias": ch.alibi(NUM_HEADS),
            "mask": ch.causal() & ch.sliding_window(left=9) & ch.documents(ids()),
        }
    ),
    "cross": Call(tokens=23, kv_len=41),
    "documents apart": Call(
        lambda: {
            "mask": ch.documents(
                lengths=[13, 0, 28], queries=[9, 3, 11], mask=ch.causal() | ch.prefix(2)
            )
        },
        tokens=23,
        kv_len=41,
    ),
    "fewer queries": Call(lambda: {"mask": ch.causal()}, tokens=11, kv_len=29),
    "few tokens": Call(lambda: {"mask": ch.causal()}, tokens=3),
    "one token": Call(lambda: {"mask": ch.causal()}, tokens=1),
    "no tokens": Call(lambda: {"mask": ch.causal()}, tokens=0),
    "nothing to see": Call(lambda: {"mask": ~ch.full()}),
    "odd heads": Call(lambda: {"mask": ch.causal()}, heads=(6, 3)),
    "one key head": Call(lambda: {"mask": ch.causal()}, heads=(5, 1)),
    "two dimensions": Call(
        lambda: {"mask": ch.causal()}, heads=(1, 1), leading=(), only=("gather",)
    ),
    "eager": Call(lambda: {"mask": ch.causal()}, kernel="eager", only=("gather", "heads")),
}


def parameters(options: dict[str, Any]) -> list[Tensor]:
    """The trained tensors among options."""
    numbers = [getattr(each, "numbers", each) for each in options.values()]
    return [each for each in numbers if isinstance(each, Tensor) and each.requires_grad]


@dataclass
class Outcome:
    """The context and the gradients of a call, of all tokens."""

    context: Tensor
    grads: dict[str, Tensor] = field(default_factory=dict)


def alone(call: Call, drawn: torch.dtype | None = None) -> Outcome:
    """One process; with the numbers that are drawn in another dtype, if it is given."""
    tensors, options = replace(call, dtype=drawn or call.dtype).tensors(), call.options()
    tensors = {name: tensor.to(call.dtype) for name, tensor in tensors.items()}
    grad = tensors.pop("grad")
    leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    context = ch.attend(**leaves, **options, kernel=call.kernel)
    wanted = [*leaves.values(), *parameters(options)]
    found = torch.autograd.grad(context, wanted, grad, allow_unused=True)
    return Outcome(context.detach(), _named(found, wanted))


def interleaved(tokens: int, world: int) -> list[Tensor]:
    """Every world-th token: no rank has two neighbours."""
    return [torch.arange(tokens)[rank::world] for rank in range(world)]


def together(call: Call, group: Any, how: str, layout: str | list[Tensor]) -> Outcome:
    """The ranks of a group."""
    tensors, options = call.tensors(), call.options()
    grad, query_len, kv_len = (
        tensors.pop("grad"),
        tensors["query"].shape[-2],
        tensors["key"].shape[-2],
    )
    mask = options.get("mask")
    mask = mask if isinstance(mask, ch.Mask) else None
    world = group.size()
    if layout == "interleaved":
        layout = interleaved(query_len, world)
    of_queries = ch.across(
        group, tokens=query_len, mask=mask, kv_len=kv_len, layout=layout, how=how
    )
    of_keys = of_queries
    if kv_len != query_len:
        of_keys = ch.across(group, tokens=kv_len, layout=interleaved(kv_len, world), how=how)
    held = {"query": of_queries, "key": of_keys, "value": of_keys}
    leaves = {name: held[name].shard(each).requires_grad_() for name, each in tensors.items()}
    context = ch.attend(**leaves, **options, kernel=call.kernel, across=(of_queries, of_keys))
    wanted = [*leaves.values(), *parameters(options)]
    found = torch.autograd.grad(context, wanted, of_queries.shard(grad), allow_unused=True)
    grads = _named(found, wanted)
    for name in grads:
        if name in held:
            grads[name] = held[name].gather(grads[name])
        else:
            dist.all_reduce(grads[name], group=group)
    return Outcome(of_queries.gather(context.detach()), grads)


def _named(found: tuple[Tensor | None, ...], wanted: list[Tensor]) -> dict[str, Tensor]:
    names = ["query", "key", "value", *(f"parameter {i}" for i in range(len(wanted) - 3))]
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for name, grad, leaf in zip(names, found, wanted, strict=True)
    }
