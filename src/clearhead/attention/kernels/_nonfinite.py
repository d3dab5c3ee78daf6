"""Containment of non-finite values that a mask hides: one function that wraps the run of a kernel."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.problem import Problem

SMALL = 2**13
"""Up to how many numbers of a tensor a call of PyTorch's takes longer than what it computes."""


def contain(
    problem: Problem,
    run: Callable[[Problem], Tensor],
    count: Callable[[Problem, Tensor], Tensor],
    read: bool = True,
) -> Tensor:
    """Run a kernel so that a non-finite value reaches only the queries that see it, forward and backward.

    The kernel computes with the finite part of the tensors, and NaN is then written to each query that sees another
    value. A query or key whose scores may overflow counts as not finite. If all is finite, the result of `run(problem)`
    is returned.

    Args:
        problem: the problem.
        run: the kernel; its result is (batch, num_heads, query_len, value_head_dim).
        count: from a problem and marks, 0.0 or 1.0, (batch, num_kv_heads, kv_len, n), to the number (or
            share) of marked keys that each query may attend to, (batch, num_heads, query_len, n).
        read: False if the values cannot be read, or have been: some may be non-finite.
    """
    if read and all_finite(problem):
        return run(problem)
    query, key, value, sinks = problem.query, problem.key, problem.value, problem.sinks
    queries, keys = stages.nonfinite_rows(query, problem.factor), stages.nonfinite_rows(key)
    if sinks is not None:
        infinite = stages.infinite_sinks(sinks)
        sinks, queries = sinks.masked_fill(infinite, 0.0), queries | infinite[:, None]
    finite = problem.replace(
        query=stages.zero_rows(query, queries),
        key=stages.zero_rows(key, keys),
        value=stages.zero_nonfinite(value),
        sinks=sinks,
    )
    result = run(finite)
    with torch.no_grad():
        every = torch.ones_like(key[..., :1], dtype=torch.bool)
        marks = [~torch.isfinite(value), keys[..., None], every]
        seen = count(problem, torch.cat(marks, dim=-1).float()) > 0
        from_value, from_key, any_key = seen[..., :-2], seen[..., -2:-1], seen[..., -1:]
        shows = from_value | from_key | (queries[..., None] & any_key)
    return result.masked_fill(shows, torch.nan)


def all_finite(problem: Problem, *, with_value: bool = True) -> bool:
    """Return True if query, key, sinks and value are finite, and so small that no score overflows; it syncs the device.

    With `with_value=False` the value is not checked on the CPU; key and value are not if the problem has `keys_finite`.
    False is also returned if a GPU's norms are too large to tell.
    """
    query, key, value = problem.query, problem.key, problem.value
    if problem.sinks is not None and not stages.all_finite(problem.sinks):
        return False
    if not query.is_cpu:
        return _short_by_one_read(query, key, value, problem.factor)
    is_small = query.numel() <= SMALL >= key.numel() and query.shape[3] == value.shape[3]
    is_asked = with_value and is_small and not problem.keys_finite
    if is_asked and short_together(query, key, value, problem.factor):
        return True
    if not stages.rows_finite(query, problem.factor):
        return False
    if problem.keys_finite:
        return True
    return stages.rows_finite(key) and (not with_value or stages.all_finite(value))


def _short_by_one_read(query: Tensor, key: Tensor, value: Tensor, factor: float) -> bool:
    """Return True if the norm of each whole tensor times `factor` is at most `SAFE_LENGTH`, by one device sync.

    Each row is then finite and safe; False does not mean that one is not.
    """
    precise = stages.upcast(query[..., :0]).dtype
    lengths = [
        torch.linalg.vector_norm(each.detach(), dtype=precise) for each in (query, key, value)
    ]
    return torch.stack(lengths).max().item() * factor <= stages.SAFE_LENGTH


def short_together(query: Tensor, key: Tensor, value: Tensor, factor: float = 1.0) -> bool:
    """Return True if the norm of all entries together times `factor` is so small that each row is finite and safe.

    False does not mean that one is not. The tensors, which need one batch and width, are concatenated first, which is
    fastest for small ones.
    """
    axis = 1 if query.shape[2] == key.shape[2] else 2
    if axis == 2 and query.shape[1] != key.shape[1]:
        queries = query.shape[1] // key.shape[1] * query.shape[2]
        query = query.reshape(key.shape[0], key.shape[1], queries, key.shape[3])
    every = torch.cat((query, key, value), axis)
    return torch.linalg.vector_norm(every).item() * factor <= stages.SAFE_LENGTH
