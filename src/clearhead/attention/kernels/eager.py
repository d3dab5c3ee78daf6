"""The definition itself as a kernel: runs anything, anywhere, and holds queries × keys.

Queries are taken in portions, so that without gradients the memory stays bounded.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead import stages
from clearhead._text import format_bytes
from clearhead.attention.problem import Problem
from clearhead.masks.tiles import portions

NAME = "eager"
SUMMARY = "the definition, stage by stage, in plain PyTorch; holds queries × keys numbers"
PORTION = 1 << 24


def refusals(problem: Problem) -> list[str]:
    """Return the reasons why this kernel cannot run the problem: always []."""
    return []


def defers(problem: Problem) -> list[str]:
    """Return the reasons why "auto" prefers a later kernel: always [], as it is the last."""
    return []


def how(problem: Problem) -> str:
    """Return one line that describes how the kernel runs the problem."""
    numbers = problem.batch * problem.num_heads * problem.query_len * problem.kv_len
    width = 8 if problem.query.dtype == torch.float64 else 4
    count = len(_portions(problem))
    split = f" in {count} portions of queries" if count > 1 else ""
    return f"the stages one by one{split}; the scores alone take {format_bytes(numbers * width)}"


def attend(problem: Problem) -> Tensor:
    """Return the context, (batch, num_heads, query_len, value_head_dim), with all derivatives."""
    parts = [compute(problem, queries).context for queries in _portions(problem)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def logsumexp(problem: Problem) -> Tensor:
    """Return log Σ exp of the masked scores of each query, (batch, num_heads, query_len), without the sinks, upcast.

    It is −∞ for a query that sees no key.
    """
    parts = [
        stages.logsumexp(compute(problem, queries).masked_scores) for queries in _portions(problem)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def compute(problem: Problem, queries: slice | None = None) -> stages.Stages:
    """Return every stage for the queries in a slice, by default for all; their mask and bias become tensors."""
    return stages.compute(
        problem.query if queries is None else problem.query[:, :, queries],
        stages.repeat_kv_heads(problem.key, problem.num_heads),
        stages.repeat_kv_heads(problem.value, problem.num_heads),
        scale=problem.scale,
        softcap=problem.softcap,
        bias=problem.bias_block(queries),
        visible=problem.visible(queries),
        sinks=problem.sinks,
        dropout=problem.dropout,
    )


def _portions(problem: Problem) -> Sequence[slice | None]:
    """Return the slices of queries that are computed one after the other, of up to PORTION scores or one query each.

    [None], for all at once, where `is_one_graph` says so; one empty slice if there are no queries.
    """
    row = problem.batch * problem.num_heads * problem.kv_len
    if problem.is_one_graph(row * problem.query_len, PORTION):
        return [None]
    per_query = max(1, row)
    return portions(problem.query_len, max(1, PORTION // per_query)) or [slice(0, 0)]
