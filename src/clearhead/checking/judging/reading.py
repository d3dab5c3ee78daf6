"""Claims of what was read of the scores: each thing that was done wrong, by its name."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import Trial, fits
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, band, right_scale, right_visible
from clearhead.checking.judging.drawings import drawn_mask, first_bad, sums_of
from clearhead.checking.judging.facts import Facts
from clearhead.checking.judging.names import RIGHT_MASK, mask_named, scale_named
from clearhead.checking.judging.verdicts import Claim, Found, Values
from clearhead.checking.thresholds import SLOPE
from clearhead.recording.thresholds import SUMS


def broken(bad: Trial, code: str, way: str) -> Claim:
    """The claim of a call that gave what is not finite."""
    return Claim("mask", code, Found(way, {}, ("first-bad", first_bad(bad.target))))


def read_claims(facts: Facts, first: Trial, e: Evidence) -> Iterator[Claim]:
    """Name each thing that was done wrong, one by one."""
    yield from _read_softmax(facts)
    contract = first.setting.contract
    plain = contract.softcap is None and contract.bias is None and contract.alibi_slopes is None
    plain = plain and not (facts.learned and contract.scale is None)
    wanted = right_scale(first.setting)
    if facts.scale is not None and plain and abs(facts.scale - wanted) > SLOPE * abs(wanted):
        yield _scale_claim(facts.scale, first, e)
    elif facts.varies and plain:
        yield Claim("scale", "scale.wrong", Found("varies"))
    if isinstance(e, TokensEvidence) and facts.infinite:
        yield broken(first, "mask.non-finite", "infinity")
    elif facts.axis == "keys" or facts.axis is None:
        yield from _read_mask(facts, first, e)
    for change in facts.weighing.after if facts.weighing is not None else ():
        if change.kind == "scale" and abs(change.number - 1) > SLOPE:
            values = {"factor": f"{change.number:.4g}"}
            yield Claim(
                "product",
                "weights.scaled",
                Found("scaled", values, ("sums", sums_of(facts.weights))),
            )
        if change.kind == "unknown" and change.stage.name and change.stage.axis is None:
            values = {"operation": change.stage.name}
            yield Claim("product", "differs", Found("after-softmax", values))


def _read_softmax(facts: Facts) -> Iterator[Claim]:
    measured = ("sums", sums_of(facts.weights))
    if facts.twice:
        yield Claim("softmax", "softmax.twice", Found("twice", {}, measured))
        return
    if facts.turned:
        yield Claim("product", "law.value", Found("transposed", {}, measured))
        return
    if facts.axis == "keys" or facts.beside:
        return
    for axis, name in ((-2, "queries"), (1, "heads"), (0, "batch")):
        total = facts.weights.sum(axis)
        total = total[~total.isnan()]  # what is hidden in all samples is 0 / 0
        one = len(total) > 0 and torch.allclose(total, torch.ones_like(total), atol=SUMS)
        if facts.weights.shape[axis] > 1 and one:
            yield Claim("softmax", "softmax.axis", Found("over", {"axis": name}, measured))
            return
    if facts.axis is not None:
        names = {"queries": "queries", "blocks": "heads", "all": "queries and keys together"}
        yield Claim("softmax", "softmax.axis", Found("over", {"axis": names[facts.axis]}, measured))
        return
    if facts.rectified:
        yield Claim("softmax", "softmax.missing", Found("relu", {}, ("zeros", {})))
        return
    if facts.divided:
        return
    way, values = (
        ("operation", {"operation": facts.normaliser}) if facts.normaliser else ("none", {})
    )
    yield Claim("softmax", "softmax.missing", Found(way, values, measured))


def _scale_claim(used: float, first: Trial, e: Evidence) -> Claim:
    """The name for a factor: that of a size, or none."""
    at, measured = first.setting, slope(used, first)
    if isinstance(e, TokensEvidence) and e.num_heads:
        at = at._replace(num_heads=e.num_heads)
    named = scale_named(used, at)
    if named and not _is_constant(used, first, e):
        code, others = named[0].code, named[1:]
        also = tuple((code, each.way, each.values) for each in others if each.code == code)
        found = Found(named[0].way, named[0].values, measured, also)
        return Claim("scale", code, against_declared(found, used, at.contract))
    values = {"used": f"{used:.4g}", "square": f"{used**-2:.4g}" if used else "∞"}
    found = Found("constant", values, measured)
    return Claim("scale", "scale.wrong", against_declared(found, used, at.contract))


def against_declared(found: Found, used: float, contract: Contract) -> Found:
    """The same factor told against the scale that is declared, if one is."""
    if contract.scale is None:
        return found
    values = {"size": found.values.get("size", f"{used:.4g}"), "wanted": f"{contract.scale:g}"}
    way = "constant-declared" if found.way == "constant" else "declared"
    return Found(way, values, found.measured)


def _is_constant(used: float, first: Trial, e: Evidence) -> bool:
    """True if the same factor gives what came at other sizes too."""
    if not isinstance(e, HeadsEvidence):
        return False
    constant = replace(RIGHT, scale=lambda at: used)
    trials = [each.under(first.setting.contract) for each in e.trials]
    widths = {each.setting.head_dim for each in trials}
    return len(widths) > 1 and fits(trials, constant) is not None


def slope(used: float, first: Trial) -> tuple[str, Values]:
    right, words = right_scale(first.setting), scale_in_words(first)
    return "slope", {"used": f"{used:.4g}", "right": f"{right:.4g}", "words": words}


def scale_in_words(case: Trial) -> str:
    """The declared scale as a person writes it."""
    given = case.setting.contract.scale
    return f"1/√{case.setting.head_dim}" if given is None else f"{given:g}"


def _read_mask(facts: Facts, first: Trial, e: Evidence) -> Iterator[Claim]:
    at = first.setting
    right = right_visible(at).expand(facts.visible.shape)
    declared = e.contract.causal is not None or e.contract.window is not None or at.mask is not None
    if not declared or (bool(right.all()) and bool(facts.visible.all())):
        return

    # A score below 0 that became a weight of 0 says nothing of the mask.
    told = (facts.products > 0) | (not facts.rectified)
    named = mask_named(facts.visible, at, told)
    if named is RIGHT_MASK:
        read = facts.weighing
        # Where there is no softmax, weights may be zeroed before they are divided by their sum.
        after = read.after if read is not None and not read.sums else ()
        if facts.axis is not None and any(change.kind == "fill" for change in after):
            sums = ("sums", sums_of(facts.weights))
            yield Claim("mask", "mask.after-softmax", Found("zeroed", {}, sums))
        return
    picture = ("mask", drawn_mask(first, None, facts.visible[0, 0]))
    before = facts.weighing.before if facts.weighing is not None else ()
    for change in before:
        if change.kind == "fill":
            # A number that is put over another one counts.
            number = [each.number for each in before if each.kind == "fill"][-1]
            way = "zero" if abs(number) < 1e-3 else "number"
            values = {"number": f"{number:.4g}"}
            yield Claim("mask", "mask.multiplied", Found(way, values, picture))
            return
        if change.kind == "number" and _is_the_mask(change.cells, right):
            yield Claim("mask", "mask.added-as-number", Found("hidden", {}, picture))
            return
    if named is not None:
        yield Claim("mask", named.code, Found(named.way, named.values, picture))
        return
    way = (
        "hidden" if e.contract.causal is False and _is_causal(facts.visible, right, at) else "mask"
    )
    yield Claim("mask", "differs", Found(way, {}, picture))


def _is_causal(seen: Tensor, right: Tensor, at: Setting) -> bool:
    """True if causality, counted from the first key or from the last, hides what it would of the mask."""
    return any(
        torch.equal(seen, right & band(at.query_len, at.kv_len, first, None, 0))
        for first in (0, at.kv_len - at.query_len)
    )


def _is_the_mask(cells: Tensor | None, right: Tensor) -> bool:
    """True of the pairs that are hidden, or of all others: by how much these are raised, a softmax
    does not know."""
    if cells is None:
        return False
    seen = right.flatten(0, 1)[: len(cells)]
    return torch.equal(cells, seen) or torch.equal(cells, ~seen)
