"""A few numbers of heads over a data set: only those that were asked for are worked out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.elements import Drawn
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentError
from clearhead.matrix.head_numbers import ROLES, HeadAverages, check_mergeable, numbers_of_heads
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.roles import scores_of_roles

NAMES = ("entropy", "distance", *ROLES)
"""What may be asked for, in the order of a table."""


@with_hints
@dataclass(frozen=True, eq=False, kw_only=True)
class SomeTotals(Drawn):
    """Some of the numbers of `Totals`, on average over every real query that was seen.

    Attributes:
        queries: how many queries that is.
        means: for each name that was asked for and has a meaning, float64, (num_heads,): "entropy" in nats,
            "distance" in tokens, roles from 0 to 1.
        counts: for each of them the number of queries that it is the mean of, float64, (num_heads,).
        num_heads: the number of query heads.
        heads: the number of each head in its layer, where these are some only; None for all.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with torch.no_grad(), ch.watch(layer, keep="total", statistics=("entropy", "first")) as seen:
        ...     output = layer(torch.randn(4, 5, 8))
        >>> seen[0]
        SomeTotals [num_heads=2] of 20 queries: entropy, first
    """

    queries: int
    means: dict[str, Tensor]
    counts: dict[str, Tensor]
    num_heads: int
    heads: tuple[int, ...] | None = None

    def merge(self, other: "SomeTotals") -> "SomeTotals":
        """The totals of both, each query of either counted once.

        Raises:
            ArgumentTypeError: code `merge.type`, for what are no such totals.
            ShapeError: code `merge.shape`, for another number of heads.
            ArgumentError: codes `merge.fields`, for other numbers, and `merge.heads`, for other heads of a layer.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with torch.no_grad(), ch.watch(layer, keep="total", statistics=["entropy"]) as seen:
            ...     output = layer(torch.randn(1, 3, 8))
            >>> seen[0].merge(seen[0]).queries
            6
        """
        check_mergeable(self, other)
        if self.means.keys() != other.means.keys():
            raise ArgumentError(
                "merge.fields",
                f"both totals must have the same numbers; got {', '.join(self.means)} and "
                f"{', '.join(other.means)}.",
            )
        means, counts = {}, {}
        for name, mine in self.means.items():
            counts[name] = self.counts[name] + other.counts[name]
            share = other.counts[name] / counts[name].clamp(min=1)
            means[name] = mine + (other.means[name] - mine) * share
        return SomeTotals(
            queries=self.queries + other.queries,
            means=means,
            counts=counts,
            num_heads=self.num_heads,
            heads=self.heads,
        )

    def averages(self) -> HeadAverages:
        """The same as `head_averages` has it of summaries."""
        scores = {name: mean for name, mean in self.means.items() if name in ROLES}
        of = self.means.get
        return HeadAverages(self.queries, of("entropy"), of("distance"), scores, None)

    def __repr__(self) -> str:
        names = ", ".join(self.means)
        return f"SomeTotals [num_heads={self.num_heads}] of {self.queries} queries: {names}"


def some_totals(
    matrix: AttentionMatrix,
    names: Sequence[str],
    tokens: Tensor | None = None,
    first: Tensor | None = None,
) -> SomeTotals:
    """The totals of a call, of the numbers of these names.

    Args:
        matrix: the call.
        names: of `NAMES`.
        tokens: ids of its keys, (batch, kv_len), or None if they are not known.
        first: the key that is the first token of each sample, as `summary_with_roles` has it.

    Example:
        >>> some_totals(ch.AttentionMatrix(torch.eye(3)[None, None], torch.eye(3)[None, None]), ["entropy"]).queries
        3
    """
    with torch.no_grad():
        matrix.keep_few()
        real = matrix.real
        if real is None:
            real = torch.ones(
                matrix.batch, matrix.query_len, dtype=torch.bool, device=matrix.device
            )
        queries = int(real.sum())
        means, counts = {}, {}
        for name in ("entropy", "distance"):
            if name in names and not (name == "distance" and matrix.cross):
                values = matrix._statistic(name).double().where(real[:, None], 0.0)
                means[name] = (values.sum(dim=(0, 2)) / max(1, queries)).cpu()
                counts[name] = torch.full_like(means[name], queries)
        roles = [name for name in ROLES if name in names]
        for name, (score, number) in scores_of_roles(matrix, roles, tokens, first).items():
            score, number = (
                each.double().cpu().reshape(matrix.batch, -1) for each in (score, number)
            )
            counts[name] = number.sum(dim=0)
            means[name] = (score * number).sum(dim=0) / counts[name].clamp(min=1)
    heads = None if matrix.heads is None else numbers_of_heads(matrix)
    return SomeTotals(
        queries=queries, means=means, counts=counts, num_heads=matrix.num_heads, heads=heads
    )
