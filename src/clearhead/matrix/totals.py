"""The numbers of heads over a data set: averages that go on from batch to batch."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead._common.elements import Drawn
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.matrix.head_numbers import (
    HeadAverages,
    Roles,
    head_averages,
    mean_over_queries,
    numbers_of_heads,
    pooled_roles,
    totalled_roles,
)
from clearhead.matrix.summary import Summary

MEANS = {
    "entropy": "another watch",
    "distance": "cross-attention",
    "max": "another watch",
    "context": "a watch without contexts=True",
}
"""The fields that are means over queries, and what has none of them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Totals(Drawn):
    """The heads of a layer, on average over every real query that was seen, in (num_heads,) numbers.

    Padding counts nowhere, and every query counts once, whatever the length of its text or batch; so
    totals of parts of a data set merge to those of the whole.

    Attributes:
        queries: the number of these queries.
        entropy: float64, (num_heads,), nats.
        distance: the same average, tokens; None in cross-attention.
        max: the largest weight of a query, the mean.
        max_score: the largest score of any query; −∞ where none sees anything.
        roles: how far each head fills each role; each is the mean over the queries that have the
            choice.
        heads: the number of each head in its layer, where these are some only; None for all.
        context: the context of a head, z = weights · values, the mean, float64, (num_heads, value_head_dim), as
            `ablate(mean=)` takes it; None where it was not kept, `watch(…, contexts=True)`.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with torch.no_grad(), ch.watch(layer, keep="total") as seen:
        ...     for length in (3, 5, 8):
        ...         output = layer(torch.randn(4, length, 8))
        >>> seen[0]
        Totals [num_heads=2] of 64 queries
    """

    queries: int
    entropy: Tensor
    distance: Tensor | None
    max: Tensor
    max_score: Tensor
    roles: Roles
    heads: tuple[int, ...] | None = None
    context: Tensor | None = None

    @property
    def num_heads(self) -> int:
        """The number of query heads."""
        return self.entropy.shape[0]

    def merge(self, other: "Totals") -> "Totals":
        """Return the totals of both, each query of either counted once.

        A role that one did not measure, as without ids, is None.

        Raises:
            ArgumentTypeError: code `merge.type`, unless it is a `Totals`.
            ArgumentError: codes `merge.fields`, where one is of cross-attention, or has contexts alone, and
                `merge.heads`, where they are of other heads of a layer.

        Example:
            >>> import torch, clearhead as ch
            >>> layer = ch.MultiHeadAttention(8, num_heads=2)
            >>> with torch.no_grad(), ch.watch(layer, keep="total") as seen:
            ...     output = layer(torch.randn(1, 3, 8))
            >>> seen[0].merge(seen[0]).queries
            6
        """
        if not isinstance(other, Totals):
            raise ArgumentTypeError(
                "merge.type", f"merge takes Totals; got {type(other).__name__}."
            )
        mine, theirs = numbers_of_heads(self), numbers_of_heads(other)
        if mine != theirs:
            raise ArgumentError(
                "merge.heads",
                f"both must be of the same heads of the layer; got {shown(mine)} and {shown(theirs)}.",
            )
        both = self.queries + other.queries
        share = other.queries / both if both else 0.0
        numbers: dict[str, Any] = {}
        for name, why in MEANS.items():
            one, two = getattr(self, name), getattr(other, name)
            if (one is None) != (two is None):
                raise ArgumentError(
                    "merge.fields", f"both totals must have a {name}, or neither; one is of {why}."
                )
            numbers[name] = None if one is None else one + (two - one) * share
        return Totals(
            queries=both,
            max_score=torch.maximum(self.max_score, other.max_score),
            roles=pooled_roles(self.roles, other.roles),
            heads=self.heads,
            **numbers,
        )

    def averages(self) -> HeadAverages:
        """Return the averages of each head over all queries, as `head_averages` does for summaries.

        Tensors are shared.
        """
        known = {name: getattr(self.roles, name) for name in self.roles.measured}
        leading = replace(self.roles, counts=None).names()
        assert isinstance(leading, list)
        return HeadAverages(self.queries, self.entropy, self.distance, known, leading)

    def __repr__(self) -> str:
        """Return one line with the numbers of heads and queries."""
        return f"Totals [num_heads={self.num_heads}] of {self.queries} queries"


def totals_of(summary: Summary) -> Totals:
    """Return the totals of the summary of a call, which must have roles, without its context.

    Example:
        >>> import torch, clearhead as ch
        >>> from clearhead.matrix.roles import summary_with_roles
        >>> totals_of(summary_with_roles(ch.AttentionMatrix(torch.eye(3), torch.eye(3)))).queries
        3
    """
    found = head_averages("", [summary])
    assert summary.roles is not None
    scores = summary._statistic("max_score")
    if summary.real is not None:
        scores = scores.masked_fill(~torch.atleast_2d(summary.real)[:, None], -torch.inf)
    # With one more, since there may be no query.
    none = scores.new_full((len(scores), scores.shape[1], 1), -torch.inf)
    largest = torch.cat([scores, none], dim=2).amax(dim=2)
    largest = (
        largest.amax(dim=0) if len(largest) else scores.new_full((scores.shape[1],), -torch.inf)
    )
    return Totals(
        queries=found.queries,
        entropy=mean_over_queries("entropy", [summary]),
        distance=found.distance,
        max=mean_over_queries("max", [summary]),
        max_score=largest.double().cpu(),
        roles=totalled_roles(summary),
        heads=summary.heads,
    )
