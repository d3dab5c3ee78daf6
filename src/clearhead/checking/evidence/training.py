"""Effects of training mode: what is dropped, and by what the rest is scaled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import converted
from clearhead.checking.subject.subject import Subject
from clearhead.recording.lines import lines_of
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.operations import RANDOM
from clearhead.recording.thresholds import SUMS
from clearhead.recording.weighing import weigh

DRAWS = 8


@dataclass(frozen=True)
class Training:
    """Measurements of a few calls in training mode.

    Attributes:
        why: a key of the catalogue if nothing was measured, else "".
        finite: no draw holds NaN.
        varies: draws differ from each other, or from eval mode.
        repeats: random numbers are drawn, and every output is the same.
        place: what training changes: "scores", "weights", or "elsewhere"; "" if it changes nothing, or no attention was
            recorded.
        kept: the factor of the weights that are not dropped; None if it was not seen, or is not one number.
        share: the share of dropped weights; None if a kernel drops them inside.
        count: the number of weights that could be dropped.
        whole: the weights sum to one again though some are dropped.
    """

    why: str = ""
    finite: bool = True
    varies: bool = False
    repeats: bool = False
    place: str = ""
    kept: float | None = None
    share: float | None = None
    count: int = 0
    whole: bool = False


def measure_training(
    subject: Subject,
    inputs: Sequence[Tensor],
    still: Tensor,
    observed: Callable[[Subject], Sequence[ObservedAttention]],
) -> Training:
    """Return the effects of training mode, from eight calls of a copy, and from two recorded ones if something changes.

    Only `why` is set for a function, and if the output in eval mode is not finite. Random numbers are drawn. Errors of
    the eight calls are raised.

    Args:
        subject: the attention.
        inputs: of the calls.
        still: the output in eval mode.
        observed: returns the attentions in one call.
    """
    if subject.module is None:
        return Training("dropout-function")
    if not still.isfinite().all():
        return Training("not-finite")
    trained = subject.spare(training=True)
    with torch.no_grad():
        drawn = torch.stack([trained(*inputs).detach().double() for _ in range(DRAWS)])
    finite = bool(drawn.isfinite().all())
    apart = not torch.allclose(
        drawn, drawn[:1].expand_as(drawn), rtol=1e-9, atol=1e-9, equal_nan=True
    )
    moved = not torch.allclose(
        drawn[0].nan_to_num(), still.double().nan_to_num(), rtol=1e-6, atol=1e-6
    )
    if not (apart or moved):
        return Training("", finite)
    lines = lines_of(trained.spare().bare, converted(inputs, trained.dtype))
    repeats = moved and not apart and bool(RANDOM & set(lines.names.values()))
    return Training("", finite, True, repeats, **_dropped([*observed(trained), *observed(trained)]))


def _dropped(found: Sequence[ObservedAttention]) -> dict[str, Any]:
    """Return `place`, `kept`, `share`, `count` and `whole` of `Training`, by name; {} without an attention.

    Only `place` is returned unless weights are dropped outside a fused kernel.
    """
    ratios, sums = [], []
    for each in found:
        if each.layout.scores.options.get("dropout_p"):
            return {"place": "weights"}
        read, after = weigh(each), each.weights
        if any(change.kind == "dropout" for change in read.before):
            return {"place": "scores"}
        felt = read.shares.isfinite() & (read.shares.abs() > 1e-12)
        ratios.append(after[felt] / read.shares[felt])
        sums.append(after[after.isfinite().all(-1)].sum(-1).flatten())
    if not ratios:
        return {}
    ratio = torch.cat(ratios)
    if torch.allclose(ratio, torch.ones_like(ratio)):
        return {"place": "elsewhere"}
    left = ratio[ratio != 0]
    share = 1 - len(left) / len(ratio)
    same = len(left) and float(left.max() - left.min()) <= 1e-6 * float(left.abs().max())
    return {
        "place": "weights",
        "kept": float(left.median()) if same else None,
        "share": share,
        "count": len(ratio),
        "whole": share > 0 and bool(((torch.cat(sums) - 1).abs() < SUMS).all()),
    }
