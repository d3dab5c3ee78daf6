"""Hypotheses of the gradients: what each query gives to keys and values, summed over ranks, or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checking.hypotheses.matching import Trial, distance
from clearhead.checking.hypotheses.recipe import Recipe
from clearhead.checking.ranks.placement import Placement
from clearhead.checking.thresholds import HALF_INSIDE, SUMMED

NAMES = ("query", "key", "value")


@dataclass(frozen=True)
class RankGradients:
    """The gradients of a call, of all tokens, beside what the definition gives.

    Attributes:
        found: of query, key and value; None where no rank has one.
        parts: for each, what the queries of each rank give, (ranks, …, tokens, dim).
        here: the layout.
    """

    found: tuple[Tensor | None, ...]
    parts: tuple[Tensor, ...]
    here: Placement


def parts_of(trial: Trial, recipe: Recipe, grad: Tensor, here: Placement) -> tuple[Tensor, ...]:
    """The share of each rank's queries in the gradients of query, key and value."""
    query, key, value = leaves = [
        each.clone().requires_grad_() for each in (trial.query, trial.key, trial.value)
    ]
    recipe = recipe.styled("zero")
    context = recipe.end(recipe.heads(query, key, value, trial.setting), trial.setting)
    rows = []
    for rank in range(here.world):
        mine = (here.owner == rank)[:, None]
        found = torch.autograd.grad(context, leaves, grad * mine, retain_graph=True)
        rows.append(found)
    return tuple(torch.stack(each) for each in zip(*rows, strict=True))


def hypotheses(parts: Tensor, here: Placement) -> Iterator[tuple[tuple[str, str], Tensor]]:
    """The mistakes, each a code and a way, with what they would give."""
    total, world = parts.sum(0), here.world
    own = torch.stack(
        [parts[rank, ..., token, :] for token, rank in enumerate(here.owner.tolist())], -2
    )
    yield ("ranks.grad-not-summed", "own"), own
    yield ("ranks.grad-not-summed", "others"), total - own
    yield ("ranks.grad-scaled", "small"), total / world
    yield ("ranks.grad-scaled", "large"), total * world
    yield ("ranks.grad-summed-twice", "own"), total + own
    yield ("ranks.grad-summed-twice", "all"), total * 2
    yield ("ranks.grad-not-summed", "small"), own / world
    if len(set(here.counts)) == 1:
        far, early = (
            torch.cat([here.positions[(rank + steps) % world] for rank in range(world)])[here.row]
            for steps in (-1, 1)
        )
        yield ("ranks.grad-misplaced", "far"), total[..., far, :]
        yield ("ranks.grad-misplaced", "early"), total[..., early, :]


def explained(trials: Sequence[RankGradients]) -> Mapping[str, list[tuple[str, str]]]:
    """For query, key and value, where they are not right, the mistakes that every call bears out."""
    found: dict[str, list[tuple[str, str]]] = {}
    for index, name in enumerate(NAMES):
        if all(_equal(each.parts[index].sum(0), each.found[index]) for each in trials):
            continue
        fitting: dict[tuple[str, str], bool] = {}
        for each in trials:
            for key, expected in hypotheses(each.parts[index], each.here):
                if fitting.get(key, True):
                    fitting[key] = _equal(expected, each.found[index])
        found[name] = [key for key, fits in fitting.items() if fits]
    return found


def _equal(expected: Tensor, found: Tensor | None) -> bool:
    return found is not None and distance(expected, found) < SUMMED


def blocked(trials: Sequence[RankGradients]) -> list[str]:
    """The inputs to which no gradient comes, though one should."""
    names = []
    for index, name in enumerate(NAMES):
        wanted = [each for each in trials if each.parts[index].abs().max() > 0]
        none = [
            each.found[index] is None or not torch.as_tensor(each.found[index]).any()
            for each in wanted
        ]
        if wanted and all(none):
            names.append(name)
    return names


def error(trials: Sequence[RankGradients], name: str) -> float:
    """The largest difference from the definition, of its largest number."""
    index = NAMES.index(name)
    pairs = [(each.parts[index].sum(0), each.found[index]) for each in trials]
    return max(distance(other, one) for one, other in pairs if other is not None)


def rounded(trials: Sequence[RankGradients], name: str) -> bool:
    """True if the gradient is right but for what 16 bits lose."""
    return error(trials, name) < HALF_INSIDE
