"""Context parallelism by all-to-all: every rank computes some heads of all tokens and sends the contexts back.

Heads are split in order, as evenly as possible. A key head goes to every rank that has a query head of
its group, so that any ratio of heads works (Jacobs et al., 2023, https://arxiv.org/abs/2309.14509).
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.layouts import head_layout, key_heads
from clearhead.attention.sharded.sharded_call import ShardedCall
from clearhead.sharding.collectives import exchange
from clearhead.sharding.sharding import Sharding


def refusals(call: ShardedCall) -> list[str]:
    """Return the reasons why heads cannot be distributed over the ranks: fewer heads than ranks; [] if they can."""
    heads, world = call.problem.num_heads, call.of_queries.world
    return [] if heads >= world else [f"{heads} heads are fewer than {world} ranks"]


def attend(call: ShardedCall) -> Tensor:
    """Return the context of this rank's queries, (batch, num_heads, tokens of the rank, value_head_dim)."""
    rank, problem = call.of_queries.rank, call.problem
    heads, kv_heads = shared_heads(call)
    query = _to_heads(problem.query, heads, call.of_queries, "queries")
    both = torch.cat([call.key, call.value], dim=3)
    both = _to_heads(both, kv_heads, call.of_keys, "keys and values")
    mine = heads[rank]
    read = key_heads(torch.arange(mine.start, mine.stop), call.group_size)
    if len(read) != both.shape[1]:
        # The heads of this rank begin or end inside a group: a key head for each.
        both = both.index_select(1, (read - kv_heads[rank].start).to(both.device))
    width = problem.key.shape[3]
    some = call.part(query, both[..., :width], both[..., width:], heads=mine)
    return _to_tokens(call.run(some), heads, call.of_queries)


def shared_heads(call: ShardedCall) -> tuple[list[slice], list[slice]]:
    """Return two lists with a slice for each rank: its query heads, and the key heads that these read."""
    world, group = call.of_queries.world, call.group_size
    counts = head_layout(call.problem.num_heads, world).counts
    edges = [0, *itertools.accumulate(counts)]
    heads = [slice(*pair) for pair in itertools.pairwise(edges)]
    return heads, [slice(some.start // group, -(-some.stop // group)) for some in heads]


def _to_heads(tensor: Tensor, heads: list[slice], held: Sharding, what: str) -> Tensor:
    """Return this rank's heads of all tokens, (batch, heads, tokens, dim), from all heads of its own tokens.

    Args:
        tensor: (batch, all heads, tokens of the rank, dim).
        heads: the slice of each rank; they may overlap, and their gradients are then summed.
        held: the sharding of the tokens.
        what: the name of the tensor, for errors.
    """
    batch, _, tokens, width = tensor.shape
    # A key head may go to several ranks, whose gradients are summed upcast.
    wide = stages.upcast(tensor).permute(2, 0, 1, 3)
    sent = torch.cat([wide[:, :, some].flatten() for some in heads]).to(tensor.dtype)
    mine = heads[held.rank].stop - heads[held.rank].start
    one = batch * width
    split = [tokens * one * (some.stop - some.start) for some in heads]
    received = [count * one * mine for count in held.counts]
    rows = _Exchange.apply(sent, split, received, held.group, what).view(-1, batch, mine, width)
    return held.in_order(rows).permute(1, 2, 0, 3)


def _to_tokens(context: Tensor, heads: list[slice], held: Sharding) -> Tensor:
    """Return all heads of this rank's tokens, from its heads of all tokens, (batch, heads, tokens, dim).

    `heads` has the slice of each rank.
    """
    batch, mine, _, width = context.shape
    one = batch * width
    sent = held.by_rank(context.permute(2, 0, 1, 3)).flatten()
    split = [count * one * mine for count in held.counts]
    received = [held.count * one * (some.stop - some.start) for some in heads]
    rows = _Exchange.apply(sent, split, received, held.group, "contexts")
    parts = [
        part.view(held.count, batch, some.stop - some.start, width)
        for part, some in zip(rows.split(received), heads, strict=True)
    ]
    return torch.cat(parts, dim=2).permute(1, 2, 0, 3)


class _Exchange(torch.autograd.Function):
    """Send consecutive runs of a flat tensor to the ranks and receive one from each.

    The gradients go back the same path.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, sent: list[int], received: list[int], group: Any, what: str
    ) -> Tensor:
        """Return the numbers of all ranks, in the order of the ranks, as a flat tensor.

        Args:
            ctx: of autograd.
            tensor: flat, the numbers for each rank in turn.
            sent: the count of numbers for each rank.
            received: the count of numbers from each rank.
            group: the process group.
            what: what is sent, for errors.
        """
        ctx.back = received, sent, group, f"the gradients of {what}"
        return exchange(tensor, sent, received, group, what)

    @staticmethod
    @torch.autograd.function.once_differentiable  # its type hides the name of ctx
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradient of the numbers that this rank sent, None for the other inputs."""
        return exchange(grad, *ctx.back), None, None, None, None
