"""Ways to put what is new beside what is kept, read from the numbers that a step gives."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead._common.lessons import LessonRow
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.mending.outcomes import attended, doubles, layers_of
from clearhead.checking.thresholds import SUMS

BEFORE, NEW = 4, 3


def kept_as(module: Any, row: LessonRow, promised: Mapping[str, Any]) -> str | None:
    """The way in which a step puts what is new beside what is kept: "front", "twice"; None of any other.

    Args:
        module: with reset and step.
        row: of the lesson.
        promised: what it promises.
    """
    if row.takes != "decode" or not callable(getattr(module, "step", None)):
        return None
    generator = torch.Generator().manual_seed(row.number)
    try:
        layers = layers_of(module)
        x = torch.randn(
            2, BEFORE + NEW, layers["q"].matrix.shape[0], generator=generator, dtype=torch.float64
        )
        with doubles(), torch.no_grad():
            module.reset()
            module.step(x[:, :BEFORE].clone())
            pieces = [module.step(x[:, BEFORE:].clone())]
            module.reset()
            module.step(x[:, :-1].clone())
            pieces.append(module.step(x[:, -1:].clone()))
            query, key, value = (layers[each](x) for each in "qkv")
    except Exception:  # whatever the code of another raises is told elsewhere
        return None

    def given(new: int, order: list[int]) -> Tensor:
        context = attended(query[:, -new:], key[:, order], value[:, order], promised)
        return layers["o"](context) if "o" in layers else context

    every = list(range(BEFORE + NEW))
    ways = {
        "front": lambda new: every[-new:] + every[:-new],
        "twice": lambda new: every + every[-new:],
    }
    for way, order in ways.items():
        made = [given(new, order(new)) for new in (NEW, 1)]
        if all(distance(one, other) <= SUMS for one, other in zip(pieces, made, strict=True)):
            return way
    return None
