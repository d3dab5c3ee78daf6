"""The table of rules, in order: a question, the mistakes that it may find, and what they exclude.

A rule looks at the evidence, which nothing here changes, and answers that it found a mistake, that its topic is clear,
or that it cannot know. What a rule that found something excludes is not asked any more: it would follow from the
mistake. A new case is a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.hypotheses.mask_edits import MASKS
from clearhead.checking.judging import (
    behaviours,
    decoders,
    dependencies,
    laws,
    lengths,
    modules,
    training,
)
from clearhead.checking.judging.account import account
from clearhead.checking.judging.verdicts import Claim, Clear, Unknown, Verdict
from clearhead.checking.subject.refusals import first_line
from clearhead.recording.attempt import attempt

Kinds = tuple[type[Evidence], ...]
Question = Callable[[Any], Claim | Verdict | None]
ALL: Kinds = (Evidence,)
HEADS: Kinds = (HeadsEvidence,)
SELF: Kinds = (TokensEvidence,)
CROSS: Kinds = (CrossEvidence,)
PADDED: Kinds = (PaddedEvidence,)
DECODING: Kinds = (DecodingEvidence,)
WITHIN: Kinds = (HeadsEvidence, TokensEvidence)
INNER = "mask softmax scale order product positions"
SEEN = " ".join(dict.fromkeys(each.code for each in MASKS))
PADDING = f"{SEEN} mask.broadcast mask.after-softmax mask.soft mask.padding-ignored output.non-finite differs"


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        codes: the mistakes that it may find, separated by spaces; a verdict without a code is about the first.
        topic: the subject; a topic is verified when all of its rules are clear.
        question: returns a claim or verdict on the evidence; None if it does not apply.
        of: the kinds of evidence that it is for.
        but: the kinds that it is not for.
        excludes: codes, topics, or "*" for all, separated by spaces, that are not asked once it has found a mistake.
    """

    codes: str
    topic: str
    question: Question
    of: Kinds = ALL
    but: Kinds = ()
    excludes: str = ""

    def is_for(self, evidence: Evidence) -> bool:
        """Return True if it is for this kind of evidence."""
        return isinstance(evidence, self.of) and not isinstance(evidence, self.but)

    def answer(self, evidence: Evidence) -> tuple[str, Verdict | None]:
        """Return a code and the verdict on it, None if the rule does not apply.

        An error of the question makes it Unknown.
        """
        found, error = attempt(self.question, evidence)
        if error is not None:
            found = Unknown("unreadable", {"error": first_line(error)})
        if isinstance(found, Claim):
            return found.code, found.found
        return self.codes.partition(" ")[0], found


def _of_account(topic: str) -> Question:
    """Return the question for one topic of the account of an attention: its claim, else Clear, Unknown or None."""

    def question(evidence: Evidence) -> Claim | Verdict | None:
        """Return the claim on the topic, Clear, Unknown, or None if the account does not mention it."""
        found = account(evidence)
        claim = next((each for each in found.claims if each.topic == topic), None)
        if claim is not None:
            return claim
        if topic in found.clear:
            return Clear(topic)
        why = found.unknown.get(topic)
        return Unknown(*why) if why is not None else None

    return question


def _inside(topic: str, codes: str, excludes: str = "") -> Rule:
    """Return the rule for one topic of the account of an attention, for functions and modules."""
    return Rule(codes, topic, _of_account(topic), WITHIN, excludes=excludes)


RULES: tuple[Rule, ...] = (
    # Whether it runs, and gives the same twice: nothing else can be measured where it does not.
    Rule("shape.fixed", "call", behaviours.widths, SELF, excludes="*"),
    Rule(
        "dropout.in-eval law.again", "repetition", behaviours.repetition, but=DECODING, excludes="*"
    ),
    Rule("context.wrong", "context", modules.swapped_length, CROSS, excludes="*"),
    Rule("shape.fixed", "widths", behaviours.widths, HEADS),
    # The layer, from its projections on.
    _inside("heads", "heads.layout heads.gqa-tiled", excludes="leaks padding law.samples batch"),
    _inside(
        "softmax",
        "softmax.axis softmax.missing softmax.twice",
        excludes="law.samples leaks padding mask",
    ),
    # Padding, where samples are kept apart without it.
    Rule("law.samples", "batch", dependencies.mixed, PADDED, excludes=f"leaks padding {INNER}"),
    Rule("law.samples", "batch", behaviours.samples, PADDED, excludes="padding"),
    Rule(
        PADDING,
        "padding",
        modules.padding,
        PADDED,
        excludes="mask padding leaks softmax scale product one-token",
    ),
    Rule("mask.padding-ignored", "padding", modules.padded_queries, PADDED),
    Rule("mask.leaks-nan", "nan", modules.padding_nan, PADDED),
    Rule("mask.empty-row", "empty", modules.all_padding, PADDED),
    # Two sides.
    Rule("context.wrong", "context", modules.swapped, CROSS, excludes="context.wrong"),
    Rule("law.pairs", "context", laws.no_query, CROSS, excludes="heads product"),
    Rule("context.wrong", "context", modules.ignored, CROSS),
    # What is inside.
    Rule("shape.fixed", "outside", training.outside, WITHIN, excludes="scale"),
    Rule("law.samples", "batch", dependencies.mixed, SELF, excludes=f"leaks {INNER}"),
    _inside("batch", "law.samples"),
    _inside(
        "mask",
        f"{SEEN} mask.after-softmax mask.soft mask.empty-row output.non-finite differs",
        excludes="leaks mask.empty-row output.non-finite one-token",
    ),
    _inside("scale", "scale.missing scale.wrong"),
    # A cap behind the mask makes a number of −∞, and the future is seen.
    _inside("order", "bias.wrong softcap.order differs", excludes="leaks"),
    _inside("product", "parameter.dead law.value law.scores law.pairs law.length differs"),
    _inside("positions", "rope.layout rope.offset differs"),
    Rule("output.non-finite", "one-token", behaviours.one_token, SELF, CROSS),
    Rule(f"{SEEN} differs", "leaks", dependencies.leaks, SELF, CROSS),
    # Decoding.
    Rule(f"{SEEN} differs", "mask", decoders.full_mask, DECODING, excludes="decoding"),
    Rule("cache.wrong rope.offset", "decoding", decoders.cache, DECODING),
    Rule("cache.wrong rope.offset", "decoding", decoders.model_cache, SELF),
    Rule("cache.wrong", "reset", decoders.stale, DECODING),
    Rule(PADDING, "padding", modules.model_padding, SELF, (*CROSS, PaddedEvidence)),
    # Inputs, hidden tokens, and what else a call shows.
    Rule("input.modified", "inputs", behaviours.modified, but=DECODING, excludes="strides"),
    Rule("input.strided", "strides", behaviours.strided, but=DECODING),
    Rule("mask.leaks-nan", "nan", behaviours.nan_behind, WITHIN, CROSS),
    Rule("mask.empty-row", "empty", behaviours.empty_row, HEADS),
    Rule("output.non-finite", "dtypes", behaviours.overflow, WITHIN, CROSS),
    Rule("weights.not-used", "returned", training.returned, WITHIN),
    Rule("law.scores", "law", laws.scores, WITHIN, excludes="grad.wrong"),
    # Training and state.
    Rule("parameter.missing", "parameters", training.loose, SELF, excludes="parameter.dead"),
    Rule("parameter.missing", "parameters", training.shared, SELF),
    Rule("parameter.dead", "parameters", training.dead, WITHIN),
    Rule("grad.wrong", "gradients", training.gradients, but=DECODING),
    Rule("dropout.wrong dropout.never", "dropout", training.dropout, but=DECODING),
    Rule("state.mask", "state", training.mask_trained, SELF, CROSS),
    Rule("state.mask", "state", training.mask_plain, SELF),
    Rule("shape.fixed", "state", training.fixed_length, SELF, CROSS),
    Rule("mask.missing", "lost", laws.lost_mask, WITHIN),
    # The laws: what is broken is wrong, with a name or without one.
    Rule("law.again", "law", behaviours.again, but=DECODING),
    Rule("law.samples", "law", behaviours.samples, but=DECODING),
    Rule("law.pairs", "law", laws.pairs, SELF),
    Rule("law.length", "law", lengths.length),
)
CODES = tuple(dict.fromkeys(code for rule in RULES for code in rule.codes.split()))
"""Every code that a rule may find."""
