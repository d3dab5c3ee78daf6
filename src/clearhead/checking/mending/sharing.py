"""Heads that share their weights, read from the numbers that a class gives."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from clearhead._common.lessons import LessonRow
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.mending.outcomes import doubles, layers_of
from clearhead.recording.thresholds import SUMS

SAMPLES, TOKENS = 2, 5


def shared_as(module: Any, row: LessonRow, promised: Mapping[str, Any]) -> str | None:
    """The way in which heads come to the same weights: "summed", "averaged", "weights-averaged"; None of any other.

    Args:
        module: made with as many heads as the lesson has.
        row: of the lesson.
        promised: what it promises.
    """
    heads = promised.get("num_heads")
    if heads is None or row.takes != "x" or not isinstance(module, nn.Module):
        return None
    generator = torch.Generator().manual_seed(row.number)
    try:
        layers = layers_of(module)
        width = layers["q"].matrix.shape[0]
        x = torch.randn(SAMPLES, TOKENS, width, generator=generator, dtype=torch.float64)
        with doubles(), torch.no_grad():
            found = module.eval()(x.clone())
        query, key, value = (
            layers[each](x).unflatten(-1, (heads, -1)).transpose(1, 2) for each in "qkv"
        )
    except Exception:  # whatever the code of another raises is told elsewhere
        return None
    scores = query @ key.mT * query.shape[-1] ** -0.5
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1) & bool(promised.get("causal"))

    def shares(scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    ways = {
        "summed": shares(scores.sum(1, keepdim=True)),
        "averaged": shares(scores.mean(1, keepdim=True)),
        "weights-averaged": shares(scores).mean(1, keepdim=True),
    }
    for way, weights in ways.items():
        context = (weights @ value).transpose(1, 2).flatten(-2)
        right = layers["o"](context) if "o" in layers else context
        if found.shape == right.shape and distance(found, right) <= SUMS:
            return way
    return None
