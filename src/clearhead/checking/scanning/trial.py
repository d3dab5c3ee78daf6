"""Try classes and functions: call them as their parameters suggest, and check what attends."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from clearhead._common.foreign_names import CONTEXTS
from clearhead._text import raised_words
from clearhead.checking import words
from clearhead.checking.checking import KINDS, exited, is_part
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judge import judge
from clearhead.checking.judging.reading import has_equal_norms
from clearhead.checking.report import Report
from clearhead.checking.reporting import cannot_run, defined_at, reported
from clearhead.checking.scanning.sources import ATTENTION, Definition, Source
from clearhead.checking.scanning.takes import (
    SCALES,
    Reordered,
    is_callable,
    likely_takes,
    order_meant,
    unasked,
)
from clearhead.checking.subject.locating import imported
from clearhead.checking.subject.refusals import always, place
from clearhead.checking.subject.signatures import needed, of_call
from clearhead.checking.subject.subject import Subject, left_alone, prepare, undisturbed
from clearhead.checking.thresholds import SCANNED_PARAMETERS
from clearhead.errors import ClearheadError, ModelError
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.thresholds import SUMS

# Topics of findings that hold an attention against the definition.
DEFINED = ("softmax", "scale", "weights", "bias", "softcap", "differs")
# An outcome next to those of a report: it could not be imported, made or called.
NOT_MADE = "not made"


@dataclass(frozen=True)
class ScanRow:
    """One line of a scan: what was tried, and the outcome.

    Attributes:
        name: of the class or function, or of a module that could not be imported.
        outcome: "right", "wrong", "not judged", or "not made" for what could not be imported, made or called.
        why: the mistake, or the reason; "" if there is none.
        file, line: of it, or of the error.
        takes: how it was called; "" if it was not.
        report: the report as a dict of JSON's types; None if there is none.
    """

    name: str
    outcome: str
    why: str
    file: str
    line: int
    takes: str = ""
    report: Mapping[str, Any] | None = None


class Tried(NamedTuple):
    """A report, its `takes`, the inputs that were not passed, and the mechanisms that should be declared."""

    report: Report
    takes: str
    unasked: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()


def tried_in(
    source: Source, names: Sequence[str], contract: Contract, takes: str | None, seed: int
) -> Iterator[tuple[str, ScanRow | None]]:
    """Import a module, and try its definitions one after the other.

    Only those in `names` that can be called are tried. What is not called an attention has no row if nothing attends in
    it, or its output has another shape.

    Yields:
        The name of each before it is tried, with None, and with its row after it; "" for the import of the module.
    """
    yield "", None
    try:
        module = imported(source.module)
    except ModelError as error:
        yield "", not_made(source, "", error)
        return
    for each in source.definitions:
        found = getattr(module, each.name, None)
        if each.name not in names or not is_callable(found):
            continue
        yield each.name, None
        try:
            made = tried(found, contract, takes, seed)
        except ClearheadError as error:
            # What gives something else than an attention does is none, unless it is called one.
            if error.code != "check.output" or ATTENTION.search(each.name):
                yield each.name, not_made(source, each.name, error)
            continue
        if made is not None:
            yield each.name, _row(source, each, made)


def not_made(source: Source, name: str, error: Exception) -> ScanRow:
    """Return the row of a definition, or a module for name "", whose import, construction or call raised.

    It is "wrong" if the code fails on any input, else "not made".
    """
    cause = error.__cause__ or error
    if isinstance(error.__cause__, Exception) and always(cause):
        report = cannot_run(name, cause)
        file, line = report.place or (source.file, source.line)
        why = f"call.raises: {report.findings[0].sentence}"
        return ScanRow(name or source.module, report.outcome, why, file, line, "", report.as_dict())
    at = place(cause) if isinstance(error.__cause__, Exception) else None
    line = next((each.line for each in source.definitions if each.name == name), source.line)
    file, line = at[:2] if at is not None else (source.file, line)
    why = cause.message if isinstance(cause, ClearheadError) else raised_words(cause)
    whole = "; ".join([*getattr(error, "__notes__", ()), why.partition("\n")[0]])
    return ScanRow(name or source.module, NOT_MADE, whole, file, line)


def _row(source: Source, definition: Definition, made: Tried) -> ScanRow:
    """Return the row of a scan for one definition: its outcome, the first mistake or the reason, and the place."""
    report = made.report
    first = next(iter(report.findings), None)
    why = "; ".join(report.unverified)
    if first is not None:
        why = f"{first.code}: {first.sentence}"
    elif not why and (made.unasked or made.undeclared):
        asked = f"as far as asked: {', '.join(made.unasked)}" if made.unasked else ""
        why = "; ".join(filter(None, (asked, *made.undeclared)))
    at = first.place if first is not None else None
    file, line = at or report.place or (source.file, definition.line)
    return ScanRow(definition.name, report.outcome, why, file, line, made.takes, report.as_dict())


def tried(found: Any, contract: Contract, takes: str | None, seed: int) -> Tried | None:
    """Return the report on a class or function; None if nothing attends in it and no rule was asked.

    None too if it takes no arguments. Its calling conventions are tried in order until one attends. Global state is
    restored.

    Args:
        found: a class or function.
        contract: the declarations.
        takes: how it is called; None to go by its parameters.
        seed: of the inputs, and of a class's own weights.

    Raises:
        ClearheadError: the error of the first call, if none works; ModelError, code `check.call`, if its parameters fit
            no convention.
    """
    failed: ClearheadError | None = None
    without: Tried | None = None
    tries = (takes,) if takes is not None else likely_takes(found)
    if not tries:
        names = ", ".join(needed(of_call(found)) or of_call(found))
        if not names:
            return None  # it makes something, and computes nothing
        raise ModelError("check.call", f"it takes {names}, and no takes= stands for that.")
    for takes in tries:
        try:
            with undisturbed():
                with _limited():
                    subject = prepare(found, takes, None, contract, seed)
                if takes == "x" and "qkv" in tries and not subject.parameters():
                    continue  # nothing projects x: query, key and value come from outside
                if inspect.isclass(found):
                    subject = _redraw_zeros(subject, seed)
                report, seen = _reported(subject, takes, seed)
                report = replace(report, place=defined_at(subject))
                if seen.attends:
                    report, seen = _reordered(subject, takes, report, seen, seed)
                    report = _without_promises(report, _reasons(found, takes, seen))
                    return Tried(report, takes, unasked(found, takes), seen.undeclared)
                without = without or Tried(_without_promises(report, seen.held), takes)
        except SystemExit as error:
            failed = failed or exited(error)
        except ClearheadError as error:
            failed = failed or error
            if error.code == "check.made":
                break
    if without is None and failed is not None:
        raise failed
    bare = without and replace(without.report, place=None)
    return without if bare and bare != Report(bare.name, ()) else None


def _redraw_zeros(subject: Subject, seed: int) -> Subject:
    """Redraw in place the original's weights that are all 0, except biases, and return a subject with a fresh copy.

    The same subject is returned if there are none.

    Training moves such weights, and what comes after them shows only then.
    """
    if not isinstance(subject.original, nn.Module):
        return subject
    generator = torch.Generator().manual_seed(seed)
    named = subject.original.named_parameters()
    asleep = [each for name, each in named if not name.endswith("bias") and not each.any()]
    for each in asleep:
        width = each[0].numel() if each.ndim > 1 else 1
        each.data.copy_(torch.randn(each.shape, generator=generator) / max(width, 1) ** 0.5)
    return subject.fresh() if asleep else subject


class _Seen(NamedTuple):
    """Facts that a call shows in addition to its report.

    Attributes:
        attends: two products make an attention, by weights that were normalised.
        undeclared: what it does next to the definition, and how that is declared.
        held: why its scale, or the whole of it, is not held against the definition, by topic, as `_held` returns it.
    """

    attends: bool
    undeclared: tuple[str, ...] = ()
    held: Mapping[str, str] = MappingProxyType({})


def _reported(subject: Subject, takes: str, seed: int) -> tuple[Report, _Seen]:
    """Return the report of one call, and what was seen; raise ModelError if the call fails.

    The report is empty if nothing attends, unless it is called an attention and multiplies inputs with each other.
    """
    evidence = KINDS[takes](subject, subject.contract, seed)
    with left_alone(subject):
        if evidence.settled.error is not None:
            raise evidence.call_error(evidence.settled.error)
        attends = any(map(_normalised, evidence.observed))
        if not attends and (not ATTENTION.search(subject.name) or is_part(evidence)):
            return Report(subject.name, ()), _Seen(False)
        report = reported(evidence, judge(evidence))
        return report, _Seen(attends, tuple(_undeclared(evidence)), _held(evidence))


def _undeclared(evidence: Evidence) -> Iterator[str]:
    """Yield for each undeclared mechanism of a module what it does, and how to declare it; nothing for a function."""
    if not isinstance(evidence, TokensEvidence):
        return
    contract = evidence.contract
    layer = evidence.layers[0] if evidence.layers else None
    rope = None if layer is None or not layer.known else layer.contract.rope
    if rope is not None and contract.rope is None:
        layout, base = rope["layout"], rope["base"]
        yield f"rotates queries and keys: declare rope=dict(layout={layout!r}, base={base:.0f})"
    kinds = {change.kind for each in evidence.weighings for change in each.before}
    if "add" in kinds and contract.bias is None and contract.alibi_slopes is None:
        yield "adds numbers to the scores: declare bias=… or alibi_slopes=…"
    cells = [
        change.cells.any(0)
        for each in evidence.weighings
        for change in each.before
        if change.kind == "hide" and change.cells is not None
    ]
    others = [each.shape[0] == each.shape[1] and bool(each.tril().any()) for each in cells]
    if any(others) and not contract.masked and evidence._window is None:
        yield "hides pairs that a causal mask would not: declare what hides them"


def _held(evidence: Evidence) -> dict[str, str]:
    """Return why an undeclared attention differs from the definition on purpose, by topic; {} if it does not.

    A reason is a key of the table "unknown" in words.toml.
    """
    found = {}
    observed = [each for each in evidence.observed if _normalised(each)]
    if observed and all(
        has_equal_norms(each.query) and has_equal_norms(each.key) for each in observed
    ):
        found["scale"] = "scale-normed"
    lengths = {each.shape[-2] for each in evidence.inputs if each.ndim > 1}
    if evidence.observed and not any(
        lengths & {*each.weights.shape[-2:]} for each in evidence.observed
    ):
        found["softmax"] = "linear"
    return found


def _reordered(
    subject: Subject, takes: str, report: Report, seen: _Seen, seed: int
) -> tuple[Report, _Seen]:
    """Return report and facts of a call in another order, if that order alone explains the mistake.

    Else those given.
    """
    order = order_meant(takes, report.findings[0].code if report.findings else "")
    if order is None:
        return report, seen
    inner = Reordered(subject.original, takes, order)
    try:
        other = prepare(inner, takes, None, subject.contract, seed)
        again, seen_again = _reported(replace(other, name=subject.name), takes, seed)
    except ClearheadError:
        return report, seen
    if not seen_again.attends or (
        again.findings and order_meant(takes, again.findings[0].code) == order
    ):
        return report, seen
    told = (words.filled("note", order, {}), *again.told)
    return replace(again, place=report.place, told=told), seen_again


def _reasons(found: Any, takes: str, seen: _Seen) -> dict[str, str]:
    """Return reasons, as `_held` does, why findings of a topic are not judged, by topic; {} for none.

    Something else was meant, or may have been.
    """
    reasons, names = dict(seen.held), of_call(found)
    if any(map(SCALES.search, names)):
        reasons["scale"] = "scale-handed"
    if takes == "x" and any(name in CONTEXTS for name in {*names} - {*needed(names)}):
        reasons["parameter"] = "context-handed"
    return reasons


def _without_promises(report: Report, reasons: Mapping[str, str]) -> Report:
    """Return the report without mistakes of what nobody promised; these become unverified.

    They are those of topics in `reasons`, and mechanisms without a name. A broken law and a known mistake stay, except
    the law of scores if there are no weights.
    """
    gone: dict[str, str] = {}
    for each in report.findings:
        topic = each.code.partition(".")[0]
        if topic in reasons:
            reason = reasons[topic]
        elif (topic in DEFINED or each.code == "law.scores") and "softmax" in reasons:
            reason = reasons["softmax"]
        elif each.code == "differs":
            reason = "no-mistake"
        else:
            continue
        gone[each.code] = _unheld(topic, reason, each.sentence)
    left = [each for each in report.findings if each.code not in gone]
    behind = [words.unknown("hidden-by", {"code": code})[0] for code in gone]
    rest = [each for each in report.unverified if not any(text in each for text in behind)]
    if "softmax" in reasons:
        rest = [_unheld("softmax", reasons["softmax"])]
    why = dict.fromkeys([*gone.values(), *rest])
    return replace(report, findings=tuple(left), unverified=tuple(why))


def _unheld(topic: str, reason: str, sentence: str = "") -> str:
    """Return in words why a topic is not held against the definition; `reason` is as `_held` returns it.

    `sentence` is that of the finding.
    """
    named = {"scale": "scale", "parameter": "parameters"}.get(topic, "product")
    text = "; ".join(filter(None, words.unknown(reason, {"sentence": sentence})))
    return f"{words.filled('topic', named, {})}: {text}"


def _normalised(observed: ObservedAttention) -> bool:
    """Return True if a softmax made the weights, or they are at least 0 and sum to one over queries or keys."""
    if any(stage.axis is not None for stage in observed.stages):
        return True
    weights = observed.weights.nan_to_num()
    return any(
        bool(((weights.sum(axis) - 1).abs() < SUMS).all()) and bool((weights >= 0).all())
        for axis in (-1, -2)
    )


@contextmanager
def _limited() -> Iterator[None]:
    """Raise MemoryError in this block once the modules made in it have more than `SCANNED_PARAMETERS` parameters."""
    count = 0

    def counted(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        """Count the numbers of a registered parameter; raise MemoryError above the limit."""
        nonlocal count
        count += 0 if isinstance(parameter, nn.UninitializedParameter) else parameter.numel()
        if count > SCANNED_PARAMETERS:
            raise MemoryError(f"it has more than {SCANNED_PARAMETERS:,} parameters")

    hook = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()
