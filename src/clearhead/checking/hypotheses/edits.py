"""The table of edits: the definition with one of its stages replaced by a mistake.

A row names the mistake, the way of its sentence, and the stage that is another one. The nearest script of at most two
rows that gives the subject's numbers on every call is the name of the mistake (`matching.py`). A new case is a new row.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.head_edits import GROUPS, HEADS, MERGES, ROPE, TAKEN, TOKENS
from clearhead.checking.hypotheses.mask_edits import GIVEN, HIDING, MASKS, SOFTMAX
from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, right_group
from clearhead.checking.hypotheses.score_edits import ORDER, SCALES
from clearhead.checking.hypotheses.stage_edit import Stage, StageEdit
from clearhead.recording.thresholds import SUMS
from clearhead.recording.weighing import Weighing


def fitted(scale: float | None, weighed: Weighing | None) -> list[StageEdit]:
    """Return the edits with a measured parameter; [] if none was measured.

    These are a number that is added to visible or to hidden scores, or written to hidden ones ("mask.soft"), and the
    scale ("scale.wrong"). A fill of ±∞ and a scale that is not finite are left out.
    """
    found = []
    fill, moved = (None if weighed is None else weighed.number(x) for x in ("fill", "number"))
    if moved is not None:
        for way, hidden in (("seen", False), ("hidden", True)):
            hide = lambda scores, seen, _, empty, to=hidden: scores + moved * (seen ^ to)  # noqa: E731
            found.append(StageEdit("mask.soft", way, {"hide": hide}))
    if fill is not None and abs(fill) != torch.inf:
        way = "zero" if abs(fill) < 1e-3 else "number"
        hide = lambda scores, seen, _, empty: scores.masked_fill(~seen, fill)  # noqa: E731
        found.append(StageEdit("mask.soft", way, {"hide": hide}, values={"number": f"{fill:.4g}"}))
    if scale is not None and math.isfinite(scale):
        values = {"used": f"{scale:.4g}", "square": f"{scale**-2:.4g}" if scale else "∞"}
        found.append(
            StageEdit("scale.wrong", "constant", {"scale": lambda at: scale}, values=values)
        )
    return found


def edits(
    contract: Contract,
    *,
    given: bool,
    masked: bool,
    whole: bool = True,
    numbers: Sequence[StageEdit] = (),
) -> list[StageEdit]:
    """Return the edits that are possible under a contract, in the order of the tables.

    Args:
        contract: the declarations.
        given: a mask is passed to the call.
        masked: something is hidden.
        whole: the judged code splits and merges the heads itself; if False, edits of heads and tokens are left out.
        numbers: edits with a parameter that was measured; they come last.
    """
    found = [
        *MASKS,
        *(HIDING if masked else ()),
        *SOFTMAX,
        *SCALES,
        *ORDER,
        *GROUPS,
        *([*HEADS, *MERGES, *TAKEN, *TOKENS] if whole else ()),
        *ROPE,
        *(GIVEN if given else ()),
        *numbers,
    ]
    return [edit for edit in found if edit.needs(contract)]


# Context, key and value of every head → what may be added to the context. A query that is added is a residual.
ADDED: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]] = (
    lambda context, key, value: context,
    lambda context, key, value: value,
    lambda context, key, value: key,
    lambda context, key, value: value.mean(2, keepdim=True).expand_as(context),
    lambda context, key, value: value[:, :, :1].expand_as(context),
    lambda context, key, value: value[:, :, -1:].expand_as(context),
    lambda context, key, value: context * value,
)
MOST_KEYS = 10
"""The most keys whose subsets are all compared."""


def of_context(trials: Sequence[Trial]) -> list[StageEdit]:
    """Return the edits whose parameters the contexts of these calls show.

    These are multiples that are added, and keys that are left out of the sums. [] if the first output has another shape
    than the definition's, or is not finite.
    """
    first = trials[0]
    right = first.result(RIGHT)
    if right is None or right.shape != first.target.shape:
        return []
    if not (right.isfinite().all() and first.target.isfinite().all()):
        return []
    return [each for each in (_added(first, right), _left_out(trials)) if each is not None]


def _added(first: Trial, right: Tensor) -> StageEdit | None:
    """Return the edit that adds the multiples of ADDED nearest to what a context has more than the right one.

    None if all are 0 to rounding, or the numbers are too few. Whether the edit fits is not tested.
    """
    parts = [first.result(replace(RIGHT, around=_only(part))) for part in ADDED]
    known = {
        place: part
        for place, part in enumerate(parts)
        if part is not None and part.shape == right.shape
    }
    matrix = torch.stack([each.flatten() for each in known.values()], -1)
    more = (first.target - right).flatten()[:, None]
    factors = torch.linalg.lstsq(matrix, more, driver="gelsd").solution.flatten()
    if len(more) <= 2 * len(known):
        return None
    felt = {
        place: float(factor)
        for place, factor in zip(known, factors, strict=True)
        if abs(factor) > SUMS
    }
    if not felt:
        return None
    way = "factor" if set(felt) == {0} else "more"
    factor = f"{1 + felt.get(0, 0.0):.4g}"
    return StageEdit("law.value", way, {"around": _with(felt)}, values={"factor": factor})


def _only(part: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Stage:
    """Return an `around` stage: `part(context, key, value)` instead of the context, key and value repeated per head."""

    def around(inner: Stage, query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Tensor:
        """Return `part` of the context that `inner` computes."""
        context = inner(query, key, value, at)
        return part(context, right_group(key, at), right_group(value, at))

    return around


def _with(factors: dict[int, float]) -> Stage:
    """Return an `around` stage that adds to the context the functions of ADDED at these indices, times factors."""

    def around(inner: Stage, query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Tensor:
        """Return the context that `inner` computes, plus the multiples."""
        context = inner(query, key, value, at)
        sides = right_group(key, at), right_group(value, at)
        added = (factor * ADDED[place](context, *sides) for place, factor in factors.items())
        return context + sum(added)

    return around


def _left_out(trials: Sequence[Trial]) -> StageEdit | None:
    """Return the edit that leaves the same keys out of every sum of values; None if one call has no such subset."""
    kept = {}
    for each in trials:
        found = _summed(each)
        if found is None:
            return None
        kept[found.shape] = found
    after = lambda weights, seen, at: weights * kept[at.query_len, at.kv_len]  # noqa: E731
    return StageEdit("law.value", "sums", {"after": after})


def _summed(case: Trial) -> Tensor | None:
    """Return bool (query_len, kv_len).

    The keys whose weighted values come nearest to each context, more of them if equal. None if these do not sum to it
    up to 1e-4 of the largest number, for more than `MOST_KEYS` keys, or if the heads of the output are not merged.
    """
    at = case.setting
    if at.kv_len > MOST_KEYS or case.target.ndim != 3:
        return None
    weights = RIGHT.weights(case.query, case.key, at)
    value = right_group(case.value, at)
    target = case.target.unflatten(-1, (at.num_heads, -1)).transpose(1, 2)
    # (query, key, numbers of all samples and heads)
    terms = (weights[..., None] * value[:, :, None]).permute(2, 3, 0, 1, 4).flatten(2)
    wanted = target.permute(2, 0, 1, 3).flatten(1)
    subsets = torch.arange(2**at.kv_len - 1, -1, -1)[:, None] >> torch.arange(at.kv_len) & 1 == 1
    gaps = (subsets.double() @ terms - wanted[:, None]).abs().amax(-1)
    gap, place = gaps.min(-1)
    return subsets[place] if bool((gap <= SUMS * wanted.abs().max()).all()) else None
