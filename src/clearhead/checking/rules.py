"""Every rule, in order: what is a mistake, what it excludes, what it explains.

A rule looks at the evidence, which nothing here changes, and says that it found its mistake, that it
is clear, or that it cannot know. What a rule that found something excludes is not asked any more;
what it explains is reported as following from it. The order is that of the tuple below.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.parts import PartEvidence
from clearhead.checking.hypotheses.mask_edits import MASKS
from clearhead.checking.judging import (
    behaviours,
    decoders,
    dependencies,
    laws,
    lengths,
    modules,
    parts,
    training,
)
from clearhead.checking.judging.account import account
from clearhead.checking.judging.behaviours import CROSS, DECODING, HEADS, SELF, WITHIN
from clearhead.checking.judging.verdicts import Claim, Clear, Unknown, Verdict
from clearhead.checking.subject.refusals import first_line
from clearhead.recording.attempt import attempt

ALL = "*"
PARTS = (PartEvidence,)
PADDED = (PaddedEvidence,)
SEEN = tuple(dict.fromkeys(each.code for each in MASKS))
INNER = "mask softmax scale order product positions"


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        code: the name of the mistake.
        topic: what it is about; a topic is verified when all of its rules are clear.
        applies: what the evidence says; None if it is not asked.
        of: the kinds of evidence that it is for, and that it is not for.
        excludes: codes, topics, or "*", apart by spaces, that are not asked once it is found.
        explains: codes and topics that follow from it.
    """

    code: str
    topic: str
    applies: Callable[[Any], Verdict | None]
    of: tuple[type[Evidence], ...] = (Evidence,)
    but: tuple[type[Evidence], ...] = ()
    excludes: str = ""
    explains: str = ""

    def asked(self, evidence: Evidence) -> bool:
        """True if it is for this kind of evidence."""
        return isinstance(evidence, self.of) and not isinstance(evidence, self.but)

    def verdict(self, evidence: Evidence) -> Verdict | None:
        """Return its verdict; what cannot be read is not known."""
        found, error = attempt(self.applies, evidence)
        return found if error is None else Unknown("unreadable", {"error": first_line(error)})


def _named(
    code: str, question: Callable[[Any], Claim | Verdict | None]
) -> Callable[[Any], Verdict | None]:
    """The part that one code has in an answer that names the mistake itself."""

    def applies(evidence: Any) -> Verdict | None:
        answer = question(evidence)
        if not isinstance(answer, Claim):
            return answer
        return answer.found if answer.code == code else Clear()

    return applies


def _claimed(code: str, topic: str) -> Callable[[Any], Verdict | None]:
    """The mistake of one code in the account of what is inside."""

    def applies(evidence: Evidence) -> Verdict | None:
        found = account(evidence)
        mine = next(
            (each.found for each in found.claims if each.code == code and each.topic == topic), None
        )
        if mine is not None:
            return mine
        if topic in found.clear:
            return Clear(topic)
        why = found.unknown.get(topic)
        return Unknown(*why) if why is not None else None

    return applies


def _inside(code: str, topic: str, **more: Any) -> Rule:
    """Return a rule about one attention, which claims what its topic and code say."""
    return Rule(code, topic, _claimed(code, topic), WITHIN, **more)


def _padding(code: str) -> Rule:
    excludes = "mask padding leaks softmax scale product one-token"
    return Rule(code, "padding", _named(code, modules.padding), PADDED, excludes=excludes)


def _tokens(code: str, topic: str, applies: Callable[[Any], Verdict | None], **more: Any) -> Rule:
    return Rule(code, topic, applies, SELF, **more)


def _behaviours(rows: tuple[behaviours.Behaviour, ...]) -> Iterator[Rule]:
    """A rule for each code of each row."""
    for row in rows:
        for code in row.codes.split():
            question = _named(code, row.question)
            yield Rule(code, row.topic, question, row.of, row.but, row.excludes, row.explains)


PADDING = (
    "mask.broadcast",
    "mask.inverted",
    "mask.missing",
    "mask.off-by-one",
    "mask.after-softmax",
    "mask.soft",
    "mask.padding-ignored",
    "output.non-finite",
    "mask.top-left",
    "differs",
)
RULES: tuple[Rule, ...] = (
    # Whether it runs.
    Rule("shape.fixed", "call", behaviours.widths, SELF, excludes=ALL),
    # A part of attention: what is left out may hold what torch.empty left.
    *(
        Rule(code, parts.TOPIC, _named(code, parts.claim), PARTS, excludes="repetition")
        for code in parts.CODES
    ),
    # Whether it gives the same twice: nothing else can be measured where it does not.
    *_behaviours(behaviours.FIRST),
    Rule("context.wrong", "context", modules.swapped_length, CROSS, excludes=ALL),
    Rule("shape.fixed", "widths", behaviours.widths, HEADS),
    # The arrangement of heads.
    *(
        _tokens(
            code,
            "heads",
            _named(code, modules.arranged(modules.BEFORE)),
            excludes=excludes,
            explains=explains,
        )
        for code, excludes, explains in (
            ("heads.layout", f"leaks padding law.samples heads {INNER}", ""),
            ("law.pairs", "leaks padding batch", "mask"),
        )
    ),
    _inside("softmax.axis", "softmax", excludes="law.samples leaks padding", explains="mask"),
    _tokens("law.value", "product", laws.centred, excludes="leaks"),
    Rule("law.value", "product", _claimed("law.value", "product"), PADDED, excludes="padding"),
    # Padding, where samples are kept apart without it.
    Rule("law.samples", "batch", dependencies.mixed, PADDED, excludes=f"leaks padding {INNER}"),
    Rule("law.samples", "batch", behaviours.samples, PADDED, excludes="padding"),
    *(_padding(code) for code in PADDING),
    Rule("mask.padding-ignored", "padding", modules.padded_queries, (PaddedEvidence,)),
    Rule("mask.leaks-nan", "nan", modules.padding_nan, (PaddedEvidence,)),
    Rule("mask.empty-row", "empty", modules.all_padding, (PaddedEvidence,)),
    # Two sides.
    Rule("context.wrong", "context", modules.swapped, CROSS, excludes="context.wrong"),
    Rule("law.pairs", "context", laws.no_query, CROSS, excludes="heads product"),
    Rule("context.wrong", "context", modules.ignored, CROSS),
    # What is inside.
    Rule("shape.fixed", "outside", training.outside, WITHIN, explains="scale"),
    _tokens("law.samples", "batch", dependencies.mixed, excludes=f"leaks {INNER}"),
    _inside("law.samples", "batch"),
    _inside("softmax.missing", "softmax"),
    _inside("softmax.twice", "softmax"),
    _inside(
        "mask.inverted",
        "mask",
        excludes="leaks one-token",
        explains="mask.empty-row output.non-finite",
    ),
    *(
        _inside(code, "mask", excludes="leaks", explains="mask.empty-row one-token")
        for code in (
            "mask.missing",
            "mask.off-by-one",
            "mask.top-left",
            "mask.after-softmax",
            "mask.soft",
            "mask.broadcast",
        )
    ),
    _inside("output.non-finite", "mask", excludes="leaks"),
    _inside("mask.empty-row", "mask"),
    *(_inside(code, "scale") for code in ("scale.missing", "scale.wrong")),
    _inside("bias.wrong", "order"),
    # A cap behind the mask makes a number of −∞, and the future is seen.
    _inside("softcap.order", "order", explains="leaks"),
    *(
        _inside(code, "product")
        for code in (
            "parameter.dead",
            "law.value",
            "law.scores",
            "law.pairs",
            "law.length",
        )
    ),
    *(
        Rule(code, "heads", _claimed(code, "heads"), HEADS)
        for code in ("heads.layout", "heads.gqa-tiled")
    ),
    *(
        Rule(code, "positions", _claimed(code, "positions"), HEADS)
        for code in ("rope.layout", "rope.offset")
    ),
    *(
        Rule(code, "positions", _named(code, modules.rotation), SELF, CROSS)
        for code in ("rope.layout", "rope.offset", "differs")
    ),
    _tokens("heads.gqa-tiled", "heads", modules.tiled),
    *(
        _tokens(
            code,
            "heads",
            _named(code, modules.arranged(modules.AFTER)),
            excludes="product parameter.dead",
        )
        for code in ("heads.layout", "law.pairs")
    ),
    _inside("differs", "mask", excludes="leaks"),
    _inside("differs", "order"),
    _inside("differs", "product"),
    _tokens("differs", "product", modules.changed),
    Rule("output.non-finite", "one-token", behaviours.one_token, SELF, CROSS),
    *(
        Rule(code, "leaks", _named(code, dependencies.leaks), SELF, CROSS)
        for code in (*SEEN, "differs")
    ),
    # Decoding.
    *(
        Rule(code, "mask", _named(code, decoders.full_mask), DECODING, excludes="decoding")
        for code in (*SEEN, "differs")
    ),
    *(
        Rule(code, "decoding", _named(code, applies), of)
        for applies, of in ((decoders.cache, DECODING), (decoders.model_cache, SELF))
        for code in ("cache.wrong", "rope.offset")
    ),
    Rule("cache.wrong", "reset", decoders.stale, DECODING),
    *(
        Rule(code, "padding", _named(code, modules.model_padding), SELF, (*CROSS, PaddedEvidence))
        for code in PADDING
    ),
    # Inputs, promises, and what else a call shows.
    *_behaviours(behaviours.BEHAVIOURS),
    Rule("law.scores", "law", laws.scores, WITHIN, explains="grad.wrong"),
    # Training.
    *_behaviours(behaviours.TRAINING),
    _tokens("heads.layout", "heads", modules.count),
    Rule("mask.missing", "lost", laws.lost_mask, WITHIN),
    # The laws: what is broken is wrong, with a name or without one.
    *_behaviours(behaviours.LAWS),
    *(
        Rule(f"law.{name}", "law", applies, of, but)
        for name, applies, of, but in (
            ("pairs", laws.pairs, SELF, ()),
            ("value", laws.value, SELF, ()),
            ("length", lengths.length, (Evidence,), ()),
        )
    ),
)
