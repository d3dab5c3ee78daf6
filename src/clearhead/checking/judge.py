"""Ask every rule, and say what must be known before anything is called right."""

from dataclasses import dataclass

from torch import Tensor

from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.state import unfilled
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judging.verdicts import Found, Unknown, Verdict
from clearhead.checking.rules import RULES, Rule

# What must be known before anything is called right; the rest is, where it is declared.
REQUIRED = {
    HeadsEvidence: ("softmax", "scale", "product", "heads"),
    TokensEvidence: ("softmax", "scale", "product", "heads"),
    DecodingEvidence: ("decoding",),
}
DECLARED = {
    "mask": ("causal", "window", "documents"),
    "order": ("bias", "alibi_slopes", "softcap", "sinks"),
    "positions": ("rope",),
    "dropout": ("dropout",),
    "dtypes": ("dtypes",),
}


def required(evidence: Evidence) -> tuple[str, ...]:
    """Return the topics that must be verified for this evidence to be right, each once.

    These are fixed topics of its kind, those of the declared fields (of a decoder the mask alone), "decoding" for a
    model with a cache, "padding" for padded evidence, and "context" for cross-attention.
    """
    always = [topics for kind, topics in REQUIRED.items() if isinstance(evidence, kind)]
    found = [topic for topics in always for topic in topics]
    for topic, names in DECLARED.items():
        if isinstance(evidence, DecodingEvidence) and topic != "mask":
            continue
        given = [getattr(evidence.contract, name) for name in names]
        if any(isinstance(each, Tensor) or each not in (None, (), False, 0) for each in given):
            found.append(topic)
    if isinstance(evidence, TokensEvidence) and evidence.steps is not None:
        found.append("decoding")
    if isinstance(evidence, PaddedEvidence):
        found.append("padding")
    if isinstance(evidence, CrossEvidence):
        found.append("context")
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Judged:
    """The result of one rule: a code with the verdict on it, or the code `by` that excluded it.

    `verdict` is None if the rule was excluded, or does not apply (then `by` is "").
    """

    rule: Rule
    code: str
    verdict: Verdict | None
    by: str = ""


def judge(evidence: Evidence) -> tuple[Judged, ...]:
    """Ask every rule in order, and return the results; rules for other kinds of evidence are left out.

    A rule is not asked if an earlier mistake excludes it, and a law if there is any mistake. If the call failed, only
    the rules of the call are asked, and unless one finds a mistake the error is raised. All answers are Unknown if
    parameters were never filled.
    """
    judged: list[Judged] = []
    excluded: dict[str, str] = {}
    names = unfilled(evidence.given)
    never_filled = Unknown("unfilled", {"names": ", ".join(names)}) if names else None
    for rule in RULES:
        if not rule.is_for(evidence):
            continue
        failed = evidence.settled.error
        if failed is not None and rule.topic != "call" and "*" not in excluded:
            raise evidence.call_error(failed) from failed
        code, verdict = rule.codes.partition(" ")[0], None
        by = excluded.get("*", excluded.get(rule.topic, ""))
        if rule.topic == "law" and not by:  # what has a name breaks a law too
            by = next((each.code for each in judged if isinstance(each.verdict, Found)), "")
        if not by:
            code, verdict = (code, never_filled) if never_filled else rule.answer(evidence)
            by = excluded.get(code, "") if isinstance(verdict, Found) else ""
        judged.append(Judged(rule, code, None if by else verdict, by))
        if isinstance(verdict, Found) and not by:
            for each in rule.excludes.split():
                excluded.setdefault(each, code)
    return tuple(judged)
