"""The table of edits: the definition with one of its stages replaced by a mistake.

A row names the mistake, the way of its sentence, and the stage that is another one. The nearest script of at most two
rows that gives the subject's numbers on every call is the name of the mistake (`matching.py`). A new case is a new row.
"""

import math
from collections.abc import Sequence

import torch

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.head_edits import GROUPS, HEADS, MERGES, ROPE, TAKEN, TOKENS
from clearhead.checking.hypotheses.mask_edits import ALIGNMENT, GIVEN, HIDING, MASKS, SOFTMAX
from clearhead.checking.hypotheses.score_edits import ORDER, SCALES
from clearhead.checking.hypotheses.stage_edit import (
    StageEdit,
)
from clearhead.recording.weighing import Weighing


def fitted(scale: float | None, weighed: Weighing | None) -> list[StageEdit]:
    """Edits whose parameter is a number that was measured: the scale, and what hidden scores are filled or moved by."""
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
    """The edits that make sense for a contract, the nearest first.

    Args:
        contract: what is declared.
        given: a mask is handed in.
        masked: something is hidden.
        whole: heads are shared and merged by what is judged; else it is what happens inside.
        numbers: edits with a parameter that was measured.
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
        *ALIGNMENT,
        *(GIVEN if given else ()),
        *numbers,
    ]
    return [edit for edit in found if edit.needs(contract)]
