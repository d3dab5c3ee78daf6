"""An account of an attention by topics: the script of edits that gives its numbers, else the stages that differ.

The search over the table of edits comes first. Where no script gives the numbers of every call, the recorded form is
compared with the declared one, stage by stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import torch

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.splitting import Splitting
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.matching import Explanation, Trial, fits
from clearhead.checking.hypotheses.recipe import RIGHT, StageEdit, right_scale
from clearhead.checking.judging.dependencies import as_promised
from clearhead.checking.judging.drawings import drawn_mask, first_difference, sums_of
from clearhead.checking.judging.reading import (
    DECLARED,
    ReadStages,
    against_declared,
    broken,
    extras,
    learned_scale,
    read_claims,
    slope,
    stages_of_function,
    stages_of_group,
)
from clearhead.checking.judging.verdicts import Claim, Found, Values
from clearhead.checking.thresholds import FOLDED, HALF_INSIDE, SLOPE
from clearhead.recording.weighing import ACTIVATIONS

TOPICS = ("mask", "softmax", "scale", "order", "product")
# The stages of a recipe that a topic is about.
TOUCHES = {
    "mask": {"visible", "hide", "after"},
    "softmax": {"share", "after", "hide"},
    "scale": {"scale", "prepare"},
    "order": {"prepare", "share"},
    "product": {"after", "arrange", "around"},
    "heads": {"arrange", "group", "merge", "end", "around"},
    "positions": {"rotate", "arrange"},
}
SEEN_WRONG = 1e-6
"""An error, of the largest number, beyond rounding."""
DRAWN = 16
"""Tokens of a mask that fits next to another one in a line."""


@dataclass(frozen=True)
class Account:
    """The account of each topic: `claims` (the cause first), the topics that are clear, and the reasons for the others.

    Reasons and `notes` are a key of the catalogue and its values; `contract` is the declared one with the measured
    mask.
    """

    claims: tuple[Claim, ...] = ()
    clear: frozenset[str] = frozenset()
    unknown: Mapping[str, tuple[str, Values]] = field(default_factory=dict)
    contract: Contract = field(default_factory=Contract)
    notes: tuple[tuple[str, Values], ...] = ()


BY_NOUN = {
    "bias": "order",
    "softcap": "order",
    "differs": "order",
    "weights": "product",
    "law": "product",
    "parameter": "product",
    "rope": "positions",
}


def topic_of(code: str) -> str:
    """Return the topic of a code, by its noun before the dot; the noun itself if it is not in `BY_NOUN`."""
    noun = code.partition(".")[0]
    return BY_NOUN.get(noun, noun)


_accounts: WeakKeyDictionary[Evidence, Account] = WeakKeyDictionary()


def account(e: Evidence) -> Account:
    """Return the account of the evidence (cached); the scale is unknown if heads are one wide and none is declared."""
    if e not in _accounts:
        found = _made(e)
        known = isinstance(e, HeadsEvidence | TokensEvidence)
        at = [each.setting for each in e.trials] if known else []
        narrow = at and all(each.head_dim == 1 and each.contract.scale is None for each in at)
        if narrow and "scale" in found.clear:
            unknown = {**found.unknown, "scale": ("one-wide", {})}
            found = replace(found, clear=found.clear - {"scale"}, unknown=unknown)
        _accounts[e] = found
    return _accounts[e]


def _made(e: Evidence) -> Account:
    """Return the account of evidence of heads or tokens; that of other evidence holds only the contract."""
    if isinstance(e, HeadsEvidence):
        return _of_heads(e)
    return _of_tokens(e) if isinstance(e, TokensEvidence) else Account(contract=e.contract)


def _of_heads(e: HeadsEvidence) -> Account:
    """Return the account of a function, by the recipe that it follows, else by the stage that differs.

    A note, and no claim, for one that was made for another head_dim, and for one that is wrong by 16 bits inside only.
    """
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
    facts = stages_of_function(e)
    claims = list(read_claims(facts, first, e)) if facts is not None else []
    bad = next((each for each in e.trials if not each.target.isfinite().all()), None)
    if bad is not None:
        claims = [each for each in claims if each.code != "differs"]
        if facts is not None and (facts.weights.isnan().any(-1) & facts.visible.any(-1)).any():
            # What sees something and is NaN is so by another mistake than what it sees.
            claims = [each for each in claims if each.topic != "mask"]
        # A mask that is missing hides no key, so that it leaves no row empty.
        hidden = any(each.topic == "mask" and each.code != "mask.missing" for each in claims)
        way, code = ("follows", "mask.empty-row") if hidden else ("output", "output.non-finite")
        if facts is not None and facts.fill == torch.inf:
            way, code = "infinity", "output.non-finite"
        claims.append(broken(bad, code, way))
    if e.alone > 1e-5 and not any(each.code == "softmax.axis" for each in claims):
        claims = [
            Claim("batch", "law.samples", Found("alone", {}, ("alone", {"gap": f"{e.alone:.3g}"})))
        ]
    if not claims and facts is not None and facts.learned and e.contract.scale is None:
        unknown: dict[str, tuple[str, Values]] = {}
        unknown |= dict.fromkeys((*TOPICS, "heads"), ("scale-normed", {}))
        return Account((), frozenset(), unknown, found.contract)
    claims = claims or [_unnamed(e.trials, "output")]
    return Account(tuple(claims), frozenset(), _hidden_by(claims[0]), found.contract)


def _of_tokens(e: TokensEvidence) -> Account:
    """Return the account of a module: of the first group of heads with a mistake, else what is clear in all groups.

    Without groups, that of the layer by its parameters' names if that is known, else all is unknown. That layer comes
    instead of a mistake too if it is right, and there is one group or the first is unexplained.
    """
    if not e.groups:
        found = e.layer_by_name
        if found is not None and found.known:
            return _of_layer(e, found)
        why = "linear" if e.observed else "no-attention"
        topics = (*TOPICS, "heads")
        return Account(unknown=dict.fromkeys(topics, (why, {})), contract=e.contract)
    accounts = [_of_group(e, index) for index in range(len(e.groups))]
    first = next((each for each in accounts if each.claims), accounts[0])
    if first.claims:
        known = e.layer_by_name if len(e.groups) == 1 or not e.explanations[0].known else None
        return _of_layer(e, known) if known is not None and known.right else first
    clear = frozenset.intersection(*(each.clear for each in accounts))
    unknown = {topic: why for each in accounts for topic, why in each.unknown.items()}
    notes = tuple(note for each in accounts for note in each.notes)
    return replace(first, clear=clear, unknown=unknown, notes=notes)


def _of_layer(e: TokensEvidence, found: Explanation) -> Account:
    """Return the account of a layer that is known from its projections on; an undeclared rotation becomes a note."""
    made = _of_recipe(found, found.trials, (*TOPICS, "heads", "positions"))
    rope = found.contract.rope
    if rope is None or e.contract.rope is not None:
        return made
    note = ("rope", {"layout": rope["layout"], "base": f"{rope['base']:,.0f}"})
    return replace(made, notes=(note,), contract=replace(found.contract, rope=None))


def _of_group(e: TokensEvidence, index: int) -> Account:
    """Return the account of a group: by its layer if a recipe explains that and its products follow no edits.

    Else by a recipe with edits from the projected value on; else by its products and the heads' layout. Sliced rows,
    outputs of zeros, or a rotation of mixed tokens rule the layer out.
    """
    inside, layer = e.explanations[index], e.layers[index]
    each = e.splittings[index]
    if layer is None and len(e.groups) == 1:
        layer = e.layer_by_name
    # Zeros are the definition of zeros, which shows nothing.
    shown = layer is not None and any(bool(trial.target.any()) for trial in layer.trials)
    if layer is not None and any("rotate" in edit.changes for edit in layer.script):
        # Rows of several tokens have no position that a rotation is about.
        shown = shown and _why_tokens_unknown(e, each) is None
    if (
        layer is not None
        and shown
        and layer.known
        and not (inside.known and inside.script)
        and not each.sliced
    ):
        return _of_layer(e, layer)
    end = e.ends[index]
    if end is not None and end.script:
        return _of_recipe(end, end.trials, (*TOPICS, "heads"))
    made = _inside(e, index)
    seen = [split.num_heads or 0 for split in e.splittings]
    declared = e.contract.num_heads
    if declared is not None and seen[0] and declared not in (*seen, sum(seen)):
        wrong = Found("other", {"declared": declared, "seen": seen[0]})
        return replace(made, claims=(*made.claims, Claim("heads", "heads.layout", wrong)))
    if (each.merged is False or each.sliced) and not e.dependency.mixed:
        wrong = Found("sliced" if each.sliced else "viewed")
        return Account((Claim("heads", "heads.layout", wrong),), contract=made.contract)
    if made.claims:
        return made
    changed = set(each.changed) - LAYERS
    if changed:
        claim = Claim("product", "differs", Found("context", {"operation": ", ".join(changed)}))
        return Account((claim,), contract=made.contract)
    if e.contract.rope is not None:
        if _why_tokens_unknown(e, each) is None and _keeps_norms(e, index):
            return Account(
                (Claim("positions", "differs", Found("rotation")),), contract=made.contract
            )
        made = replace(made, unknown={**made.unknown, "positions": ("rotation", {})})
    why = _why_tokens_unknown(e, next((x for x in e.splittings if x.merged is not None), each))
    if why is not None:
        return replace(made, unknown={**made.unknown, "heads": why})
    return replace(made, clear=made.clear | {"heads"})


# An activation between context and projection, as in LeViT, is a layer.
LAYERS = ACTIVATIONS - {"sigmoid"} | {"hardswish", "mish"}


def _keeps_norms(e: TokensEvidence, index: int) -> bool:
    """Return True if the queries have the norms that they were projected with, as after any rotation.

    False without a known layer.
    """
    layer = e.layers[index]
    if layer is None or not layer.trials:
        return False
    trials = layer.trials[0], e.group_trials(index)[0]
    one, other = (each.query.norm(dim=-1).flatten().sort().values for each in trials)
    return one.shape == other.shape and torch.allclose(one, other)


def _why_tokens_unknown(e: TokensEvidence, each: Splitting) -> tuple[str, Values] | None:
    """Return why the tokens of the rows of a layer are not known, a key and values; None if they are known."""
    if not any(source is not None and source.single for source in e.sources):
        named = e.subject.parameters().items()
        zeros = [name for name, matrix in named if matrix.ndim > 1 and not matrix.any()]
        return ("zeros", {"names": ", ".join(zeros)}) if zeros else ("mixed-before", {})
    return ("merge", {}) if each.merged is None else None


def _inside(e: TokensEvidence, index: int) -> Account:
    """Return the account of a group of heads by the query, key and value that its products read."""
    found, trials, group = e.explanations[index], e.group_trials(index), e.groups[index]
    if found.known:
        scaled = any(each.noun == "scale" for each in found.script)
        if any(each.code == "scale.missing" for each in found.script) and _scale_in_weights(e):
            return Account((), frozenset(TOPICS), {}, found.contract, (("folded", {}),))
        if scaled and e.contract.scale is None and learned_scale(group.attentions):
            return Account((), frozenset(TOPICS), {}, found.contract, (("scale-learned", {}),))
        if scaled and any(each.gain is None for each in group.attentions):
            # Query and key are taken as they are, and hold what their parts were scaled by.
            clear, why = frozenset(TOPICS) - {"scale"}, {"scale": ("scale", {})}
            return Account((), clear, why, found.contract, (("scale-unknown", {}),))
        return _of_recipe(found, trials, TOPICS)
    facts = stages_of_group(group, e.recorded)
    claims = list(read_claims(facts, trials[0].under(found.contract), e))
    if bool(facts.weights.isnan().all()):
        # Of numbers that are none nothing else is to be said.
        claims = [broken(trials[0], "output.non-finite", "tokens")]
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
        claims = [_unnamed(trials, "inside")]
    kinds = {name for field, name in DECLARED.items() if getattr(e.contract, field) is not None}
    fixed = bool(notes) and all(key in kinds and of.get("of") != "input" for key, of in notes)
    if fixed and not claims and group.arranged is not None:
        claims = [_unnamed(trials, "inside")]
    if claims:
        return Account(tuple(claims), frozenset(), _hidden_by(claims[0]), found.contract, notes)
    if any(key == "scale-unknown" for key, _ in notes):
        unknown["scale"] = ("scale", {})
    if kinds:
        unknown["order"] = ("more-than-attends", {})
    return Account((), frozenset(TOPICS) - set(unknown), unknown, found.contract, notes)


def _unnamed(trials: Sequence[Trial], way: str) -> Claim:
    """Return the claim that numbers differ: about a declared rotation, else a declared change of the scores.

    Without either it is about the product, worded as `way`. `trials` are measured by the worst call.
    """
    contract, topic = trials[0].setting.contract, "product"
    if any(getattr(contract, field) is not None for field in DECLARED):
        topic, way = "order", "otherwise"
    if contract.rope is not None:
        topic, way = "positions", "rotation"
    return Claim(topic, "differs", Found(way, {}, first_difference(trials)))


def _by_its_own_mask(e: TokensEvidence, first: Trial, facts: ReadStages) -> bool:
    """Return True if no mask is declared and the definition under the recorded mask fits the first call."""
    setting = first.setting._replace(mask=facts.visible)
    return not e.contract.masked and fits([replace(first, setting=setting)], RIGHT) is not None


def _hidden_by(claim: Claim) -> dict[str, tuple[str, Values]]:
    """Return every topic but the claim's, mapped to the reason that it is unknown: hidden by the claim."""
    topics = (each for each in (*TOPICS, "heads", "positions") if each != claim.topic)
    return dict.fromkeys(topics, ("hidden-by", {"code": claim.code}))


def _of_recipe(found: Explanation, trials: Sequence[Trial], topics: Sequence[str]) -> Account:
    """Return the account of a subject that follows this recipe: a claim for each edit of its script.

    With edits there is one more for an output that is not finite. Those of `topics` whose stages no edit changes are
    clear; any other is unknown, hidden by the first claim, except that claim's own.
    """
    trials = [each.under(found.contract) for each in trials]
    touched = {name for edit in found.script for name in edit.changes}
    clear = frozenset(topic for topic in topics if not TOUCHES.get(topic, touched) & touched)
    claims = []
    for edit in found.script:
        told = Found(edit.way, edit.values, _measured(edit, trials, found))
        if edit.noun == "scale" and set(edit.changes) == {"scale"}:
            used = found.recipe.scale(trials[0].setting)
            told = against_declared(told, used, found.contract)
        claims.append(Claim(topic_of(edit.code), edit.code, told))
    bad = next((each for each in trials if not each.target.isfinite().all()), None)
    if claims and bad is not None:
        softmax = claims[0].code.startswith("softmax")
        claims.append(broken(bad, "output.non-finite" if softmax else "mask.empty-row", "follows"))
    unknown = _hidden_by(claims[0]) if claims else {}
    unknown = {topic: why for topic, why in unknown.items() if topic not in clear}
    return Account(tuple(claims), clear, unknown, found.contract)


def _measured(edit: StageEdit, trials: Sequence[Trial], found: Explanation) -> tuple[str, Values]:
    """Return the measurement that shows an edit, key and values: a scale, a drawn mask, sums or a difference."""
    first = trials[0]
    if edit.code.startswith("scale."):
        # A size is told from the right one where the two differ.
        factors = [(found.recipe.scale(each.setting), each) for each in trials]
        apart = (
            each for each in factors if abs(each[0] / right_scale(each[1].setting) - 1) > SLOPE
        )
        return slope(*next(apart, factors[0]))
    if edit.code.startswith("mask.") and "visible" in edit.changes:
        wrong = [each for each in trials if each.error(RIGHT) > SEEN_WRONG] or trials
        shown = next((each for each in wrong if each.setting.kv_len <= DRAWN), wrong[0])
        if "arrange" not in edit.changes and (shown.setting.kv_len <= DRAWN or shown is first):
            return "mask", drawn_mask(shown, found.recipe)
    if edit.code.startswith("softmax."):
        weights = found.recipe.weights(first.query, first.key, first.setting)
        return "sums", sums_of(weights)
    return first_difference(trials)


def _scale_in_weights(e: TokensEvidence) -> bool:
    """Return True if the scale is in the weights of query or key, or its square root in both.

    The scale is the declared one, else 1/√head_dim. False if the weights were not measured, or it is 1 or more.
    """
    factor = right_scale(e.trials[0].setting)
    if e.spread is None or factor >= 1:
        return False
    query, key, usual = e.spread
    if query / key <= factor**FOLDED or key / query <= factor**FOLDED:
        return True
    half = usual * factor**0.5
    return abs(query / half - 1) < 0.1 and abs(key / half - 1) < 0.1
