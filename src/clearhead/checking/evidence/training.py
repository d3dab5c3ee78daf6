"""Effects of training mode: what is dropped, where, and by what the rest is scaled."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import called, converted
from clearhead.checking.evidence.splitting import root_node
from clearhead.checking.subject.subject import Subject
from clearhead.recording.observed import ObservedAttention, attentions
from clearhead.recording.recorder import Drop, Recorder, storage_of
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
        repeats: something is dropped, and every draw is the same.
        places: where random numbers met the computation: "scores", "weights", "context", "value", "query", "output" or
            "input".
        kept: the factor of the weights that are not dropped; None if it was not seen, or is not one number.
        share: the share of dropped weights; None if a kernel drops them inside.
        count: the number of weights that could be dropped.
        whole: the weights sum to one again though some are dropped.
    """

    why: str = ""
    finite: bool = True
    varies: bool = False
    repeats: bool = False
    places: tuple[str, ...] = ()
    kept: float | None = None
    share: float | None = None
    count: int = 0
    whole: bool = False


def measure_training(subject: Subject, inputs: Sequence[Tensor], still: Tensor) -> Training:
    """Return the effects of training mode, from eight calls of a copy, and from two recorded ones if something changes.

    Only `why` is set for a function, and if the output in eval mode is not finite. Random numbers are drawn. Errors of
    the eight calls are raised.
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
    found = _places(trained, inputs) if apart or moved else ((), None, None, 0, False)
    repeats = moved and not apart and bool(found[0])
    return Training("", finite, apart or moved, repeats, *found)


def _places(
    trained: Subject, inputs: Sequence[Tensor]
) -> tuple[tuple[str, ...], float | None, float | None, int, bool]:
    """Return `places`, `kept`, `share`, `count` and `whole` of `Training`, from two recorded calls.

    ((), None, None, 0, False) if a call raises.
    """
    names = {storage_of(each): name for name, each in trained.parameters().items()}
    places: dict[str, None] = {}
    ratios, zeros, count, sums = [], 0, 0, []
    for _ in range(2):
        copies = converted(inputs, trained.dtype)
        recorder = Recorder(copies, names)
        with recorder:
            output = called(trained.bare, copies)
        if isinstance(output, Exception):
            return (), None, None, 0, False
        found = attentions(recorder)
        places |= {_place(drop, recorder, found): None for drop in recorder.drops}
        for each in found:
            at = next((i for i, stage in enumerate(each.stages) if stage.other == "random"), 0)
            shares = [i for i, stage in enumerate(each.stages) if _is_shared(stage.values)]
            # Of a mask that is drawn once only the zeros are seen.
            drawn = shares and bool(
                ((each.weights == 0) & (each.stages[shares[0]].values > 0)).any()
            )
            if not at and drawn:
                at = shares[0] + 1
                places["weights"] = None
            if not at:
                continue
            # What survivors are multiplied by may come before the drop.
            at = next((i + 1 for i in reversed(shares) if i < at), at)
            before, after = each.stages[at - 1].values, each.weights
            felt = before.isfinite() & (before.abs() > 1e-12)
            left = felt & (after != 0)
            ratios.append((after[left] / before[left]).flatten())
            zeros += int((felt & ~left).sum())
            count += int(felt.sum())
            sums.append(after[after.isfinite().all(-1)].sum(-1).flatten())
    whole = torch.cat(ratios) if ratios else torch.zeros(0)
    if not len(whole):
        return tuple(places), None, zeros / count if count else None, count, False
    again = zeros > 0 and bool(((torch.cat(sums) - 1).abs() < SUMS).all())
    same = float(whole.max() - whole.min()) <= 1e-6 * float(whole.abs().max())
    return tuple(places), float(whole.median()) if same else None, zeros / count, count, again


def _is_shared(values: Tensor) -> bool:
    """Return True if the weights of every query sum to one."""
    return bool(((values.nan_to_num(0.0).sum(-1) - 1).abs() < SUMS).all())


def _place(drop: Drop, recorder: Recorder, found: Sequence[ObservedAttention]) -> str:
    """Return the place of a drop: "scores", "weights", "context", "value", "query" (or key), "input" or "output".

    "output" if nothing attends after it, "input" if it is earlier than an attention and its query, key and value.
    """
    for each in found:
        scores, context = each.layout.scores, each.layout.context
        if context.index in drop.nodes:
            return "context"
        if scores is not context and scores.index in drop.nodes and drop.place < context.place:
            read = weigh(each)
            kinds = [change.kind for change in read.before]
            return "scores" if "dropout" in kinds else "weights"
    for each in found:
        first = (
            each.layout.scores.place
            if each.layout.scores is each.layout.context
            else (each.layout.context.place)
        )
        if drop.place > first:
            continue
        for which, name in ((2, "value"), (0, "query"), (1, "query")):
            root = root_node(recorder, each, which)
            if root is not None and root.index in drop.nodes:
                return name
        return "input"
    return "output"
