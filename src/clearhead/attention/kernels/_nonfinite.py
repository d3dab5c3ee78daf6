"""A non-finite number stays behind its mask: one function around a kernel's run."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.problem import Problem


def contain(
    problem: Problem,
    run: Callable[[Problem], Tensor],
    count: Callable[[Problem, Tensor], Tensor],
    can_sync: bool = True,
) -> Tensor:
    """Run a kernel so that a non-finite number shows to the queries that see it, and to no other,
    forward and backward.

    As in the definition: the kernel computes with the finite part of the tensors, and NaN is then
    written where the rest may be seen.

    Args:
        problem: the problem.
        run: the kernel; its result is (batch, num_heads, query_len, value_head_dim).
        count: of marked keys, how many each query may attend to, or their share: from a problem and
            marks, 0.0 or 1.0, (batch, num_kv_heads, kv_len, n), to (batch, num_heads, query_len, n).
        can_sync: False if the numbers cannot be read: then some may be non-finite.
    """
    query, key, value = problem.query, problem.key, problem.value
    if (
        can_sync
        and stages.all_finite(query)
        and (problem.keys_finite or stages.both_finite(key, value))
    ):
        return run(problem)
    query, key, value = (stages.zero_nonfinite(each) for each in (query, key, value))
    result = run(problem.replace(query=query, key=key, value=value))
    with torch.no_grad():
        shows = _shows(problem, count)
    return result.masked_fill(shows, torch.nan)


def _shows(problem: Problem, count: Callable[[Problem, Tensor], Tensor]) -> Tensor:
    """True where a non-finite number may be seen, by the shape of the context."""
    query, key, value = problem.query, problem.key, problem.value
    marks = [
        ~torch.isfinite(value),
        stages.nonfinite_rows(key)[..., None],
        torch.ones_like(key[..., :1], dtype=torch.bool),
    ]
    seen = count(problem, torch.cat(marks, dim=-1).float()) > 0
    from_value, from_key, any_key = seen[..., :-2], seen[..., -2:-1], seen[..., -1:]
    return from_value | from_key | (stages.nonfinite_rows(query)[..., None] & any_key)
