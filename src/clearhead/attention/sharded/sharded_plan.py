"""The plan of a call over tokens that ranks share: its method, and the visible pairs of each rank."""

from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from clearhead.attention.kernels import blockwise
from clearhead.attention.planning import Plan, plan_for
from clearhead.attention.problem import Options
from clearhead.attention.sharded import by_heads
from clearhead.attention.sharded.attending import refuse
from clearhead.attention.sharded.sharded_call import make_call, row_problem
from clearhead.masks.blocks import pairs_of_queries


@dataclass(frozen=True, repr=False)
class ShardedPlan(Plan):
    """The plan of a call over tokens that ranks share, on this rank.

    Attributes:
        way: "gather", "ring" or "heads".
        pairs: the visible pairs that each rank computes, float64, (world,), over samples and heads
            that have masks of their own.
        rank: this one.

    Example:
        >>> import torch, clearhead as ch
        >>> where = ch.across(world=4, tokens=4096, mask=ch.causal())
        >>> query = where.shard(torch.empty(1, 8, 4096, 64, device="meta"))
        >>> key = value = where.shard(torch.empty(1, 2, 4096, 64, device="meta"))
        >>> plan = ch.plan(query, key, value, mask=ch.causal(), across=where)
        >>> plan.way, round(plan.balance, 3)
        ('gather', 1.0)
    """

    way: str
    pairs: Tensor
    rank: int

    @property
    def balance(self) -> float:
        """The largest number of pairs of a rank, divided by the mean; 1.0 if no pair is visible."""
        mean = float(self.pairs.mean())
        return float(self.pairs.max()) / mean if mean else 1.0

    def __str__(self) -> str:
        """Return lines: the method, the pairs of this rank, and the local plan."""
        lines = [
            f"{self.way} over {len(self.pairs)} ranks",
            f"  rank {self.rank} has {int(self.pairs[self.rank])} pairs; the most of a rank is "
            f"{self.balance:.3f} of the mean",
            *(f"  {line}" for line in super().__str__().splitlines()),
        ]
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
    if way == "ring" and not call.problem.query.is_meta:
        kernel = blockwise.NAME
    local = plan_for(row_problem(call), kernel)
    return ShardedPlan(**vars(local), way=way, pairs=pairs, rank=held.rank)
