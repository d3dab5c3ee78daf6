"""A report of a lesson held against the outcome that the lesson asks for.

The readers of a report know causes; the outcome knows what is right. Where the two differ, the outcome decides.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import is_output, role
from clearhead._common.lessons import LessonRow
from clearhead.checking import words
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.parts import PARTS
from clearhead.checking.lessons import early, mentioned_first, promises_of
from clearhead.checking.mending.caching import kept_as
from clearhead.checking.mending.dropping import dropped
from clearhead.checking.mending.mends import Promises, mends_of
from clearhead.checking.mending.outcomes import (
    Outcome,
    doubles,
    is_right,
    layers_of,
    names_missing,
    outcomes,
    without_gradient,
)
from clearhead.checking.report import EffectAlone, Finding, Report
from clearhead.checking.subject.subject import Subject, prepare
from clearhead.errors import ModelError

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
CERTAIN = ("keepdim", "alias", "same")
# The lesson from which on something learns.
GRADIENTS = 4
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
)
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
ROLES = {"q": "W_query", "k": "W_key", "v": "W_value"}


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
    found = _beside(subject, row, right=right) if isinstance(made, nn.Module) else None
    if found is not None and (first is None or first.code.startswith(INSTEAD.get(found.code, ()))):
        return _with(report, found)
    if right is None:
        return report
    found = _written(made, row, promises)
    if found is not None and (first is None or first.code != "input.modified"):
        return _with(report, found)
    if right:
        return _of_right(report, subject, row, promises)
    return _of_wrong(report, thing, subject, row, promises)


def _of_right(report: Report, subject: Subject, row: LessonRow, promises: Promises) -> Report:
    """The report of what gives what it should: without a mistake of the outcome, with one of what learns or falls."""
    if report.findings:
        first = report.findings[0]
        of_outcome = first.code.startswith(OF_OUTCOME) and first.code != "differs"
        none = (of_outcome or isinstance(first, EffectAlone)) and _is_sized(subject)
        return _verified(replace(report, findings=())) if none else report
    if isinstance(subject.module, nn.Module) and row.number >= GRADIENTS:
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
    if first is not None and row.takes == "query,key" and _is_mirrored(thing):
        return _with(
            report, Finding("law.pairs", words.filled("outcome", "mirrored", {}), first.measured)
        )
    if first is None and (known := _exchanged(subject, row, promises)) is not None:
        return _with(report, known)
    certain = not (first is None or isinstance(first, EffectAlone) or first.code.startswith(LINES))
    is_text = inspect.isclass(thing) or inspect.isroutine(thing)
    mends = mends_of(thing, row, promises, subject.args, certain=certain) if is_text else []
    if first is None:
        return _with(report, _unseen(subject, thing, row, promises, mends))
    if not mends:
        return report
    best = next((each for each in mends if each.place == first.place), mends[0])
    sentence = (
        best.sentence if isinstance(first, EffectAlone) or best.key in CERTAIN else first.sentence
    )
    code = "softmax.keepdim" if best.key == "keepdim" else first.code
    return _with(report, replace(first, code=code, sentence=sentence, place=best.place))


def _is_sized(subject: Subject) -> bool:
    """True where values are as wide as the constructor was told."""
    width = dict(subject.args or {}).get("d_out")
    try:
        layers = layers_of(subject.module) if subject.module is not None else {}
    except LookupError:
        return True
    return width is None or not layers or layers["v"].matrix.shape[1] == width


def _written(made: Any, row: LessonRow, promises: Promises) -> Finding | None:
    """A mistake of what writes to what it is handed."""
    try:
        with doubles(), torch.no_grad():
            found = next(
                (each for each in outcomes(made, row, promises[0]) if each.written is not None),
                None,
            )
    except Exception:  # whatever the code of another raises is told elsewhere
        return None
    if found is None:
        return None
    handed = {"qkv": "query,key,value"}.get(row.takes, row.takes).replace("x2d", "x").split(",")
    names = dict(enumerate(handed))
    sentence = words.filled("outcome", "modified", {"name": names[found.written or 0]})
    return Finding("input.modified", sentence, words.filled("outcome", "before", {}))


def _is_mirrored(scores: Any) -> bool:
    """True of a table that is its own mirror, of queries and keys that are not the same."""
    query, key = torch.randn(
        2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    try:
        found = scores(query.clone(), key.clone())
        return torch.equal(found, found.mT)
    except Exception:  # whatever the code of another raises is told elsewhere
        return False


def _verified(report: Report) -> Report:
    """The report without what the readers could not judge, and the outcome does."""
    left = tuple(each for each in report.unverified if not each.startswith(JUDGED))
    return replace(report, unverified=left)


def _beside(subject: Subject, row: LessonRow, *, right: bool | None) -> Finding | None:
    """A mistake that changes no outcome of one call: in names, in what a matrix begins with, in what is kept."""
    module: nn.Module = subject.fresh().run
    own = dict(module.named_parameters())
    sides = {
        name.rpartition(".")[0]: name.endswith(".weight")
        for name, each in own.items()
        if role(name) in ("q", "k", "v") and each.ndim == 2
    }
    biased = [name for name in sides if f"{name}.bias" in own]
    if biased and len(biased) < len(sides):
        return _said("one-bias", {"name": " and ".join(biased)})
    by_layers = len(sides) == 3 and all(sides.values()) and not any("." in each for each in sides)
    if by_layers and row.parameters:
        for each in names_missing(module, row):
            return _said("named", {"name": each})
        for each in biased:
            return _said("bias", {"name": each})
    for name in own:
        path = name.removesuffix(".weight")
        if row.has_out and path != name and is_output(path) and f"{path}.bias" not in own:
            return _said("no-bias", {"name": path})
    for name, each in own.items():
        if (
            role(name) in ("q", "k", "v")
            and each.numel() > 1
            and bool((each == each.flatten()[0]).all())
        ):
            return Finding("parameter.dead", words.filled("outcome", "constant", {"name": name}))
    if right is not False or row.takes not in ("x2d", "x"):
        return None
    before = _kept(module)
    try:
        with torch.no_grad():
            width = layers_of(module)["q"].matrix.shape[0]
            module.eval()(
                next(module.parameters()).new_ones((*([1] * (row.takes == "x")), 3, width))
            )
    except Exception:  # whatever the code of another raises is told elsewhere
        return None
    for name, each in _kept(module).items():
        if (
            name not in before
            or before[name].shape != each.shape
            or not torch.equal(before[name], each)
        ):
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


def _said(key: str, values: Mapping[str, Any], **fields: Any) -> Finding:
    return Finding("differs", words.filled("outcome", key, values), **fields)


def _unseen(
    subject: Subject, thing: Any, row: LessonRow, promises: Promises, mends: Sequence[Any]
) -> Finding:
    """A mistake that no reader has seen: by what mends it, or by its numbers."""
    run = thing if inspect.isroutine(thing) else subject.fresh().run
    measured = _measured(_first_wrong(run, row, promises[0]), row)
    if "nan" in measured and row.takes == "scores":
        return _said("rows", {}, measured=measured, place=mends[0].place if mends else None)
    if "nan" in measured:
        return _said("nan", {}, measured=measured, place=mends[0].place if mends else None)
    if mends:
        return Finding("differs", mends[0].sentence, measured, place=mends[0].place)
    return _said("formula" if subject.module is not None else "other", {}, measured=measured)


def _exchanged(subject: Subject, row: LessonRow, promises: Promises) -> Finding | None:
    """A mistake that shows in names, or in scores of 0, alone."""
    if subject.module is None:
        return None
    measured = _measured(_first_wrong(subject.fresh().run, row, promises[0]), row)
    for order in list(permutations("qkv"))[1:]:
        if is_right(subject.fresh().run, row, promises, "".join(order)):
            moved = [each for each, other in zip(order, "qkv", strict=True) if each != other]
            names = " and ".join(ROLES[each] for each in sorted(moved, key="qkv".index))
            return _said("exchanged", {"names": names}, measured=measured)
    if is_right(subject.fresh().run, row, promises, zeros=False):
        return _said("zeros", {}, measured=measured)
    return None


def _first_wrong(run: Any, row: LessonRow, promised: Mapping[str, Any]) -> Outcome | None:
    try:
        with doubles(), torch.no_grad():
            return next((each for each in outcomes(run, row, promised) if not each.right), None)
    except Exception:  # whatever the code of another raises
        return None


def _measured(outcome: Outcome | None, row: LessonRow) -> str:
    if outcome is None:
        return ""
    inputs = " and ".join(str(list(each.shape)) for each in outcome.inputs)
    if outcome.found.shape != outcome.expected.shape:
        values = {
            "got": list(outcome.found.shape),
            "wanted": list(outcome.expected.shape),
            "inputs": inputs,
        }
        return words.filled("outcome", "shape", values)
    differs = ~torch.isclose(outcome.found.double(), outcome.expected.double(), rtol=0, atol=1e-4)
    at = differs.nonzero()[0].tolist()
    what = PARTS[row.takes].gives if row.takes in PARTS else "output"
    values = {
        "what": f"{what}{at}",
        "got": f"{outcome.found[tuple(at)].item():.4g}",
        "wanted": f"{outcome.expected[tuple(at)].item():.4g}",
        "inputs": inputs,
    }
    return words.filled("outcome", "number", values)


def mended(error: ModelError, thing: Any, row: LessonRow, seed: int) -> ModelError:
    """An error with the change that mends it before it, where its cause was not told."""
    name = getattr(thing, "__name__", "")
    if not name or not error.message.startswith((f"{name} raised", f"{name} must give")):
        return error
    promises = promises_of(row, thing)
    try:
        contract = Contract(sizes=dict(row.sizes), **promises[0])
        args = prepare(thing, row.takes, None, contract, seed).args
    except ModelError:
        return error
    found = next(iter(mends_of(thing, row, promises, args)), None)
    if found is None:
        return error
    return ModelError(error.code, f"line {found.place[1]}: {found.sentence}.\n{error.message}")
