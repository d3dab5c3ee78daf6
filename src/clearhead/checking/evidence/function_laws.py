"""The laws of attention, asked of a function of query, key and value, where no mistake has a name."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checking.evidence.attempts import Attempt
from clearhead.checking.evidence.cases import Broken, Inputs, called, gap_of
from clearhead.checking.evidence.identity_values import Weights
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import SLOPE, UNREAD
from clearhead.recording.thresholds import MOVES, SUMS

Call = Callable[..., Tensor]


def by_value(run: Call, inputs: Inputs) -> Broken | None:
    """Double every value, and add one to it; return how the contexts break the law, or None.

    Each context must be doubled ("bent" if not), and grow by one, as weights sum to one: "shifted" if it grows by
    different numbers, "centred" by 0, and "factor" by another number, which is the gap.

    Args:
        run: returns (batch, heads, query_len, value_head_dim).
        inputs: query, key, value, and a mask if it takes one.
    """
    query, key, value, *rest = inputs
    still = run(*inputs)
    twice = run(query, key, 2 * value, *rest)
    if gap_of(twice, 2 * still) > SUMS:
        return Broken("bent", 0.0, "")
    moved = run(query, key, value + 1, *rest) - still
    moved = moved[moved.isfinite()]
    if not len(moved) or bool((moved - 1).abs().max() <= SUMS):
        return None
    low, high = float(moved.min()), float(moved.max())
    if high - low > SUMS:
        return Broken("shifted", 0.0, f"{low:.3g} … {high:.3g}")
    return Broken("centred", 0.0, "") if abs(low) <= SUMS else Broken("factor", low, "")


def by_queries(run: Call, inputs: Inputs) -> tuple[int, list[int]] | None:
    """Negate the query of one token after the other; return the first whose change moves other outputs than its own.

    (token, outputs that move); None if no output of another token moves.
    """
    query, *rest = inputs
    still = run(*inputs)
    for token in range(query.shape[2]):
        changed = query.clone()
        changed[:, :, token] = -changed[:, :, token]
        gap = (run(changed, *rest) - still).nan_to_num().abs().amax((0, 1, 3))
        felt = (
            (gap > MOVES[torch.float32] * still.nan_to_num().abs().max())
            .nonzero()
            .flatten()
            .tolist()
        )
        if felt and felt != [token]:
            return token, felt
    return None


def unread_keys(measured: Weights) -> list[int]:
    """Return the keys on which no query of any sample or head has a weight; [] if all weights are 0."""
    read = (measured.weights.abs() > UNREAD).any(-2).flatten(0, -2).any(0)
    return (~read).nonzero().flatten().tolist() if read.any() else []


def with_a_key_of_zeros(subject: Subject, main: Attempt) -> Attempt:
    """Call the subject with the key in the middle set to 0, so that its scores are 0; return that call.

    Its output is None if it raises.
    """
    inputs = tuple(each.clone() for each in main.inputs)
    inputs[1][..., inputs[1].shape[-2] // 2, :] = 0.0
    output = called(subject.fresh(), inputs)
    found = None if isinstance(output, Exception) else output
    return replace(main, inputs=inputs, output=found)


def by_scores(measured: Weights) -> str | None:
    """Compare the logarithms of the weights with query · key: a line, up to a constant for each query.

    Returns:
        None if they are that line. "chosen" if the visible keys differ between heads or samples; "line" if a multiple
            of
        the distance is added, "positions" if a function of the distance is; else "other".
    """
    seen = measured.weights != 0
    if not torch.equal(seen, seen[:1, :1].expand_as(seen)):
        return "chosen"
    if not bool((measured.weights[seen] > 0).all()):
        return "other"
    places = torch.arange(seen.shape[-2])[:, None] - torch.arange(seen.shape[-1])
    distance = places.abs().double().expand(seen.shape)
    which = (places - places.min()).unique(return_inverse=True)[1].expand(seen.shape)
    for way, others in (
        (None, []),
        ("line", [distance]),
        ("positions", [(which == each).double() for each in range(int(which.max()) + 1)]),
    ):
        if _explained(measured, seen, others):
            return way
    return "other"


def _explained(measured: Weights, seen: Tensor, others: list[Tensor]) -> bool:
    """Return True if the logarithms are a linear combination of products and these columns, fitted per head."""
    logs = measured.weights.abs().clamp_min(1e-300).log()
    for head in range(seen.shape[1]):
        visible = seen[:, head]
        columns = [_apart(each[:, head], visible) for each in (measured.products, *others)]
        wanted = _apart(logs[:, head], visible)
        matrix = torch.stack([each[visible] for each in columns], -1)
        found = torch.linalg.lstsq(matrix, wanted[visible][:, None], driver="gelsd").solution
        gap = (matrix @ found).flatten() - wanted[visible]
        if float(gap.abs().max()) > SLOPE * max(float(wanted.abs().max()), 1e-6):
            return False
    return True


def _apart(numbers: Tensor, visible: Tensor) -> Tensor:
    """Return numbers minus the mean over the visible keys of each query; hidden ones count as 0."""
    kept = numbers.masked_fill(~visible, 0.0)
    return kept - kept.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)
