"""Context parallelism by all-gather: every rank gets all keys and values and computes its own queries.

Keys and values are gathered in chunks of key heads, so that memory is bounded; their gradients are summed over the
ranks, and each rank gets those of its own tokens (Llama Team, 2024, section 3.3.2, https://arxiv.org/abs/2407.21783).
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearhead.attention.sharded.sharded_call import ShardedCall
from clearhead.masks.tiles import portions

GATHERED = 1 << 28
"""Bytes of keys and values that are there at a time, unless one key head has more."""


def attend(call: ShardedCall) -> Tensor:
    """Return the context of this rank's queries, (batch, num_heads, tokens of the rank, value_head_dim).

    Keys of several chunks of heads are gathered again in the backward pass.
    """
    some = head_portions(call)
    if len(some) == 1:
        return _portion(call.problem.query, call.key, call.value, call, some[0])
    parts = []
    for kv_heads in some:
        heads = slice(kv_heads.start * call.group_size, kv_heads.stop * call.group_size)
        tensors = call.problem.query[:, heads], call.key[:, kv_heads], call.value[:, kv_heads]
        # Between the passes a rank holds its own tokens; the backward pass gathers again.
        arguments = *tensors, call, kv_heads
        parts.append(
            checkpoint(_portion, *arguments, use_reentrant=False, preserve_rng_state=False)
        )
    return torch.cat(parts, dim=1)


def head_portions(call: ShardedCall) -> list[slice]:
    """Return the slices of key heads that are gathered one after the other, the same on every rank.

    A slice has up to GATHERED bytes of keys and values, and at least one head.
    """
    problem = call.problem
    width = problem.key.shape[3] + problem.value.shape[3]
    one = problem.batch * problem.kv_len * width * problem.query.dtype.itemsize
    return portions(problem.num_kv_heads, max(1, GATHERED // max(1, one)))


def gather_keys(call: ShardedCall, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of all ranks for some key heads, (batch, heads, kv_len, dim).

    They are in the order of the text, with gradients; every rank must call it. Raises RankError if a rank is lost.
    """
    both = torch.cat([key, value], dim=3)
    gathered = call.of_keys.gather_unchecked(both, 2, "keys and values")
    return gathered[..., : key.shape[3]], gathered[..., key.shape[3] :]


def _portion(*arguments: Any) -> Tensor:
    """Return the context, (batch, heads, tokens, value_head_dim), of the query heads that read some key heads.

    The arguments are the query of these heads, the rank's key and value of the slice, the call and the
    slice. The keys of the other ranks are gathered.
    """
    query, key, value, call, kv_heads = arguments
    heads = slice(kv_heads.start * call.group_size, kv_heads.stop * call.group_size)
    key, value = gather_keys(call, key, value)
    rows = call.of_queries.positions
    return call.run(call.part(query, key, value, rows=rows, heads=heads))
