"""The numbers of a head: the roles that it may fill, and the averages over its queries.

Whatever prints or draws a number of a head takes it from here, so that it is the same number in a
terminal, in a table, on a page and in a figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import is_number
from clearhead._common.elements import Drawn
from clearhead._common.lazy import drawing
from clearhead._text import shown
from clearhead.errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from clearhead.matrix.head_results import Contexts
    from clearhead.matrix.summary import Summary
    from clearhead.matrix.totals import Totals
    from clearhead.matrix.weight_statistics import WeightStatistics

MATCHING = ("induction", "duplicate", "previous")
"""Roles that find an earlier token by what or where it is; `first`, the attention sink, is the other."""

ROLES = ("first", "previous", "duplicate", "induction")
"""All of them, in the order of a table's columns."""

"""Those that ask which tokens are the same."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoleCounts:
    """The number of queries that each role is the mean of, int64, (batch, num_heads); None if not measured.

    Means of several texts are weighted by these numbers.
    """

    previous: Tensor | None = None
    first: Tensor
    duplicate: Tensor | None = None
    induction: Tensor | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Roles(Drawn):
    """Scores of each head in each role, from 0 to 1.

    Every field is (batch, num_heads), with the leading dimensions that the query had. It is the
    mean over the queries that have the choice: they may see a key that the role asks for, and
    another. Where there is no such query it is 0.

    Attributes:
        previous: the weight on the token before; None in cross-attention, where no place is before.
        first: the weight on the first token of the sample: an attention sink (Xiao et al., 2024,
            https://arxiv.org/abs/2309.17453).
        duplicate: the weight on earlier occurrences of the same token, the last eight of them; None
            without tokens.
        induction: the weight on the tokens after these occurrences, those that the query sees:
            prefix matching (Olsson et al., 2022, https://arxiv.org/abs/2209.11895); None without
            tokens.
        counts: how many queries each of them is the mean of; None where they were not counted.

    Example:
        >>> import torch, clearhead as ch
        >>> token = torch.eye(20)
        >>> query = torch.stack([60 * token.roll(1, dims=0), 0 * token])  # the one before, all alike
        >>> found = ch.roles(ch.AttentionMatrix(query, token.expand(2, 20, 20), mask=ch.causal()))
        >>> found
        Roles [num_heads=2] of previous, first
        >>> found.names()
        ['previous', '']
    """

    previous: Tensor | None = None
    first: Tensor
    duplicate: Tensor | None = None
    induction: Tensor | None = None
    counts: RoleCounts | None = None

    @property
    def measured(self) -> list[str]:
        """The names of the roles that were measured, in the order of ROLES."""
        return [name for name in ROLES if getattr(self, name) is not None]

    def names(self, threshold: float = 0.5) -> list[Any] | str:
        """Return the leading role of each head, "" where none reaches the threshold; of equal roles "first" comes last.

        Args:
            threshold: the least that a role must reach, above 0 and up to 1.

        Returns:
            A list of strings per sample; one list for a matrix without batch, and one string for
            one without heads.

        Raises:
            ArgumentError: code `roles.threshold`, for another threshold.

        Example:
            >>> import torch, clearhead as ch
            >>> token = torch.eye(30)
            >>> query = 50 * torch.stack([token, token.roll(1, dims=0)])  # itself, the one before
            >>> matrix = ch.AttentionMatrix(query, torch.stack([token, token]), mask=ch.causal())
            >>> ch.roles(matrix).names()
            ['', 'previous']
        """
        if not is_number(threshold) or not 0 < threshold <= 1:
            raise ArgumentError(
                "roles.threshold",
                f"threshold must be a number above 0 and up to 1; got {shown(threshold)}.",
            )
        names = [name for name in (*MATCHING, "first") if getattr(self, name) is not None]
        highest, best = torch.stack([getattr(self, name) for name in names]).max(dim=0)
        leading = torch.where(highest >= threshold, best, len(names))
        return _named(leading.tolist(), [*names, ""])

    def __repr__(self) -> str:
        """Return one line with the sizes and the names of the measured roles."""
        names = ("batch", "num_heads")[2 - self.first.ndim :]
        sizes = [f"{name}={size}" for name, size in zip(names, self.first.shape, strict=True)]
        named = [each.name for each in fields(self) if each.name != "counts"]
        measured = [name for name in named if getattr(self, name) is not None]
        return f"Roles [{', '.join(sizes)}] of {', '.join(measured)}"

    def _repr_html_(self) -> str:
        """Return the roles as an HTML table for a notebook; the drawing is imported on first use."""
        return drawing("notebook.inline.markup").roles_html(self)


def numbers_of_heads(kept: "WeightStatistics | Contexts | Summary | Totals") -> tuple[int, ...]:
    """Return the number in its layer of each head of a matrix, a summary or totals; 0, 1, … if all heads are there.

    Example:
        >>> import torch, clearhead as ch
        >>> numbers_of_heads(ch.AttentionMatrix(torch.zeros(2, 5, 4), torch.zeros(2, 5, 4)))
        (0, 1)
    """
    heads = kept.heads
    if heads is None:
        return tuple(range(kept.num_heads))
    return tuple(heads.tolist()) if isinstance(heads, Tensor) else heads


class HeadAverages(NamedTuple):
    """The heads of a layer, on average over the real queries of all samples and calls.

    Attributes:
        queries: the number of these queries.
        entropy: (num_heads,), nats.
        distance: (num_heads,), tokens; None in cross-attention.
        scores: for each role that was measured in every call its scores, (num_heads,).
        leading: the leading role of each head, "" for none.
    """

    queries: int
    entropy: Tensor
    distance: Tensor | None
    scores: dict[str, Tensor]
    leading: list[str]


def head_averages(layer: str, calls: Sequence["Summary"]) -> HeadAverages:
    """Return the averages of the calls of a layer; every query counts once, however long its sample or call.

    A role is left out unless every call measured it.

    Args:
        layer: the name of the layer, for the error.
        calls: at least one, with or without roles.

    Raises:
        ShapeError: code `table.heads`, for calls with different numbers of heads.

    Example:
        >>> import torch, clearhead as ch
        >>> matrix = ch.AttentionMatrix(torch.zeros(2, 5, 4), torch.zeros(2, 5, 4))
        >>> averages = head_averages("attention", [matrix.summary()])
        >>> averages.queries, averages.entropy.round(decimals=2), averages.leading
        (5, tensor([1.6100, 1.6100], dtype=torch.float64), ['', ''])
    """
    heads = sorted({each.num_heads for each in calls})
    if len(heads) > 1:
        raise ShapeError(
            "table.heads",
            f"every call of {shown(layer)} must have the same number of heads; got {heads}.",
        )
    counts = [_real_per_sample(each) for each in calls]
    queries = int(torch.cat(counts).sum())
    scores = {}
    for name in ROLES:
        weighed = [_weighed(name, call, real) for call, real in zip(calls, counts, strict=True)]
        measured = [each for each in weighed if each is not None]
        if len(measured) == len(calls):
            total, number = (torch.stack(each).sum(dim=0) for each in zip(*measured, strict=True))
            scores[name] = total / number.clamp(min=1)
    leading = Roles(**scores).names() if scores else [""] * heads[0]
    assert isinstance(leading, list)
    entropy = mean_over_queries("entropy", calls)
    apart = any(call.cross for call in calls)
    distance = None if apart else mean_over_queries("distance", calls)
    return HeadAverages(queries, entropy, distance, scores, leading)


def _weighed(name: str, call: "Summary", real: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the sum of a role's score over the queries that have the choice, with their number, (num_heads,) each.

    Both are float64. None if the role was not measured. Without counts, all `real` queries, (batch,), count.
    """
    score = None if call.roles is None else getattr(call.roles, name)
    if call.roles is None or score is None:
        return None
    score = score.double().cpu().reshape(len(real), *score.shape[-1:] or (1,))
    counts = call.roles.counts
    number = real[:, None].expand_as(score) if counts is None else getattr(counts, name)
    number = number.double().cpu().reshape(score.shape)
    return (score * number).sum(dim=0), number.sum(dim=0)


def pooled_roles(one: Roles, other: Roles) -> Roles:
    """Return the roles of two sets of queries together, for the same heads; both must have counts.

    Each score is weighted by the number of its queries. Roles that one of them did not measure are None.
    """
    assert one.counts is not None
    assert other.counts is not None
    scores, numbers = {}, {}
    for name in one.measured:
        if name not in other.measured:
            continue
        mine, theirs = getattr(one.counts, name), getattr(other.counts, name)
        numbers[name] = mine + theirs
        total = getattr(one, name) * mine + getattr(other, name) * theirs
        scores[name] = total / numbers[name].clamp(min=1)
    return Roles(**scores, counts=RoleCounts(**numbers))


def totalled_roles(call: "Summary") -> Roles:
    """Return the roles of a call averaged over its samples, float64, (num_heads,), with counts.

    The summary must have roles; each score is weighted by the number of its queries.
    """
    assert call.roles is not None
    real, scores, numbers = _real_per_sample(call), {}, {}
    for name in call.roles.measured:
        weighed = _weighed(name, call, real)
        assert weighed is not None
        total, numbers[name] = weighed[0], weighed[1].long()
        scores[name] = total / weighed[1].clamp(min=1)
    return Roles(**scores, counts=RoleCounts(**numbers))


def mean_over_queries(
    name: str, calls: "Sequence[WeightStatistics | Summary]", sample: int | None = None
) -> Tensor:
    """Return the mean of a statistic over the real queries of all calls, (num_heads,), float64, on the CPU; 0 for none.

    Args:
        name: "entropy", "distance", "max", "first" or "previous", as `Summary` has them.
        calls: of one layer.
        sample: only this row of the batch; None for all.

    Example:
        >>> import torch, clearhead as ch
        >>> matrix = ch.AttentionMatrix(torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))
        >>> mean_over_queries("max", [matrix])
        tensor([0.2500], dtype=torch.float64)
    """
    samples = slice(None) if sample is None else slice(sample, sample + 1)
    total, queries = torch.zeros((), dtype=torch.float64), 0
    for call in calls:
        values, real = call._statistic(name)[samples].double(), call.real
        if real is not None:
            # A padded query may hold anything, a NaN as well.
            values = values.where(torch.atleast_2d(real)[samples][:, None], 0.0)
        total = total + values.sum(dim=(0, 2)).cpu()
        queries += int(_real_per_sample(call)[samples].sum())
    return total / max(1, queries)


def _real_per_sample(call: "WeightStatistics | Summary") -> Tensor:
    """Return the number of real queries of each sample, (batch,), float64, on the CPU; of all if `real` is None."""
    if call.real is None:
        return torch.full((call.batch,), call.query_len, dtype=torch.float64)
    return torch.atleast_2d(call.real).sum(dim=1).double().cpu()


def _named(indices: Any, names: list[str]) -> list[Any] | str:
    """Return nested lists of indices with the names at these indices; a single index gives a string."""
    if isinstance(indices, int):
        return names[indices]
    return [_named(each, names) for each in indices]
