"""The definition beside what anybody's code computed: the first stage that differs, and what it should be."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.hypotheses.recipe import Setting, declared_bias, right_scale, right_visible
from clearhead.recording.observed import blocks_of
from clearhead.recording.thresholds import HIDDEN
from clearhead.recording.weighing import Weighing
from clearhead.tracing.own_code import Recording
from clearhead.tracing.own_steps import Entry, Lost

UNTOLD = ("alibi_slopes", "sinks", "rope")
"""The declarations that are not held against the definition here; `check` does."""


class Differing(NamedTuple):
    """A stage that is not that of the definition, with the numbers that it should have."""

    stage: str
    values: Tensor


def differing(
    recording: Recording, entries: Sequence[Entry], read: Weighing, lost: Lost | None
) -> Differing | None:
    """The first stage that differs from the definition on the code's own query, key and value; None where
    none does, or where what is declared is not held against it.

    What nothing is declared of is taken as meant: the pairs that the code hides, or tries to.
    """
    contract, cells = recording.contract, recording.cells
    if any(getattr(contract, name) is not None for name in UNTOLD):
        return None
    split = _split(recording)
    if split is not None:
        return split
    whole = cells.whole
    blocks, queries, head_dim = whole.query.shape
    keys = whole.key.shape[1]
    setting = Setting(contract, blocks, 1, 1, queries, keys, head_dim, whole.value.shape[-1])
    visible = _visible(recording, read, lost, setting)
    raw = whole.query @ whole.key.mT
    by_name = {each.name: each for each in entries}
    size = _size(recording)
    scaled = by_name["scaled_scores"].values
    factor = None if whole.gain is None else right_scale(setting) / whole.gain
    expected = {"scores": raw}
    expected["scaled_scores"] = scaled if factor is None else stages.scaled_scores(raw, factor)
    capped = stages.capped_scores(expected["scaled_scores"], contract.softcap)
    bias = declared_bias(setting)
    expected["masked_scores"] = stages.masked_scores(capped, bias, visible)
    expected["weights"] = stages.weights(expected["masked_scores"])
    mixed = entries[-1] if entries[-1].same_as else entries[-2]
    seen = visible.any(-1, keepdim=True)
    if not _same(mixed.values, expected["weights"], size, seen):
        hidden = _hidden(by_name["masked_scores"].values, capped)
        asked = (
            ("scores", cells.computed | ~visible, None),
            ("scaled_scores", None, cells.computed & ~_hidden(scaled, expected["scaled_scores"])),
            ("masked_scores", (hidden == ~visible) | ~seen, visible & seen),
            ("weights", None, seen),
        )
        for name, fits, where in asked:
            got = by_name[name].values
            whole_fits = fits is None or bool(fits.all())
            if not whole_fits or (
                where is not None and not _same(got, expected[name], size, where)
            ):
                return Differing(name, expected[name])
        changed = next(each.name for each in entries if each.name.startswith("changed_weights"))
        return Differing(changed, expected["weights"])
    context = entries[-1].values @ whole.value
    if not _same(whole.context, context, size, seen):
        return Differing("context", context)
    value, taken = cells.nodes[2], cells.whole.value
    if value is not None and value.kind == "linear" and value.constant == 0:
        before = blocks_of(value.operands[1]).double()
        if before.shape == taken.shape and value.operands[0].shape[-2:] == (keys, keys):
            return Differing("value", before)
    return None


def _split(recording: Recording) -> Differing | None:
    """The query with its heads split as they should be, where its rows are not those of tokens."""
    cells, whole = recording.cells, recording.cells.whole
    made, width = cells.nodes[0], whole.query.shape[-1]
    if cells.columns[0] or made is None or made.kind != "linear":
        return None
    if made.output.numel() != whole.query.numel() or made.output.shape[-1] != cells.heads * width:
        return None
    tokens = whole.query.shape[1]
    right = made.output.double().reshape(cells.batch, tokens, cells.heads, width).transpose(1, 2)
    right = right.flatten(0, 1)
    return None if torch.equal(right, whole.query) else Differing("query", right)


def _visible(recording: Recording, read: Weighing, lost: Lost | None, setting: Setting) -> Tensor:
    """True where a query may see a key: as declared, or as the code means it to."""
    contract, cells = recording.contract, recording.cells
    touched = ~cells.computed
    for change in read.changes:
        lowered = change.kind == "hide" or (
            change.kind in ("fill", "number") and change.number <= 0
        )
        if lowered and change.cells is not None:
            touched = touched | change.cells
    if lost is not None:
        touched = touched | (lost.values < -HIDDEN)
    if contract.causal is None and contract.window is None:
        return ~touched
    declared = right_visible(setting).expand(touched.shape)
    # A mask that was handed over hides whole keys: padding.
    padding = (
        touched.all(-2, keepdim=True) if recording.masked else torch.zeros(1, dtype=torch.bool)
    )
    return declared & ~padding


def _hidden(values: Tensor, before: Tensor) -> Tensor:
    """True where a score is so low that no weight is left."""
    return (values == -torch.inf) | (values - before <= -HIDDEN)


def _size(recording: Recording) -> float:
    """The share of the largest number by which rounding moves it: half of the digits."""
    return math.sqrt(torch.finfo(recording.cells.parts[0].layout.scores.output.dtype).eps)


def _same(one: Tensor, other: Tensor, size: float, where: Tensor) -> bool:
    """True if numbers are equal but for rounding, where they are asked for."""
    there = where.expand(other.shape)
    one, other = one[there], other[there]
    finite = other[other.isfinite()]
    largest = float(finite.abs().max()) if len(finite) else 1.0
    return torch.allclose(one, other, rtol=0, atol=size * max(largest, 1e-30), equal_nan=True)
