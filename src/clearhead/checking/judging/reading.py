"""The recorded stages of an attention against the declared ones, where no script of edits gives the numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, right_scale, right_visible
from clearhead.checking.hypotheses.stage_edit import StageEdit
from clearhead.checking.judging.drawings import drawn_mask, first_bad, sums_of
from clearhead.checking.judging.verdicts import Claim, Found, Values
from clearhead.checking.thresholds import SLOPE, UNREAD
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.thresholds import SUMS
from clearhead.recording.weighing import ACTIVATIONS, Weighing, weigh

RIGHT_MASK = StageEdit("", "", {})
# What is declared of the scores, and the remark that what does it gives.
DECLARED = {
    "bias": "bias-added",
    "alibi_slopes": "bias-added",
    "softcap": "capped",
    "sinks": "beside",
}
AXES = {"queries": "queries", "blocks": "heads", "all": "queries and keys together"}


@dataclass(frozen=True)
class ReadStages:
    """The stages of all heads: (batch, heads, queries, keys).

    `divided`: the context is divided by the sums of the weights; `learned`: the scale is a parameter of rows of one
    length; `varies`: the scale depends on the head; `beside`: weights also go to what is no key, as a sink.
    """

    weights: Tensor
    scale: float | None
    axis: str | None
    normaliser: str
    visible: Tensor
    weighing: Weighing | None = None
    beside: bool = False
    divided: bool = False
    learned: bool = False
    varies: bool = False

    @property
    def infinite(self) -> bool:
        """True if scores that are to be hidden are raised to +∞."""
        before = self.weighing.before if self.weighing is not None else ()
        return any(each.kind == "fill" and each.number == torch.inf for each in before)


def stages_of_group(group: Group, recorded: Recorded | None) -> ReadStages:
    """The stages of a layer of a module, of all its heads."""
    arranged = group.arranged
    place = (lambda each: each[:, None]) if arranged is None else arranged.heads
    return _seen(group.heads, place, recorded)


def stages_of_function(e: HeadsEvidence) -> ReadStages | None:
    """The stages of a function, as they were recorded or by the identity as value."""
    at = e.trials[0].setting
    tables = e.subject.axes == 2 and len(e.observed) == at.batch * at.num_heads
    if tables and not any(each.tangled for each in e.observed):
        return _seen(e.observed, lambda each: each[:, None], e.recorded)
    if len(e.observed) == 1 and not e.observed[0].tangled:
        whole = at.batch * at.num_heads, at.query_len, at.kv_len
        if e.observed[0].weights.shape == whole:
            return _seen(e.observed, lambda x: x.view(at.batch, -1, *x.shape[1:]), e.recorded)
    if e.measured is None:
        return None
    weights = e.measured.weights
    sums = weights.sum(-1)
    axis = "keys" if torch.allclose(sums, torch.ones_like(sums), atol=SUMS) else None
    return ReadStages(weights, e.slope, axis, "", weights.abs() > UNREAD)


def _seen(
    attentions: Sequence[ObservedAttention],
    place: Callable[[Tensor], Tensor],
    recorded: Recorded | None,
) -> ReadStages:
    """The stages of some attentions; `place` gives (batch, heads, queries, keys)."""
    read = [weigh(each) for each in attentions]
    first = read[0]

    def joined(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([place(each) for each in parts], 1)

    # Numbers that sum to one are shares, whatever they were made by.
    shares = first.sums and first.normaliser not in ACTIVATIONS
    return ReadStages(
        joined(each.weights for each in attentions),
        first.scale if all(each.scale == first.scale for each in read) else None,
        "keys" if first.axis is None and shares else first.axis,
        first.normaliser,
        joined(each.visible for each in read),
        first,
        attentions[0].beside,
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
    """True if all rows of a query, or of a key, are of one length, as after a norm."""
    sizes = rows.norm(dim=-1)
    return bool(sizes.isfinite().all()) and float(sizes.std()) < 1e-3 * float(sizes.mean())


def _divided(one: ObservedAttention, recorded: Recorded) -> bool:
    """True if the context is divided by the sums of the weights, after the product."""
    shares = (one.context / one.weights.sum(-1, keepdim=True)).flatten().sort().values
    return any(
        step.name.startswith("div")
        and bool((step.tags.node == one.layout.context.index).all())
        and step.value.numel() == shares.numel()
        and torch.allclose(step.value.double().flatten().sort().values, shares, equal_nan=True)
        for step in recorded.recorder.steps
    )


def extras(stages: ReadStages) -> Iterator[tuple[str, Values]]:
    """Remarks on mechanisms that are not declared, and are no mistake."""
    read = stages.weighing
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
    elif stages.learned and read.scale is not None:
        yield "scale-learned", {}
    if stages.beside or (read.axis == "keys" and not read.sums and not read.after):
        yield "beside", {}


def broken(bad: Trial, code: str, way: str) -> Claim:
    """The claim of a call whose output is not finite."""
    return Claim("mask", code, Found(way, {}, ("first-bad", first_bad(bad.target))))


def read_claims(stages: ReadStages, first: Trial, e: Evidence) -> Iterator[Claim]:
    """Yield each stage that differs from the declared one, with both numbers."""
    yield from _softmax(stages)
    contract, wanted = first.setting.contract, right_scale(first.setting)
    plain = contract.softcap is None and contract.bias is None and contract.alibi_slopes is None
    plain = plain and not (stages.learned and contract.scale is None)
    if stages.scale is not None and plain and abs(stages.scale - wanted) > SLOPE * abs(wanted):
        used = stages.scale
        values = {"used": f"{used:.4g}", "square": f"{used**-2:.4g}" if used else "∞"}
        found = Found("constant", values, slope(used, first))
        yield Claim("scale", "scale.wrong", against_declared(found, used, contract))
    elif stages.varies and plain:
        yield Claim("scale", "scale.wrong", Found("varies"))
    if stages.infinite and not isinstance(e, HeadsEvidence):
        yield broken(first, "output.non-finite", "infinity")
    elif stages.axis in ("keys", None):
        yield from _mask(stages, first, e)
    for change in stages.weighing.after if stages.weighing is not None else ():
        if change.kind == "scale" and abs(change.number - 1) > SLOPE:
            measured = ("sums", sums_of(stages.weights))
            way = Found("scaled", {"factor": f"{change.number:.4g}"}, measured)
            yield Claim("product", "law.value", way)
        if change.kind == "unknown" and change.stage.name and change.stage.axis is None:
            way = Found("after-softmax", {"operation": change.stage.name})
            yield Claim("product", "differs", way)


def _softmax(stages: ReadStages) -> Iterator[Claim]:
    if stages.axis == "keys" or stages.beside:
        return
    measured = ("sums", sums_of(stages.weights))
    over = AXES.get(stages.axis or "")
    for axis, name in ((-2, "queries"), (1, "heads"), (0, "batch")):
        total = stages.weights.sum(axis)
        total = total[~total.isnan()]  # what is hidden in all samples is 0 / 0
        one = len(total) > 0 and torch.allclose(total, torch.ones_like(total), atol=SUMS)
        if stages.weights.shape[axis] > 1 and one:
            over = name
            break
    if over is not None:
        yield Claim("softmax", "softmax.axis", Found("over", {"axis": over}, measured))
    elif not stages.divided:
        way = "operation" if stages.normaliser else "none"
        values = {"operation": stages.normaliser}
        yield Claim("softmax", "softmax.missing", Found(way, values, measured))


def against_declared(found: Found, used: float, contract: Contract) -> Found:
    """The same factor against the scale that is declared, if one is."""
    if contract.scale is None:
        return found
    values = {"size": found.values.get("size", f"{used:.4g}"), "wanted": f"{contract.scale:g}"}
    way = "constant-declared" if found.way == "constant" else "declared"
    return Found(way, values, found.measured)


def slope(used: float, first: Trial) -> tuple[str, Values]:
    """The measured scale and the right one."""
    right, words = right_scale(first.setting), scale_in_words(first)
    return "slope", {"used": f"{used:.4g}", "right": f"{right:.4g}", "words": words}


def scale_in_words(case: Trial) -> str:
    """The declared scale as a person writes it."""
    given = case.setting.contract.scale
    return f"1/√{case.setting.head_dim}" if given is None else f"{given:g}"


def _mask(stages: ReadStages, first: Trial, e: Evidence) -> Iterator[Claim]:
    at = first.setting
    right = right_visible(at).expand(stages.visible.shape)
    declared = e.contract.masked or at.mask is not None
    if not declared or (bool(right.all()) and bool(stages.visible.all())):
        return
    named = mask_named(stages.visible, at, torch.ones_like(stages.visible))
    if named is RIGHT_MASK:
        return
    picture = ("mask", drawn_mask(first, None, stages.visible[0, 0]))
    fill = None if stages.weighing is None else stages.weighing.number("fill")
    if fill is not None:
        way = "zero" if abs(fill) < 1e-3 else "number"
        found = Found(way, {"number": f"{fill:.4g}"}, picture)
        yield Claim("mask", "mask.soft", found)
        return
    code, way = ("differs", "mask") if named is None else (named.code, named.way)
    values = {} if named is None else named.values
    yield Claim("mask", code, Found(way, values, picture))


def setting_of(contract: Contract, tokens: int, heads: int = 1) -> Setting:
    """The setting of tokens that attend to each other, of which nothing else is known."""
    return Setting(contract, 1, heads, heads, tokens, tokens, 1, 1)


def mask_named(seen: Tensor, at: Setting, visible: Tensor) -> StageEdit | None:
    """The edit whose mask was seen, RIGHT_MASK for that of the contract, or None for neither.

    Args:
        seen: the pairs that attend.
        at: the call.
        visible: the pairs that are compared.
    """
    for edit in (RIGHT_MASK, *MASKS):
        if edit.needs(at.contract):
            other = edit.applied(RIGHT).seen(at) ^ seen
            if not (other & visible).any():
                return edit
    return None
