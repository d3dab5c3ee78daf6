"""A non-finite number stays behind its mask: one function around a kernel's run."""

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import is_plain
from clearhead.attention.problem import Problem

SMALL = 2**13
"""Up to how many numbers of a tensor a call of PyTorch's takes longer than what it computes."""


def contain(
    problem: Problem,
    run: Callable[[Problem], Tensor],
    count: Callable[[Problem, Tensor], Tensor],
    read: bool = True,
) -> Tensor:
    """Run a kernel so that a non-finite number shows to the queries that see it, and to no other,
    forward and backward.

    As in the definition: the kernel computes with the finite part of the tensors, and NaN is then
    written where the rest may be seen. A query or key whose scores may overflow counts as not finite.

    Args:
        problem: the problem.
        run: the kernel; its result is (batch, num_heads, query_len, value_head_dim).
        count: of marked keys, how many each query may attend to, or their share: from a problem and
            marks, 0.0 or 1.0, (batch, num_kv_heads, kv_len, n), to (batch, num_heads, query_len, n).
        read: False if the numbers cannot be read, or have been: some may be non-finite.
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


def contain_causal(problem: Problem, run: Callable[[Problem], Tensor]) -> Tensor:
    """The same for causal queries that are the keys, where nothing can be read at once: who sees a mark comes after
    the first of them, which is found in the bits of one comparison, and heads of a group share it.

    Without gradients the result of the kernel is written to.
    """
    query, key, value = problem.query, problem.key, problem.value
    queries, keys = long_rows(query, problem.factor), long_rows(key)
    values = ~(value.detach().abs() < torch.inf)
    finite = problem.replace(
        query=stages.zero_rows(query, queries),
        key=stages.zero_rows(key, keys),
        value=value.masked_fill(values, 0.0),
    )
    result = run(finite)
    with torch.no_grad():
        first = torch.minimum(_first_marked(values), _first_marked(keys[..., None]))
        place = torch.arange(value.shape[2], device=value.device)[:, None]
        shows = stages.repeat_kv_heads(first, problem.num_heads) <= place
        # Mapped queries of keys that are not have more numbers than what would be written to.
        plain, long = is_plain(query), queries[..., None]
        shows = shows.logical_or_(long) if plain else shows | long
    if plain and not result.requires_grad:
        return result.masked_fill_(shows, torch.nan)
    return result.masked_fill(shows, torch.nan)


def _first_marked(marks: Tensor) -> Tensor:
    """The first token that is marked, (…, 1, n), or the number of tokens for none."""
    first = marks.to(torch.uint8).argmax(dim=2, keepdim=True)
    return first.where(marks.any(dim=2, keepdim=True), marks.shape[2])


def long_rows(tensor: Tensor, factor: float = 1.0) -> Tensor:
    """Find what `stages.nonfinite_rows` does, by the lengths of the rows: in 16 bits without a copy in 32."""
    precise = stages.upcast(tensor[..., :0]).dtype
    lengths = torch.linalg.vector_norm(tensor.detach(), dim=-1, dtype=precise) * factor
    return ~(lengths <= stages.longest(precise) ** 0.5)


def all_finite(problem: Problem, *, value: bool = True) -> bool:
    """Return True if query, key, sinks and, where it is asked for, value are finite, and all scores
    must be."""
    if problem.sinks is not None and not stages.all_finite(problem.sinks):
        return False
    query, key = problem.query, problem.key
    if value and not problem.keys_finite and query.numel() <= SMALL >= key.numel():
        alike = query.shape[1] == key.shape[1] and query.shape[3] == problem.value.shape[3]
        if alike and short_together(query, key, problem.value, problem.factor):
            return True
    if not stages.rows_finite(query, problem.factor):
        return False
    if problem.keys_finite:
        return True
    return stages.rows_finite(key) and (not value or stages.all_finite(problem.value))


def short_together(query: Tensor, key: Tensor, value: Tensor, factor: float = 1.0) -> bool:
    """Return True if all numbers together are so short a vector that each row counts as finite, of tensors of as
    many heads and one width; few of them are read fastest side by side."""
    every = torch.cat((query, key, value), dim=2)
    return torch.linalg.vector_norm(every).item() * factor <= stages.SAFE_LENGTH
