"""A report of a lesson held against the outcome that the lesson asks for.

The readers of a report know causes; the outcome knows what is right. Where the two differ, the outcome decides.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import is_output, role
from clearhead._common.lessons import LessonRow
from clearhead.checking import words
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.parts import PARTS
from clearhead.checking.lessons import (
    early,
    is_asked,
    mentioned_first,
    promises_of,
    without_hints,
)
from clearhead.checking.mending.caching import kept_as
from clearhead.checking.mending.dropping import dropped
from clearhead.checking.mending.edits import MOST
from clearhead.checking.mending.mends import ENOUGH, STEPS, Mend, Promises, mends_for, mends_of
from clearhead.checking.mending.naming import first_use
from clearhead.checking.mending.outcomes import (
    is_right,
    layers_of,
    names_missing,
    without_gradient,
)
from clearhead.checking.mending.sharing import shared_as
from clearhead.checking.mending.sources import as_told, of_source
from clearhead.checking.mending.unseen import first_of, said, unseen
from clearhead.checking.report import EffectAlone, Finding, Report
from clearhead.checking.subject.causes import in_general
from clearhead.checking.subject.subject import Subject, prepare
from clearhead.errors import ModelError
from clearhead.recording.thresholds import SUMS

# What the outcome knows: a mistake in it that changes no outcome is none. All others are beside it.
OF_OUTCOME = (
    "scale.",
    "differs",
    "law.pairs",
    "law.scores",
    "law.value",
    "softmax.",
    "context.",
    "heads.count",
)
# What is told better by what is beside the outcome: by its code, the codes of the readers.
INSTEAD = {
    "parameter.dead": ("parameter.shared", "parameter.dead"),
    "law.again": ("state.", "length.fixed", "differs", "law.again"),
    "differs": ("length.fixed", "differs"),
}
# Changes that are the cause wherever they mend.
CERTAIN = (
    "keepdim",
    "alias",
    "same",
    "anew",
    "cell",
    "row",
    "row-of",
    "kept",
    "given-away",
    "fractions",
    "corner",
    "overwritten",
    "top-left",
)
# Of these a change that mends it gives the line, and the words say more than it.
LINES = (
    "mask.off-by-one",
    "mask.inverted",
    "softmax.axis",
    "shape.square-only",
    "length.fixed",
    "cache.",
    "scale.wrong",
    "mask.batch-mixed",
    "mask.missing",
    "mask.on-queries",
    "mask.non-finite",
    "parameter.dead",
)
# Changes that use what is not used.
USES = ("name", "unused")
# What is not judged by the readers, and is by the outcome.
JUDGED = (
    "softmax",
    "scale",
    "causal",
    "mask",
    "heads",
    "padding",
    "product",
    "rope",
    "decoding",
    "context",
)


def held_to_outcome(
    report: Report, thing: Any, subject: Subject, row: LessonRow, promises: Promises
) -> Report:
    """The report, with a mistake that the readers did not see, without one that is none, and with the line of what
    mends it.

    Args:
        report: of the readers.
        thing: the class or the function, as it was written.
        subject: the same, made.
        row: of the lesson.
        promises: those that the lesson takes for right.
    """
    report = mentioned_first(report)
    made = thing if inspect.isroutine(thing) else subject.fresh().run
    if isinstance(made, nn.Module) and (not subject.copied or subject.module is None):
        return report
    right, first = is_right(made, row, promises), next(iter(report.findings), None)
    found = None
    if isinstance(made, nn.Module):
        found = _of_parameters(subject.fresh().run, row)
        if found is None and right is False:
            found = _of_state(subject.fresh().run, row)
    if found is not None and (first is None or first.code.startswith(INSTEAD.get(found.code, ()))):
        return _with(report, found)
    found = None
    if not right or not as_told(subject):
        found = of_source(first, thing, subject, row, promises)
    if found is not None:
        return _with(report, found)
    if right is None:
        mends = _by_mend(first, thing, subject, row, promises)
        return report if first is None or not mends else _mended(report, first, mends)
    found = _written(made, row, promises)
    if found is not None and (first is None or first.code != "input.modified"):
        return _with(report, found)
    if right:
        return _of_right(report, thing, subject, row, promises)
    return _of_wrong(report, thing, subject, row, promises)


def _of_right(
    report: Report, thing: Any, subject: Subject, row: LessonRow, promises: Promises
) -> Report:
    """The report of what gives what it should: without a mistake of the outcome, with one of what learns or falls."""
    if report.findings:
        first = report.findings[0]
        if first.code == "shape.square-only" and not as_told(subject):
            for mend in mends_for(thing, subject, row, promises)[:1]:
                said = words.filled("outcome", "turned", {"sizes": _sizes(subject)})
                return _with(report, replace(first, sentence=said, place=mend.place))
        of_outcome = first.code.startswith(OF_OUTCOME) and first.code != "differs"
        none = (of_outcome or isinstance(first, EffectAlone)) and as_told(subject)
        return _verified(replace(report, findings=())) if none else report
    if isinstance(subject.module, nn.Module) and is_asked(row, "gradients"):
        names = without_gradient(subject.fresh().run, row, promises[0])
        if names:
            sentence = words.filled("outcome", "grad", {"names": ", ".join(names)})
            return _with(report, Finding("grad.blocked", sentence))
    found = dropped(subject.fresh().run, row)
    return _verified(report) if found is None else _with(report, found)


def _of_wrong(
    report: Report, thing: Any, subject: Subject, row: LessonRow, promises: Promises
) -> Report:
    """The report of what gives something else: by its cause, with the line of what mends it."""
    first = next(iter(report.findings), None)
    if first is not None and first.code.startswith("cache."):
        way = kept_as(subject.fresh().run, row, promises[0])
        if way is not None:
            return _with(report, replace(first, sentence=words.filled("outcome", way, {})))
    way = shared_as(subject.fresh().run, row, promises[0]) if row.has_out else None
    if way is not None:
        return _with(report, _of_heads(way, first, thing, subject, row, promises))
    if first is not None and row.takes == "query,key" and _is_mirrored(thing):
        return _with(
            report, Finding("law.pairs", words.filled("outcome", "mirrored", {}), first.measured)
        )
    if first is None:
        return _with(report, unseen(subject, thing, row, promises))
    mends = _by_mend(first, thing, subject, row, promises)
    return _mended(report, first, mends) if mends else report


def _of_heads(
    way: str,
    first: Finding | None,
    thing: Any,
    subject: Subject,
    row: LessonRow,
    promises: Promises,
) -> Finding:
    """Heads that share their weights: at the line that mends it, or at what was seen."""
    mends = mends_for(thing, subject, row, promises)
    place = mends[0].place if mends else first_use(thing, "qk") if first is None else first.place
    measured = "" if first is None else first.measured if first.code == "differs" else ""
    sentence = words.filled("outcome", way, {})
    return Finding("heads.identical", sentence, measured, place=place or first_use(thing, "qk"))


def _by_mend(
    first: Finding | None, thing: Any, subject: Subject, row: LessonRow, promises: Promises
) -> list[Mend]:
    """The changes that mend a mistake: all of one of which the effect alone is known, or the line is wanted."""
    if first is None:
        return []
    by_line = isinstance(first, EffectAlone) or first.code.startswith(LINES)
    by_line |= first.code == "law.pairs" and row.takes not in PARTS
    certain = not (by_line or row.takes in PARTS)
    enough = MOST if first.code in ("scale.wrong", "law.pairs") else ENOUGH
    return mends_for(thing, subject, row, promises, certain=certain, enough=enough)


def _mended(report: Report, first: Finding, mends: Sequence[Mend]) -> Report:
    """The report with the line of what mends it, and with its sentence where that says more."""
    best = next((each for each in mends if each.place == first.place), mends[0])
    told = isinstance(first, EffectAlone) or best.key in CERTAIN
    sentence = best.sentence if told else first.sentence
    steps = [each for each in mends if each.key in STEPS]
    if first.code == "law.pairs" and steps:
        best = steps[0]
    if first.code == "scale.wrong" and steps:
        best, sentence = steps[0], _scaled(steps)
    if first.code == "parameter.dead" and not told:
        used = [each for each in mends if each.key in USES]
        if not used:
            return report
        best, sentence = used[0], f"{first.sentence}; {used[0].sentence}"
    code = "softmax.keepdim" if best.key == "keepdim" else first.code
    place = best.place if told or best.key != "both" else first.place
    return _with(report, replace(first, code=code, sentence=sentence, place=place))


def _scaled(steps: Sequence[Mend]) -> str:
    """The sentence for a scale of which one step is too many: whichever of two, where there are two."""
    if len(steps) == 1:
        return words.filled("outcome", "scaled-more", {"step": steps[0].sentence})
    lines = sorted({each.place[1] for each in steps})
    where = "this line" if len(lines) == 1 else " and ".join(f"line {each}" for each in lines)
    return words.filled("outcome", "scaled-twice", {"where": where})


def _sizes(subject: Subject) -> str:
    """The widths that the constructor was told."""
    args = dict(subject.args or {})
    return ", ".join(f"{name}={args[name]}" for name in ("d_in", "d_out") if name in args)


def _written(made: Any, row: LessonRow, promises: Promises) -> Finding | None:
    """A mistake of what writes to what it is handed."""
    found = first_of(made, row, promises[0], lambda each: each.written is not None)
    if found is None:
        return None
    handed = {"qkv": "query,key,value"}.get(row.takes, row.takes).replace("x2d", "x").split(",")
    sentence = words.filled("outcome", "modified", {"name": handed[found.written or 0]})
    return Finding("input.modified", sentence, words.filled("outcome", "before", {}))


def _is_mirrored(scores: Any) -> bool:
    """True of a table that is its own mirror, of queries and keys that are not the same."""
    query, key = torch.randn(
        2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    try:
        found, right = scores(query.clone(), key.clone()).double(), query @ key.mT
        halves = (found.triu(), right.triu()), (found.tril(), right.tril())
        return torch.equal(found, found.mT) and any(
            torch.allclose(*each, atol=SUMS) for each in halves
        )
    except Exception:  # whatever the code of another raises is told elsewhere
        return False


def _verified(report: Report) -> Report:
    """The report without what the readers could not judge, and the outcome does."""
    left = tuple(each for each in report.unverified if not each.startswith(JUDGED))
    return replace(report, unverified=left)


def _of_parameters(module: nn.Module, row: LessonRow) -> Finding | None:
    """A mistake that changes no outcome of one call: in names, in biases, in what a matrix begins with."""
    own, every = (dict(module.named_parameters(remove_duplicate=each)) for each in (True, False))
    of_sides = {name: each for name, each in every.items() if role(name) in ("q", "k", "v")}
    shared = [name for name in of_sides if name not in own]
    if shared:
        same = [name for name in own if any(own[name] is every[each] for each in shared)]
        return Finding(
            "parameter.shared",
            words.filled("outcome", "shared", {"names": " and ".join(same + shared)}),
        )
    sides = {
        name.rpartition(".")[0]: name.endswith(".weight")
        for name, each in of_sides.items()
        if each.ndim == 2
    }
    biased = [name for name in sides if f"{name}.bias" in own]
    if biased and len(biased) < len(sides):
        return said("one-bias", {"name": " and ".join(biased)})
    by_layers = len(sides) == 3 and all(sides.values()) and not any("." in each for each in sides)
    if by_layers and row.parameters:
        for each in names_missing(module, row):
            return said("named", {"name": each})
        for each in biased:
            return said("bias", {"name": each})
    for name in own if row.has_out else ():
        path = name.removesuffix(".weight")
        if path != name and is_output(path) and f"{path}.bias" not in own:
            return said("no-bias", {"name": path})
    for name, each in of_sides.items():
        if each.numel() > 1 and bool((each == each.flatten()[0]).all()):
            return Finding("parameter.dead", words.filled("outcome", "constant", {"name": name}))
    return None


def _of_state(module: nn.Module, row: LessonRow) -> Finding | None:
    """A mistake in what is kept of a call, by a call with three tokens."""
    if row.takes not in ("x2d", "x"):
        return None
    before = _kept(module)
    try:
        with torch.no_grad():
            width = layers_of(module)["q"].matrix.shape[0]
            shape = (3, width) if row.takes == "x2d" else (1, 3, width)
            module.eval()(next(module.parameters()).new_ones(shape))
    except Exception:  # whatever the code of another raises is told elsewhere
        return None
    for name, each in _kept(module).items():
        if name not in before or not torch.equal(before[name], each):
            code = early("law.again", row) or "law.again"
            return Finding(code, words.filled("outcome", "kept", {"name": name.rpartition(".")[2]}))
    return None


def _kept(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that a module keeps, by their names."""
    return {
        f"{path}.{name}": each
        for path, part in module.named_modules()
        for name, each in (*vars(part).items(), *part.named_buffers(recurse=False))
        if isinstance(each, Tensor)
    }


def _with(report: Report, finding: Finding) -> Report:
    return replace(report, findings=(finding, *report.findings[1:]), unverified=())


def mended(error: ModelError, thing: Any, row: LessonRow, seed: int) -> ModelError:
    """An error in the words of a lesson, with the change that mends it where no cause is certain."""
    plain, name = without_hints(error), getattr(thing, "__name__", "")
    raised = error.__cause__
    happened = plain.message.removeprefix("" if raised is None else in_general(raised))
    if not name or not happened.startswith((f"{name} raised", f"{name} must give")):
        return plain
    promises = promises_of(row, thing)
    try:
        contract = Contract(sizes=dict(row.sizes), **promises[0])
        args = prepare(thing, row.takes, None, contract, seed).args
    except ModelError:
        return plain
    found = next(iter(mends_of(thing, row, promises, args, enough=1)), None)
    if found is None:
        return plain
    return ModelError(error.code, f"line {found.place[1]}: {found.sentence}.\n{happened}")
