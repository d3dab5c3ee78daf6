"""Which recipe a subject follows: the right one, or one or two mutants of the bank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.recipes import EMPTY_STYLES, RIGHT, Recipe, Setting
from clearhead.checking.references.base import Mutant

# The largest error, of the largest number, by which two ways to compute the same differ: float32
# inside float64 code is 1e-7 for each operation. No mistake of the bank comes near it.
MOSTLY = 0.5
OF_EACH = 3
# What is right but for this share of its largest number computes in 16 bits somewhere.
ROUNDED = 2e-2
CLOSE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Case:
    """One call of the subject: what went into its attention, and what came out.

    `flat` heads lie side by side; `finish` is what is done to the context before the target;
    `kept`, (batch, query_len), tells the queries that are compared.
    """

    name: str
    setting: Setting
    query: Tensor
    key: Tensor
    value: Tensor
    target: Tensor
    flat: bool = False
    finish: Callable[[Tensor], Tensor] | None = None
    dtype: torch.dtype = torch.float64
    kept: Tensor | None = None

    def under(self, contract: Contract) -> "Case":
        """The same call, seen under another contract."""
        return replace(self, setting=self.setting._replace(contract=contract))

    def result(self, recipe: Recipe) -> Tensor | None:
        """What the recipe makes of the same inputs; None where its functions do not fit them."""
        compute = recipe.flat if self.flat else recipe.heads
        try:
            found = compute(self.query, self.key, self.value, self.setting)
            if not self.flat:
                one = self.target.ndim == 3
                found = (recipe.merge if one else recipe.end)(found, self.setting)
            return found if self.finish is None else self.finish(found)
        except (RuntimeError, IndexError):
            return None

    def error(self, recipe: Recipe) -> float:
        """The largest difference, of the largest number of the target; inf where NaN differs."""
        found = self.result(recipe)
        if found is None or found.shape != self.target.shape:
            return torch.inf
        if self.kept is not None:
            if self.kept.shape != found.shape[:2]:
                return torch.inf
            return distance(found[self.kept], self.target[self.kept])
        return distance(found, self.target)

    def matches(self, recipe: Recipe) -> bool:
        """Whether the recipe gives what the subject gave."""
        return self.error(recipe) <= CLOSE[self.dtype]


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
    finite = target.isfinite()
    if not torch.equal(finite, found.isfinite()):
        return torch.inf
    if not finite.any():
        return 0.0
    largest = max(target[finite].abs().max().item(), 1e-30)
    return (found - target)[finite].abs().max().item() / largest


@dataclass(frozen=True)
class Explanation:
    """What a subject computes: the right thing (no mutants), mutants, or nothing known (None)."""

    mutants: tuple[Mutant, ...] | None
    recipe: Recipe
    contract: Contract
    also: tuple[Mutant, ...] = ()
    error: float = 0.0

    @property
    def right(self) -> bool:
        return self.mutants == ()


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


def styles(cases: Sequence[Case], recipe: Recipe) -> Iterator[Recipe]:
    """The recipe with every custom for rows that see nothing, if there are any."""
    empties = False
    for case in cases:
        try:
            empties |= not recipe.seen(case.setting).any(-1).all().item()
        except (RuntimeError, AssertionError):
            return
    for style in EMPTY_STYLES if empties else EMPTY_STYLES[:1]:
        yield recipe.styled(style)


def fits(cases: Sequence[Case], recipe: Recipe) -> Recipe | None:
    """The recipe, in the style in which it gives what every case gave."""
    for styled in styles(cases, recipe):
        if all(case.matches(styled) for case in cases):
            return styled
    return None


def follows(cases: Sequence[Case], contract: Contract) -> tuple[Recipe, Contract] | None:
    """The right recipe, if the subject follows it, and the contract with what was found."""
    for filled in contracts(contract):
        found = fits([case.under(filled) for case in cases], RIGHT)
        if found is not None:
            return found, filled
    return None


def explain(
    cases: Sequence[Case],
    contract: Contract,
    bank: Callable[[Contract], list[Mutant]],
    *,
    pairs: bool = True,
) -> Explanation:
    """The right recipe, else one mutant, else two that follow from each other nowhere."""
    right = follows(cases, contract)
    if right is not None:
        return Explanation((), *right)
    finite = torch.cat([case.target.isfinite().flatten() for case in cases])
    # NaN is equal to NaN: where most is NaN, everything that gives NaN would do.
    for filled in contracts(contract) if finite.double().mean() > MOSTLY else []:
        seen = [case.under(filled) for case in cases]
        mutants = bank(filled)
        for some, size in _rounds(seen, mutants, pairs):
            found = _search(seen, some, size)
            if found:
                (chosen, recipe), others = found[0], found[1:]
                also = [m for other, _ in others if len(other) == 1 for m in other]
                return Explanation(chosen, recipe, filled, tuple(also))
    filled = contracts(contract)[0]
    errors = [case.under(filled).error(RIGHT) for case in cases]
    return Explanation(None, RIGHT, filled, error=max(errors))


def _rounds(
    cases: Sequence[Case], mutants: list[Mutant], pairs: bool
) -> Iterator[tuple[list[Mutant], int]]:
    """What to try, in order: each mutant, any scale, two mutants."""
    if not mutants:
        return
    yield mutants, 1
    fitted = fitted_scale(cases)
    yield fitted, 1
    if pairs:
        yield _telling(mutants), 2


def _telling(mutants: list[Mutant]) -> list[Mutant]:
    """A few of each name: two at once are many."""
    counts: dict[str, int] = {}
    kept = []
    for mutant in mutants:
        counts[mutant.code] = counts.get(mutant.code, 0) + 1
        if counts[mutant.code] <= OF_EACH:
            kept.append(mutant)
    return kept


def fitted_scale(cases: Sequence[Case]) -> list[Mutant]:
    """A mutant with whatever constant scale comes nearest to the first case, if one comes near."""
    case = cases[0]

    def scaled(exponent: float) -> Recipe:
        return replace(RIGHT, scale=lambda at: 2.0**exponent)

    def error(exponent: float) -> float:
        return case.error(scaled(exponent))

    grid = [step / 2 for step in range(-16, 13)]
    errors = [error(exponent) for exponent in grid]
    if min(errors) > MOSTLY:
        return []
    best = grid[errors.index(min(errors))]
    low, high = best - 0.5, best + 0.5
    for _ in range(60):
        third = (high - low) / 3
        if error(low + third) < error(high - third):
            high -= third
        else:
            low += third
    scale = 2.0 ** ((low + high) / 2)
    if not case.matches(replace(RIGHT, scale=lambda at: scale)):
        return []
    detail = f"the scores are scaled by {scale:.4g} = 1/√{scale**-2:.4g}, whatever the sizes are"
    return [
        Mutant(
            "scale.wrong",
            detail,
            "scores / math.sqrt(query.shape[-1])",
            {"scale": lambda at: scale},
        )
    ]


def _search(
    cases: Sequence[Case], mutants: list[Mutant], size: int
) -> list[tuple[tuple[Mutant, ...], Recipe]]:
    # The first case has the most to tell, so that most mutants are ruled out by it alone.
    first, found = cases[:1], []
    for chosen in combinations(mutants, size):
        recipe = RIGHT
        if len({name for mutant in chosen for name in mutant.changes}) < sum(
            len(mutant.changes) for mutant in chosen
        ):
            continue
        for mutant in chosen:
            recipe = mutant.applied(recipe)
        if fits(first, recipe) is None:
            continue
        fitting = fits(cases, recipe)
        if fitting is not None:
            found.append((chosen, fitting))
            if size > 1:
                break
    return found
