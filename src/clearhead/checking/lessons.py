"""Grade what a learner wrote in a lesson: its contract, its codes, its words."""

import inspect
import linecache
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from clearhead._common.checks import as_int
from clearhead._common.lessons import LESSONS, LessonRow, lessons_of
from clearhead._common.text import shown
from clearhead.checking.report import Finding, Report, Unexplained
from clearhead.checking.rotating import rotating
from clearhead.checking.subject.locating import defined, imported, located
from clearhead.checking.subject.stubs import reached
from clearhead.errors import ArgumentError, ArgumentTypeError, ModelError

# What no lesson speaks of, and what is asked of one from its number on; all other topics are the lesson's own.
NEVER = frozenset(("strides", "nan", "empty", "dtypes", "returned", "one-token"))
FROM = {
    "gradients": 4, "parameters": 4, "state": 6, "dropout": 9, "law": 4,
}  # fmt: skip
# The lesson from which on there are several texts at once.
BATCHES = 8
# The lesson whose class may have a mask, as that of the tutorials has.
SEVERAL_HEADS = 10
# Where numbers are struck out, or put in their place.
STRUCK = r"\*.*(mask|hidden|past|tril|triu)|(mask|hidden|past|tril|triu).*\*|masked_fill|where\("
# What a line has in it that a mistake is about, where no operation shows it.
MENTIONS = {
    "parameter.missing": r"self\.\w+ *= *(torch\.|\[|\{|dict\(|nn\.Parameter\(.*\) *[-+*/@])|requires_grad",
    "parameter.shared": r"self\.\w+ *= *self\.\w+ *(#.*)?$",
    "parameter": r"self\.\w+ *= *(nn\.|self\.)",
    "grad": r"detach|no_grad|\.data|\.item\(|torch\.tensor\(|float\(",
    "input.modified": r"[-+*/]= |[a-z]_\(|\] *= ",
    "law.pairs": r"\[ *j *, *i *\]|\.T\b|\.mT",
    "law.scores": r"cos.*[-+].*sin",
    "rope.layout": r"::2|reshape|view|unflatten|stack",
    "dropout.unscaled": r"\.sum\(|normalize",
    "dropout": r"rand(_like)?\(|bernoulli|self\.\w*drop\w*\(|functional\.dropout|F\.dropout",
    "mask.multiplied": STRUCK,
    "mask.after-softmax": STRUCK,
    "state": r"self\.\w*(mask|future|past|tril|triu)\w* *=",
    "heads": r"(view|reshape|unflatten|split|chunk|permute|transpose)\(",
    "differs": r"== ?0|\bmax\(|amax\(",
    "length": r"self\.\w*(mask|future|past|tril|triu|bias|pos)",
    "context": r"\bcontext\b.*\)|x_?2",
    "mask.padding-ignored": r"\bmask\b",
    "mask.batch-mixed": r"\bmask\b",
    "mask": r"triu|tril|masked_fill",
    "cache.unmasked": r"\bif .*(==|!=|[<>])",
    "cache": r"cat\(|append\(|triu|tril",
    "rope": r"cat\(|stack\(|sin\(",
}
# The same, of what a sentence says: of a code, with this in it.
SAYS = (
    ("cache.offset", "replaced", r"self\.\w+(, *self\.\w+)* *=(?!.*(None|\[\]|nn\.|self\.\w+ *=))"),
    ("cache.offset", "kept", r"cat\(|append\("),
    ("cache.stale", "full(x)", r"self\.step\("),
    ("rope.layout", "put back", r"cat\(|stack\("),
    ("dropout.unscaled", "handed on", r"Dropout\("),
)
# Of these the line that mentions them says more than that of an operation.
MENTIONED = (
    "heads.split", "heads.count", "dropout", "state", "mask.after-softmax", "mask.multiplied", "mask.padding-ignored",
    "mask.batch-mixed",
)  # fmt: skip
# Codes that need no lesson; and of those of a later lesson the law that they break.
ALWAYS = frozenset(("differs", "output.nondeterministic", "input.modified", "shape.square-only"))
LAWS = {
    "mask.non-finite": "differs", "scale": "law.scores", "weights": "softmax.missing", "mask": "law.pairs",
    "heads": "law.pairs", "batch": "law.pairs", "context": "law.pairs", "dropout": "output.nondeterministic",
    "law": "differs", "length": "differs", "state": "differs", "rope": "law.scores", "cache": "differs",
    "dtype": "differs", "sum": "law.pairs", "softmax": "law.scores", "parameter": "differs", "grad": "differs",
}  # fmt: skip
# Codes that `clearhead explain` shows with a class of several heads.
WITH_HEADS = (
    "law.", "parameter.dead", "parameter.shared", "dropout.misplaced", "state.mask-plain",
)  # fmt: skip
# Where errors begin to speak of what a lesson fixes.
HINTS = ("\n  args=dict(", " If the output is another part", "\nIf it needs other sizes")
# The families of codes that hang on a promise, where another one is as good.
PROMISED = {"causal": ("mask.", "law.pairs"), "scale": ("scale.",), "rope": ("law.scores",)}
TICKS = {
    "scores": 1, "weights": 2, "context": 3, "softmax": 4, "scale": 5, "causal": 7, "padding": 8,
    "dropout": 9, "heads": 10, "rope": 12, "decoding": 13, "reset": 13,
}  # fmt: skip


def row_of(lesson: Any, given: Mapping[str, Any]) -> LessonRow:
    """The row of a lesson, which declares all that there is to declare.

    Raises:
        ArgumentTypeError, ArgumentError: code `check.lesson`.
    """
    number = None if isinstance(lesson, bool) else as_int(lesson)
    if number is None:
        raise ArgumentTypeError(
            "check.lesson",
            f"lesson must be a whole number from 1 to {len(LESSONS)}; got {shown(lesson)}.",
        )
    if number not in LESSONS:
        raise ArgumentError(
            "check.lesson", f"lesson must be from 1 to {len(LESSONS)}; got {number}."
        )
    declared = [name for name, value in given.items() if value is not None]
    if declared:
        raise ArgumentError(
            "check.lesson",
            f"lesson={number} declares what there is to declare; got {', '.join(declared)} beside it.",
        )
    return LESSONS[number]


def promises_of(row: LessonRow, thing: Any) -> tuple[Mapping[str, Any], ...]:
    """The promises that a thing may make in a lesson, the likeliest first.

    A class hides the future where its constructor asks for the length of the context, whose mask it is; a function
    that rotates has one layout, that of the lesson.
    """
    first = {**row.contract, **row.named.get(getattr(thing, "__name__", type(thing).__name__), {})}
    made = (first, *row.either)
    if row.number == SEVERAL_HEADS and inspect.isclass(thing):
        masks = "context_length" in inspect.signature(thing).parameters
        return tuple(each for each in made if bool(each["causal"]) is masks)
    return made[:1] if inspect.isroutine(thing) else made


def called_with(row: LessonRow) -> str:
    """Say in words how the graded thing is called."""
    if row.takes == "decode":
        return "with step(x), full(x) and reset()"
    inputs = {"x2d": "x", "qkv": "query,key,value"}.get(row.takes, row.takes).split(",")
    return "called with " + " and ".join(filter(None, (", ".join(inputs[:-1]), inputs[-1])))


def graded(subject: Any, row: LessonRow) -> Any:
    """The thing to grade: found in a file, and of the right kind.

    Raises:
        ModelError: code `check.name`, for a file that defines none of it, or two.
        ArgumentTypeError: code `check.lesson`, for another kind of thing.
    """
    found = subject
    if isinstance(subject, str):
        found = _found_in(subject, row) if subject.endswith(".py") else located(subject)
    functions = any(name.islower() for name in row.names)
    classes = not all(name.islower() for name in row.names)
    is_function = inspect.isroutine(found)
    is_object = not inspect.isclass(found) and not is_function and (
        isinstance(found, nn.Module) or callable(found) or row.takes == "decode"
    )  # fmt: skip
    fits = (
        (is_function and functions)
        or (inspect.isclass(found) and classes)
        or (is_object and not isinstance(found, Tensor) and (classes or callable(found)))
    )
    if not fits:
        kinds = " or ".join(["a function"] * functions + ["a class or a module"] * classes)
        raise ArgumentTypeError(
            "check.lesson",
            f"lesson {row.number} grades {kinds} {called_with(row)}; got {_kind(found)}.",
        )
    return found


def _kind(found: Any) -> str:
    if isinstance(found, Tensor):
        return "a tensor"
    if inspect.isclass(found):
        return f"the class {found.__name__}"
    return f"the function {found.__name__}" if inspect.isroutine(found) else shown(found)


def _found_in(file: str, row: LessonRow) -> Any:
    module = imported(file)
    own = defined(module)
    mine = [name for name in row.names if name in own] or own
    classes = [name for name in mine if inspect.isclass(getattr(module, name))]
    # A class that calls the function grades it too.
    called = {each.__name__ for name in classes for each in reached(getattr(module, name))}
    mine = [name for name in mine if name in classes or name not in called]
    if len(mine) == 1:
        return getattr(module, mine[0])
    several = f"say which: {file}:{mine[0]}; it has {', '.join(mine)}" if mine else "it has none"
    raise ModelError(
        "check.name", f"lesson {row.number} grades one of {' or '.join(row.names)}, and {several}."
    )


def called(found: Any, row: LessonRow) -> tuple[Any, str]:
    """The thing to call, and its `takes`: of what rotates, an attention whose query and key go through it."""
    if inspect.isroutine(found) and row.names[0] == "rotate":
        return rotating(found), "qkv"
    return found, row.takes


def without_hints(error: ModelError) -> ModelError:
    """An error without what a lesson has no use for: other sizes, and other ways of calling."""
    message = error.message
    for hint in HINTS:
        message = message.partition(hint)[0]
    return ModelError(error.code, message)


def is_asked(row: LessonRow | None, topic: str) -> bool:
    """True of a topic that a lesson speaks of; without a lesson, of any."""
    return row is None or (topic not in NEVER and FROM.get(topic, 0) <= row.number)


def early(code: str, row: LessonRow) -> str | None:
    """The law that a mistake of a later lesson breaks, in its place; None of what the lesson may name."""
    spoken = [each.number for each in lessons_of(code)]
    if code in ALWAYS or not spoken or min(spoken) <= row.number:
        return None
    return LAWS.get(code) or LAWS[code.partition(".")[0]]


def best(reports: Iterable[Report], row: LessonRow) -> Report:
    """The first report without a mistake; else the first whose mistake none of the other promises mends."""
    open_ = {name for each in row.either for name in {*each, *row.contract}
             if each.get(name) != row.contract.get(name)}  # fmt: skip
    families = tuple(family for name in open_ for family in PROMISED[name])
    made: list[Report] = []
    for each in reports:
        if each.ok:
            return each
        made.append(each)
    return min(made, key=lambda each: any(f.code.startswith(families) for f in each.findings[:1]))


def in_words(report: Report, row: LessonRow) -> Report:
    """A report in the words of a lesson: the first mistake alone, no note, no tick of a later lesson."""
    first = tuple(_told(each, report, row) for each in report.findings[:1])
    passed = () if first else report.passed
    spoken = tuple(each for each in passed if TICKS.get(each.partition(" ")[0], 99) <= row.number)
    told = {"told": (), "skipped": (), "minor": (), "lesson": row.number}
    return replace(report, findings=first, passed=spoken, **told)


def _told(finding: Finding, report: Report, row: LessonRow) -> Finding:
    speaking = [each for each in lessons_of(finding.code) if each.number <= row.number]
    general = finding.code.startswith(("law.", "differs", "shape."))
    read = row if general else (speaking or [row])[-1]
    place = finding.place or _mentioned(finding, report.place)
    measured = finding.measured
    if row.number < BATCHES and not row.is_part:  # one text, and one head: rows and columns
        measured = re.sub(r"\[0, 0, (\d+, \d+)\]", r"[\1]", measured)
    later = row.number < SEVERAL_HEADS and finding.code.startswith(WITH_HEADS)
    kind = Unexplained if later else Finding
    made = replace(kind(**vars(finding)), measured=measured)
    return replace(made, place=place, read=read.pointer(finding.code))


def mentioned_first(report: Report) -> Report:
    """The report with the line that mentions its first mistake, where that says more than the operation's."""
    if not report.findings or not report.findings[0].code.startswith(MENTIONED):
        return report
    first = report.findings[0]
    place = _mentioned(first, report.place)
    return report if place in (None, report.place) else replace(
        report, findings=(replace(first, place=place), *report.findings[1:])
    )  # fmt: skip


def _mentioned(finding: Finding, place: tuple[str, int] | None) -> tuple[str, int] | None:
    """The line of what was checked that names what a mistake is about; else its first."""
    code = finding.code
    if place is None:
        return None
    lines = inspect.getblock(linecache.getlines(place[0])[place[1] - 1 :])
    failed = re.search(r", line (\d+)", finding.measured)
    if failed and place[1] <= int(failed[1]) < place[1] + len(lines):
        return place[0], int(failed[1])
    named = re.findall(r"[A-Za-z_]\w*", f"{finding.measured} {finding.sentence}")
    for name in named if code.startswith(("parameter.", "state.", "law.again", "differs")) else ():
        for number, line in enumerate(lines):
            if re.search(rf"self\.{name} *=|register_buffer\(.{name}\b", line) and (
                code != "law.again"
                or not re.search(rf"self\.{name} *=", "".join(lines[number + 1 :]))
            ):
                return place[0], place[1] + number
    says = [each for of, part, each in SAYS if of == code and part in finding.sentence]
    for pattern in filter(None, (*says, MENTIONS.get(code), MENTIONS.get(code.partition(".")[0]))):
        found = [
            number for number, line in enumerate(lines)
            if re.search(pattern, line) and not line.lstrip().startswith("def ")
        ]  # fmt: skip
        if found:
            return place[0], place[1] + found[-1 if code == "dropout.misplaced" else 0]
    return place
