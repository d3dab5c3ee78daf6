"""Dropout in training, read from the outputs: with no more tokens than a value is wide, the weights
that gave an output can be worked out from it."""

from typing import Any

import torch
from torch import nn

from clearhead._common.lessons import LessonRow
from clearhead.checking import words
from clearhead.checking.mending.outcomes import doubles, layers_of
from clearhead.checking.report import Finding
from clearhead.recording.thresholds import SUMS

TOKENS, BATCH = 5, 64


def dropped(module: Any, row: LessonRow) -> Finding | None:
    """A mistake in what is dropped while training; None where there is none, or where it is not known.

    Args:
        module: in evaluation it gives what it should.
        row: of a lesson that promises dropout, or of another.
    """
    rate = row.contract.get("dropout")
    if rate is None or not isinstance(module, nn.Module):
        return None
    try:
        layers = layers_of(module)
    except LookupError:
        return None
    generator = torch.Generator().manual_seed(row.number)
    x = torch.randn(
        1, TOKENS, layers["q"].matrix.shape[0], generator=generator, dtype=torch.float64
    )
    with torch.no_grad(), doubles(), torch.random.fork_rng():
        torch.manual_seed(row.number)
        back = torch.linalg.pinv(layers["v"](x[0]))
        module.eval()
        weights = module(x)[0] @ back
        module.train()
        out = module(x.expand(BATCH, -1, -1).clone())
        kept = out @ back
    if out.ndim != 3 or not out.isfinite().all():
        return None
    if not torch.allclose(kept @ layers["v"](x[0]), out, atol=SUMS):
        return Finding("dropout.misplaced", words.filled("outcome", "dropped-after", {}))
    totals = kept.sum(-1)
    if torch.allclose(totals[totals.abs() > SUMS], totals.new_ones(()), atol=SUMS):
        return Finding("dropout.unscaled", words.plain("dropout.unscaled", "again", {}))
    some = weights > SUMS
    ratio = (kept / weights.where(some, torch.ones_like(weights)))[:, some]
    grown = ratio[ratio.abs() > SUMS]
    if not grown.isclose(out.new_tensor(1 / (1 - rate)), atol=1e-3).all():
        values = {"kept": f"{grown.median().item():.3g}", "dropout": rate}
        return Finding("dropout.unscaled", words.plain("dropout.unscaled", "otherwise", values))
    return None
