"""The queries that are not padding, over which averages are taken."""

import torch
from torch import Tensor

from clearhead._common.checks import check_tensor
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentTypeError, ShapeError
from clearhead.masks.causal import Causal
from clearhead.matrix.parts import visible_pairs

PORTION = 1 << 21
"""Chunk size in pairs, for a mask that is read as a tensor."""


def real_queries(problem: Problem) -> Tensor | None:
    """Return the queries that are not padding, bool, (batch, query_len); None if nothing hides keys or unknown.

    All True if a mask hides no key. What the problem states comes first; else it is None in cross-attention. The
    queries are the last of the keys' tokens: padding if no query may see their key. After cached keys, one whose key is
    all zeros, not yet written, counts as real.
    """
    if problem.cross or problem.real_queries is not None:
        return problem.real_queries
    return queries_of_keys(problem)


def queries_of_keys(problem: Problem, appended: int = 0) -> Tensor | None:
    """Return which queries of self-attention have a key that some query sees, bool, (batch, query_len).

    A query after the tokens that a cache holds also counts if its key is all zeros, not yet written. None if nothing
    can hide a key or a bias hides none, if there are fewer keys than queries, or if it is not known. The last
    `appended` keys belong to no token.
    """
    mask, bias = problem.mask, problem.bias
    hides = bias is not None and bias.may_hide
    before = problem.kv_len - appended - problem.query_len
    if (
        before < 0
        or (before and (problem.sharding is not None or problem.key.is_meta))
        or (not hides and (mask is None or isinstance(mask, Causal)))
    ):
        return None
    # A bias may hide with −∞, whatever the mask says, in some samples and heads only.
    batch, heads = problem.query.shape[:2] if hides or mask is None else mask.leading
    seen = torch.zeros(batch, problem.kv_len, dtype=torch.bool, device=problem.device)
    portion = max(1, PORTION // max(1, batch * heads * problem.kv_len))
    for start in range(0, problem.query_len, portion):
        visible = visible_pairs(problem, slice(start, min(start + portion, problem.query_len)))
        assert visible is not None
        seen = seen | visible.any(dim=2).any(dim=1)
    if hides and not seen.is_meta and bool(seen.all()):
        return None  # the bias hides nothing
    own = seen[:, before : before + problem.query_len]
    own = own.expand(problem.batch, -1)
    if not before or bool(own.all()):
        return own
    if not bool(own[:, -1].any()) and _has_room(problem, seen):
        return None
    # Where a row is shorter than another, what is not written yet is room behind it.
    written = problem.key[:, :, before : before + problem.query_len].ne(0).any(dim=3).any(dim=1)
    return own | ~written


def _has_room(problem: Problem, seen: Tensor) -> bool:
    """Return True if the last key, which no query sees, may be an unused slot after the last token.

    Then each query sees one key more than the query before; padding would differ between samples.
    """
    if not bool(seen.any()):
        return False
    if problem.query_len < 2:
        return True
    last = slice(problem.query_len - 2, problem.query_len)
    visible = visible_pairs(problem, last)
    assert visible is not None
    ends = [
        int(row.nonzero()[-1]) if bool(row.any()) else -1 for row in visible.any(dim=1).any(dim=0)
    ]
    return ends[0] != ends[1]


def read_queries(name: str, queries: object, problem: Problem) -> Tensor:
    """Return the queries that count, bool, (batch or 1, query_len), from the argument `name`; all for None.

    Raises:
        ArgumentTypeError: code `queries.type`, unless it is a bool tensor.
        ShapeError: code `queries.shape`, unless it is (query_len,) or (batch, query_len).
    """
    if queries is None:
        return torch.ones(1, problem.query_len, dtype=torch.bool, device=problem.device)
    check_tensor(name, queries, "a bool tensor, or None")
    assert isinstance(queries, Tensor)
    if queries.dtype != torch.bool:
        raise ArgumentTypeError(
            "queries.type", f"{name} must be bool, True for those that count; got {queries.dtype}."
        )
    if tuple(queries.shape) not in ((problem.query_len,), (problem.batch, problem.query_len)):
        raise ShapeError(
            "queries.shape",
            f"{name} must have shape (query_len,) = ({problem.query_len},) or (batch, query_len) "
            f"= {(problem.batch, problem.query_len)}; got {tuple(queries.shape)}.",
        )
    return torch.atleast_2d(queries).to(problem.device)
