"""Heads in threads of our own, each with one of PyTorch's, where a kernel makes many short calls."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead._common.threads import side_by_side, threads_apart
from clearhead._common.torch_internals import can_read_now
from clearhead.attention.problem import Problem

WORTH = 1 << 25
"""From how many pairs of queries and keys, of all heads, threads save more than they take."""


def threads_of(problem: Problem) -> int:
    """Return the number of threads that share the heads; 1 to compute all heads in this thread.

    It is 1 for few pairs, for tensors that cannot be read at once, with gradients, a bias, dropout or a mask per head,
    and if the key heads do not divide well among the threads.
    """
    pairs = problem.batch * problem.num_heads * problem.query_len * problem.kv_len
    if pairs < WORTH or not can_read_now(problem.query):
        return 1
    if problem.bias is not None or problem.dropout is not None:
        return 1
    if problem.mask is not None and problem.mask.heads is not None:
        return 1
    if torch.is_grad_enabled() and any(each.requires_grad for each in problem.tensors):
        return 1
    count, heads = threads_apart(), problem.num_kv_heads
    # None is to wait long for another's last heads.
    return count if heads % count == 0 or heads >= 4 * count else 1


def by_heads(problem: Problem, count: int, run: Callable[[Problem, Tensor], object]) -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim); each thread computes some heads.

    Args:
        problem: the problem, without a mask or bias per head.
        count: the number of threads.
        run: computes the context of a problem with fewer heads and writes it into the tensor given.
    """
    batch, num_heads, query_len, _ = problem.query.shape
    group, size = num_heads // problem.num_kv_heads, -(-problem.num_kv_heads // count)
    context = problem.query.new_empty(batch, query_len, num_heads, problem.value.shape[3])
    context = context.transpose(1, 2)

    def use(first: int) -> None:
        """Compute the heads that read `size` key heads from `first` on, and write their context."""
        kv_heads = slice(first, min(first + size, problem.num_kv_heads))
        heads = slice(kv_heads.start * group, kv_heads.stop * group)
        some = problem.replace(
            query=problem.query[:, heads],
            key=problem.key[:, kv_heads],
            value=problem.value[:, kv_heads],
            sinks=None if problem.sinks is None else problem.sinks[heads],
        )
        run(some, context[:, heads])

    units = range(0, problem.num_kv_heads, size)
    side_by_side(units, lambda report: use, count, lambda done: None)
    return context
