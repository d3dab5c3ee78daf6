"""`check`: what is wrong with an attention, by name, or that nothing is, or that it is not known."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from clearhead._common.hints import hints_at_names, with_hints
from clearhead._common.lessons import LessonRow
from clearhead._common.memory import within_memory
from clearhead._text import shown
from clearhead.checking import lessons, words
from clearhead.checking.contract import FIELDS, Contract
from clearhead.checking.evidence.base import Evidence
from clearhead.checking.evidence.cross import CrossEvidence
from clearhead.checking.evidence.decoding import DecodingEvidence
from clearhead.checking.evidence.functions import HeadsEvidence
from clearhead.checking.evidence.padding import PaddedEvidence
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.judge import judge
from clearhead.checking.own_call import of_own_call
from clearhead.checking.ranks.comparing import on_ranks
from clearhead.checking.report import Report
from clearhead.checking.reporting import cannot_run, reported
from clearhead.checking.scanning.takes import likely_takes
from clearhead.checking.source_edits.grading import grade
from clearhead.checking.subject.completing import PARTS, completed, part_of
from clearhead.checking.subject.limiting import within
from clearhead.checking.subject.locating import located
from clearhead.checking.subject.refusals import always
from clearhead.checking.subject.stubs import stubs_of
from clearhead.checking.subject.subject import left_alone, name_of, prepare, undisturbed
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


@with_hints
def check(
    subject: Any,
    *,
    takes: str | None = None,
    contract: Contract | None = None,
    args: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    lesson: int | None = None,
    inputs: Any = None,
    timeout: float | None = None,
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
            model of ids (batch, tokens); "ids,mask": with (batch, tokens), True = a real token.
            None goes by its parameters, and the report says what was assumed.
        contract: what it promises; or its fields as keywords, such as causal=True. With world=3 it is
            called on three ranks, each with its own tokens, and takes is "qkv" or "qkv,mask".
        args: for the constructor of a class.
        sizes: d_in, num_heads, context_length and the like, where they cannot be found.
        seed: of the inputs, and of a class's own weights.
        lesson: the lesson of the course that it is graded in, 1 to 16, which declares takes and contract;
            the report speaks in the words of that lesson.
        inputs: the arguments of one call of a model, a tensor, a tuple or a dict: the model is called with
            them, and every attention that runs is checked, at its sizes and with its masks.
        timeout: seconds after which the check ends with an error; None for no limit. Code that does not come back
            to Python is not ended: on the command line its process is.
        **declared: fields of the contract.

    Raises:
        ArgumentError, ArgumentTypeError: a declaration that makes no sense.
        ModelError: what is checked could not be found, made or called; code `check.timeout` after `timeout`.
        TooLargeError: code `memory.full`, for sizes that do not fit into memory.

    Example:
        >>> def inverted(query, key, value):
        ...     scores = query @ key.mT / query.shape[-1] ** 0.5
        ...     past = torch.tril(torch.ones(scores.shape[-2:])).bool()
        ...     return scores.masked_fill(past, -torch.inf).softmax(-1) @ value
        >>> ch.check(inverted, takes="qkv", causal=True).findings[0].code
        'mask.inverted'
    """
    if lesson is not None:
        row = lessons.row_of(lesson, {"takes": takes, "contract": contract, **declared})
        with within(timeout):
            return _graded(subject, row, args, sizes, seed)
    promised = contract_of(contract, sizes, declared)
    if inputs is not None and takes is not None:
        raise ArgumentError("check.inputs", "inputs= says how it is called; leave takes= out.")
    with within(timeout), _guarded():
        if isinstance(subject, str):
            subject = located(subject)
            if _makes(subject, args):
                made, args = subject(**(args or {})), None
                subject, inputs = (
                    made if isinstance(made, tuple) and len(made) == 2 else (made, inputs)
                )
        if inputs is not None:
            return of_own_call(
                subject,
                inputs,
                promised,
                seed,
                lambda each, kept: _reported(each, each.takes, None, kept, seed),
            )
        subject, how = found_with_takes(subject, takes, promised)
        report = _not_begun(subject)
        if report is None:
            try:
                if isinstance(how, str) and how in PARTS:
                    # Of the scores nothing is declared but the scale, and of the mask that there is none.
                    scale = promised.scale or 1.0
                    whole = completed(subject, how, scale)
                    promised = replace(promised, causal=bool(promised.causal), scale=scale)
                    report = _reported(whole, "qkv", args, promised, seed)
                else:
                    report, how = _guessing(subject, how, takes is None, args, promised, seed)
            except ModelError as error:
                if error.__cause__ is None or not always(error.__cause__):
                    raise
                return cannot_run(name_of(subject), error.__cause__)
        if takes is None:
            assumed = words.filled("note", "assumed", {"takes": how})
            report = replace(report, told=(assumed, *report.told))
    return report


def _makes(found: Any, args: Mapping[str, Any] | None) -> bool:
    """Return True for a function that can be called with args alone, so that it makes the subject.

    False for a class, a function with *args or a required parameter that is not in args, and anything else.
    """
    if not inspect.isfunction(found):
        return False
    parameters = inspect.signature(found).parameters.values()
    return all(
        each.name in (args or {}) or each.kind is each.VAR_KEYWORD or each.default is not each.empty
        for each in parameters
    )


def _guessing(
    subject: Any,
    how: str,
    guessed: bool,
    args: Mapping[str, Any] | None,
    promised: Contract,
    seed: int,
) -> tuple[Report, str]:
    """Return the report and the calling convention used; it falls back to "x2d" if `takes` was inferred.

    The fallback is tried only if a call with "x" fails (`check.call`). Raises ModelError if neither can be called.
    """
    try:
        return _reported(subject, how, args, promised, seed), how
    except ModelError as error:
        if not guessed or how != "x" or error.code != "check.call":
            raise
        try:
            return _reported(subject, "x2d", args, promised, seed), "x2d"
        except ModelError as other:
            # What turns all axes round wants no batch, and its own error is the other one.
            raise (other if error.message.startswith(".T ") else error) from None


@contextmanager
def _guarded() -> Iterator[None]:
    """Restore the global state that a check may change after this block, and translate errors of the checked code.

    SystemExit becomes a ModelError (`check.exit`), a lack of memory TooLargeError (`memory.full`).
    """
    try:
        with within_memory("Declare smaller sizes."), undisturbed():
            yield
    except SystemExit as error:
        raise exited(error) from error


def _graded(
    subject: Any,
    row: LessonRow,
    args: Mapping[str, Any] | None,
    sizes: Mapping[str, int] | None,
    seed: int,
) -> Report:
    """Return the report of a subject in a lesson: on unwritten functions, if there are any, else on the graded code.

    Raises ArgumentTypeError or ModelError if the subject is not what the lesson grades.
    """

    def core(thing: Any, promised: Mapping[str, Any]) -> Report:
        """Return the plain report of `check` on a candidate, with these declarations; raises as `check` does."""
        declared = contract_of(None, {**row.sizes, **(sizes or {})}, promised)
        found, how = lessons.called(thing, row)
        return _reported(found, how, args, declared, seed, tables=row.number < lessons.BATCHES)

    with _guarded():
        thing = lessons.graded(subject, row)
        report = _not_begun(thing) or grade(thing, row, args, core).report
    return replace(report, lesson=row.number)


def _not_begun(subject: Any) -> Report | None:
    """Return a report with the functions that are not written yet; None if there are none."""
    stubs = stubs_of(subject)
    if not stubs:
        return None
    place = (stubs[0].file, stubs[0].line) if stubs[0].file else None
    return Report(name_of(subject), (), unwritten=tuple(map(str, stubs)), place=place)


def _reported(
    subject: Any,
    how: str,
    args: Mapping[str, Any] | None,
    promised: Contract,
    seed: int,
    *,
    tables: bool = False,
) -> Report:
    """Return the report under one calling convention; with a declared `world` the report on ranks.

    Raises ModelError if the subject cannot be made or called, and, code `check.part`, for a function of x that
    multiplies no inputs with each other. With `tables` functions of "qkv" get matrices without batch and heads.
    """
    found = prepare(subject, how, args, promised, seed)

    with left_alone(found):
        if promised.world is not None:
            return on_ranks(found, seed)
        if how == "qkv" and tables:
            found = replace(found, axes=2)
        evidence = KINDS[how](found, found.contract, seed)
        if found.module is None and how in ("x", "x2d") and is_part(evidence):
            raise ModelError(
                "check.part",
                f"{found.name} takes one tensor, and multiplies none of its numbers with "
                "each other: it is a part of an attention, and none. Check what calls it.",
            )
        return reported(evidence, judge(evidence))


def found_with_takes(subject: Any, takes: str | None, contract: Contract) -> tuple[Any, str]:
    """Return the subject, imported if it is a path, and how it is called; raises as `located`.

    That is `takes` if it is not None, "qkv" for ranks, the part of attention that a function's parameters name, the
    first convention that the parameters suggest ("x" instead of "x2d"), or "x".
    """
    found = located(subject) if isinstance(subject, str) else subject
    if takes is not None:
        return found, takes
    if contract.world is not None:
        return found, "qkv"
    kind = type(found) if isinstance(found, nn.Module) else found
    suggested = likely_takes(kind) if callable(kind) else ()
    if inspect.isroutine(found) and (part := part_of(found)) is not None:
        return found, part
    # One input of a function may be a batch or not; most have one.
    return found, next(iter(suggested), "x").replace("x2d", "x")


def is_part(evidence: Evidence) -> bool:
    """Return True if a call ended and multiplied no two tensors that depend on the inputs, so that nothing attends."""
    return evidence.settled.error is None and evidence.lines.ended and not evidence.lines.multiplied


def exited(error: SystemExit) -> ModelError:
    """Return the ModelError, code `check.exit`, for code that ends the program."""
    return ModelError(
        "check.exit", f"what is checked ended the program, by sys.exit({shown(error.code)})."
    )


def contract_of(
    contract: Contract | None, sizes: Mapping[str, int] | None, declared: Mapping[str, Any]
) -> Contract:
    """Return the contract, from one or from keywords, with `sizes` added to its own, which they override.

    Raises ArgumentTypeError for an unknown keyword or a wrong type, and ArgumentError if both a contract and keywords
    are given, or for a field that makes no sense.
    """
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
