"""Verdicts on a part of attention: a mutant that gives the same, cells that are wrong, or a law that is broken."""

import math
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from clearhead.checking.evidence.parts import PartCall, PartEvidence, flattened
from clearhead.checking.hypotheses.part_edits import MUTANTS, PartEdit
from clearhead.checking.judging.verdicts import Claim, Clear, Found, Unknown, Verdict
from clearhead.checking.thresholds import ROUNDING, SAME, SLOPE
from clearhead.recording.thresholds import SUMS

CODES = (
    "shape.fixed", "sum.wrong", "softmax.axis", "softmax.missing", "softmax.twice", "scale.missing",
    "scale.wrong", "law.pairs", "law.value", "law.scores", "output.non-finite", "differs",
)  # fmt: skip
TOPIC = "part"
# Of powers that are taken in place of those of e; and how near to 1 a slope is that of e in a few digits.
BASES = (2, 10)
NEAR_E = 0.02


_claims: WeakKeyDictionary[PartEvidence, Claim | Verdict] = WeakKeyDictionary()


def claim(e: PartEvidence) -> Claim | Verdict:
    """The mistake in a part, or that there is none; found once."""
    if e not in _claims:
        _claims[e] = _made(e)
    return _claims[e]


def _made(e: PartEvidence) -> Claim | Verdict:
    if all(each.right for each in e.calls):
        if e.given.takes == "scores" and not e.large.right:
            found = e.large.found
            size = "refused" if found is None else "not finite"
            return _claim("output.non-finite", "part", {"size": size}, _overflowed(e.large))
        return Clear("part", {"what": e.part.gives})
    calls = [flattened(each) for each in e.calls]
    way = _of_squares(calls) or _of_sizes(e, calls) or _cells(e, calls)
    if way is not None:
        return _claim(*way, _difference(e, calls))
    for mutant in MUTANTS[e.given.takes]:
        if _fits(mutant, calls):
            return _claim(mutant.code, mutant.way, mutant.values, _difference(e, calls))
    if e.repetition > SAME[e.subject.dtype]:
        return Unknown("not-again")
    found = next(_laws(e, flattened(e.asked)), None)
    code, way, values = found or ("differs", "part", {})
    return _claim(code, way, values, _difference(e, calls))


def _claim(code: str, way: str, values: Any, measured: Any) -> Claim:
    return Claim(TOPIC, code, Found(way, values, measured))


def _fits(mutant: PartEdit, calls: list[PartCall]) -> bool:
    """True if the mutant gives what came, on every call, and raises where the code did."""
    compared = False
    for call in calls:
        try:
            wrong = mutant.wrong(*call.inputs)
        except (RuntimeError, IndexError, AssertionError):
            if call.found is not None:
                return False
            continue
        if call.found is None or not call.matches(wrong):
            return False
        compared |= not call.right
    return compared


def _of_squares(calls: list[PartCall]) -> tuple[str, str, Any] | None:
    """Right where there are as many queries as keys, and nowhere else."""
    squares = [each for each in calls if each.inputs[0].shape[0] == each.inputs[-1].shape[-2]]
    if len(calls[0].inputs) == 1 or calls[0].inputs[0].shape[-1] == calls[0].inputs[1].shape[0]:
        squares = [each for each in calls if each.inputs[0].shape[0] == each.inputs[0].shape[1]]
    if squares and all(each.right for each in squares):
        refused = any(each.error is not None for each in calls)
        return "shape.fixed", "tokens", {"does": "fails" if refused else "is wrong"}
    return None


def _of_sizes(e: PartEvidence, calls: list[PartCall]) -> tuple[str, str, Any] | None:
    """Right where it runs, and refused or of another shape at other sizes."""
    fit = [each.right for each in calls if each.fits]
    if not fit or not all(fit) or len(fit) == len(calls):
        return None
    right = next(each for each in calls if each.fits)
    bad = next(each for each in calls if not each.fits)
    does = "fails" if bad.error is not None else "has another shape"
    return (
        "shape.fixed",
        "sizes",
        {"right": _sizes(e, right), "bad": _sizes(e, bad), "does": does},
    )


# Cells of (rows, columns) that may be wrong alone, and what was left out there.
def _areas(rows: int, columns: int) -> Iterator[tuple[str, Tensor]]:
    row, column = torch.arange(rows)[:, None], torch.arange(columns)[None]
    whole = torch.ones(rows, columns, dtype=torch.bool)
    yield "last-column", whole & (column == columns - 1)
    yield "first-column", whole & (column == 0)
    yield "last-row", whole & (row == rows - 1)
    yield "first-row", whole & (row == 0)
    yield "itself", row == column
    yield "later", column > row
    yield "own-and-later", column >= row
    yield "earlier", column < row
    yield "own-and-earlier", column <= row


def _cells(e: PartEvidence, calls: list[PartCall]) -> tuple[str, str, Any] | None:
    """Cells of the result that are left out, all others being right."""
    wrong = []
    for call in calls[:3]:
        if not call.fits:
            return None
        assert call.found is not None
        size = float(call.expected.abs().max())
        gap = (call.found.double() - call.expected).abs()
        wrong.append(~(gap <= SUMS * size))
    ways = None
    for cells in wrong:
        here = {way for way, area in _areas(*cells.shape) if torch.equal(area, cells)}
        ways = here if ways is None else ways & here
    if not ways:
        return None
    values = {
        "rows": e.part.rows, "columns": e.part.columns, "terms": "number",
        "result": e.part.gives.removesuffix("s"),
    }  # fmt: skip
    return "sum.wrong", next(w for w, _ in _areas(2, 2) if w in ways), values


def _laws(e: PartEvidence, call: PartCall) -> Iterator[tuple[str, str, Any]]:
    """The laws that a part breaks, in the order in which they explain each other."""
    if call.found is None:
        return
    if not call.fits:
        shapes = {"got": list(call.found.shape), "expected": list(call.expected.shape)}
        yield "differs", "part-shape", {**shapes, "result": e.part.gives}
        return
    if not call.found.isfinite().all():
        yield "output.non-finite", "part", {}
        return
    yield from _by_rows(e)
    if e.given.takes == "scores":
        yield from _shares(e, call)
        return
    yield from _products(e, call)


def _by_rows(e: PartEvidence) -> Iterator[tuple[str, str, Any]]:
    """Each row of the result moves with its own row alone; each column of scores with its own key."""
    first, *rest = e.moved
    name = e.part.names[0].removesuffix("s")
    for row, moved in enumerate(first):
        rows = moved.any(-1).nonzero().flatten().tolist()
        if rows != [row]:
            values = {"row": row, "others": ", ".join(map(str, rows)) or "none", "side": name}
            yield "law.pairs", "part-rows" if rows else "part-unread", values
            return
    for key, moved in enumerate(rest[0] if e.given.takes == "query,key" else ()):
        columns = moved.any(0).nonzero().flatten().tolist()
        if columns != [key]:
            values = {"row": key, "others": ", ".join(map(str, columns)) or "none", "side": "key"}
            yield "law.pairs", "part-rows" if columns else "part-unread", values
            return


def _shares(e: PartEvidence, call: PartCall) -> Iterator[tuple[str, str, Any]]:
    """Weights sum to one over the keys, and their logarithms are a line in the scores."""
    assert call.found is not None
    found, (scores,) = call.found.double(), call.inputs
    sums = found.sum(-1)
    if bool((found > 0).all()):
        logs = found.log()
        logs, plain = (each - each.mean(-1, keepdim=True) for each in (logs, scores))
        slope = float((logs * plain).sum() / plain.square().sum())
        if float((logs - slope * plain).abs().max()) <= SLOPE * float(plain.abs().max()):
            digits = ROUNDING[call.found.dtype] < abs(slope - 1) < NEAR_E
            if digits or abs(slope - 1) > SLOPE:
                base = next((b for b in BASES if abs(slope - math.log(b)) < SLOPE), None)
                base = f"{math.exp(slope):.6g}" if digits else base
                way = "part-sign" if abs(slope + 1) < SLOPE else "part-weights"
                way = way if base is None else "part-base"
                yield "scale.wrong", way, {"used": f"{slope:.4g}", "base": base}
            elif float(sums.max() - sums.min()) <= SUMS < abs(float(sums[0]) - 1):
                yield "law.value", "scaled", {"factor": f"{float(sums[0]):.4g}"}
            else:
                yield "softmax.missing", "part-sums", {}
            return
    if float((sums - 1).abs().max()) > SUMS:
        over = call.found.double().sum(0)
        if float((over - 1).abs().max()) <= SUMS:
            yield "softmax.axis", "over", {"axis": "queries"}
        else:
            yield "softmax.missing", "none", {}
        return
    yield "law.scores", "part-shares", {}


def _products(e: PartEvidence, call: PartCall) -> Iterator[tuple[str, str, Any]]:
    """Scores and contexts are linear in each of their inputs."""
    assert call.found is not None
    found, expected = call.found.double(), call.expected
    factor = float((found * expected).sum() / expected.square().sum())
    if found.numel() > 1 and float((found - factor * expected).abs().max()) <= SUMS * float(
        found.abs().max()
    ):
        if e.given.takes == "weights,value":
            yield "law.value", "factor", {"factor": f"{factor:.4g}"}
        else:
            yield from _scale(e, call, factor)
        return
    for which, name in enumerate(e.part.names):

        def doubled(inputs: tuple[Tensor, ...], which: int = which) -> tuple[Tensor, ...]:
            return tuple(2 * each if i == which else each for i, each in enumerate(inputs))

        twice = e.by(doubled)
        still = e.asked.found
        assert still is not None
        if twice is None or float((twice - 2 * still).abs().max()) > SUMS * float(
            still.abs().max()
        ):
            code = "law.scores" if e.given.takes == "query,key" else "law.value"
            yield code, "part-bent", {"name": name, "result": e.part.gives}
            return
    if e.given.takes == "query,key":
        yield "law.scores", "part-numbers", {}
    else:
        yield "law.value", "part-other", {}


def _scale(e: PartEvidence, call: PartCall, factor: float) -> Iterator[tuple[str, str, Any]]:
    """The factor of scores that are no plain products, or that are, where a scale is declared."""
    wanted = e.contract.scale or 1.0
    width = call.inputs[0].shape[-1]
    used = factor * wanted
    values = {"used": f"{used:.4g}", "wanted": f"{wanted:.4g}", "square": f"{used**-2:.4g}"}
    if abs(used - 1) <= SLOPE:
        yield "scale.missing", "missing", values
    elif wanted == 1.0 and abs(used - width**-0.5) <= SLOPE:
        yield "scale.wrong", "part-early", values
    elif abs(used) > 1:
        yield "scale.wrong", "part", values
    else:
        yield "scale.wrong", "part", values


def _difference(e: PartEvidence, calls: list[PartCall]) -> tuple[str, Any]:
    """The first number that is not right, beside the one that is; or a shape, or an error."""
    name = e.part.gives
    for call in calls:
        if not call.fits or call.right:
            continue
        assert call.found is not None
        size = float(call.expected.abs().max())
        gap = (call.found.double() - call.expected).abs()
        wrong = (~(gap <= SUMS * size)).nonzero()
        place = (wrong[0] if len(wrong) else (gap == gap.max()).nonzero()[0]).tolist()
        got, right = (float(each[tuple(place)]) for each in (call.found, call.expected))
        where = ", ".join(map(str, place))
        at = {"name": name, "at": where, "got": f"{got:.4g}", "expected": f"{right:.4g}"}
        unfilled = call.found.ndim == 2 and not e.leading and e.is_unfilled(call, place)
        return "part-unfilled" if unfilled else "part", {**at, "sizes": _sizes(e, call)}
    bad = next(each for each in calls if not each.right)
    if bad.found is not None:
        got, expected = list(bad.found.shape), list(bad.expected.shape)
        return "part-shape", {
            "name": name,
            "got": got,
            "expected": expected,
            "sizes": _sizes(e, bad),
        }
    return "part-error", {"sizes": _sizes(e, bad), "error": e.refusal()}


def _overflowed(call: PartCall) -> tuple[str, Any]:
    call = flattened(call)
    row = 0
    if call.found is not None:
        row = int((~call.found.isclose(call.expected.to(call.found.dtype))).any(-1).int().argmax())
    scores = ", ".join(f"{each:g}" for each in call.inputs[0][row].tolist())
    got = "an error" if call.found is None else _row(call.found[row])
    return "part-large", {"scores": scores, "got": got, "expected": _row(call.expected[row])}


def _row(numbers: Tensor) -> str:
    return f"[{', '.join(f'{each:.4g}' for each in numbers.tolist())}]"


def _sizes(e: PartEvidence, call: PartCall) -> str:
    pairs = zip(e.part.names, call.inputs, strict=True)
    return " and ".join(f"{name} {list(each.shape)}" for name, each in pairs)
