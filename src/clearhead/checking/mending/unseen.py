"""A mistake that no reader has seen: by names, by scores of 0, by what mends it, or by its numbers."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch

from clearhead._common.lessons import LessonRow
from clearhead.checking import words
from clearhead.checking.evidence.parts import PARTS
from clearhead.checking.mending.edits import MOST
from clearhead.checking.mending.mends import STEPS, Promises, mends_for
from clearhead.checking.mending.naming import first_use, misnamed
from clearhead.checking.mending.outcomes import Outcome, doubles, is_right, outcomes
from clearhead.checking.report import Finding
from clearhead.checking.subject.subject import Subject

ROLES = {"q": "W_query", "k": "W_key", "v": "W_value"}


def unseen(subject: Subject, thing: Any, row: LessonRow, promises: Promises) -> Finding:
    """A mistake that no reader has seen: by names, by scores of 0, by what mends it, or by its numbers."""
    run = thing if inspect.isroutine(thing) else subject.fresh().run
    measured = _measured(first_of(run, row, promises[0], lambda each: not each.right), row)
    if subject.module is not None:
        for order in list(permutations("qkv"))[1:]:
            if is_right(subject.fresh().run, row, promises, "".join(order)):
                moved = [each for each, other in zip(order, "qkv", strict=True) if each != other]
                moved.sort(key="qkv".index)
                return _exchanged(moved, measured, thing, subject, row, promises)
        if is_right(subject.fresh().run, row, promises, zeros=False):
            return said("zeros", {}, measured=measured)
    mends = mends_for(thing, subject, row, promises)
    place = mends[0].place if mends else None
    of_zeros = subject.module is not None and "nan" not in _measured(
        first_of(run, row, promises[0], lambda each: not each.right, zeros=False), row
    )
    if "nan" in measured and not (of_zeros and mends):
        return said("rows" if row.takes == "scores" else "nan", {}, measured=measured, place=place)
    if mends:
        return Finding("differs", mends[0].sentence, measured, place=place)
    return said("formula" if subject.module is not None else "other", {}, measured=measured)


def _exchanged(
    moved: Sequence[str],
    measured: str,
    thing: Any,
    subject: Subject,
    row: LessonRow,
    promises: Promises,
) -> Finding:
    """Sides that have changed places: where a name belongs to another matrix, or else where they meet."""
    named = misnamed(thing)
    if named is not None:
        return said("misnamed", named._asdict(), measured=measured, place=named.place)
    names = " and ".join(ROLES[each] for each in moved)
    place = first_use(thing, "".join(moved))
    mends = mends_for(thing, subject, row, promises, enough=MOST)
    steps = [each for each in mends if each.key in STEPS]
    here = [each for each in mends if each.place == place]
    for mend in (*steps, *here)[:1]:
        told = {"names": names, "mend": mend.sentence}
        return said("exchanged-here", told, measured=measured, place=mend.place)
    return said("exchanged", {"names": names}, measured=measured, place=place)


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


def first_of(
    run: Any,
    row: LessonRow,
    promised: Mapping[str, Any],
    wanted: Callable[[Outcome], bool],
    *,
    zeros: bool = True,
) -> Outcome | None:
    """The first call of a lesson that is wanted; None where there is none, or where one raises before it."""
    try:
        with doubles(), torch.no_grad():
            return next(filter(wanted, outcomes(run, row, promised, zeros=zeros)), None)
    except Exception:  # whatever the code of another raises is told elsewhere
        return None


def said(key: str, values: Mapping[str, Any], **fields: Any) -> Finding:
    return Finding("differs", words.filled("outcome", key, values), **fields)
