"""An account of query, key, scores, weights and context by topics, from every witness.

The first witness is a recipe that gives the same numbers on every call; the second, what was done to
the scores, step by step; the third, for functions, the weights that the identity as value shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.named_layers import trials_by_name
from clearhead.checking.evidence.splitting import asks
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import Explanation, Trial, explain, fits
from clearhead.checking.hypotheses.mutants import Mutant, bank
from clearhead.checking.hypotheses.recipe import RIGHT, right_scale, right_visible
from clearhead.checking.judging.dependencies import as_promised
from clearhead.checking.judging.drawings import drawn_mask, first_bad, first_difference, sums_of
from clearhead.checking.judging.facts import (
    DECLARED,
    Facts,
    extras,
    facts_of_stages,
    facts_of_weights,
)
from clearhead.checking.judging.laws import unnamed
from clearhead.checking.judging.names import (
    RIGHT_MASK,
    TOPICS,
    TOUCHES,
    mask_named,
    scale_named,
    topic_of,
)
from clearhead.checking.judging.verdicts import Claim, Found, Values
from clearhead.checking.ranks.launching import AskedOfRanks
from clearhead.checking.ranks.ranks_evidence import RanksEvidence
from clearhead.checking.thresholds import FOLDED, HALF_INSIDE, SLOPE, SUMS

SEEN_WRONG = 1e-6
"""An error, of the largest number, beyond rounding."""
DRAWN = 16
"""Tokens of a mask that fits beside another one in a line."""


@dataclass(frozen=True)
class Account:
    """The account of each topic: mistakes, what is clear, and why the rest is not known.

    `contract` is the declared one with what was found of the mask; `notes` are remarks.
    """

    claims: tuple[Claim, ...] = ()
    clear: frozenset[str] = frozenset()
    unknown: Mapping[str, tuple[str, Values]] = field(default_factory=dict)
    contract: Contract = field(default_factory=Contract)
    notes: tuple[tuple[str, Values], ...] = ()


_accounts: WeakKeyDictionary[Evidence | AskedOfRanks, Account] = WeakKeyDictionary()


def account(e: Evidence | AskedOfRanks) -> Account:
    """The account of what is measured, made once."""
    if e not in _accounts:
        found = _made(e)
        known = isinstance(e, HeadsEvidence | TokensEvidence | RanksEvidence)
        at = [each.setting for each in e.trials] if known else []
        narrow = at and all(each.head_dim == 1 and each.contract.scale is None for each in at)
        if narrow and "scale" in found.clear:
            unknown = {**found.unknown, "scale": ("one-wide", {})}
            found = replace(found, clear=found.clear - {"scale"}, unknown=unknown)
        _accounts[e] = found
    return _accounts[e]


def _made(e: Evidence | AskedOfRanks) -> Account:
    if isinstance(e, HeadsEvidence):
        return _of_heads(e)
    if isinstance(e, RanksEvidence):
        return _of_ranks(e)
    return _of_tokens(e) if isinstance(e, TokensEvidence) else Account(contract=e.contract)


def _of_ranks(e: RanksEvidence) -> Account:
    found = e.explained
    if found.known:
        return _of_recipe(found, e.trials, (*TOPICS, "heads", "positions", "exchange"))
    bad = next((each for each in e.trials if not each.target.isfinite().all()), None)
    if bad is not None:
        claim = _broken(bad, "mask.non-finite", "output")
    else:
        measured = first_difference([each.under(found.contract) for each in e.trials])
        claim = Claim("order", "differs", Found("ranks", {}, measured))
        if found.error < HALF_INSIDE:
            way = Found("inside", {"error": f"{found.error:.1g}"}, measured)
            claim = Claim("exchange", "ranks.precision", way)
    return Account((claim,), frozenset(), _hidden(claim), found.contract)


def _of_heads(e: HeadsEvidence) -> Account:
    found = e.explained
    first = e.trials[0].under(found.contract)
    if e.fitted_dim is not None:
        clear = frozenset((*TOPICS, "heads", "positions"))
        return Account((), clear, {}, found.contract, (("made-for", {"head_dim": e.fitted_dim}),))
    if found.known:
        return _of_recipe(found, e.judged, (*TOPICS, "heads", "positions"))
    if found.error < HALF_INSIDE and e.recorded is not None and e.recorded.recorder.halves:
        note = ("halves", {"error": f"{found.error:.1g}"})
        return Account((), frozenset((*TOPICS, "heads")), {}, found.contract, (note,))
    finite = [each for each in e.judged if each.target.isfinite().all()]
    if 0 < len(finite) < len(e.judged):
        among = explain(finite, e.promised, e.mutants)
        if among.known and among.mutants:
            named = _of_recipe(among, finite, (*TOPICS, "heads", "positions"))
            bad = next(each for each in e.judged if not each.target.isfinite().all())
            return replace(named, claims=(*named.claims, _broken(bad, "mask.non-finite", "output")))
    facts = facts_of_weights(e)
    claims = list(_read(facts, first, e)) if facts is not None else []
    bad = next((each for each in e.trials if not each.target.isfinite().all()), None)
    if bad is not None:
        claims = [each for each in claims if each.code != "differs"]
        if facts is not None and (facts.weights.isnan().any(-1) & facts.visible.any(-1)).any():
            # What sees something and is NaN is so by another mistake than what it sees.
            claims = [each for each in claims if each.topic != "mask"]
        hidden = any(each.topic == "mask" for each in claims)
        way, code = ("follows", "mask.empty-row") if hidden else ("output", "mask.non-finite")
        if facts is not None and facts.infinite:
            way, code = "infinity", "mask.non-finite"
        claims.append(_broken(bad, code, way))
    if e.alone > 1e-5 and not any(each.code == "softmax.axis" for each in claims):
        claims = [
            Claim("batch", "batch.mixed", Found("alone", {}, ("alone", {"gap": f"{e.alone:.3g}"})))
        ]
    if not claims:
        bare = Claim("product", "differs", Found("output", {}, first_difference(e.trials)))
        law = unnamed(e)
        claims = [
            bare
            if law is None
            else replace(law, found=replace(law.found, measured=bare.found.measured))
        ]
    return Account(tuple(claims), frozenset(), _hidden(claims[0]), found.contract)


def _broken(bad: Trial, code: str, way: str) -> Claim:
    """The claim of a call that gave what is not finite."""
    return Claim("mask", code, Found(way, {}, ("first-bad", first_bad(bad.target))))


def _of_tokens(e: TokensEvidence) -> Account:
    accounts = [_of_group(e, index) for index in range(len(e.groups))]
    if not accounts:
        trials = trials_by_name(e)
        if len(trials) > 1:
            found = explain(
                trials, e.contract, lambda each: bank(each, given=False, masked=True, whole=False)
            )
            if found.known:
                return _of_recipe(found, trials, TOPICS)
        why = "linear" if e.observed else "no-attention"
        return Account(unknown=dict.fromkeys(TOPICS, (why, {})), contract=e.contract)
    first = next((each for each in accounts if each.claims), accounts[0])
    if first.claims:
        return first
    clear = frozenset.intersection(*(each.clear for each in accounts))
    unknown = {topic: why for each in accounts for topic, why in each.unknown.items()}
    notes = tuple(note for each in accounts for note in each.notes)
    return replace(first, clear=clear, unknown=unknown, notes=notes)


def _of_group(e: TokensEvidence, index: int) -> Account:
    found, trials, group = e.explanations[index], e.group_trials(index), e.groups[index]
    if found.known:
        mutant = found.mutants[:1]
        if mutant and mutant[0].code == "scale.missing" and _folded(e):
            return Account((), frozenset(TOPICS), {}, found.contract, (("folded", {}),))
        unsure = any(each.gain is None for each in group.attentions)
        if unsure and mutant and mutant[0].code.startswith("scale."):
            # Query and key are taken as they are, and hold what their parts were scaled by.
            clear, why = frozenset(TOPICS) - {"scale"}, {"scale": ("scale", {})}
            return Account((), clear, why, found.contract, (("scale-unknown", {}),))
        one = group.attentions[0]
        swapped = bool(mutant) and mutant[0].code == "softmax.axis" and one.layout.sides == (1, 0)
        if swapped and e.recorded is not None and not asks(e.recorded.recorder, one):
            # The same numbers: query and key have changed places, or the weights are transposed.
            turned = replace(mutant[0], code="law.value", way="transposed", values={})
            found = replace(found, mutants=(turned, *found.mutants))
        return _of_recipe(found, trials, TOPICS)
    facts = facts_of_stages(group, e.recorded)
    claims = list(_read(facts, trials[0].under(found.contract), e))
    notes = tuple(extras(facts))
    unknown: dict[str, tuple[str, Values]] = {}
    if group.arranged is None:
        # Which pairs these are is not known, hence the mask by what moves what alone.
        claims = [each for each in claims if each.topic != "mask"]
        if as_promised(e) is None:
            unknown["mask"] = ("mixed-before", {})
    elif not claims and not notes and _by_its_own_mask(e, trials[0].under(found.contract), facts):
        return Account((), frozenset(TOPICS) - {"mask"}, {}, found.contract)
    elif not claims and not notes:
        claims = [Claim("product", "differs", Found("inside", {}, first_difference(trials)))]
    kinds = {name for field, name in DECLARED.items() if getattr(e.contract, field) is not None}
    fixed = bool(notes) and all(key in kinds and of.get("of") != "input" for key, of in notes)
    if fixed and not claims and group.arranged is not None:
        claims = [Claim("order", "differs", Found("otherwise", {}, first_difference(trials)))]
    if claims:
        return Account(tuple(claims), frozenset(), _hidden(claims[0]), found.contract, notes)
    if any(key == "scale-unknown" for key, _ in notes):
        unknown["scale"] = ("scale", {})
    if kinds:
        unknown["order"] = ("more-than-attends", {})
    return Account((), frozenset(TOPICS) - set(unknown), unknown, found.contract, notes)


def _by_its_own_mask(e: TokensEvidence, first: Trial, facts: Facts) -> bool:
    """True if nothing is declared of the mask, and the definition under the seen one gives the same."""
    setting = first.setting._replace(mask=facts.visible)
    declared = e.contract.causal is not None or e.contract.window is not None
    return not declared and fits([replace(first, setting=setting)], RIGHT) is not None


def _hidden(claim: Claim) -> dict[str, tuple[str, Values]]:
    """The topics of which nothing is known beside a mistake of another one."""
    topics = (each for each in (*TOPICS, "heads", "positions", "exchange") if each != claim.topic)
    return dict.fromkeys(topics, ("hidden-by", {"code": claim.code}))


def _of_recipe(found: Explanation, trials: Sequence[Trial], topics: Sequence[str]) -> Account:
    """The account of a subject that follows this recipe."""
    trials = [each.under(found.contract) for each in trials]
    touched = {name for mutant in found.mutants[:1] for name in mutant.changes}
    clear = frozenset(topic for topic in topics if not TOUCHES.get(topic, touched) & touched)
    claims = []
    for mutant in found.mutants[:1]:
        also = tuple(
            (each.code, each.way, each.values)
            for each in found.mutants[1:]
            if (each.code, each.way, each.values) != (mutant.code, mutant.way, mutant.values)
        )
        measured = _measured(mutant, trials, found)
        topic = topic_of(mutant.code)
        claims.append(Claim(topic, mutant.code, Found(mutant.way, mutant.values, measured, also)))
        bad = next((each for each in trials if not each.target.isfinite().all()), None)
        if bad is not None:
            code = "mask.non-finite" if mutant.code.startswith("softmax") else "mask.empty-row"
            claims.append(_broken(bad, code, "follows"))
    unknown = _hidden(claims[0]) if claims else {}
    unknown = {topic: why for topic, why in unknown.items() if topic not in clear}
    return Account(tuple(claims), clear, unknown, found.contract)


def _measured(mutant: Mutant, trials: Sequence[Trial], found: Explanation) -> tuple[str, Values]:
    first = trials[0]
    if mutant.code.startswith("scale."):
        return _slope(found.recipe.scale(first.setting), first)
    if mutant.code.startswith(("mask.", "ranks.")) and {"visible", "start"} & set(mutant.changes):
        wrong = [each for each in trials if each.error(RIGHT) > SEEN_WRONG] or trials
        shown = next((each for each in wrong if each.setting.kv_len <= DRAWN), wrong[0])
        if "arrange" not in mutant.changes and (shown.setting.kv_len <= DRAWN or shown is first):
            return "mask", drawn_mask(shown, found.recipe)
    if mutant.code.startswith("softmax."):
        weights = found.recipe.weights(first.query, first.key, first.setting)
        return "sums", sums_of(weights)
    return first_difference(trials)


def _slope(used: float, first: Trial) -> tuple[str, Values]:
    right, words = right_scale(first.setting), scale_in_words(first)
    return "slope", {"used": f"{used:.4g}", "right": f"{right:.4g}", "words": words}


def scale_in_words(case: Trial) -> str:
    """The declared scale as a person writes it."""
    given = case.setting.contract.scale
    return f"1/√{case.setting.head_dim}" if given is None else f"{given:g}"


def _read(facts: Facts, first: Trial, e: Evidence) -> Iterator[Claim]:
    """Name each thing that was done wrong, one by one."""
    yield from _read_softmax(facts)
    contract = first.setting.contract
    plain = contract.softcap is None and contract.bias is None and contract.alibi_slopes is None
    wanted = right_scale(first.setting)
    if facts.scale is not None and plain and abs(facts.scale - wanted) > SLOPE * abs(wanted):
        yield _scale_claim(facts.scale, first, e)
    if isinstance(e, TokensEvidence) and facts.infinite:
        yield _broken(first, "mask.non-finite", "infinity")
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
    at, measured = first.setting, _slope(used, first)
    if isinstance(e, TokensEvidence) and e.num_heads:
        at = at._replace(num_heads=e.num_heads)
    named = scale_named(used, at)
    if named:
        code, others = named[0].code, named[1:]
        also = tuple((code, each.way, each.values) for each in others if each.code == code)
        return Claim("scale", code, Found(named[0].way, named[0].values, measured, also))
    values = {"used": f"{used:.4g}", "square": f"{used**-2:.4g}"}
    return Claim("scale", "scale.wrong", Found("constant", values, measured))


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
    for change in facts.weighing.before if facts.weighing is not None else ():
        if change.kind == "fill":
            way = "zero" if abs(change.number) < 1e-3 else "number"
            values = {"number": f"{change.number:.4g}"}
            yield Claim("mask", "mask.multiplied", Found(way, values, picture))
            return
        if change.kind == "number" and _is_the_mask(change.cells, right):
            yield Claim("mask", "mask.added-as-number", Found("hidden", {}, picture))
            return
    if named is not None:
        yield Claim("mask", named.code, Found(named.way, named.values, picture))
        return
    yield Claim("mask", "differs", Found("mask", {}, picture))


def _is_the_mask(cells: Tensor | None, right: Tensor) -> bool:
    """True of the pairs that are hidden, or of all others: by how much these are raised, a softmax
    does not know."""
    if cells is None:
        return False
    seen = right.flatten(0, 1)[: len(cells)]
    return torch.equal(cells, seen) or torch.equal(cells, ~seen)


def _folded(e: TokensEvidence) -> bool:
    """True if 1/√head_dim is in the weights of the query, or half of it in query and key."""
    factor = right_scale(e.trials[0].setting)
    if e.spread is None or factor >= 1:
        return False
    query, key, usual = e.spread
    if query / key <= factor**FOLDED or key / query <= factor**FOLDED:
        return True
    half = usual * factor**0.5
    return abs(query / half - 1) < 0.1 and abs(key / half - 1) < 0.1
