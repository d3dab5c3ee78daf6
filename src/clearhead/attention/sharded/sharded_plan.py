"""The plan of a call over tokens that ranks share: the bytes that each method sends and holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Unpack

from torch import Tensor

from clearhead import stages
from clearhead._common.elements import Drawn
from clearhead._text import format_bytes
from clearhead.attention.kernels import blockwise
from clearhead.attention.planning import Plan, plan_for
from clearhead.attention.problem import Options
from clearhead.attention.sharded import by_gather, by_heads
from clearhead.attention.sharded.attending import WAYS, refuse
from clearhead.attention.sharded.sharded_call import ShardedCall, make_call, row_problem
from clearhead.masks.blocks import pairs_of_queries
from clearhead.sharding.sharding import MESSAGE


@dataclass(frozen=True, repr=False)
class WayCost(Drawn):
    """The bytes that one method sends and holds on this rank.

    Attributes:
        forward: sent to other ranks, the comparison of the calls included.
        backward: sent for the gradients of query, key and value.
        memory: held in addition to the rank's own query, key, value and context, in the forward pass.
        refusals: why this method cannot run the call; empty if it can.
    """

    forward: int
    backward: int
    memory: int
    refusals: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the costs in words, or the reasons why the method cannot run the call."""
        if self.refusals:
            return "; ".join(self.refusals)
        forward, backward, memory = map(format_bytes, (self.forward, self.backward, self.memory))
        return f"sends {forward} forward and {backward} backward, holds {memory} of others"


@dataclass(frozen=True, repr=False)
class ShardedPlan(Plan):
    """The plan of a call over tokens that ranks share, on this rank.

    Attributes:
        way: "gather", "ring" or "heads".
        ways: the costs of each method.
        pairs: the visible pairs that each rank computes, float64, (world,), over samples and heads
            that have masks of their own.
        rank: this one.

    Example:
        >>> import torch, clearhead as ch
        >>> where = ch.across(world=4, tokens=4096, mask=ch.causal())
        >>> query = where.shard(torch.empty(1, 8, 4096, 64, device="meta"))
        >>> key = value = where.shard(torch.empty(1, 2, 4096, 64, device="meta"))
        >>> plan = ch.plan(query, key, value, mask=ch.causal(), across=where)
        >>> plan.way, round(plan.balance, 3), plan.ways["gather"].forward
        ('gather', 1.0, 3148800)
    """

    way: str
    ways: Mapping[str, WayCost]
    pairs: Tensor
    rank: int

    @property
    def balance(self) -> float:
        """The largest number of pairs of a rank, divided by the mean; 1.0 if no pair is visible."""
        mean = float(self.pairs.mean())
        return float(self.pairs.max()) / mean if mean else 1.0

    def __str__(self) -> str:
        """Return lines: the method with its cost, the pairs of this rank, the local plan, and the other methods."""
        lines = [
            f"{self.way} over {len(self.pairs)} ranks: {self.ways[self.way]}",
            f"  rank {self.rank} has {int(self.pairs[self.rank])} pairs; the most of a rank is "
            f"{self.balance:.3f} of the mean",
            *(f"  {line}" for line in super().__str__().splitlines()),
        ]
        for name, cost in self.ways.items():
            if name != self.way:
                lines.append(f"not {name}: {'' if cost.refusals else 'it '}{cost}")
        return "\n".join(lines)


def plan_across(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    across: object,
    kernel: str,
    **options: Unpack[Options],
) -> Plan:
    """Return the plan of `attend_across` for these arguments; nothing is sent.

    Its errors, apart from RankError and `watch.across`, are raised.
    """
    call = make_call(query, key, value, across, kernel, **options)
    refuse(call)
    held, way = call.of_queries, call.of_queries.how
    counts = pairs_of_queries(call.problem.mask, held.tokens, call.of_keys.tokens)
    pairs = counts.new_tensor(
        [float(counts[held.positions_of(rank)].sum()) for rank in range(held.world)]
    )
    if way == "heads":
        heads, _ = by_heads.shared_heads(call)
        sizes = counts.new_tensor([float(some.stop - some.start) for some in heads])
        pairs = counts.sum() * sizes / sizes.sum()
    kernel = call.kernel
    if call.problem.dropout is not None or (way == "ring" and not call.problem.query.is_meta):
        kernel = blockwise.NAME
    local = plan_for(row_problem(call), kernel)
    return ShardedPlan(
        local.kernel,
        local.how,
        local.reasons,
        local.problem,
        way,
        MappingProxyType({name: _cost(call, name) for name in WAYS}),
        pairs,
        held.rank,
    )


def _cost(call: ShardedCall, way: str) -> WayCost:
    """Return what a method sends and holds in bytes; if it refuses the call, the reasons, and the comparison alone."""
    reasons = () if way == "gather" else tuple(WAYS[way].refusals(call))
    forward, backward, memory = (0, 0, 0) if reasons else COSTS[way](call)
    compared = (call.of_queries.world - 1) * MESSAGE
    return WayCost(forward + compared, backward, memory, reasons)


def _widths(call: ShardedCall) -> tuple[int, int]:
    """Return the bytes of key and value of one token in all samples and key heads: in their dtype, and upcast."""
    problem = call.problem
    numbers = problem.batch * problem.num_kv_heads * (problem.key.shape[3] + problem.value.shape[3])
    wide = stages.upcast(problem.query[:0]).dtype.itemsize
    return numbers * problem.query.dtype.itemsize, numbers * wide


def _of_gather(call: ShardedCall) -> tuple[int, int, int]:
    """Return the bytes that "gather" sends forward, sends backward, and holds on this rank."""
    held = call.of_keys
    token, wide = _widths(call)
    sent = (held.world - 1) * max(held.counts) * token
    some = by_gather.head_portions(call)
    again = sent if len(some) > 1 else 0
    # Once as they come, and once in the order of the text.
    copies = 1 if held.is_in_order else 2
    memory = copies * held.tokens * token * some[0].stop // call.problem.num_kv_heads if some else 0
    return sent, again + (held.tokens - held.count) * wide, memory


def _of_ring(call: ShardedCall) -> tuple[int, int, int]:
    """Return the bytes that "ring" sends forward, sends backward, and holds on this rank."""
    held = call.of_keys
    token, wide = _widths(call)
    sent = (held.tokens - held.counts[(held.rank + 1) % held.world]) * token
    return sent, sent + (held.tokens - held.count) * wide, 2 * max(held.counts) * token


def _of_heads(call: ShardedCall) -> tuple[int, int, int]:
    """Return the bytes that "heads" sends forward, sends backward, and holds on this rank."""
    problem, queries, keys = call.problem, call.of_queries, call.of_keys
    heads, kv_heads = by_heads.shared_heads(call)
    each = [some.stop - some.start for some in heads]
    of_keys = [some.stop - some.start for some in kv_heads]
    mine, my_keys, size = each[queries.rank], of_keys[queries.rank], problem.query.dtype.itemsize
    width, value_width = problem.query.shape[3], problem.value.shape[3]
    others, other_keys = queries.tokens - queries.count, keys.tokens - keys.count
    out = queries.count * (sum(each) - mine) * width
    out += keys.count * (sum(of_keys) - my_keys) * (width + value_width)
    back = others * mine * width + other_keys * my_keys * (width + value_width)
    out_contexts, back_contexts = others * mine, queries.count * (sum(each) - mine)
    held = queries.tokens * mine * (width + value_width)
    held += keys.tokens * my_keys * (width + value_width)
    unit = problem.batch * size
    return (
        (out + out_contexts * value_width) * unit,
        (back + back_contexts * value_width) * unit,
        held * unit,
    )


COSTS = {"gather": _of_gather, "ring": _of_ring, "heads": _of_heads}
