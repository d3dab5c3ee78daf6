"""The roles of heads, measured: how much of its weight a head puts where a known role would put it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_ids
from clearhead._common.hints import with_hints
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentTypeError, ShapeError
from clearhead.matrix.head_numbers import RoleCounts, Roles
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.parts import pairs, visible_pairs
from clearhead.matrix.real_queries import read_queries, real_queries
from clearhead.matrix.summary import Summary

RECENT = 8
"""Earlier occurrences of a token that count, from the last one back."""

PORTION = 1 << 22
"""Chunk size in pairs, for a mask that is read as a tensor."""


@with_hints
def roles(
    matrix: AttentionMatrix,
    tokens: Tensor | None = None,
    *,
    queries: Tensor | None = None,
) -> Roles:
    """Measure the roles of each head, from a few pairs per query of its attention matrix.

    Exact, in O(tokens) memory; next to the logsumexp it takes O(tokens) time, where the mask describes
    the keys of a query as spans. The definitions are those of `Roles`. The
    patterns of duplicate and induction are those of TransformerLens (`detect_head`), cut to the
    last eight occurrences. The result carries no gradient.

    Args:
        matrix: the attention of one layer. The last query has the position of the last key.
        tokens: ids, whole numbers of shape (kv_len,) or (batch, kv_len), for the two roles that
            ask which tokens are the same; not of a matrix with `cross=True`. Queries and keys must be
            of the same tokens, and there may be more keys than queries, as with a cache. None takes those
            that a watch knew, `matrix.tokens`.
        queries: the queries that count, bool of shape (query_len,) or (batch, query_len); None
            for all. Padding should not.

    Returns:
        `Roles`, whose fields are (batch, num_heads).

    Raises:
        ArgumentTypeError, UnsupportedError: codes `roles.type`, `tokens.type`, `queries.type`; `across.whole`.
        ShapeError: codes `tokens.shape` and `queries.shape`, and `roles.lengths` for tokens with
            more queries than keys, or of a matrix with `cross=True`.

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
    matrix.check_whole("roles")
    tokens = matrix.tokens if tokens is None else tokens
    ids = None if tokens is None else _ids(tokens, matrix.problem)
    with torch.no_grad():
        means = _Means(matrix, read_queries("queries", queries, matrix.problem))
        targets = means.targets(ids)
        return means.roles(targets, [means.weights_on(each) for each in targets.values()])


def mean_weight(matrix: AttentionMatrix, keys: Tensor) -> Tensor:
    """Return the mean weight on chosen keys, as `Roles` averages: over the real queries that see one, and another key.

    Args:
        matrix: the attention of one layer.
        keys: (batch or 1, query_len, n), int64: keys for each query, out of range for none;
            those of one query differ.

    Returns:
        (batch, num_heads), with the leading dimensions that the query had.

    Example:
        >>> import torch, clearhead as ch
        >>> matrix = ch.AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2), mask=ch.causal())
        >>> mean_weight(matrix, torch.arange(3)[None, :, None])  # itself: 1/2, 1/3, and query 0 has no choice
        tensor(0.4167)
    """
    with torch.no_grad():
        means = _Means(matrix, read_queries("real", matrix.real, matrix.problem))
        targets = means.targets_of(keys)
        mean, _ = means.mean(means.weights_on(targets), targets.seen.sum(dim=-1))
        return matrix._restore(mean)


def evenness(matrix: AttentionMatrix) -> Tensor:
    """Return how even the weights of each head are: entropy / ln(number of visible keys), on average.

    The evenness of Pielou (1966). The average is over the real queries that see two keys or more, 0 without any, and in
    the shape of `mean_weight`. What a sink parameter takes does not count.

    Example:
        >>> import torch, clearhead as ch
        >>> matrix = ch.AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2), mask=ch.causal())
        >>> evenness(matrix)
        tensor(1.)
    """
    with torch.no_grad():
        return _Means(matrix, read_queries("real", matrix.real, matrix.problem)).evenness()


def first_keys(problem: Problem) -> Tensor:
    """Return the first key of each sample that a real query may see, int64, (batch, 1); −1 for none.

    Example:
        >>> import torch, clearhead as ch
        >>> left = ch.padding(torch.tensor([[False, True, True]]))
        >>> query = torch.zeros(1, 1, 3, 2)
        >>> first_keys(ch.AttentionMatrix(query, query, mask=ch.causal() & left).problem)
        tensor([[1]])
    """
    counts = read_queries("real", real_queries(problem), problem)
    return _visible_keys(problem, counts)[1].expand(problem.batch, -1)


def summary_with_roles(
    matrix: AttentionMatrix,
    tokens: Tensor | None = None,
    first: Tensor | None = None,
    **options: Any,
) -> Summary:
    """Return the summary of a matrix, with the roles of its heads and its real queries.

    Args:
        matrix: the attention of one layer.
        tokens: as for `roles`; not read in cross-attention.
        first: (batch, 1), int64: the key that is the first token of each sample, −1 where it is not among
            the keys; None for the first that is seen.
        options: as for `AttentionMatrix.summary`.

    Raises:
        ClearheadError: as `roles` and `AttentionMatrix.summary` do.

    Example:
        >>> import torch, clearhead as ch
        >>> summary_with_roles(ch.AttentionMatrix(torch.eye(5), torch.eye(5), mask=ch.causal()))
        Summary [query_len=5, kv_len=5] with roles
    """
    matrix.check_whole("roles")
    problem, real = matrix.problem, matrix.real
    ids = None if tokens is None or problem.cross else _ids(tokens, problem)
    with torch.no_grad():
        means = _Means(matrix, read_queries("real", real, problem), first)
        targets = means.targets(ids)
        keys = [each.keys[:, None].where(each.seen, -1) for each in targets.values()]
        summary, weights = matrix._summary_and_weights(keys, **options)
        return replace(summary, roles=means.roles(targets, weights), real=real)


def _ids(given: object, problem: Problem) -> Tensor:
    """Return token ids, whole numbers, as (batch or 1, kv_len) on the query's device.

    ArgumentTypeError if they are no ids, ShapeError if they do not fit.
    """
    tokens = check_ids(given)
    if problem.query_len > problem.kv_len or problem.cross:
        raise ShapeError(
            "roles.lengths",
            "with tokens, queries and keys must be of the same tokens, the last query on the last "
            f"key; got query_len={problem.query_len} and kv_len={problem.kv_len}"
            f"{' of two texts, cross=True' if problem.cross else ''}.",
        )
    if tuple(tokens.shape) not in ((problem.kv_len,), (problem.batch, problem.kv_len)):
        raise ShapeError(
            "tokens.shape",
            f"tokens must have shape (kv_len,) = ({problem.kv_len},) or (batch, kv_len) = "
            f"{(problem.batch, problem.kv_len)}; got {tuple(tokens.shape)}.",
        )
    return torch.atleast_2d(tokens).to(problem.device)


class _Targets(NamedTuple):
    """The keys of each query on which a role puts its weight.

    Attributes:
        keys: int64, (batch or 1, query_len, n), of any number where they are not seen.
        seen: bool, (batch or 1, num_heads or 1, query_len, n): the query counts, and sees the key.
    """

    keys: Tensor
    seen: Tensor


class _Means:
    """Means over the queries that count and have the choice: they see a target, and another key.

    Args:
        matrix: the attention of one layer.
        counts: the queries that count, (batch or 1, query_len).
        first: the key that is the first token, (batch, 1); None for the first that is seen.

    Attributes:
        visible: the number of keys that each query sees, (batch or 1, num_heads or 1, query_len).
        first: the key that was given, or the first that a query that counts sees in any head,
            (batch or 1, 1); −1 for none.
    """

    def __init__(
        self, matrix: AttentionMatrix, counts: Tensor, first: Tensor | None = None
    ) -> None:
        """Count the keys that each query sees, which reads the mask."""
        self.matrix, self.counts = matrix, counts
        self.visible, seen = _visible_keys(matrix.problem, counts)
        self.first = seen if first is None else first

    def targets(self, ids: Tensor | None) -> dict[str, _Targets]:
        """Return the targets of each role.

        Without `ids`, (batch or 1, kv_len), duplicate and induction are left out; "previous" is in cross-attention.
        """
        problem = self.matrix.problem
        keys = {"first": self.first[:, None].expand(-1, problem.query_len, 1)}
        if not problem.cross:
            keys["previous"] = problem.query_positions[None, :, None] - 1
        if ids is not None:
            keys["duplicate"] = _earlier(ids, problem.query_len)
            keys["induction"] = keys["duplicate"] + 1
        sizes = [each.shape[2] for each in keys.values()]
        every = torch.cat([each.expand(problem.batch, -1, -1) for each in keys.values()], dim=2)
        seen = dict(zip(keys, self.targets_of(every).seen.split(sizes, dim=3), strict=True))
        if ids is not None:  # the key after another, for queries that see both
            seen["induction"] = seen["induction"] & seen["duplicate"]
        return {name: _Targets(each, seen[name]) for name, each in keys.items()}

    def targets_of(self, keys: Tensor) -> _Targets:
        """Return the targets that are some keys, (batch or 1, query_len, n), out of range for none."""
        problem = self.matrix.problem
        some = self.counts[..., None] & (keys >= 0) & (keys < problem.kv_len)
        seen = some[:, None]
        if problem.kv_len:
            seen = seen & _sees(problem, keys.where(some, 0))
        return _Targets(keys, seen)

    def weights_on(self, targets: _Targets) -> Tensor:
        """Return the weight of each query on its targets, summed, (batch, num_heads, query_len)."""
        keys, seen = targets
        # Pairs are computed for targets only: they come first, as many as the fullest row has.
        some = seen.any(dim=1).flatten(1)
        most = int(some.sum(dim=1).max()) if some.numel() else 0
        place = some.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
        real = some.gather(1, place)
        key = keys.expand(len(some), -1, -1).flatten(1).gather(1, place).where(real, 0)
        query = place // max(1, keys.shape[2])
        found = pairs(self.matrix.problem, query, key, self.matrix._total())
        weights = found.new_zeros(*found.shape[:2], some.shape[1])
        weights.scatter_(2, place[:, None].expand_as(found), found)
        return torch.where(seen, weights.unflatten(2, keys.shape[1:]), 0.0).sum(dim=-1)

    def roles(self, targets: dict[str, _Targets], weights: Sequence[Tensor]) -> Roles:
        """Return the score of each role and the number of queries that it is a mean of.

        `weights` has for each of the targets, in order, the weight on them, (batch, num_heads, query_len).
        """
        hits = [each.seen.sum(dim=-1).expand(weights[0].shape) for each in targets.values()]
        scores, counts = (
            dict(zip(targets, map(self.matrix._restore, each), strict=True))
            for each in self.mean(torch.stack(list(weights)), torch.stack(hits))
        )
        return Roles(**scores, counts=RoleCounts(**counts))

    def evenness(self) -> Tensor:
        """Return the mean of entropy / ln(number of visible keys) over the queries that see two keys or more.

        It is (batch, num_heads), without the axes that the query lacks; 0 where there is no such query.
        """
        matrix, sinks = self.matrix, self.matrix.problem.sinks
        entropy = matrix._statistic("entropy")
        if sinks is not None:
            # Weights that sum to a share s instead of 1 have the entropy share · H − share · ln share.
            logsumexp = matrix.logsumexp.reshape(entropy.shape)
            share = torch.sigmoid(logsumexp - stages.upcast(sinks)[:, None])
            entropy = entropy + torch.special.xlogy(share, share)
        most = self.visible.clamp(min=2).to(entropy.dtype).log()
        return matrix._restore(self.mean(entropy / most, torch.ones_like(self.visible))[0])

    def mean(self, values: Tensor, hits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over the queries that have the choice, 0 without any, and their number.

        Both are (…, batch, num_heads).

        `values` are (…, batch, num_heads, query_len); `hits` counts the targets that a query sees. Rounding is
        clamped to [0, 1].
        """
        choice = self.counts[:, None] & (hits > 0) & (hits < self.visible)
        choice = choice.expand(values.shape)
        total = torch.where(choice, values, 0.0).sum(dim=-1)
        number = choice.sum(dim=-1)
        return (total / number.clamp(min=1)).clamp(0.0, 1.0), number


def _visible_keys(problem: Problem, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of keys that each query may see, and the first key that is seen.

    The number is (batch or 1, num_heads or 1, query_len). The first key is that of the queries that count, in any head,
    (batch or 1, 1); −1 for none.
    """
    query_len, kv_len, device = problem.query_len, problem.kv_len, problem.device
    mask = problem.mask
    hides = problem.bias is not None and problem.bias.may_hide
    spans = None if hides else problem.spans
    if spans is not None:
        number = (spans.stop - spans.start).sum(dim=-1)[:, None]
        first = spans.start[..., 0]
    elif kv_len and (mask is not None or hides):
        number, first = _count_in_portions(problem)
    else:
        number = torch.full((1, 1, query_len), kv_len, device=device)
        first = torch.zeros(1, query_len, dtype=torch.int64, device=device)
    first = torch.where(counts & (number > 0).any(dim=1), first, kv_len)
    first = first.amin(dim=1, keepdim=True) if query_len else first.new_full((1, 1), kv_len)
    return number, torch.where(first == kv_len, -1, first)


def _count_in_portions(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the number of visible keys and the first one, from the mask as a tensor, in chunks of queries.

    The number is (batch or 1, num_heads or 1, query_len). The first key is that of each query in any head, (batch
    or 1, query_len); 0 for a query that sees none.
    """
    numbers, firsts = [], []
    hides = problem.bias is not None and problem.bias.may_hide
    mask = problem.mask
    leading = problem.query.shape[:2] if mask is None or hides else mask.leading
    portion = max(1, PORTION // max(1, math.prod(leading) * problem.kv_len))
    # At least once, so that shapes are right without queries.
    for start in range(0, max(1, problem.query_len), portion):
        visible = visible_pairs(problem, slice(start, min(start + portion, problem.query_len)))
        assert visible is not None
        numbers.append(visible.sum(dim=-1))
        firsts.append(visible.any(dim=1).to(torch.uint8).argmax(dim=-1))
    return torch.cat(numbers, dim=2), torch.cat(firsts, dim=1)


def _earlier(ids: Tensor, query_len: int) -> Tensor:
    """Return the last `RECENT` earlier positions of each query's token, −1 where there is none.

    They are (batch or 1, query_len, RECENT).
    """
    order = ids.argsort(dim=1, stable=True)
    # In the sorted row, the neighbours on the left are the occurrences before.
    left = F.pad(order, (RECENT, 0), value=-1).unfold(1, RECENT, 1)[:, :-1]
    before = ids[:, :, None].expand_as(left).gather(1, left.clamp(min=0))
    earlier = left.where(before == ids.gather(1, order)[..., None], -1)
    found = torch.empty_like(earlier).scatter_(1, order[..., None].expand_as(left), earlier)
    return found[:, ids.shape[1] - query_len :]


def _sees(problem: Problem, keys: Tensor) -> Tensor:
    """Return which keys of each query, (batch or 1, query_len, n), it sees: (batch or 1, num_heads or 1, query_len, n).

    The keys are in range.
    """
    query = torch.arange(problem.query_len, device=problem.device).view(1, 1, -1, 1)
    key, extent = keys[:, None], problem.extent
    visible = torch.ones_like(key, dtype=torch.bool)
    if problem.mask is not None:
        visible = visible & problem.mask.visible(query, key, extent)
    if problem.bias is not None and problem.bias.may_hide:
        visible = visible & (problem.bias.at(query, key, extent) != -torch.inf)
    return visible
