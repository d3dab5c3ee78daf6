"""Ways to put what is new beside what is kept, read from the numbers that a step gives; what a reset leaves."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.lessons import LessonRow
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.mending.outcomes import attended, doubles, layers_of
from clearhead.recording.thresholds import SUMS

BEFORE, NEW = 4, 3
# What every module keeps.
EVERY = frozenset(vars(nn.Module()))


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


def left_behind(module: Any) -> list[str]:
    """The names of what a reset does not put back to what it was before the first step."""
    before, _, after = _around_a_step(module)
    return [name for name, each in after.items() if not _same(before.get(name), each)]


def never_kept(module: Any) -> list[str]:
    """The names of what a reset sets to None, and no step to anything else, though another is set."""
    before, stepped, _ = _around_a_step(module)
    empty = [name for name, each in before.items() if each is None]
    left = [name for name in empty if stepped.get(name) is None]
    return left if len(left) < len(empty) else []


def _around_a_step(module: Any) -> list[dict[str, Any]]:
    """Return what is kept after a reset, after a step, and after another reset; nothing from where one raises."""
    found: list[dict[str, Any]] = []
    with (
        suppress(Exception),
        torch.no_grad(),
    ):  # whatever the code of another raises is told elsewhere
        matrix = layers_of(module)["q"].matrix
        module.reset()
        found.append(_copied(module))
        with suppress(Exception):  # by then it has kept what it keeps
            module.step(matrix.new_ones(2, NEW, matrix.shape[0]))
        found.append(_copied(module))
        module.reset()
        found.append(_copied(module))
    return found + [{}] * (3 - len(found))


def _copied(module: Any) -> dict[str, Any]:
    """Copy what a module and its parts keep beside their parameters, by its names."""
    parts = module.named_modules() if isinstance(module, nn.Module) else [("", module)]
    own = {
        f"{path}.{name}".removeprefix("."): each
        for path, part in parts
        for name, each in (*vars(part).items(), *getattr(part, "_buffers", {}).items())
        if name not in EVERY
    }
    return copy.deepcopy(own)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return _same(vars(one), vars(other)) if hasattr(one, "__dict__") else bool(one == other)
