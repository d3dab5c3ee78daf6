"""Attentions that belong to one layer: heads, or chunks of the queries, that a loop computes one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.arranging import Arrangement, arrangement, trial
from clearhead.checking.hypotheses.matching import Trial
from clearhead.recording.attempt import attempt
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.provenance import Provenance
from clearhead.recording.weighing import EXPONENTIALS


@dataclass(frozen=True)
class Group:
    """Attentions of one layer, and where their rows come from.

    `indices` are the places of its attentions among all of the call. `chunks` are the places, among the group's
    attentions, of those that compute chunks of the same queries: one item for each head.
    """

    attentions: tuple[ObservedAttention, ...]
    sources: tuple[Provenance | None, ...]
    arranged: Arrangement | None
    indices: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]

    @cached_property
    def heads(self) -> tuple[ObservedAttention, ...]:
        """Return one attention for each head, with all of its queries."""
        return self.joined(self.attentions)

    def joined(self, attentions: Sequence[ObservedAttention]) -> tuple[ObservedAttention, ...]:
        """Return one attention for each head, with its chunks joined; `attentions` are in the order of `indices`."""
        return tuple(_whole([attentions[i] for i in places]) for places in self.chunks)

    def trial(
        self,
        observed: Sequence[ObservedAttention],
        contract: Contract,
        d_in: int,
        mask: Tensor | None = None,
    ) -> Trial | None:
        """Return a call of the group as a trial; None if its blocks do not fit the arrangement.

        `observed` holds all attentions of that call, as many as those of the first call.
        """
        same = self.joined([observed[each] for each in self.indices])
        return attempt(trial, same, self.arranged, contract, d_in, mask)[0]


def grouped(
    observed: Sequence[ObservedAttention], sources: Sequence[Provenance | None], batch: int
) -> tuple[Group, ...]:
    """Return the attentions grouped by layer: heads of the same tokens and sizes, and chunks of queries.

    An attention whose columns are tokens (`linear`) is left out; one of unknown tokens is a group of its own.
    """
    found: list[list[list[int]]] = []
    for index, (each, source) in enumerate(zip(observed, sources, strict=True)):
        if source is not None and source.linear:
            continue
        last = found[-1] if found else None
        if last is not None and source is not None and source.known:
            before = next(
                (some for some in last if _continues(observed, sources, some, index)), None
            )
            if before is not None:
                before.append(index)
                continue
            first, other = observed[last[0][0]], sources[last[0][0]]
            alike = first.query.shape == each.query.shape and first.value.shape == each.value.shape
            known = other is not None and other.known and _same(source, other)
            if alike and known and len(each.query) == batch:
                last.append([index])
                continue
        found.append([[index]])
    return tuple(_group(observed, sources, chunks, batch) for chunks in found)


def _group(
    observed: Sequence[ObservedAttention],
    sources: Sequence[Provenance | None],
    chunks: Sequence[Sequence[int]],
    batch: int,
) -> Group:
    """Return the group of these attentions; each item of `chunks` holds the indices of the chunks of one head."""
    indices = [i for some in chunks for i in some]
    first = [each for i in chunks[0] if (each := sources[i]) is not None]
    source = first[0] if first else None
    if len(first) > 1:
        longest = max(first, key=lambda each: each.key.shape[-1])
        source = replace(longest, query=torch.cat([each.query for each in first], 1))
    return Group(
        tuple(observed[i] for i in indices),
        tuple(sources[i] for i in indices),
        arrangement(source, batch),
        tuple(indices),
        tuple(tuple(map(indices.index, some)) for some in chunks),
    )


def _same(one: Provenance, other: Provenance) -> bool:
    """Return True if the query rows of both come from the same tokens, and the key rows too."""
    pairs = ((one.query, other.query), (one.key, other.key))
    return all(torch.equal(a, b) for a, b in pairs)


def _continues(
    observed: Sequence[ObservedAttention],
    sources: Sequence[Provenance | None],
    chunks: Sequence[int],
    index: int,
) -> bool:
    """Return True if attention `index` has the first chunk's keys and values, and later queries than all chunks.

    If one has more keys, only the first ones are compared. False if the number of stages or the gains differ, or if the
    tokens of its queries or of a chunk's are unknown.
    """
    one, each, source = observed[chunks[0]], observed[index], sources[index]
    same = min(one.key.shape[-2], each.key.shape[-2])
    if len(one.stages) != len(each.stages) or one.gains != each.gains or source is None:
        return False
    for mine, other in ((one.key, each.key), (one.value, each.value)):
        if not torch.equal(mine[..., :same, :], other[..., :same, :]):
            return False
    asked = source.query[source.blocks]
    before = [taken.query[taken.blocks] for i in chunks if (taken := sources[i]) is not None]
    later = bool(before) and all(bool((asked[..., 0] > each[..., -1]).all()) for each in before)
    return later and len(before) == len(chunks)


def _whole(chunks: Sequence[ObservedAttention]) -> ObservedAttention:
    """Return one attention that joins chunks of queries; keys that a chunk lacks are hidden from it.

    They have a score of −∞ and a weight of 0. One chunk is returned itself.
    """
    if len(chunks) == 1:
        return chunks[0]
    longest = max(chunks, key=lambda each: each.key.shape[-2])
    keys = longest.key.shape[-2]

    def rows(tables: Sequence[Tensor], lacking: float) -> Tensor:
        """Return the rows of all chunks, padded with `lacking` to the same number of keys."""
        return torch.cat([F.pad(t, (0, keys - t.shape[-1]), value=lacking) for t in tables], 1)

    stages, lacking = [], -torch.inf
    for place, stage in enumerate(longest.stages):
        last = place == len(longest.stages) - 1
        if stage.axis is not None or stage.name in EXPONENTIALS or last:
            lacking = 0.0
        values = rows([each.stages[place].values for each in chunks], lacking)
        stages.append(stage._replace(values=values))
    return replace(
        longest,
        query=torch.cat([each.query for each in chunks], 1),
        context=torch.cat([each.context for each in chunks], 1),
        scores=rows([each.scores for each in chunks], -torch.inf),
        stages=tuple(stages),
    )
