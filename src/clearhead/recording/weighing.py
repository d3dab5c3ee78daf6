"""Read what was done to the scores of an attention from its stages: scale, mask, softmax, and then."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.recording.observed import ObservedAttention, Stage
from clearhead.recording.thresholds import HIDDEN, SUMS


class Change(NamedTuple):
    """What one stage does to the values of the stage before it.

    `kind`: "same", "scale" (`number` is the factor), "scales" (another factor for each block), "hide" (`cells` are the
    pairs that it hides), "fill" (`cells` became `number`), "number" (`number` was added to `cells`), "shift" (one
    number added to each row), "add" (any other sum), "cap" (a tanh), "dropout" (random numbers), or "unknown".
    """

    kind: str
    stage: Stage
    number: float = 1.0
    cells: Tensor | None = None


@dataclass(frozen=True)
class Weighing:
    """What happens to the scores of one attention, from the plain product to the weights.

    Attributes:
        scale: the product of all factors of the scores, of query and key too; None if a factor is learned, or not one
            number for all blocks, or everything is hidden.
        before, after: the changes before and after the softmax, without those of no effect.
        axis: what the softmax goes over: "keys", "queries", "blocks", "all"; None without one.
        normaliser: the operation that is there instead of a softmax; "" if there is a softmax or none.
        visible: bool (blocks, queries, keys), True for pairs that are not hidden and have a weight other than 0 (NaN is
            one).
        sums: True if the weights of every query sum to one.
        entering: the scores as the softmax took them, (blocks, queries, keys).
        shares: the weights as it returned them; `entering` if it is missing.
    """

    scale: float | None
    before: tuple[Change, ...]
    after: tuple[Change, ...]
    axis: str | None
    normaliser: str
    visible: Tensor
    sums: bool
    entering: Tensor
    shares: Tensor

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes of the scores and of the weights, in order."""
        return (*self.before, *self.after)

    def number(self, kind: str) -> float | None:
        """Return the number of the last change of this kind before the softmax; None if there is none."""
        return next((each.number for each in reversed(self.before) if each.kind == kind), None)


EXPONENTIALS = ("exp", "exp_", "exp2")
ACTIVATIONS = frozenset(
    ["relu", "sigmoid", "softplus", "elu", "gelu", "silu", "leaky_relu", "hardtanh", "threshold"]
)


def weigh(observed: ObservedAttention) -> Weighing:
    """Return what the stages of one attention do to its scores.

    A softmax is a recorded one, or an exp whose result is divided by its sums later. Otherwise `axis` is None, and the
    `normaliser` is the first exp; without one, the first activation or unknown change.
    """
    found = observed.stages
    start = next((i for i, each in enumerate(found) if each.axis is not None), None)
    end, axis = start, None if start is None else found[start].axis
    if start is None:
        start = next((i for i, each in enumerate(found) if each.name in EXPONENTIALS), None)
        axis, end = _normalised(found, start) if start is not None else (None, None)
    first = len(found) if start is None else start
    if axis is None and start is None:
        # Without a softmax, what is no plain change stands in its place.
        first = next((i for i, each in enumerate(found) if _is_normaliser(found, i)), len(found))
    before = _changes(observed.scores, found[:first])
    scores = found[first - 1].values if first else observed.scores
    last = end if end is not None else first
    shares = found[last].values if last < len(found) else scores
    after = _changes(shares, found[last + 1 :])
    scale = observed.gain
    for change in before:
        if change.kind == "scales":
            scale = None
        elif change.kind == "scale" and scale is not None:
            scale = scale * change.number
    visible = torch.ones_like(scores, dtype=torch.bool)
    for change in before:
        if change.kind == "hide" and change.cells is not None:
            visible &= ~change.cells
    if not visible.any():
        scale = None  # what became of a score that is hidden does not show
    weights = observed.weights
    visible &= (weights != 0) | shares.isnan() | (weights.isnan())
    sums = weights.sum(-1)
    one = bool((sums - 1).abs().max() < SUMS) if sums.isfinite().all() and len(sums) else False
    name = found[first].name if axis is None and first < len(found) else ""
    return Weighing(scale, before, after, axis, name, visible, one, scores, shares)


def _is_normaliser(found: Sequence[Stage], index: int) -> bool:
    """Return True if a stage may replace a softmax.

    It is an activation, or, unless it is the first stage, its change from the stage before is "unknown".
    """
    if found[index].name.rstrip("_") in ACTIVATIONS:
        return True
    before = found[index - 1].values if index else None
    return before is not None and _change(before, found[index]).kind == "unknown"


def _normalised(found: Sequence[Stage], start: int) -> tuple[str | None, int]:
    """Return the axis over which an exp at `start` is divided by its sum, and the index of the stage that does it.

    "keys" or "queries" if the sums of a later stage are 1, or 1 and 0. ("keys", the last index) if the last stage
    divides each row by a number of its own and no row sums to 1, as with a sink. (None, start) otherwise.
    """
    for index in range(start + 1, len(found)):
        values = found[index].values.nan_to_num(0.0)
        for axis, name in ((-1, "keys"), (-2, "queries")):
            sums = values.sum(axis)
            full = sums.abs() > SUMS
            if full.any() and bool(((sums - 1).abs() < SUMS)[full].all()):
                return name, index
    # Next to a sink, or with one more in the denominator, each row is divided by a number of its own.
    last, powers = found[-1].values, found[start].values
    ratio = (last / powers).masked_fill(~(powers > 0), torch.nan)
    rows = ratio.nanmean(-1)
    even = bool(
        ((ratio - rows[..., None]).abs() < 1e-4 * rows[..., None].abs())
        .logical_or(ratio.isnan())
        .all()
    )
    if (
        even
        and float(rows.nan_to_num().std()) > SUMS
        and bool((last.nan_to_num().sum(-1) < 1).all())
    ):
        return "keys", len(found) - 1
    return None, start


def _changes(scores: Tensor, found: Sequence[Stage]) -> tuple[Change, ...]:
    """Return the changes that the stages make of the scores, in order; stages without an effect are left out."""
    values, changes = scores, []
    for stage in found:
        change = _change(values, stage)
        if change.kind != "same":
            changes.append(change)
        values = stage.values
    return tuple(changes)


def _change(before: Tensor, stage: Stage) -> Change:
    """Return what a stage does to the values before it, judged by the numbers.

    The first kind that fits is returned, "unknown" if none does. "cap", "dropout" and "add" go by name or operand.
    Pairs lowered to −∞ or by 60 and more are "hide" if the others stay; a pair raised to +∞ makes it a "fill". The rest
    is judged where both values are finite, to 1e-5 of the largest.
    """
    after = stage.values
    if stage.name.startswith("tanh"):
        return Change("cap", stage)
    if stage.other == "random":
        return Change("dropout", stage)
    known = before.isfinite()
    size = before[known].abs().max().item() if known.any() else 1.0
    tolerance = 1e-5 * max(size, 1e-30)
    gone = known & ((after == -torch.inf) | (after - before <= -HIDDEN))
    raised = known & (after == torch.inf)
    if raised.any():
        return Change("fill", stage, torch.inf, raised)
    kept = known & after.isfinite() & ~gone
    one, other = before[kept], after[kept]
    if not len(one):
        return Change("hide" if gone.any() else "same", stage, cells=gone)
    moved = kept & ((after - before).abs() > tolerance)
    if not moved.any():
        return Change("hide", stage, cells=gone) if gone.any() else Change("same", stage)
    values = after[moved]
    if not moved[kept].all() and float(values.max() - values.min()) <= tolerance:
        return Change("fill", stage, float(values.mean()), moved)
    heavy = one.abs() > 1e-3 * size
    ratio = other[heavy] / one[heavy]
    if float(ratio.max() - ratio.min()) <= 1e-4 * float(ratio.abs().max()):
        return Change("scale", stage, float(ratio.median()))
    blocks = [
        (after[i][kept[i]] / before[i][kept[i]])[before[i][kept[i]].abs() > 1e-3 * size]
        for i in range(len(before))
    ]
    if all(len(b) and float(b.max() - b.min()) <= 1e-4 * float(b.abs().max()) for b in blocks):
        return Change("scales", stage)
    gap = torch.where(kept, after - before, 0.0)
    rows = torch.where(kept, gap, torch.nan)
    spread = rows.nan_to_num(-torch.inf).amax(-1) - rows.nan_to_num(torch.inf).amin(-1)
    if bool((spread <= tolerance).all()):
        return Change("shift", stage)
    numbers = gap[moved]
    if not moved[kept].all() and float(numbers.max() - numbers.min()) <= tolerance:
        return Change("number", stage, float(numbers.mean()), moved)
    if stage.name.rstrip("_") in ("add", "sub", "baddbmm", "addmm"):
        return Change("add", stage)
    return Change("unknown", stage)
