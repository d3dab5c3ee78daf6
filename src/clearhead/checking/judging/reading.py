"""The recorded stages of an attention against the declared ones, where no script of edits gives the numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Evidence, Recorded
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.grouping import Group
from clearhead.checking.hypotheses.mask_edits import MASKS
from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import (
    RIGHT,
    Setting,
    StageEdit,
    right_scale,
    right_visible,
)
from clearhead.checking.judging.drawings import drawn_mask, first_bad, sums_of
from clearhead.checking.judging.verdicts import Claim, Found, Values
from clearhead.checking.thresholds import SLOPE, UNREAD
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.thresholds import SUMS
from clearhead.recording.weighing import ACTIVATIONS, EXPONENTIALS, Weighing, weigh

RIGHT_MASK = StageEdit("", "", {})
# What is declared of the scores, and the remark that what does it gives.
DECLARED = {
    "bias": "bias-added",
    "alibi_slopes": "bias-added",
    "softcap": "capped",
    "sinks": "sink",
}
AXES = {"queries": "queries", "blocks": "heads", "all": "queries and keys together"}


@dataclass(frozen=True)
class ReadStages:
    """The recorded stages of all heads; weights and visible pairs are (batch, heads, queries, keys).

    Attributes:
        weights, visible: the weights, and True for pairs that are not hidden.
        axis: that of the softmax, "keys" if the weights sum to one by other means; None without one.
        scale: None where it is unknown or differs between heads.
        form: the changes in the first head; None if the weights were measured, not recorded.
        has_sink: weights also go to a sink.
        divided: the context is divided by the sums of the weights.
        learned: the scale is a parameter, and all rows have the same norm.
    """

    weights: Tensor
    visible: Tensor
    axis: str | None
    scale: float | None
    form: Weighing | None = None
    has_sink: bool = False
    divided: bool = False
    learned: bool = False

    @property
    def fill(self) -> float | None:
        """The number that hidden scores are set to; None if it is −∞ or there is none."""
        return None if self.form is None else self.form.number("fill")


def stages_of_group(group: Group, recorded: Recorded | None) -> ReadStages:
    """Return the recorded stages of all heads of a group; if its samples are unknown, each block is a batch entry.

    `recorded` is the call, in which a division by the sums of the weights is looked for; without it `divided` is False.
    """
    arranged = group.arranged
    place = (lambda each: each[:, None]) if arranged is None else arranged.heads
    return _read(group.heads, place, recorded)


def stages_of_function(e: HeadsEvidence) -> ReadStages | None:
    """Return the stages of a function, as they were recorded, else as the identity as value shows them.

    None if neither is.
    """
    at = e.trials[0].setting
    one = len(e.observed) == 1 or (
        e.subject.axes == 2 and len(e.observed) == at.batch * at.num_heads
    )
    blocks = sum(len(each.weights) for each in e.observed)
    fits = all(
        each.weights.shape[1:] == (at.query_len, at.kv_len) and not each.tangled
        for each in e.observed
    )
    if one and fits and blocks == at.batch * at.num_heads:
        place = (
            (lambda x: x.view(at.batch, -1, *x.shape[1:]))
            if len(e.observed) == 1
            else (lambda x: x[:, None])
        )
        return _read(e.observed, place, e.recorded)
    if e.measured is None:
        return None
    weights = e.measured.weights
    one = bool(((weights.sum(-1) - 1).abs() <= SUMS).all())
    return ReadStages(weights, weights.abs() > UNREAD, "keys" if one else None, e.slope)


def _read(
    attentions: Sequence[ObservedAttention],
    place: Callable[[Tensor], Tensor],
    recorded: Recorded | None,
) -> ReadStages:
    """Return the stages of all attentions as one; `place` brings their blocks to (batch, heads, queries, keys).

    Form, axis and sink are those of the first; the scale is None unless all have the same.
    """
    forms = [weigh(each) for each in attentions]
    form = forms[0]
    weights = torch.cat([place(each.weights) for each in attentions], 1)
    # Numbers that sum to one are shares, whatever they were made by; no softmax makes numbers below 0.
    shares = form.axis is None and form.sums and form.normaliser not in ACTIVATIONS
    axis = None if bool((weights < 0).any()) and not form.after else "keys" if shares else form.axis
    return ReadStages(
        weights,
        torch.cat([place(each.visible) for each in forms], 1),
        axis,
        form.scale if all(each.scale == form.scale for each in forms) else None,
        form,
        attentions[0].has_sink,
        recorded is not None and all(_divided(each, recorded) for each in attentions),
        learned_scale(attentions),
    )


def learned_scale(attentions: Sequence[ObservedAttention]) -> bool:
    """Return True if in every attention a parameter multiplies scores of rows of equal norm: cosine attention.

    True for no attentions.
    """
    return all(
        has_equal_norms(each.query)
        and has_equal_norms(each.key)
        and any(
            stage.other == "parameter" and stage.name.rstrip("_") in ("mul", "div")
            for stage in takewhile(lambda stage: stage.axis is None, each.stages)
        )
        for each in attentions
    )


def has_equal_norms(rows: Tensor) -> bool:
    """Return True if all rows of a query, or of a key, have the same norm; False if one is not finite."""
    sizes = rows.norm(dim=-1)
    return bool(sizes.isfinite().all()) and float(sizes.std()) < 1e-3 * float(sizes.mean())


def _divided(one: ObservedAttention, recorded: Recorded) -> bool:
    """Return True if the context is divided by the sums of the weights in a later step."""
    shares = (one.context / one.weights.sum(-1, keepdim=True)).flatten().sort().values
    return any(
        step.name.startswith("div")
        and bool((step.tags.node == one.layout.context.index).all())
        and step.value.numel() == shares.numel()
        and torch.allclose(step.value.double().flatten().sort().values, shares, equal_nan=True)
        for step in recorded.recorder.steps
    )


def extras(stages: ReadStages) -> Iterator[tuple[str, Values]]:
    """Yield (key, values) of a remark for each recorded mechanism beyond the scale, the mask and the softmax.

    Declared ones too. An unknown, a learned or a differing scale is a remark as well. Raises AssertionError for stages
    without a form.
    """
    form = stages.form
    assert form is not None
    kinds = {change.kind for change in form.changes}
    for change in form.changes:
        if change.kind == "add" and change.stage.other:
            yield "bias-added", {"of": change.stage.other}
        elif (change.kind == "unknown" and change.stage.other in ("parameter", "input")) or (
            change in form.after and change.kind in ("number", "add", "shift")
        ):
            yield "operation", {"operation": change.stage.name}
    yield from (
        (key, {}) for kind, key in (("cap", "capped"), ("scales", "scales")) if kind in kinds
    )
    if form.scale is None and "scales" not in kinds:
        yield "scale-unknown", {}
    elif stages.learned and form.scale is not None:
        yield "scale-learned", {}
    if stages.has_sink or (form.axis == "keys" and not form.sums and not form.after):
        yield "sink", {}


def broken(bad: Trial, code: str, way: str) -> Claim:
    """Return the claim, under "mask", on a call whose output is not finite, measured by its first such value.

    Raises IndexError for a finite output.
    """
    return Claim("mask", code, Found(way, {}, ("first-bad", first_bad(bad.target))))


def read_claims(stages: ReadStages, first: Trial, e: Evidence) -> Iterator[Claim]:
    """Yield a claim for each stage that differs from the declared one, in order: softmax, scale, mask, then product.

    The mask is not compared if a module fills scores with infinity, or the softmax is over another axis, nor if there
    is an activation instead of it, whose zeros hide nothing.
    """
    contract, wanted = first.setting.contract, right_scale(first.setting)
    sums = ("sums", sums_of(stages.weights))
    name = "" if stages.form is None else stages.form.normaliser
    if stages.axis != "keys" and not stages.has_sink:
        axis = _axis(stages)
        if axis is not None:
            yield Claim("softmax", "softmax.axis", Found("over", {"axis": axis}, sums))
        elif not stages.divided or (name and name not in EXPONENTIALS):
            way = "operation" if name else "none"
            yield Claim("softmax", "softmax.missing", Found(way, {"operation": name}, sums))
    plain = contract.softcap is None and contract.bias is None and contract.alibi_slopes is None
    plain = plain and not (stages.learned and contract.scale is None)
    used = stages.scale
    if used is not None and plain and abs(used - wanted) > SLOPE * abs(wanted):
        values = {"used": f"{used:.4g}", "square": f"{used**-2:.4g}" if used else "∞"}
        found = Found("constant", values, slope(used, first))
        yield Claim("scale", "scale.wrong", against_declared(found, used, contract))
    if stages.fill == torch.inf and not isinstance(e, HeadsEvidence):
        yield broken(first, "output.non-finite", "infinity")
    elif stages.axis in ("keys", None) and name not in ACTIVATIONS:
        yield from _mask(stages, first, e)
    after = () if stages.form is None or stages.axis != "keys" else stages.form.after
    known = bool(after) and all(change.kind != "unknown" for change in after)
    total = stages.weights.sum(-1)
    one = bool(((total - 1).abs() <= SUMS)[total.isfinite() & (total != 0)].all())
    if known and not (one or stages.has_sink or stages.divided):
        yield Claim("product", "law.value", Found("sums", {}, sums))
    for change in after:
        if change.kind == "unknown" and change.stage.name and change.stage.axis is None:
            name = Found("after-softmax", {"operation": change.stage.name})
            yield Claim("product", "differs", name)


def _axis(stages: ReadStages) -> str | None:
    """Return the axis over which the weights sum to one, "queries", "heads" or "batch"; else that of the softmax.

    None if there is neither, or the softmax is over the keys. NaN, as of 0 / 0, is ignored.
    """
    for axis, name in ((-2, "queries"), (1, "heads"), (0, "batch")):
        total = stages.weights.sum(axis)
        one = bool(((total - 1).abs() <= SUMS)[~total.isnan()].all()) and not bool(
            total.isnan().all()
        )
        if stages.weights.shape[axis] > 1 and one:
            return name
    return AXES.get(stages.axis or "")


def against_declared(found: Found, used: float, contract: Contract) -> Found:
    """Return a finding about a factor, reworded to name the declared scale; unchanged if none is declared."""
    if contract.scale is None:
        return found
    values = {"size": found.values.get("size", f"{used:.4g}"), "wanted": f"{contract.scale:g}"}
    way = "constant-declared" if found.way == "constant" else "declared"
    return Found(way, values, found.measured)


def slope(used: float, first: Trial) -> tuple[str, Values]:
    """Return the measurement of a scale: the key "slope", and the measured number next to the right one as values."""
    right, words = right_scale(first.setting), scale_in_words(first)
    return "slope", {"used": f"{used:.4g}", "right": f"{right:.4g}", "words": words}


def scale_in_words(case: Trial) -> str:
    """Return the declared scale as text, such as "0.5"; "1/√8" for head_dim 8 if none is declared."""
    given = case.setting.contract.scale
    return f"1/√{case.setting.head_dim}" if given is None else f"{given:g}"


def _mask(stages: ReadStages, first: Trial, e: Evidence) -> Iterator[Claim]:
    """Yield one claim if the visible pairs differ from the declared mask, named by the edit that has them.

    Nothing if no mask is declared. Scores that are set to a finite number are "mask.soft".
    """
    at = first.setting
    right = right_visible(at).expand(stages.visible.shape)
    declared = e.contract.masked or at.mask is not None
    if not declared or (bool(right.all()) and bool(stages.visible.all())):
        return
    named = mask_named(stages.visible, at, torch.ones_like(stages.visible))
    if named is RIGHT_MASK:
        return
    picture = ("mask", drawn_mask(first, None, stages.visible[0, 0]))
    if stages.fill is not None:
        way = "zero" if abs(stages.fill) < 1e-3 else "number"
        named = StageEdit("mask.soft", way, {}, values={"number": f"{stages.fill:.4g}"})
    named = named or StageEdit("differs", "mask", {})
    yield Claim("mask", named.code, Found(named.way, named.values, picture))


def setting_of(contract: Contract, tokens: int, heads: int = 1) -> Setting:
    """Return the setting of self-attention over these tokens, of one sample and head_dim 1."""
    return Setting(contract, 1, heads, heads, tokens, tokens, 1, 1)


def mask_named(seen: Tensor, at: Setting, visible: Tensor) -> StageEdit | None:
    """Return the first edit whose mask equals `seen`, RIGHT_MASK for that of the contract, or None for neither.

    Args:
        seen: bool, broadcastable to (batch, heads, queries, keys), True for pairs that attend.
        at: the call.
        visible: bool, True for pairs that are compared.
    """
    for edit in (RIGHT_MASK, *MASKS):
        if edit.needs(at.contract):
            other = edit.applied(RIGHT).visible(at) ^ seen
            if not (other & visible).any():
                return edit
    return None
