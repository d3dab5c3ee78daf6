"""Try classes and functions: call them in the ways that their parameters suggest, and check what attends."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from clearhead._common.text import raised_words
from clearhead.checking import words
from clearhead.checking.checking import KINDS, exited, reported
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.observed import ObservedAttention
from clearhead.checking.report import Report
from clearhead.checking.rules import judge
from clearhead.checking.scanning.sources import ATTENTION, Definition, Source
from clearhead.checking.scanning.takes import (
    SCALES,
    Reordered,
    is_callable,
    order_meant,
    parameters_of,
    unasked,
    wanted,
    ways,
)
from clearhead.checking.subject.locating import imported
from clearhead.checking.subject.refusals import place
from clearhead.checking.subject.subject import Subject, left_alone, prepare, undisturbed
from clearhead.checking.thresholds import SCANNED_PARAMETERS, SUMS
from clearhead.errors import ClearheadError, ModelError

# An outcome beside those of a report: it could not be imported, made or called.
NOT_MADE = "not made"


@dataclass(frozen=True)
class ScanRow:
    """One line of a scan: what was tried, and what it came to.

    Attributes:
        name: of the class or function, or of a module that could not be imported.
        outcome: "right", "wrong", "not judged", or "not made" for what could not be imported, made
            or called.
        why: the mistake, or the reason.
        file, line: of it, or of the error.
        takes: how it was called; "" where it was not.
        report: as JSON knows it; None where there is none.
    """

    name: str
    outcome: str
    why: str
    file: str
    line: int
    takes: str = ""
    report: Mapping[str, Any] | None = None


class Tried(NamedTuple):
    """A report, how that was called which it is about, and the masks that were not handed over."""

    report: Report
    takes: str
    unasked: tuple[str, ...] = ()


def tried_in(
    source: Source, names: Sequence[str], contract: Contract, takes: str | None, seed: int
) -> Iterator[tuple[str, ScanRow | None]]:
    """Try definitions of a module, one after the other.

    Yields:
        The name of each before it is tried, with None, and with its row after it; "" for the import
        of the module. What is not likely to be an attention has no row where it cannot be called.
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
            if each.likely and (error.code != "check.output" or ATTENTION.search(each.name)):
                yield each.name, not_made(source, each.name, error)
            continue
        if made is not None:
            yield each.name, _row(source, each, made)


def not_made(source: Source, name: str, error: Exception) -> ScanRow:
    """The row of what raised before there was a report."""
    cause = error.__cause__ or error
    at = place(cause) if isinstance(error.__cause__, Exception) else None
    line = next((each.line for each in source.definitions if each.name == name), source.line)
    file, line = at[:2] if at is not None else (source.file, line)
    why = cause.message if isinstance(cause, ClearheadError) else raised_words(cause)
    return ScanRow(name or source.module, NOT_MADE, why.partition("\n")[0], file, line)


def _row(source: Source, definition: Definition, made: Tried) -> ScanRow:
    report = made.report
    first = next(iter(report.findings), None)
    why = "; ".join(report.unverified)
    if first is not None:
        why = f"{first.code}: {first.sentence.partition('; or ')[0]}"
    elif not why and made.unasked:
        why = f"without {', '.join(made.unasked)}"
    file, line = report.place or (source.file, definition.line)
    return ScanRow(definition.name, report.outcome, why, file, line, made.takes, report.as_dict())


def tried(found: Any, contract: Contract, takes: str | None, seed: int) -> Tried | None:
    """The report on a class or function; None for one in which nothing attends.

    Args:
        found: what stands in a module.
        contract: what is declared.
        takes: how it is called; None to go by its parameters.
        seed: of the inputs, and of a class's own weights.

    Raises:
        ClearheadError: the error of the first call, if none works.
    """
    failed: ClearheadError | None = None
    without: Tried | None = None
    tries = (takes,) if takes is not None else ways(found)
    if not tries:
        names = ", ".join(wanted(found))
        raise ModelError("check.call", f"it takes {names}, and no takes= stands for that.")
    for way in tries:
        try:
            with undisturbed():
                with _limited():
                    subject = prepare(found, way, None, contract, seed)
                if way == "x" and "qkv" in tries and not subject.parameters():
                    continue  # nothing projects x: query, key and value come from outside
                report, attends = _reported(subject, way, seed)
                if attends:
                    return Tried(
                        _meant(found, subject, way, report, seed), way, unasked(found, way)
                    )
                without = without or Tried(report, way)
        except SystemExit as error:
            failed = failed or exited(error)
        except ClearheadError as error:
            failed = failed or error
            if error.code == "check.made":
                break
    if without is None and failed is not None:
        raise failed
    return without if without and ATTENTION.search(without.report.name) else None


def _reported(subject: Subject, way: str, seed: int) -> tuple[Report, bool]:
    """The report, and True if two products make an attention, by weights that were normalised."""
    evidence = KINDS[way](subject, subject.contract, seed)
    with left_alone(subject):
        if evidence.settled.error is not None:
            raise evidence.call_error(evidence.settled.error)
        attends = any(map(_normalised, evidence.observed))
        if not attends and not ATTENTION.search(subject.name):
            return Report(subject.name, ()), False
        return reported(evidence, judge(evidence)), attends


def _meant(found: Any, subject: Subject, way: str, report: Report, seed: int) -> Report:
    """The report, unless its mistake is only that the order or the scale was meant otherwise."""
    code = report.findings[0].code if report.findings else ""
    if code.startswith("scale.") and any(map(SCALES.search, parameters_of(found))):
        reason = "; ".join(words.unknown("scale-handed", {}))
        return replace(report, findings=(), unverified=(f"scale: {reason}",))
    order = order_meant(way, code)
    if order is None:
        return report
    reordered = Reordered(subject.original, way, order)
    try:
        again = prepare(reordered, way, None, subject.contract, seed)
        other, attends = _reported(again, way, seed)
    except ClearheadError:
        return report
    if not attends or (other.findings and order_meant(way, other.findings[0].code) == order):
        return report
    told = (words.filled("note", order, {}), *other.told)
    return replace(other, name=report.name, place=report.place, told=told)


def _normalised(observed: ObservedAttention) -> bool:
    """True if a softmax made the weights, or they sum to one."""
    if any(stage.axis is not None for stage in observed.stages):
        return True
    weights = observed.weights.nan_to_num()
    return any(
        bool(((weights.sum(axis) - 1).abs() < SUMS).all()) and bool((weights >= 0).all())
        for axis in (-1, -2)
    )


@contextmanager
def _limited() -> Iterator[None]:
    """Refuse a model that grows large while it is made, by its defaults."""
    count = 0

    def counted(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal count
        count += 0 if isinstance(parameter, nn.UninitializedParameter) else parameter.numel()
        if count > SCANNED_PARAMETERS:
            raise MemoryError(f"it has more than {SCANNED_PARAMETERS:,} parameters")

    hook = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()
