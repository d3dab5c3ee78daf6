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
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, Stage, StageEdit, right_group
from clearhead.checking.hypotheses.score_edits import ORDER, SCALES
from clearhead.recording.thresholds import SUMS
from clearhead.recording.weighing import Weighing


def fitted(scale: float | None, weighed: Weighing | None) -> list[StageEdit]:
    """Return the edits with a measured parameter; [] if none was measured.

    For a number added to scores there are two, to visible and to hidden ones ("mask.soft"); for the scale there is one
    ("scale.wrong"), unless it is not finite.
    """
    found = []
    moved = None if weighed is None else weighed.number("number")
    if moved is not None:
        for way, hidden in (("seen", False), ("hidden", True)):
            hide = lambda scores, seen, _, empty, to=hidden: scores + moved * (seen ^ to)  # noqa: E731
            found.append(StageEdit("mask.soft", way, {"hide": hide}))
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


def of_context(trials: Sequence[Trial]) -> list[StageEdit]:
    """Return [edit]: the context plus the multiples of `ADDED` that come nearest to the output of the first call.

    [] if all are 0 to rounding, if the output has too few numbers, is not finite or has another shape than the
    definition's. Whether the edit fits is not tested.
    """
    first = trials[0]
    right = first.result(RIGHT)
    if right is None or right.shape != first.target.shape:
        return []
    if not (right.isfinite().all() and first.target.isfinite().all()):
        return []
    parts = [first.result(replace(RIGHT, around=_made_of(part))) for part in ADDED]
    known = {
        place: part
        for place, part in enumerate(parts)
        if part is not None and part.shape == right.shape
    }
    matrix = torch.stack([each.flatten() for each in known.values()], -1)
    more = (first.target - right).flatten()[:, None]
    factors = torch.linalg.lstsq(matrix, more, driver="gelsd").solution.flatten()
    pairs = zip(known, factors.tolist(), strict=True)
    felt = {place: factor for place, factor in pairs if abs(factor) > SUMS}
    if len(more) <= 2 * len(known) or not felt:
        return []

    def total(context: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context plus the multiples."""
        return context + sum(felt[place] * ADDED[place](context, key, value) for place in felt)

    way, values = "factor" if set(felt) == {0} else "more", {"factor": f"{1 + felt.get(0, 0):.4g}"}
    return [StageEdit("law.value", way, {"around": _made_of(total)}, values=values)]


def _made_of(part: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Stage:
    """Return an `around` stage that returns `part(context, key, value)`; key and value are repeated per query head."""

    def around(inner: Stage, query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Tensor:
        """Return `part` of the context that `inner` computes."""
        context = inner(query, key, value, at)
        return part(context, right_group(key, at), right_group(value, at))

    return around
