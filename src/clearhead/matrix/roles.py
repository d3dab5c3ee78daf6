"""What kind of head each head is: how much of its weight goes where a known role would put it."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_ids, check_tensor
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentTypeError, ShapeError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import NEAR, Roles

RECENT = 8
"""How many earlier occurrences of a token are looked at, from the last one back."""

PORTION = 1 << 22
"""How many pairs of a mask are read at a time, where it must be read as a tensor."""


def roles(
    matrix: AttentionMatrix,
    tokens: Tensor | None = None,
    *,
    queries: Tensor | None = None,
) -> Roles:
    """What kind of head each head is, from a few pairs per query of its attention matrix.

    Exact, in O(tokens) memory; beside the logsumexp and the entropy it takes O(tokens) time, where
    the mask tells the keys of a query as runs. The definitions are those of `Roles`. The patterns
    of duplicate and induction are those of TransformerLens (`detect_head`), cut to the last eight
    occurrences. The result carries no gradient.

    Args:
        matrix: the attention of one layer. The last query sits on the last key.
        tokens: ids, whole numbers of shape (kv_len,) or (batch, kv_len), for the two roles that
            ask which tokens are the same. Queries and keys must be of the same tokens, and there
            may be more keys than queries, as behind a cache.
        queries: which queries count, bool of shape (query_len,) or (batch, query_len); all if
            nothing is said. Padding should not.

    Returns:
        `Roles`, whose fields are (batch, num_heads).

    Raises:
        ArgumentTypeError: codes `roles.type`, `tokens.type` and `queries.type`.
        ShapeError: codes `tokens.shape` and `queries.shape`, and `roles.lengths` for tokens with
            more queries than keys.

    Example:
        >>> import torch, clearhead as ch
        >>> tokens = torch.arange(5).repeat(2)
        >>> query = 30 * torch.eye(5)[tokens]  # a query tells its token,
        >>> key = torch.eye(5)[tokens - 1]  # and a key the token before it
        >>> key[0] = 0
        >>> found = ch.roles(ch.AttentionMatrix(query, key, mask=ch.causal()), tokens)
        >>> round(float(found.induction), 3), found.names()
        (1.0, 'induction')
    """
    if not isinstance(matrix, AttentionMatrix):
        raise ArgumentTypeError(
            "roles.type", f"matrix must be an AttentionMatrix; got {type(matrix).__name__}."
        )
    problem = matrix.problem
    ids = None if tokens is None else _ids(tokens, problem)
    counts = _counting(queries, problem)
    with torch.no_grad():
        number, first = _seen(problem, counts)
        # Where each query is among the keys: the last sits on the last.
        place = torch.arange(problem.query_len, device=problem.device)[None]
        place = place + (problem.kv_len - problem.query_len)

        def share(keys: Iterable[Tensor], *, behind: int = 0) -> Tensor:
            return problem.restore(_share(matrix, keys, behind, counts, number))

        duplicate = induction = None
        if ids is not None:
            earlier = _earlier(ids, problem.query_len)
            duplicate = share(earlier)
            induction = share(earlier, behind=1)
        return Roles(
            previous=share([place - 1]),
            first=share([first.expand(-1, problem.query_len)]),
            duplicate=duplicate,
            induction=induction,
            local=problem.restore(_local(matrix, counts, number)),
            uniform=problem.restore(_evenness(matrix, counts, number)),
        )


def _ids(given: object, problem: Problem) -> Tensor:
    """The ids as (batch or 1, kv_len)."""
    tokens = check_ids(given)
    if problem.query_len > problem.kv_len:
        raise ShapeError(
            "roles.lengths",
            "with tokens, queries and keys must be of the same tokens, the last query on the last "
            f"key; got query_len={problem.query_len} and kv_len={problem.kv_len}.",
        )
    if tuple(tokens.shape) not in ((problem.kv_len,), (problem.batch, problem.kv_len)):
        raise ShapeError(
            "tokens.shape",
            f"tokens must have shape (kv_len,) = ({problem.kv_len},) or (batch, kv_len) = "
            f"{(problem.batch, problem.kv_len)}; got {tuple(tokens.shape)}.",
        )
    return torch.atleast_2d(tokens).to(problem.device)


def _counting(queries: object, problem: Problem) -> Tensor:
    """Which queries count, (batch or 1, query_len)."""
    if queries is None:
        return torch.ones(1, problem.query_len, dtype=torch.bool, device=problem.device)
    check_tensor("queries", queries, "a bool tensor, or None")
    assert isinstance(queries, Tensor)
    if queries.dtype != torch.bool:
        raise ArgumentTypeError(
            "queries.type", f"queries must be bool, True for those that count; got {queries.dtype}."
        )
    if tuple(queries.shape) not in ((problem.query_len,), (problem.batch, problem.query_len)):
        raise ShapeError(
            "queries.shape",
            f"queries must have shape (query_len,) = ({problem.query_len},) or (batch, query_len) "
            f"= {(problem.batch, problem.query_len)}; got {tuple(queries.shape)}.",
        )
    return torch.atleast_2d(queries).to(problem.device)


def _seen(problem: Problem, counts: Tensor) -> tuple[Tensor, Tensor]:
    """How many keys each query may see, (batch or 1, num_heads or 1, query_len), and the first key
    that a query that counts may see in any head, (batch or 1, 1); −1 where there is none."""
    query_len, kv_len, device = problem.query_len, problem.kv_len, problem.device
    mask = problem.mask
    hides = problem.bias is not None and problem.bias.may_hide
    spans = None if hides else problem.spans
    if spans is not None:
        number = (spans.stop - spans.start).sum(dim=-1)[:, None]
        first = spans.start[..., 0]
    elif kv_len and (mask is not None or hides):
        number, first = _seen_in_portions(problem)
    else:
        number = torch.full((1, 1, query_len), kv_len, device=device)
        first = torch.zeros(1, query_len, dtype=torch.int64, device=device)
    first = torch.where(counts & (number > 0).any(dim=1), first, kv_len)
    first = first.amin(dim=1, keepdim=True) if query_len else first.new_full((1, 1), kv_len)
    return number, torch.where(first == kv_len, -1, first)


def _seen_in_portions(problem: Problem) -> tuple[Tensor, Tensor]:
    """Of each query: how many keys it may see, and the first of them in any head, (batch or 1,
    query_len), read from the mask as a tensor, some queries at a time."""
    numbers, firsts = [], []
    keys = slice(0, problem.kv_len)
    bias = problem.bias if problem.bias is not None and problem.bias.may_hide else None
    leading = (
        problem.query.shape[:2]
        if problem.mask is None or bias is not None
        else problem.mask.leading
    )
    portion = max(1, PORTION // max(1, math.prod(leading) * problem.kv_len))
    # At least once, so that shapes are right without queries.
    for start in range(0, max(1, problem.query_len), portion):
        queries = slice(start, min(start + portion, problem.query_len))
        visible = problem.visible(queries, keys)
        if bias is not None:
            added = problem.bias_block(queries, keys)
            assert added is not None
            shown = (added != -torch.inf).expand(
                -1, -1, queries.stop - queries.start, problem.kv_len
            )
            visible = shown if visible is None else visible & shown
        assert visible is not None
        numbers.append(visible.sum(dim=-1))
        seen = visible.any(dim=1)
        firsts.append(seen.to(torch.uint8).argmax(dim=-1))
    return torch.cat(numbers, dim=2), torch.cat(firsts, dim=1)


def _earlier(ids: Tensor, query_len: int) -> list[Tensor]:
    """Where the token of each query was before: the last time, the time before that, and so on,
    each (batch or 1, query_len); −1 where there is none."""
    order = ids.argsort(dim=1, stable=True)
    in_order = ids.gather(1, order)
    last = torch.full_like(order, -1)
    # In the sorted row, the neighbour on the left is the occurrence before.
    again = in_order[:, 1:] == in_order[:, :-1]
    last.scatter_(1, order[:, 1:], torch.where(again, order[:, :-1], -1))
    found = [last]
    for _ in range(RECENT - 1):
        before = found[-1]
        found.append(torch.where(before < 0, -1, last.gather(1, before.clamp(min=0))))
    return [each[:, ids.shape[1] - query_len :] for each in found]


def _share(
    matrix: AttentionMatrix, keys: Iterable[Tensor], behind: int, counts: Tensor, number: Tensor
) -> Tensor:
    """The mean weight on the targets, over the queries that count and have the choice: they see a
    target, and a key that is none. (batch, num_heads).

    `keys` are (batch or 1, query_len), one a query, out of range for none. The target is the key
    that many places behind it, for a query that sees both.
    """
    problem = matrix.problem
    weight = torch.zeros(problem.query.shape[:3], dtype=matrix.dtype, device=problem.device)
    hits = torch.zeros_like(number)
    for each in keys:
        there = counts & (each >= 0) & (each < problem.kv_len - behind)
        if not bool(there.any()):
            continue
        more, found = _weights_on(matrix, each, behind, there)
        weight = weight + more
        hits = hits + found
    return _mean(weight, counts[:, None] & (hits > 0) & (hits < number))


def _local(matrix: AttentionMatrix, counts: Tensor, number: Tensor) -> Tensor:
    """The mean weight nearby, over the queries that count and see a key there and another farther
    away, (batch, num_heads)."""
    problem = matrix.problem
    place = torch.arange(problem.query_len, device=problem.device)[None]
    hits = torch.zeros_like(number)
    for step in range(-NEAR, NEAR + 1) if problem.kv_len else ():
        keys = place + (problem.kv_len - problem.query_len + step)
        there = (keys >= 0) & (keys < problem.kv_len)
        hits = hits + (there[:, None] & _visible(problem, place, keys.clamp(0, problem.kv_len - 1)))
    weight = matrix.near(NEAR).reshape(problem.query.shape[:3])
    return _mean(weight, counts[:, None] & (hits > 0) & (hits < number))


def _weights_on(
    matrix: AttentionMatrix, keys: Tensor, behind: int, there: Tensor
) -> tuple[Tensor, Tensor]:
    """The weight of each query on its target, (batch, num_heads, query_len), 0 if it has none, and
    whether it has one, (batch or 1, num_heads or 1, query_len)."""
    problem = matrix.problem
    # Only pairs that are there are worked out: they come first, as many as the fullest row has.
    rows, query_len = there.shape
    most = int(there.sum(dim=1).max()) if there.numel() else 0
    place = there.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    real = there.gather(1, place)
    key = torch.where(real, keys.expand(rows, -1).gather(1, place), 0)
    target = torch.where(real, key + behind, 0)
    leading = problem.query.shape[:2]
    seen = real[:, None] & _visible(problem, place, target)
    if behind:
        seen = seen & _visible(problem, place, key)
    weights = torch.where(seen, matrix.at(place, target).reshape(*leading, most), 0.0)
    to = place[:, None].expand(*leading, most)
    weight = weights.new_zeros(*leading, query_len).scatter_(2, to, weights)
    found = seen.new_zeros(*seen.shape[:2], query_len)
    return weight, found.scatter_(2, place[:, None].expand(seen.shape), seen)


def _visible(problem: Problem, queries: Tensor, keys: Tensor) -> Tensor:
    """Whether the queries of pairs see their keys, both (batch or 1, pairs): (batch or 1, num_heads
    or 1, pairs)."""
    at_query, at_key = queries[:, None, None], keys[:, None, None]
    sizes = problem.query_len, problem.kv_len
    visible = torch.ones_like(at_query, dtype=torch.bool)
    if problem.mask is not None:
        visible = visible & problem.mask.visible(at_query, at_key, *sizes)
    if problem.bias is not None and problem.bias.may_hide:
        visible = visible & (problem.bias.at(at_query, at_key, *sizes) != -torch.inf)
    return visible[:, :, 0]


def _evenness(matrix: AttentionMatrix, counts: Tensor, number: Tensor) -> Tensor:
    """Entropy / ln(number of visible keys), mean over the queries that count and see two or more."""
    problem = matrix.problem
    leading = problem.query.shape[:3]
    entropy = matrix.entropy().reshape(leading)
    if problem.sinks is not None:
        # Weights that sum to a share s instead of 1 have the entropy share · H − share · ln share.
        sinks = stages.upcast(problem.sinks)[:, None]
        share = torch.sigmoid(matrix.logsumexp.reshape(leading) - sinks)
        entropy = entropy + torch.special.xlogy(share, share)
    choice = counts[:, None] & (number > 1)
    most = number.clamp(min=2).to(entropy.dtype).log()
    return _mean(entropy / most, choice)


def _mean(values: Tensor, choice: Tensor) -> Tensor:
    """The mean of each head, (batch, num_heads), over the queries that have the choice; 0 if none
    has. Rounding is kept from leading out of 0 to 1."""
    choice = choice.expand(values.shape)
    total = torch.where(choice, values, 0.0).sum(dim=-1)
    return (total / choice.sum(dim=-1).clamp(min=1)).clamp(0.0, 1.0)
