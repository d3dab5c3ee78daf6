"""Attentions of one head each that belong to one layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clearhead.checking.evidence.arranging import Arrangement, arrangement
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.provenance import Provenance


@dataclass(frozen=True)
class Group:
    """Attentions of one layer, a head or more each, and where their rows come from."""

    attentions: tuple[ObservedAttention, ...]
    sources: tuple[Provenance | None, ...]
    arranged: Arrangement | None
    indices: tuple[int, ...]


def grouped(
    observed: Sequence[ObservedAttention], sources: Sequence[Provenance | None], batch: int
) -> tuple[Group, ...]:
    """Attentions of one head each, of the same tokens and sizes, are one layer; others stand alone."""
    found: list[list[int]] = []
    for index, (each, source) in enumerate(zip(observed, sources, strict=True)):
        if source is not None and source.linear:
            continue
        last = found[-1] if found else None
        if last is not None and source is not None and source.known and len(each.query) == batch:
            first, other = observed[last[0]], sources[last[0]]
            alike = first.query.shape == each.query.shape and first.value.shape == each.value.shape
            if alike and other is not None and other.known and _same(source, other):
                last.append(index)
                continue
        found.append([index])
    return tuple(
        Group(
            tuple(observed[i] for i in some),
            tuple(sources[i] for i in some),
            arrangement(sources[some[0]], batch),
            tuple(some),
        )
        for some in found
    )


def _same(one: Provenance, other: Provenance) -> bool:
    pairs = ((one.query, other.query), (one.key, other.key))
    return all(torch.equal(a.token, b.token) for a, b in pairs)
