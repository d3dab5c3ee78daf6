"""The report of what was judged: mistakes, what is verified, and what could not be."""

import inspect
import linecache
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clearhead.checking import words
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.judge import Judged, required
from clearhead.checking.judging.notes import notes, ticks
from clearhead.checking.judging.places import place_of
from clearhead.checking.judging.verdicts import Clear, Found, Unknown
from clearhead.checking.report import Finding, Report
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.subject.refusals import first_line, place
from clearhead.checking.subject.subject import Subject
from clearhead.recording.attempt import attempt

# For each topic, the others whose mistakes withhold its tick.
RELATED: Mapping[str, tuple[str, ...]] = {
    "mask": ("leaks", "padding"),
    "padding": ("mask", "leaks"),
    "scale": ("product", "outside"),
    "softmax": ("product",),
    "heads": ("product",),
}


def reported(
    evidence: Evidence,
    judged: tuple[Judged, ...],
) -> Report:
    """Return the report: mistakes, what is verified, and what could not be, by topic.

    A topic is passed if its rules are clear and no related topic is wrong. It is unverified if it is required and a
    rule is unknown or was not asked. Remarks are measured here, unless a mistake excluded everything.
    """
    findings = _findings(evidence, judged)
    passed: dict[str, None] = {}
    skipped: dict[tuple[str, str], list[str]] = {}
    unverified: dict[tuple[str, str], list[str]] = {}
    must = required(evidence)
    for topic in dict.fromkeys((*(each.rule.topic for each in judged), *must)):
        mine = [each for each in judged if each.rule.topic == topic]
        verdicts = [each.verdict for each in mine]
        clear = [each for each in verdicts if isinstance(each, Clear)]
        unknown = next((each for each in verdicts if isinstance(each, Unknown)), None)
        related = RELATED.get(topic, ())
        wrong = any(
            isinstance(each.verdict, Found) and each.rule.topic in (topic, *related)
            for each in judged
        )
        excluded = next((each.by for each in mine if each.by), "")
        if topic == "law":
            told_of_laws, not_asked = _laws(mine)
            passed |= dict.fromkeys(told_of_laws)
            for reason, names in not_asked.items():
                skipped.setdefault(reason, []).extend(names)
            continue
        if clear and not wrong and unknown is None and not excluded:
            for each in clear:
                passed |= dict.fromkeys(ticks(evidence, each))
            continue
        if unknown is not None:
            reason = words.unknown(unknown.why, unknown.values)
            skipped.setdefault(reason, []).extend([topic] if unknown.asked else [])
        elif excluded:
            reason = words.unknown("hidden-by", {"code": excluded})
        else:
            reason = words.unknown("no-attention", {})
        if topic in must and (unknown is not None or not wrong):
            unverified.setdefault(reason, []).append(topic)
    stopped = "*" in _excluded(judged)
    told = () if stopped else notes(evidence, [each.code for each in findings])
    return Report(
        evidence.given.name,
        tuple(findings),
        tuple(passed),
        told,
        tuple(_of_topics(topics, why) for (why, _), topics in skipped.items()),
        tuple(sorted(evidence.sizes.items())) if evidence.settled.error is None else (),
        tuple(
            _of_topics(topics, "; ".join(filter(None, reason)))
            for reason, topics in unverified.items()
        ),
        defined_at(evidence.given),
    )


def _laws(
    judged: Sequence[Judged],
) -> tuple[list[str], dict[tuple[str, str], list[str]]]:
    """Return a list of one sentence with the laws that hold ([] for none), and the codes of those that are Unknown.

    The codes are lists by the reason and the remedy, as `words.unknown` returns them.
    """
    held, not_asked = [], dict[tuple[str, str], list[str]]()
    for each in judged:
        name, verdict = each.code.partition(".")[2], each.verdict
        if isinstance(verdict, Clear):
            tokens = verdict.values.get("tokens")
            held.append(name if tokens is None else f"{name} to {tokens:,}".replace(",", " "))
        elif isinstance(verdict, Unknown):
            not_asked.setdefault(words.unknown(verdict.why, verdict.values), []).append(each.code)
    return [words.filled("tick", "laws", {"names": ", ".join(held)})] if held else [], not_asked


def _of_topics(topics: Sequence[str], why: str) -> str:
    """Return topics in words followed by their common reason; the reason alone if there are no topics."""
    names = ", ".join(
        each if each.startswith("law.") else words.filled("topic", each, {}) for each in topics
    )
    return f"{names}: {why}" if names else why


def _excluded(judged: tuple[Judged, ...]) -> set[str]:
    """Return the codes and topics that rules with a mistake exclude; "*" stands for all of them."""
    return {
        key
        for each in judged
        if isinstance(each.verdict, Found)
        for key in each.rule.excludes.split()
    }


def _findings(evidence: Evidence, judged: tuple[Judged, ...]) -> list[Finding]:
    """Return each mistake once, in the order of the rules, with the place of its operation if known."""
    found: dict[str, Finding] = {}
    for each in judged:
        code, rule, verdict = each.code, each.rule, each.verdict
        if not isinstance(verdict, Found) or code in found:
            continue
        at, _ = attempt(place_of, evidence, rule.topic, code)
        sentence = words.sentence(code, verdict.way, verdict.values)
        likely = words.likely(code, verdict.way, verdict.values)
        measured = "" if verdict.measured is None else words.filled("measured", *verdict.measured)
        found[code] = Finding(code, sentence, measured, likely, at)
    return list(found.values())


def cannot_run(name: str, error: BaseException) -> Report:
    """Return the report of code that raises: one finding "call.raises" with the line of the error, if that is known."""
    at, values = place(error), {"error": first_line(error)}
    sentence = words.sentence("call.raises", "raises", values)
    found = Finding("call.raises", sentence, place=None if at is None else at[:2])
    return Report(name, (found,), place=found.place)


def defined_at(subject: Subject) -> tuple[str, int] | None:
    """Return file and line of the function, the class of the instance, or the model; None if unknown."""
    original = subject.original
    original = original.model if isinstance(original, Embedded) else original
    return defined_in(inspect.unwrap(original) if inspect.isroutine(original) else type(original))


def defined_in(found: Any) -> tuple[str, int] | None:
    """Return file and line of a function or a class; None if it has no source, or a class no methods.

    A class is searched upwards from its first method, since its source may not parse.
    """
    is_class = isinstance(found, type)
    methods = vars(found).values() if is_class else [inspect.unwrap(found)]
    own = [each.__code__ for each in methods if inspect.isfunction(each)]
    own = (
        [each for each in own if each.co_qualname.startswith(f"{found.__qualname__}.")]
        if is_class
        else own
    )
    first = min(own, key=lambda each: each.co_firstlineno, default=None)
    if first is None or inspect.getsourcefile(first) is None:
        return None
    file, line = first.co_filename, first.co_firstlineno
    if is_class:
        named = re.compile(rf"\s*class\s+{re.escape(found.__name__)}\b")
        above = (each for each in range(line, 0, -1) if named.match(linecache.getline(file, each)))
        line = next(above, line)
    return file, max(line, 1)
