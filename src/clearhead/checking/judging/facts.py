"""Facts of what was done to the scores of an attention, seen or measured."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from clearhead.checking.evidence.base import Recorded
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.grouping import Group
from clearhead.checking.judging.verdicts import Values
from clearhead.checking.thresholds import UNREAD
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.thresholds import SUMS
from clearhead.recording.weighing import ACTIVATIONS, Weighing, weigh

# What is declared of the scores, and the remark that what does it gives.
DECLARED = {
    "bias": "bias-added",
    "alibi_slopes": "bias-added",
    "softcap": "capped",
    "sinks": "beside",
}


@dataclass(frozen=True)
class Facts:
    """Facts of the scores of all heads: (batch, heads, queries, keys).

    `products` are query·key, `twice` that there are two softmaxes, `turned` that the weights are
    summed over the queries, `divided` that the context is divided by their sums, `learned` that the scale is a
    parameter behind rows of one length, `varies` that the scale hangs on the numbers.
    """

    weights: Tensor
    products: Tensor
    scale: float | None
    axis: str | None
    normaliser: str
    visible: Tensor
    weighing: Weighing | None = None
    turned: bool = False
    twice: bool = False
    beside: bool = False
    divided: bool = False
    learned: bool = False
    varies: bool = False

    @property
    def rectified(self) -> bool:
        """True if the weights are 0 where the score is below 0 or hidden, and nowhere else."""
        zero = (self.products <= 0) | ~self.visible
        return self.axis is None and torch.equal(self.weights == 0, zero)

    @property
    def infinite(self) -> bool:
        """True if scores that are to be hidden are raised to +∞."""
        before = self.weighing.before if self.weighing is not None else ()
        return any(each.kind == "fill" and each.number == torch.inf for each in before)


def facts_of_stages(group: Group, recorded: Recorded | None) -> Facts:
    """The facts of a layer of a module, of all its heads."""
    arranged = group.arranged
    place = (lambda each: each[:, None]) if arranged is None else arranged.heads
    return _seen(group.heads, place, recorded)


def _seen(
    attentions: Sequence[ObservedAttention],
    place: Callable[[Tensor], Tensor],
    recorded: Recorded | None,
) -> Facts:
    """The facts of what was done to the scores; `place` gives (batch, heads, queries, keys)."""
    read = [weigh(each) for each in attentions]
    first, one = read[0], attentions[0]

    def joined(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([place(each) for each in parts], 1)

    return Facts(
        joined(each.weights for each in attentions),
        joined(each.scores for each in attentions),
        first.scale if all(each.scale == first.scale for each in read) else None,
        _axis(first),
        first.normaliser,
        joined(each.visible for each in read),
        first,
        one.layout.sides == (1, 0) and first.axis == "queries",
        len([stage for stage in one.stages if stage.axis is not None]) > 1,
        one.beside,
        recorded is not None and all(_divided(each, recorded) for each in attentions),
        learned_scale(attentions),
        first.scale is not None
        and len({f"{each.scale or 0:.6g}" for each in read}) == len(read) > 1,
    )


def learned_scale(attentions: Sequence[ObservedAttention]) -> bool:
    """True if a parameter multiplies the scores of rows that are all of one length: cosine attention."""
    return all(
        of_one_length(each.query)
        and of_one_length(each.key)
        and any(
            stage.other == "parameter" and stage.name.rstrip("_") in ("mul", "div")
            for stage in takewhile(lambda stage: stage.axis is None, each.stages)
        )
        for each in attentions
    )


def of_one_length(rows: Tensor) -> bool:
    """True if all rows of a query, or of a key, are of one length, as behind a norm."""
    sizes = rows.norm(dim=-1)
    return bool(sizes.isfinite().all()) and float(sizes.std()) < 1e-3 * float(sizes.mean())


def _divided(one: ObservedAttention, recorded: Recorded) -> bool:
    """True if the context is divided by the sums of the weights, behind the product."""
    shares = (one.context / one.weights.sum(-1, keepdim=True)).flatten().sort().values
    return any(
        step.name.startswith("div")
        and bool((step.tags.node == one.layout.context.index).all())
        and step.value.numel() == shares.numel()
        and torch.allclose(step.value.double().flatten().sort().values, shares, equal_nan=True)
        for step in recorded.recorder.steps
    )


def _axis(read: Weighing) -> str | None:
    """Over what the weights are normalised; by whatever they are made to sum to one counts too."""
    if read.axis is not None or not read.sums or read.normaliser in ACTIVATIONS:
        return read.axis
    return "keys"


def facts_of_weights(e: HeadsEvidence) -> Facts | None:
    """The facts of a function, by what was done to its scores or by the identity as value."""
    at = e.trials[0].setting
    tables = e.subject.axes == 2 and len(e.observed) == at.batch * at.num_heads
    if tables and not any(each.tangled for each in e.observed):
        return _seen(e.observed, lambda each: each[:, None], e.recorded)
    if len(e.observed) == 1 and not e.observed[0].tangled:
        one = e.observed[0]
        whole = at.batch * at.num_heads, at.query_len, at.kv_len
        if one.weights.shape == whole:
            place = lambda each: each.view(at.batch, -1, *each.shape[1:])  # noqa: E731
            return _seen(e.observed, place, e.recorded)
    if e.measured is None:
        return None
    weights, products = e.measured
    sums = weights.sum(-1)
    axis = "keys" if torch.allclose(sums, torch.ones_like(sums), atol=SUMS) else None
    return Facts(weights, products, e.slope, axis, "", weights.abs() > UNREAD)


def extras(facts: Facts) -> Iterator[tuple[str, Values]]:
    """Remarks on what is done besides, is not declared, and is no mistake."""
    read = facts.weighing
    assert read is not None
    for change in read.changes:
        if change.kind == "add" and change.stage.other != "":
            yield "bias-added", {"of": change.stage.other}
        if change.kind == "cap":
            yield "capped", {}
        if change.kind == "scales":
            yield "scales", {}
        if change.kind == "unknown" and change.stage.other in ("parameter", "input"):
            yield "operation", {"operation": change.stage.name}
    for change in read.after:
        if change.kind in ("number", "add", "shift"):
            yield "operation", {"operation": change.stage.name}
    if read.scale is None and not any(change.kind == "scales" for change in read.changes):
        yield "scale-unknown", {}
    elif facts.learned and read.scale is not None:
        yield "scale-learned", {}
    if facts.beside or (read.axis == "keys" and not read.sums and not read.after):
        yield "beside", {}
