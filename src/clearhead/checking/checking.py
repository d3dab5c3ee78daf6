"""`check`: what is wrong with an attention, by name, or that nothing is, or that it is not known."""

import inspect
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from clearhead._common.hints import hints_at_names, with_hints
from clearhead._common.memory import within_memory
from clearhead._common.text import shown
from clearhead.checking import words
from clearhead.checking.contract import FIELDS, Contract
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judge import Judged, judge, required
from clearhead.checking.judging.notes import notes, ticks
from clearhead.checking.judging.places import place_of
from clearhead.checking.judging.verdicts import Clear, Found, Unknown
from clearhead.checking.ranks.launching import AskedOfRanks
from clearhead.checking.ranks.on_ranks import on_ranks
from clearhead.checking.ranks.rank_calls import LOSS
from clearhead.checking.report import Finding, Report
from clearhead.checking.scanning.takes import ways
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.subject.locating import located
from clearhead.checking.subject.subject import Subject, left_alone, prepare, undisturbed
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError

KINDS: Mapping[str, type[Evidence]] = {
    "qkv": HeadsEvidence,
    "qkv,mask": HeadsEvidence,
    "x": TokensEvidence,
    "x2d": TokensEvidence,
    "x,mask": PaddedEvidence,
    "x,context": CrossEvidence,
    "decode": DecodingEvidence,
    "ids": TokensEvidence,
    "ids,mask": PaddedEvidence,
}
# What no tick is for beside a mistake of another topic.
BESIDE: Mapping[str, tuple[str, ...]] = {
    "mask": ("leaks", "padding"),
    "padding": ("mask", "leaks"),
    "scale": ("product", "outside"),
    "softmax": ("product",),
    "heads": ("product",),
}


@with_hints
def check(
    subject: Any,
    *,
    takes: str | None = None,
    contract: Contract | None = None,
    args: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    **declared: Any,
) -> Report:
    """Say what is wrong with an attention, by name, that nothing is, or that it is not known.

    Args:
        subject: a class, an instance, a function, a dotted path or "file.py:Name". It is left as it
            was: state, mode, gradients, random numbers.
        takes: how it is called. "qkv": f(query, key, value), each (batch, heads, len, dim);
            "qkv,mask": with a mask (batch, 1, query_len, kv_len), True = may attend; "x": (batch,
            tokens, d_in); "x2d": (tokens, d_in); "x,mask": with (batch, tokens), True = a real
            token; "x,context"; "decode": an object with reset(), step(x), full(x); "ids": a whole
            model of ids (batch, tokens); "ids,mask": with (batch, tokens), True = a real token;
            "logits,ids": the loss of a rank, of its own logits (batch, tokens of the rank,
            vocabulary) and of all ids (batch, tokens). None goes by its parameters, and the report
            says what was assumed.
        contract: what it promises; or its fields as keywords, such as causal=True. With world=3 it is
            called on three ranks, each with its own tokens, and takes is "qkv", "qkv,mask" or
            "logits,ids".
        args: for the constructor of a class.
        sizes: d_in, num_heads, context_length and the like, where they cannot be found.
        seed: of the inputs, and of a class's own weights.

    Raises:
        ArgumentError, ArgumentTypeError: a declaration that makes no sense.
        ModelError: what is checked could not be found, made or called.
        TooLargeError: code `memory.full`, for sizes that do not fit into memory.

    Example:
        >>> def inverted(query, key, value):
        ...     scores = query @ key.mT / query.shape[-1] ** 0.5
        ...     past = torch.tril(torch.ones(scores.shape[-2:])).bool()
        ...     return scores.masked_fill(past, -torch.inf).softmax(-1) @ value
        >>> ch.check(inverted, takes="qkv", causal=True).findings[0].code
        'mask.inverted'
    """
    promised = contract_of(contract, sizes, declared)
    try:
        with within_memory("Declare smaller sizes."), undisturbed():
            subject, how = found_with_takes(subject, takes, promised)
            found = prepare(subject, how, args, promised, seed)
            with left_alone(found):
                if promised.world is not None:
                    report = on_ranks(found, seed, lambda each: reported(each, judge(each)))
                elif how == LOSS:
                    raise ArgumentError(
                        "check.takes",
                        f'takes="{LOSS}" is the loss of ranks: give world=, 1 for one process.',
                    )
                else:
                    evidence = KINDS[how](found, found.contract, seed)
                    if found.module is None and how in ("x", "x2d") and is_part(evidence):
                        raise ModelError(
                            "check.part",
                            f"{found.name} takes one tensor, and multiplies none of its numbers with "
                            "each other: it is a part of an attention, and none. Check what calls it.",
                        )
                    report = reported(evidence, judge(evidence))
        if takes is None:
            assumed = words.filled("note", "assumed", {"takes": how})
            report = replace(report, told=(assumed, *report.told))
        return report
    except SystemExit as error:  # not to be taken for a report without findings
        raise exited(error) from error


def found_with_takes(subject: Any, takes: str | None, contract: Contract) -> tuple[Any, str]:
    """The subject, from where it is found, and how it is called: by its parameters, if nobody
    says; "x" where they suggest nothing."""
    found = located(subject) if isinstance(subject, str) else subject
    if takes is not None:
        return found, takes
    if contract.world is not None:
        return found, "qkv"
    kind = type(found) if isinstance(found, nn.Module) else found
    suggested = ways(kind) if callable(kind) else ()
    # One input of a function may be a batch or not; most have one.
    return found, next(iter(suggested), "x").replace("x2d", "x")


def is_part(evidence: Evidence) -> bool:
    """True of what multiplies nothing that depends on its inputs with each other, and so attends to
    nothing."""
    return evidence.settled.error is None and evidence.lines.ended and not evidence.lines.multiplied


def exited(error: SystemExit) -> ModelError:
    """The error for code that ends the program."""
    return ModelError(
        "check.exit", f"what is checked ended the program, by sys.exit({shown(error.code)})."
    )


def contract_of(
    contract: Contract | None, sizes: Mapping[str, int] | None, declared: Mapping[str, Any]
) -> Contract:
    """The contract, from one or from keywords, with the sizes in it."""
    unknown = sorted(set(declared) - set(FIELDS))
    if unknown:
        raise ArgumentTypeError(
            "check.declared", f"check takes {'; '.join(hints_at_names(unknown, FIELDS))}."
        )
    if contract is not None and declared:
        raise ArgumentError(
            "check.contract",
            "declare in the contract or as keywords, not both; got a contract and "
            f"{', '.join(sorted(declared))}.",
        )
    promised = contract if contract is not None else Contract(**declared)
    if not isinstance(promised, Contract):
        raise ArgumentTypeError(
            "check.contract",
            f"contract must be a clearhead.Contract, or None; got {type(contract).__name__}.",
        )
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ArgumentTypeError(
            "sizes.type",
            f"sizes must be a mapping of names to numbers; got {type(sizes).__name__}.",
        )
    if sizes is not None:
        promised = replace(promised, sizes={**promised.sizes, **sizes})
    return promised


def reported(evidence: Evidence | AskedOfRanks, judged: tuple[Judged, ...]) -> Report:
    """The report: mistakes, what is verified, and what could not be."""
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
        beside = BESIDE.get(topic, ())
        wrong = any(
            isinstance(each.verdict, Found) and each.rule.topic in (topic, *beside)
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
    told, minor = ((), ())
    if "*" not in _excluded(judged):
        told, minor = notes(evidence, [each.code for each in findings])
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
        tuple(_asked(each) for each in judged),
        minor,
        defined_at(evidence.given),
    )


def _laws(
    judged: Sequence[Judged],
) -> tuple[list[str], dict[tuple[str, str], list[str]]]:
    """The tick of the laws that were asked and held, and those that were not asked, by the reason."""
    held, not_asked = [], dict[tuple[str, str], list[str]]()
    for each in judged:
        name, verdict = each.rule.code.partition(".")[2], each.verdict
        if isinstance(verdict, Clear):
            tokens = verdict.values.get("tokens")
            held.append(name if tokens is None else f"{name} to {tokens:,}".replace(",", " "))
        elif isinstance(verdict, Unknown):
            not_asked.setdefault(words.unknown(verdict.why, verdict.values), []).append(
                each.rule.code
            )
    return [words.filled("tick", "laws", {"names": ", ".join(held)})] if held else [], not_asked


def _of_topics(topics: Sequence[str], why: str) -> str:
    names = ", ".join(
        each if each.startswith("law.") else words.filled("topic", each, {}) for each in topics
    )
    return f"{names}: {why}" if names else why


def _excluded(judged: tuple[Judged, ...]) -> set[str]:
    return {
        key
        for each in judged
        if isinstance(each.verdict, Found)
        for key in each.rule.excludes.split()
    }


def _findings(evidence: Evidence | AskedOfRanks, judged: tuple[Judged, ...]) -> list[Finding]:
    """Each mistake once, causes before what follows from them."""
    causes: dict[str, str] = {}
    found: dict[str, Finding] = {}
    for each in judged:
        rule, verdict = each.rule, each.verdict
        if not isinstance(verdict, Found) or rule.code in found:
            continue
        follows = causes.get(rule.code) or causes.get(rule.topic)
        at = place_of(evidence, rule.topic) if isinstance(evidence, Evidence) else None
        found[rule.code] = replace(_finding(rule.code, verdict, follows), place=at)
        if follows is None:
            for key in rule.explains.split():
                causes.setdefault(key, rule.code)
    return sorted(found.values(), key=lambda each: each.follows_from is not None)


def _finding(code: str, found: Found, follows: str | None) -> Finding:
    sentence = words.sentence(code, found.way, found.values)
    others = [words.sentence(*each) for each in found.also if each[1]]
    others = [each for each in dict.fromkeys(others) if each != sentence]
    if others:
        sentence += f"; or {'; or '.join(others)}: what was measured is the same"
    also = tuple(dict.fromkeys(each for each, _, _ in found.also if each != code))
    measured = "" if found.measured is None else words.filled("measured", *found.measured)
    return Finding(
        code, sentence, measured, words.likely(code, found.way, found.values), also, follows
    )


def _asked(each: Judged) -> tuple[str, str, str]:
    """The result of a rule in words."""
    code, verdict = each.rule.code, each.verdict
    if isinstance(verdict, Found):
        return code, "found", words.sentence(code, verdict.way, verdict.values)
    if each.by:
        return code, "not asked", f"since {each.by} was found"
    if isinstance(verdict, Unknown):
        return code, "not known", words.unknown(verdict.why, verdict.values)[0]
    if isinstance(verdict, Clear):
        tokens = verdict.values.get("tokens")
        return code, "clear", "" if tokens is None else f"asked up to {tokens} tokens"
    return code, "not asked", ""


def defined_at(subject: Subject) -> tuple[str, int] | None:
    """File and line of what is checked."""
    original = subject.original
    original = original.model if isinstance(original, Embedded) else original
    found = original if inspect.isroutine(original) else type(original)
    try:
        file = inspect.getsourcefile(found)
        return None if file is None else (file, max(_first_line(found, file), 1))
    except (TypeError, OSError):
        return None


def _first_line(found: Callable[..., Any] | type, file: str) -> int:
    """Return the line a function or a class begins on: a class, above the first of its methods, unparsed."""
    if isinstance(found, type):
        methods = (each for each in vars(found).values() if inspect.isfunction(each))
        own = [each for each in methods if each.__qualname__.startswith(f"{found.__qualname__}.")]
        first = min((each.__code__.co_firstlineno for each in own), default=0)
        named = re.compile(rf"\s*class\s+{re.escape(found.__name__)}\b")
        for line in range(first, 0, -1):
            if named.match(linecache.getline(file, line)):
                return line
    return inspect.getsourcelines(found)[1]
