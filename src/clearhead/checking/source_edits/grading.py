"""Grade a program of a lesson: the outcome decides, the core names the mistake, and a graded edit is told.

An edit is told only after the program with it was made and its outcome is right.
"""

import ast
import contextlib
import inspect
import io
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from clearhead._common.lessons import REASONS, LessonRow, exercises_of, lessons_of
from clearhead._text import raised_words
from clearhead.checking.contract import Contract
from clearhead.checking.lessons import called_with, promises_of
from clearhead.checking.report import Finding, Report
from clearhead.checking.source_edits.definition import Mistake, UnknownOutcomeError
from clearhead.checking.source_edits.departing import NOTED, Departures, skipped_if
from clearhead.checking.source_edits.difference import difference
from clearhead.checking.source_edits.edits import Edits, SourceEdit
from clearhead.checking.source_edits.outcome import asked_of, doubles, first_mistake
from clearhead.checking.source_edits.program import Program, nodes_of
from clearhead.checking.source_edits.reference import code_of_part, solved
from clearhead.checking.source_edits.solution import in_words_of, solution_of
from clearhead.checking.subject.completing import PARTS
from clearhead.checking.subject.constructing import declared_arguments, guessed_arguments
from clearhead.checking.subject.refusals import named_tensors, traced
from clearhead.errors import ModelError
from clearhead.recording.attempt import attempt

# Edits that are made and graded: where the difference to the solution is no edit, and where it is one; the seconds
# that they may take; and after the first right one, how many more.
MOST, FEWER, SECONDS, MORE = 900, 250, 8.0, 80
# Correct edits; the report prints one of them.
ENOUGH = 6
# Lines that the program prints while it is graded, each shown once.
SHOWN = 3
# What every lesson explains by itself.
GENERAL = ("differs", "law", "shape", "check")

Core = Callable[[Any, Mapping[str, Any]], Report]


class Grade(NamedTuple):
    """A report, and the edit that it suggests; None without one."""

    report: Report
    edit: SourceEdit | None = None


class _Asked(NamedTuple):
    """The promises that a lesson accepts, each with the arguments of a class (None for anything else)."""

    row: LessonRow
    promises: Sequence[Mapping[str, Any]]
    args: Sequence[Mapping[str, Any] | None]

    def mistake(self, thing: Any) -> tuple[Mistake | None, Mapping[str, Any]]:
        """Return the first mistake under the promise with the most right results, and that promise.

        None instead of a mistake, with the first promise that holds, if the program is right.
        """
        found: list[tuple[Mistake, Mapping[str, Any]]] = []
        for promised, args in zip(self.promises, self.args, strict=True):
            mistake = first_mistake(thing, self.row, promised, args)
            if mistake is None:
                return None, promised
            found.append((mistake, promised))
            if mistake.error is not None and args == self.args[-1]:
                break  # the other promises make no difference to an error
        return max(found, key=lambda each: each[0].right)

    def is_right(self, program: Program) -> bool:
        """Return True if a program has no mistake under one of the promises; False if it raises."""
        try:
            return self.mistake(program.make())[0] is None
        except Exception:  # most edits make no sense
            return False


def _arguments(
    thing: Any, row: LessonRow, promised: Mapping[str, Any], args: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the arguments of a class by name, declared, given and guessed.

    None for anything else, or if the lesson has some.
    """
    if not inspect.isclass(thing) or row.made:
        return None
    contract = Contract(sizes=dict(row.sizes), **promised)
    known = {**declared_arguments(thing, contract), **(args or {})}
    return {**guessed_arguments(thing, known, contract), **known}


def grade(thing: Any, row: LessonRow, args: Mapping[str, Any] | None, core: Core) -> Grade:
    """Return the grade of a learner's code. At most three of the lines that it printed are printed again.

    Args:
        thing: a class, a function or an instance.
        row: of the lesson; that of an exercise is taken if the name is one.
        args: for the constructor of a class.
        core: returns the report of `check` under one promise.

    Raises:
        ModelError: what the core raises if the right result is unknown.
    """
    name = getattr(thing, "__name__", type(thing).__name__)
    exercise = exercises_of(row.number).get(name)
    row = row if exercise is None else exercise.row
    promises = promises_of(row, thing)
    asked = _Asked(row, promises, [_arguments(thing, row, each, args) for each in promises])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            mistake, promised = asked.mistake(thing)
        except UnknownOutcomeError:
            return Grade(_unknown(thing, asked, core))
        program = Program.of(thing)
        # Two sequences may be without a batch, which only the core calls.
        raised = mistake is not None and mistake.error is not None and row.takes == "x,context"
        if raised and _is_right(thing, promised, core):
            mistake = None
        if mistake is None:
            report = Report(name, (), asked_of(row), lesson=row.number, place=_defined(program))
            graded = Grade(report)
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                graded = _wrong(name, thing, program, mistake, asked, promised, core)
    for line in list(dict.fromkeys(printed.getvalue().splitlines()))[:SHOWN]:
        print(line)
    return graded


def _wrong(
    name: str,
    thing: Any,
    program: Program | None,
    mistake: Mistake,
    asked: _Asked,
    promised: Mapping[str, Any],
    core: Core,
) -> Grade:
    """Return the grade of a program with a mistake: a report with one finding, and the edit that corrects it, or None.

    The core names the mistake if it has no code yet; "differs" if it has no name either.
    """
    row, code, place = asked.row, mistake.code, None
    if row.takes and (not code or mistake.error is not None):
        named, place = _named(thing, promised, row, core)
        code = named or code
    if not code and row.takes in PARTS:
        with doubles():
            code, _ = attempt(code_of_part, thing, row)
    code = code or "differs"
    lines = _lines(program, mistake) if place is None or mistake.error is not None else [place[1]]
    if program is not None and (mistake.error is None or not lines):
        solved.cache_clear()  # its numbers have to be seen
        with Departures(program.file) as departures:
            first_mistake(thing, row, promised, asked.args[asked.promises.index(promised)])
        if not lines or code in NOTED or (place is not None and departures.moved):
            lines = departures.lines(code) or lines
            if departures.changed and code not in NOTED and program.tree is not None:
                lines = [skipped_if(program.tree, lines[0], departures.ran)]
    edit, others = (None, []) if program is None else mend(program, asked, lines)
    lines = lines or others
    if edit is not None and not mistake.code and len(asked.promises) > 1:
        meant = asked.mistake(edit.program.make())[1]
        if meant is not promised:
            named, place = _named(thing, meant, row, core)
            code = named or code
    at = first = _defined(program) or place
    if program is not None and (edit is not None or lines):
        at = program.file, lines[0] if edit is None else edit.line
    sentence = _reason(code, mistake, row)
    if edit is not None:
        sentence = f"{sentence}; {edit.told} makes it right"
    speaking = [each for each in lessons_of(code) if each.number <= row.number]
    general = row.solution or code.partition(".")[0] in GENERAL
    read = row if general else (speaking or [row])[-1]
    finding = Finding(code, sentence, _measured(mistake), place=at, read=read.pointer(code))
    return Grade(Report(name, (finding,), lesson=row.number, place=first), edit)


def _unknown(thing: Any, asked: _Asked, core: Core) -> Report:
    """Return a report with the first finding of the core, where the right result is unknown.

    The first promise that the core finds right is used, else the first. Errors of the core are raised.
    """
    row = asked.row
    reports = [core(thing, each) for each in asked.promises]
    report = next((each for each in reports if each.ok), reports[0])
    findings = tuple(
        replace(each, likely="", read=row.pointer(each.code)) for each in report.findings[:1]
    )
    passed = () if findings else asked_of(row)
    return replace(
        report, findings=findings, passed=passed, told=(), skipped=(), sizes=(), lesson=row.number
    )


def _named(
    thing: Any, promised: Mapping[str, Any], row: LessonRow, core: Core
) -> tuple[str | None, tuple[str, int] | None]:
    """Return the code that the core finds and its place if a lesson up to this one covers it; else (None, None).

    If it finds nothing, ("rope.layout", None) for a function in a lesson about rotation, else (None, None). (None,
    None) if the code cannot be checked.
    """
    try:
        found = core(thing, promised).findings[:1]
    except ModelError:
        return None, None
    for each in found:
        if row.takes in PARTS and each.code not in row.codes:
            break  # what the other parts do in the whole is no mistake of this one
        spoken = any(one.number <= row.number for one in lessons_of(each.code))
        return (each.code, each.place) if spoken else (None, None)
    # What rotates, and is lawful: its pairs are not those of one layout.
    return "rope.layout" if row.names[0] == "rotate" and inspect.isroutine(thing) else None, None


def _is_right(thing: Any, promised: Mapping[str, Any], core: Core) -> bool:
    """Return True if the report of the core under a promise is ok; False if the core raises ModelError."""
    try:
        return core(thing, promised).ok
    except ModelError:
        return False


def _reason(code: str, mistake: Mistake, row: LessonRow) -> str:
    """Return a mistake in the words of a lesson: how the call was made if it raised, else why it is wrong."""
    if mistake.error is not None:
        reason = f": {REASONS[code]}" if code in REASONS else ""
        return f"this cannot run, {called_with(row)}{reason}"
    reason = REASONS.get(code, REASONS["differs"])
    return f"{mistake.name}: {reason}" if mistake.name and not mistake.name.isdigit() else reason


def _measured(mistake: Mistake) -> str:
    """Return the measurement of a mistake; the first line of its error, with tensor shapes, if it raised."""
    if mistake.error is None:
        return mistake.measured
    return raised_words(mistake.error).splitlines()[0] + named_tensors(mistake.error)


def _lines(program: Program | None, mistake: Mistake) -> list[int]:
    """Return the lines that are likely wrong: that which raised and the loops around it, or those with its name.

    The innermost loop is the first of them for an IndexError, and the line that raised for other errors. [] if unknown.
    """
    if program is None or program.tree is None:
        return []
    if mistake.error is not None:
        trace = traced(mistake.error)
        if trace is None:
            return []
        loops: list[Any] = [
            node if isinstance(node, ast.For) else above
            for node, above in nodes_of(program.tree)
            if isinstance(node, ast.For | ast.comprehension)
        ]
        at = trace.tb_lineno
        around = [each.lineno for each in loops if each.lineno <= at <= each.end_lineno][::-1]
        # An index is beyond the end where the loop that counts it goes too far.
        return [*around, at] if isinstance(mistake.error, IndexError) else [at, *around]
    name = re.sub(r"\.(weight|bias)$", "", mistake.name.partition(",")[0])
    last = name.rpartition(".")[2]
    lines = [
        (isinstance(getattr(node, "ctx", None), ast.Store), getattr(node, "lineno", 0))
        for node, _ in nodes_of(program.tree)
        if last and last in (getattr(node, "attr", ""), getattr(node, "value", None))
    ]
    if mistake.code.startswith("stage."):  # a call of the part, and not where it is made
        lines.sort()
    return [line for _, line in lines]


def _defined(program: Program | None) -> tuple[str, int] | None:
    """Return file and line of the definition that is graded; None if there is no program or no such name."""
    if program is None or program.tree is None:
        return None
    lines = [each.lineno for each in program.tree.body if getattr(each, "name", "") == program.name]
    return (program.file, lines[-1]) if lines else None


def mend(
    program: Program, asked: _Asked, lines: Sequence[int]
) -> tuple[SourceEdit | None, list[int]]:
    """Return the edit that makes a program right, None if none does, and the lines that differ from the solution.

    Of several, it is the one with the fewest words that it changes and that still differ from the solution, together.
    The number of edits and the time are limited.

    Args:
        program: of the learner, which can be parsed.
        asked: what it is graded by.
        lines: that are likely wrong, whose edits are tried first.
    """
    assert program.tree is not None
    solution = in_words_of(program.tree, solution_of(asked.row))
    first, others = difference(program, solution, asked.is_right)
    theirs = ast.unparse(ast.fix_missing_locations(solution))
    # An edit on the way to the solution has this rank, and none has less.
    least = _differing(program.text, theirs)
    found: list[tuple[int, SourceEdit]] = []

    def keep(edit: SourceEdit) -> bool:
        """Add an edit with its rank: what it changes, and what still differs from the solution; True if it is least."""
        text = edit.program.text
        found.append((_differing(program.text, text) + _differing(text, theirs), edit))
        return found[-1][0] <= least

    if first is not None and keep(first):
        return first, others
    until, last = time.process_time() + SECONDS, MOST if first is None else FEWER
    edits = Edits(program, solution, (*lines, *others))
    for count, (changes, node, text) in enumerate(edits):
        if count >= last or time.process_time() > until:
            break
        if asked.is_right(program.edited(text)):
            last = min(last, count + MORE)
            if keep(edits.told(changes, node, text)) or len(found) == ENOUGH:
                break
    return min(found, key=lambda each: each[0], default=(0, None))[1], others


def _differing(one: str, other: str) -> int:
    """Return the number of words and signs that differ between two texts."""
    matcher = SequenceMatcher(None, _plain(one), _plain(other), autojunk=False)
    parts = [each for each in matcher.get_opcodes() if each[0] != "equal"]
    return sum(end - start + last - first for _, start, end, first, last in parts)


def _plain(text: str) -> list[str]:
    """Return the words, signs and indents of a program, without comments and blank lines.

    An indent, the spaces before a line, is one string.
    """
    return re.findall(r"\w+|[^\w\s]|^ +", ast.unparse(ast.parse(text)), re.MULTILINE)
