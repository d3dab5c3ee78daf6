"""Verdicts on a part of attention: the row of the table that gives the same, else the first number that differs."""

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from clearhead.checking.evidence.parts import PartCall, PartEvidence, flattened
from clearhead.checking.hypotheses.part_edits import PART_EDITS, PartEdit
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Unknown, Verdict
from clearhead.checking.thresholds import SAME
from clearhead.recording.attempt import attempt
from clearhead.recording.thresholds import SUMS

TOPIC = "part"
# The law that a part breaks where no row of the table gives its numbers.
BROKEN = {"query,key": "law.scores", "scores": "softmax.missing", "weights,value": "law.value"}
CODES = tuple(
    dict.fromkeys((
        "shape.fixed",
        *(edit.code for edits in PART_EDITS.values() for edit in edits),
        "law.pairs",
        *BROKEN.values(),
        "output.non-finite",
        "differs",
    ))
)  # fmt: skip

_claims: WeakKeyDictionary[PartEvidence, Claim | Verdict] = WeakKeyDictionary()


def claim(e: PartEvidence) -> Claim | Verdict:
    """Return the mistake in a part, Clear or Unknown; computed once and cached."""
    if e not in _claims:
        _claims[e] = _made(e)
    return _claims[e]


def _made(e: PartEvidence) -> Claim | Verdict:
    """Return a claim on a part, named by the first edit that gives its results, else by the law that it breaks.

    Clear if all calls are right, also weights of large scores ("output.non-finite" if not); "shape.fixed" if some sizes
    are right; Unknown if equal calls differ.
    """
    if all(each.right for each in e.calls):
        if e.given.takes == "scores" and not e.large.right:
            size = "refused" if e.large.found is None else "not finite"
            return _claim("output.non-finite", "part", {"size": size}, _overflowed(e.large))
        return Clear("part", {"what": e.part.gives})
    calls = [flattened(each) for each in e.calls]
    several = calls[:-1]  # with one query and one key most mistakes do not show
    if any(each.right for each in several):
        right, bad = (next(x for x in several if x.right is wanted) for wanted in (True, False))
        does = "is wrong" if bad.error is None else "fails"
        values = {"right": _sizes(e, right), "bad": _sizes(e, bad), "does": does}
        return _claim("shape.fixed", "sizes", values, _difference(e, calls))
    for edit in PART_EDITS[e.given.takes]:
        if _fits(edit, calls):
            return _claim(edit.code, edit.way, {}, _difference(e, calls))
    if e.repetition > SAME[e.subject.dtype]:
        return Unknown("not-again")
    return _claim(_law(e), "part", {}, _difference(e, calls))


def _law(e: PartEvidence) -> str:
    """Return the code of the law that a part breaks where no row of the table gives its numbers.

    "differs" if no wrong call has finite results of the right shape; "law.pairs" if a row depends on others;
    "law.scores" for weights that sum to one; else that of `BROKEN`.
    """
    call = next((each for each in e.calls if each.fits and not each.right), None)
    if call is None or call.found is None or not call.found.isfinite().all():
        return "differs"
    for which in range(1 + (e.given.takes == "query,key")):
        rows = range(call.inputs[which].shape[-2])
        if any(e.dependents(call, which, row) != [row] for row in rows):
            return "law.pairs"
    sums = call.found.double().sum(-1)
    ones = e.given.takes == "scores" and bool(((sums - 1).abs() <= SUMS).all())
    return "law.scores" if ones else BROKEN[e.given.takes]


def _claim(code: str, way: str, values: Any, measured: Any) -> Claim:
    """Return a claim on the topic "part", from a code, the key and values of a sentence, and a measurement."""
    return Claim(TOPIC, code, Found(way, values, measured))


def _fits(edit: PartEdit, calls: list[PartCall]) -> bool:
    """Return True if the edit gives the results of all calls, raises where they do, and one result is wrong."""
    compared = False
    for call in calls:
        wrong, _ = attempt(edit.wrong, *call.inputs)
        if (wrong is None) != (call.found is None) or (
            wrong is not None and not call.matches(wrong)
        ):
            return False
        if wrong is None:
            continue
        compared |= not call.right
    return compared


def _difference(e: PartEvidence, calls: list[PartCall]) -> tuple[str, Any]:
    """Return a key and values: the first wrong number and the right one; or the wrong shape, or the error.

    A wrong call with a result of the right shape comes first. Raises StopIteration if all calls are right.
    """
    bad = next((each for each in calls if each.fits and not each.right), None)
    bad = bad or next(each for each in calls if not each.right)
    values = {"name": e.part.gives, "sizes": _sizes(e, bad)}
    if bad.found is None:
        return "part-error", {**values, "error": e.refusal()}
    got, expected = bad.found.double(), bad.expected
    if not bad.fits:
        return "part-shape", {**values, "got": list(got.shape), "expected": list(expected.shape)}
    gap = (got - expected).abs()
    wrong = (~(gap <= SUMS * float(expected.abs().max()))).nonzero()
    place = tuple((wrong[0] if len(wrong) else (gap == gap.max()).nonzero()[0]).tolist())
    numbers = {"got": f"{float(got[place]):.4g}", "expected": f"{float(expected[place]):.4g}"}
    return "part", {**values, **numbers, "at": ", ".join(map(str, place))}


def _overflowed(call: PartCall) -> tuple[str, Any]:
    """Return the measurement of a call with large scores: its first wrong row, as computed and as expected.

    If the call raised it is row 0, computed as "an error".
    """
    call = flattened(call)
    row = 0
    if call.found is not None:
        row = int((~call.found.isclose(call.expected.to(call.found.dtype))).any(-1).int().argmax())
    scores = ", ".join(f"{each:g}" for each in call.inputs[0][row].tolist())
    got = "an error" if call.found is None else _row(call.found[row])
    return "part-large", {"scores": scores, "got": got, "expected": _row(call.expected[row])}


def _row(numbers: Tensor) -> str:
    """Return a row of numbers as text, such as "[0.5, 0.25]", with four significant digits."""
    return f"[{', '.join(f'{each:.4g}' for each in numbers.tolist())}]"


def _sizes(e: PartEvidence, call: PartCall) -> str:
    """Return the names and shapes of the inputs of a call as text, such as "query [3, 2] and key [5, 2]"."""
    pairs = zip(e.part.names, call.inputs, strict=True)
    return " and ".join(f"{name} {list(each.shape)}" for name, each in pairs)
