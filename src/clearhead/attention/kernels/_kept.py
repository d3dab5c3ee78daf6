"""The mask of a problem as a tensor."""

from torch import Tensor

from clearhead._common.torch_internals import can_read_now
from clearhead.attention.problem import Problem
from clearhead.masks.small import MOST_PAIRS, shown_small


def shown_mask(
    problem: Problem, queries: slice | None = None, keys: slice | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return a part of the mask as a bool tensor, and which queries see a key, (…, queries, 1), or None if all do.

    The problem must have a mask; None for queries or keys means all. A small whole mask is cached. The row of a query
    that sees nothing is all True, and its result must be discarded, because kernels disagree about such queries. Where
    the mask cannot be read at once, the second is never None.
    """
    # In this order: a size that is compared while PyTorch traces holds what it traces to such sizes.
    if queries is None and can_read_now(problem.query):
        assert problem.mask is not None
        if problem.query_len * problem.kv_len <= MOST_PAIRS:
            return shown_small(problem.mask, problem.extent)
    visible = problem.visible(queries, keys)
    assert visible is not None
    seen = visible.any(dim=-1, keepdim=True)
    return (visible, None) if all_seen(problem, seen) else (visible | ~seen, seen)


def all_seen(problem: Problem, seen: Tensor) -> bool:
    """Return True if all entries of `seen` are True and can be read.

    False where reading would wait or is not possible.
    """
    return can_read_now(problem.query) and bool(seen.all())
