"""The roles of heads, measured: how much of its weight a head puts where a known role would put it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.checks import check_ids
from clearhead._common.hints import with_hints
from clearhead.attention.problem import Problem
from clearhead.errors import ArgumentTypeError, ShapeError
from clearhead.matrix.head_numbers import RoleCounts, Roles
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.parts import visible_pairs
from clearhead.matrix.real_queries import counting
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
    return _measured(_Means(matrix, counting("queries", queries, matrix.problem)), ids)


def _measured(means: "_Means", ids: Tensor | None) -> Roles:
    """Return the score of each role, and the number of queries that each score is a mean of, without gradients."""
    with torch.no_grad():
        scores: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        for name, measure in means.measures(ids).items():
            scores[name] = measure()
            counts[name] = means.number
        return Roles(**scores, counts=RoleCounts(**counts))


def mean_weight(matrix: AttentionMatrix, keys: Sequence[Tensor]) -> Tensor:
    """Return the mean weight on chosen keys, as `Roles` averages: over the real queries that see one, and another key.

    Args:
        matrix: the attention of one layer.
        keys: each (batch or 1, query_len), int64: a key for each query, out of range for none;
            those of one query differ.

    Returns:
        (batch, num_heads), with the leading dimensions that the query had.

    Example:
        >>> import torch, clearhead as ch
        >>> matrix = ch.AttentionMatrix(torch.zeros(3, 2), torch.zeros(3, 2), mask=ch.causal())
        >>> mean_weight(matrix, [torch.arange(3)[None]])  # itself: 1/2, 1/3, and query 0 has no choice
        tensor(0.4167)
    """
    with torch.no_grad():
        return _Means(matrix, counting("real", matrix.real, matrix.problem)).on_keys(keys)


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
        return _Means(matrix, counting("real", matrix.real, matrix.problem)).evenness()


def first_keys(matrix: AttentionMatrix) -> Tensor:
    """Return the first key of each sample that a real query may see, int64, (batch, 1); −1 for none.

    Example:
        >>> import torch, clearhead as ch
        >>> left = ch.padding(torch.tensor([[False, True, True]]))
        >>> query = torch.zeros(1, 1, 3, 2)
        >>> first_keys(ch.AttentionMatrix(query, query, mask=ch.causal() & left))
        tensor([[1]])
    """
    means = _Means(matrix, counting("real", matrix.real, matrix.problem))
    return means.first.expand(matrix.batch, -1)


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
    real = matrix.real
    summary = matrix.summary(**options)  # keeps what the roles need as well
    matrix.check_whole("roles")
    problem = matrix.problem
    ids = None if tokens is None or problem.cross else _ids(tokens, problem)
    found = _measured(_Means(matrix, counting("real", real, problem), first, summary), ids)
    return replace(summary, roles=found, real=real)


def _ids(given: object, problem: Problem) -> Tensor:
    """Return token ids, whole numbers, as (batch or 1, kv_len) on the query's device.

    Raise an error if they do not fit.
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


class _Means:
    """Means over the queries that count and have the choice: they see a target, and another key.

    Args:
        matrix: the attention of one layer.
        counts: the queries that count, (batch or 1, query_len).
        first: the key that is the first token, (batch, 1); None for the first that is seen.
        summary: the summary of the matrix, if it is known.

    Attributes:
        position: of each query among the keys, (1, query_len): the last has that of the last key.
        visible: the number of keys that each query sees, (batch or 1, num_heads or 1, query_len).
        first: the key that was given, or the first that a query that counts sees in any head,
            (batch or 1, 1); −1 for none.
        number: how many queries the last mean was over, (batch, num_heads).
    """

    number: Tensor

    def __init__(
        self,
        matrix: AttentionMatrix,
        counts: Tensor,
        first: Tensor | None = None,
        summary: Summary | None = None,
    ) -> None:
        self.matrix, self.counts, self.summary = matrix, counts, summary
        self.visible, seen = _visible_keys(matrix.problem, counts)
        self.first = seen if first is None else first
        position = torch.arange(matrix.query_len, device=matrix.device)[None]
        self.position = position + (matrix.kv_len - matrix.query_len)

    def measures(self, ids: Tensor | None) -> dict[str, Callable[[], Tensor]]:
        """Return a function for each role that computes it, (batch, num_heads), and sets `number`.

        Without `ids`, (batch or 1, kv_len), duplicate and induction are left out; "previous" is in cross-attention.
        """
        earlier = [] if ids is None else _earlier(ids, self.matrix.query_len)
        first = self.first.expand(-1, self.matrix.query_len)
        # A summary has the weight on key 0, which is a padded text's first token in no row or in some.
        known = None if self.summary is None or bool(first.any()) else self.summary
        every = {"first": lambda: self._on_key("first", first, known)}
        if not self.matrix.problem.cross:
            every["previous"] = lambda: self._on_key("previous", self.position - 1, self.summary)
        if ids is not None:
            every["duplicate"] = lambda: self.on_keys(earlier)
            every["induction"] = lambda: self.on_keys(earlier, behind=1)
        return every

    def _on_key(self, name: str, key: Tensor, summary: Summary | None) -> Tensor:
        """Return the mean weight on a key of each query; with a summary, from its statistic `name` of these keys.

        The keys are (batch or 1, query_len), −1 for none.
        """
        if summary is None:
            return self.on_keys([key])
        query = self.position - self.position[:, :1]
        seen = _sees(self.matrix.problem, query, key.clamp(min=0)) & (key >= 0)[:, None]
        return self._mean(summary._statistic(name), seen.long())

    def on_keys(self, keys: Sequence[Tensor], *, behind: int = 0) -> Tensor:
        """Return each head's mean weight on some keys; each tensor is (batch or 1, query_len), out of range for no key.

        With `behind`, the target is that number of tokens after the key, for queries that see both.
        """
        problem = self.matrix.problem
        weight = torch.zeros(
            problem.query.shape[:3], dtype=self.matrix.dtype, device=problem.device
        )
        hits = torch.zeros_like(self.visible)
        for each in keys:
            some = self.counts & (each >= 0) & (each < problem.kv_len - behind)
            if bool(some.any()):
                more, found = _weights_on(self.matrix, each, behind, some)
                weight = weight + more
                hits = hits + found
        return self._mean(weight, hits)

    def evenness(self) -> Tensor:
        """Return the mean of entropy / ln(number of visible keys), (batch, num_heads), over queries with 2 or more."""
        matrix, sinks = self.matrix, self.matrix.problem.sinks
        entropy = matrix._statistic("entropy")
        if sinks is not None:
            # Weights that sum to a share s instead of 1 have the entropy share · H − share · ln share.
            logsumexp = matrix.logsumexp.reshape(entropy.shape)
            share = torch.sigmoid(logsumexp - stages.upcast(sinks)[:, None])
            entropy = entropy + torch.special.xlogy(share, share)
        most = self.visible.clamp(min=2).to(entropy.dtype).log()
        return self._mean(entropy / most, torch.ones_like(self.visible))

    def _mean(self, values: Tensor, hits: Tensor) -> Tensor:
        """Return the mean of each head over the queries that have a target, (batch, num_heads); 0 if none has.

        Their number is stored as `number`. `hits` counts the targets that a query sees. Rounding is clamped to [0, 1].
        """
        choice = self.counts[:, None] & (hits > 0) & (hits < self.visible)
        choice = choice.expand(values.shape)
        total = torch.where(choice, values, 0.0).sum(dim=-1)
        number = choice.sum(dim=-1)
        mean = (total / number.clamp(min=1)).clamp(0.0, 1.0)
        self.number = self.matrix.problem.restore(number)
        return self.matrix.problem.restore(mean)


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
    or 1, query_len).
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


def _earlier(ids: Tensor, query_len: int) -> list[Tensor]:
    """Return the earlier positions of each query's token, last one first; −1 where there is none.

    Each tensor is (batch or 1, query_len).
    """
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


def _weights_on(
    matrix: AttentionMatrix, keys: Tensor, behind: int, some: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the weight of the queries marked in `some` on key `keys + behind`, and where it is seen.

    With `behind`, key `keys` must be seen too.

    The weight is (batch, num_heads, query_len), 0 for the other queries; the second is (batch or 1, num_heads or 1,
    query_len).
    """
    problem = matrix.problem
    # Pairs are computed for these queries only: they come first, as many as the fullest row has.
    rows, query_len = some.shape
    most = int(some.sum(dim=1).max()) if some.numel() else 0
    query = some.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    real = some.gather(1, query)
    key = torch.where(real, keys.expand(rows, -1).gather(1, query), 0)
    target = torch.where(real, key + behind, 0)
    leading = problem.query.shape[:2]
    seen = real[:, None] & _sees(problem, query, target)
    if behind:
        seen = seen & _sees(problem, query, key)
    weights = torch.where(seen, matrix.at(query, target).reshape(*leading, most), 0.0)
    to = query[:, None].expand(*leading, most)
    weight = weights.new_zeros(*leading, query_len).scatter_(2, to, weights)
    found = seen.new_zeros(*seen.shape[:2], query_len)
    return weight, found.scatter_(2, query[:, None].expand(seen.shape), seen)


def _sees(problem: Problem, queries: Tensor, keys: Tensor) -> Tensor:
    """Return which queries see their key, bool, (batch or 1, num_heads or 1, pairs), for (batch or 1, pairs)."""
    at_query, at_key = queries[:, None, None], keys[:, None, None]
    extent = problem.extent
    visible = torch.ones_like(at_query, dtype=torch.bool)
    if problem.mask is not None:
        visible = visible & problem.mask.visible(at_query, at_key, extent)
    if problem.bias is not None and problem.bias.may_hide:
        visible = visible & (problem.bias.at(at_query, at_key, extent) != -torch.inf)
    return visible[:, :, 0]
