"""Facts of what was done to the scores of an attention, seen or measured."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checking.evidence.base import Recorded
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.grouping import Group
from clearhead.checking.evidence.observed import ObservedAttention
from clearhead.checking.evidence.weighing import ACTIVATIONS, Weighing, weigh
from clearhead.checking.judging.verdicts import Values
from clearhead.checking.thresholds import SUMS


@dataclass(frozen=True)
class Facts:
    """Facts of the scores of all heads: (batch, heads, queries, keys).

    `products` are query·key, `twice` that there are two softmaxes, `turned` that the weights are
    summed over the queries, `divided` that the context is divided by their sums.
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
    read = [weigh(each) for each in group.attentions]
    first, one = read[0], group.attentions[0]

    def heads(each: Tensor, like: Tensor) -> Tensor:
        arranged = group.arranged
        return each[:, None] if arranged is None else arranged.heads(each)

    visible = torch.cat([heads(r.visible, one.weights) for r in read], 1)
    weights = torch.cat([heads(each.weights, each.weights) for each in group.attentions], 1)
    products = torch.cat([heads(each.scores, each.scores) for each in group.attentions], 1)
    softmaxes = [stage for stage in one.stages if stage.axis is not None]
    turned = one.layout.sides == (1, 0) and first.axis == "queries"
    return Facts(
        weights,
        products,
        first.scale if all(each.scale == first.scale for each in read) else None,
        _axis(first),
        first.normaliser,
        visible,
        first,
        turned,
        len(softmaxes) > 1,
        one.beside,
        recorded is not None and all(_divided(each, recorded) for each in group.attentions),
    )


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
    if len(e.observed) == 1 and not e.observed[0].tangled:
        one, read = e.observed[0], e.weighings[0]
        batch = e.trials[0].setting.batch
        shape = (batch, -1, *one.weights.shape[1:])
        pairs = e.trials[0].setting.query_len, e.trials[0].setting.kv_len
        heads = batch * e.trials[0].setting.num_heads
        if len(one.weights) == heads and one.weights.shape[1:] == pairs:
            turned = one.layout.sides == (1, 0) and read.axis == "queries"
            softmaxes = [stage for stage in one.stages if stage.axis is not None]
            return Facts(
                one.weights.view(shape),
                one.scores.view(shape),
                read.scale,
                _axis(read),
                read.normaliser,
                read.visible.view(shape),
                read,
                turned,
                len(softmaxes) > 1,
                one.beside,
                e.recorded is not None and _divided(one, e.recorded),
            )
    if e.measured is None:
        return None
    weights, products = e.measured
    sums = weights.sum(-1)
    axis = "keys" if torch.allclose(sums, torch.ones_like(sums), atol=SUMS) else None
    return Facts(weights, products, e.slope, axis, "", weights.abs() > 1e-12)


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
    if facts.beside or (read.axis == "keys" and not read.sums and not read.after):
        yield "beside", {}
