"""Find the recipe that a subject follows: the right one, or a mutant of the bank."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead._common.accuracy import measured
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants import Mutant
from clearhead.checking.hypotheses.recipe import EMPTY_STYLES, RIGHT, Recipe, Setting
from clearhead.checking.thresholds import FACTOR, FAR, MOSTLY, ROUNDING


@dataclass(frozen=True)
class Trial:
    """One call: what went into its attention, (batch, heads, len, dim), and what came out."""

    name: str
    setting: Setting
    query: Tensor
    key: Tensor
    value: Tensor
    target: Tensor
    dtype: torch.dtype = torch.float64

    def under(self, contract: Contract) -> "Trial":
        """The same call, seen under another contract."""
        return replace(self, setting=self.setting._replace(contract=contract))

    def result(self, recipe: Recipe, rounding: torch.dtype | None = None) -> Tensor | None:
        """The output of a recipe for the same inputs; None where its functions do not fit them."""
        query, key, value = (
            each if rounding is None else each.to(rounding).double()
            for each in (self.query, self.key, self.value)
        )
        try:
            found = recipe.heads(query, key, value, self.setting)
            merge = recipe.merge if self.target.ndim == 3 else recipe.end
            return merge(found, self.setting)
        except (RuntimeError, IndexError, AssertionError):
            return None

    def error(self, recipe: Recipe) -> float:
        """The largest difference, of the largest number of the target; inf where NaN differs."""
        found = self.result(recipe)
        return torch.inf if found is None else distance(found, self.target)

    def matches(self, recipe: Recipe) -> bool:
        """True if the recipe gives what the subject gave, to the accuracy of the definition."""
        found = self.result(recipe)
        gap = torch.inf if found is None else distance(found, self.target)
        if found is None or gap > FAR:
            return False
        if gap <= ROUNDING[self.dtype]:
            return True
        rounding = torch.float32 if self.dtype == torch.float64 else self.dtype
        plain = self.result(recipe, rounding)
        assert plain is not None
        allowed = measured(found, plain.to(rounding), rounding, FACTOR).allowed
        finite = self.target.isfinite()
        return (found - self.target)[finite].abs().max().item() <= allowed


def precision(outputs: Sequence[Tensor], dtype: torch.dtype) -> torch.dtype:
    """The dtype that the outputs were rounded to, which may be coarser than the one they have."""
    for coarse in (torch.bfloat16, torch.float16):
        if all(
            torch.equal(each.nan_to_num(), each.to(coarse).to(each.dtype).nan_to_num())
            for each in outputs
        ):
            return coarse
    return dtype


def distance(found: Tensor, target: Tensor) -> float:
    """The largest difference, of the largest number of the target; inf where NaN differs."""
    if found.shape != target.shape:
        return torch.inf
    if target.numel():
        gap = (found - target).abs().max().item()
        if math.isfinite(gap):  # and so is every number of both
            return gap / max(target.abs().max().item(), 1e-30)
    finite = target.isfinite()
    if not torch.equal(finite, found.isfinite()):
        return torch.inf
    if not finite.any():
        return 0.0
    largest = max(target[finite].abs().max().item(), 1e-30)
    return (found - target)[finite].abs().max().item() / largest


@dataclass(frozen=True)
class Explanation:
    """The explanation of a subject: the right thing (no mutant), a mutant, or nothing known.

    `also` are mutants that give the same; `error` is that of the definition, where nothing is
    known.
    """

    known: bool
    recipe: Recipe
    contract: Contract
    mutants: tuple[Mutant, ...] = ()
    error: float = 0.0

    @property
    def right(self) -> bool:
        return self.known and not self.mutants


def contracts(contract: Contract) -> list[Contract]:
    """The contract, with what is not declared of the mask filled in: any of these is right."""
    if contract.causal is not None:
        return [contract]
    return [replace(contract, causal=False), replace(contract, causal=True)]


def window_of(seen: Tensor) -> tuple[int, int] | None:
    """The window of a matrix (query_len, kv_len) of who sees whom, if it is one: how far back and
    ahead every query sees, both short of the ends. What a query sees of itself is not asked."""
    query_len, kv_len = seen.shape
    places = torch.arange(query_len) + kv_len - query_len
    distance = places[:, None] - torch.arange(kv_len)
    if not seen.any(-1).all() or query_len < 4:
        return None
    back = int(distance[seen].max())
    ahead = max(int(-distance[seen].min()), 0)
    band = (distance <= back) & (distance >= -ahead)
    same = torch.equal(seen | (distance == 0), band | (distance == 0))
    return (back, ahead) if same and 1 <= back < query_len - 1 else None


def _styles(trials: Sequence[Trial], recipe: Recipe) -> Iterator[Recipe]:
    """The recipe with every custom for rows that see nothing, if there are any."""
    empties = False
    for trial in trials:
        try:
            empties |= not recipe.seen(trial.setting).any(-1).all().item()
        except (RuntimeError, AssertionError):
            return
    for style in EMPTY_STYLES if empties else EMPTY_STYLES[:1]:
        yield recipe.styled(style)


def fits(trials: Sequence[Trial], recipe: Recipe) -> Recipe | None:
    """The recipe, in the style in which it gives what every call gave."""
    for styled in _styles(trials, recipe):
        if all(trial.matches(styled) for trial in trials):
            return styled
    return None


def follows(trials: Sequence[Trial], contract: Contract) -> tuple[Recipe, Contract] | None:
    """The right recipe, if the subject follows it, and the contract with what was found."""
    for filled in contracts(contract):
        found = fits([trial.under(filled) for trial in trials], RIGHT)
        if found is not None:
            return found, filled
    return None


def explain(
    trials: Sequence[Trial],
    contract: Contract,
    bank: Callable[[Contract], Sequence[Mutant]],
) -> Explanation:
    """The right recipe, else every mutant that gives the same on all calls."""
    right = follows(trials, contract)
    if right is not None:
        return Explanation(True, *right)
    finite = torch.cat([trial.target.isfinite().flatten() for trial in trials])
    for filled in contracts(contract) if finite.double().mean() > MOSTLY else []:
        seen = [trial.under(filled) for trial in trials]
        found: list[tuple[Mutant, Recipe]] = []
        for mutant in bank(filled):
            # The first call has the most to tell, so that most mutants are ruled out by it alone.
            recipe = mutant.applied(RIGHT)
            if fits(seen[:1], recipe) is not None and (fitting := fits(seen, recipe)) is not None:
                found.append((mutant, fitting))
        if found:
            return Explanation(True, found[0][1], filled, tuple(mutant for mutant, _ in found))
    filled = contracts(contract)[0]
    errors = [trial.under(filled).error(RIGHT) for trial in trials]
    return Explanation(False, RIGHT, filled, error=max(errors))
