"""The one search: the nearest script of edits of the definition that gives what the subject gave on every call."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead._common.accuracy import measured
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import EMPTY_STYLES, RIGHT, Recipe, Setting, right_scale
from clearhead.checking.hypotheses.stage_edit import StageEdit
from clearhead.checking.thresholds import FACTOR, FAR, MOSTLY, ROUNDING, SLOPE

# The stages that two mistakes at once are looked for in.
PAIRED = frozenset(("mask", "softmax", "scale", "bias", "softcap", "weights", "rope", "heads"))


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

    def may_match(self, recipe: Recipe) -> bool:
        """True if the finite numbers of a recipe are near those of the subject, whatever empty rows hold."""
        found = self.result(recipe)
        if found is None or found.shape != self.target.shape:
            return False
        both = found.isfinite() & self.target.isfinite()
        gap = (found - self.target)[both].abs()
        return not gap.numel() or float(gap.max() / self.target[both].abs().max()) <= FAR

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
    """The explanation of a subject: the definition, the script of edits that it follows, or nothing known.

    Attributes:
        known: True if a script was found; an empty one is the definition.
        recipe: the definition with the script applied.
        contract: what is declared, with what was found.
        script: the edits.
        also: other edits that give the same, where the script is one edit.
        error: of the definition, where nothing is known.
        trials: the calls, where they are not those of the evidence.
    """

    known: bool
    recipe: Recipe
    contract: Contract
    script: tuple[StageEdit, ...] = ()
    also: tuple[StageEdit, ...] = ()
    error: float = 0.0
    trials: tuple[Trial, ...] = ()

    @property
    def right(self) -> bool:
        """True if it is the definition."""
        return self.known and not self.script


def contracts(contract: Contract) -> list[Contract]:
    """The contract, with what is not declared of the mask filled in: any of these is right."""
    if contract.causal is not None:
        return [contract]
    return [replace(contract, causal=False), replace(contract, causal=True)]


def window_of(seen: Tensor) -> tuple[int, int] | None:
    """Return how far back and ahead every query sees; None if that is no window, or if it reaches the ends.

    Args:
        seen: (query_len, kv_len), True where a query sees a key. What a query sees of itself is not asked.
    """
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
    table: Callable[[Contract], Sequence[StageEdit]],
) -> Explanation:
    """The definition, else the nearest script of at most two edits that gives the same on all calls.

    Args:
        trials: the calls.
        contract: what is declared.
        table: the edits that are possible under a contract, the nearest first.
    """
    right = follows(trials, contract)
    if right is not None:
        return Explanation(True, *right)
    finite = torch.cat([trial.target.isfinite().flatten() for trial in trials])
    for filled in contracts(contract) if finite.double().mean() > MOSTLY else []:
        seen = [trial.under(filled) for trial in trials]
        rows = table(filled)
        single = [(edit, recipe) for edit in rows if (recipe := _followed(seen, edit)) is not None]
        if single:
            (edit, recipe), *others = single
            also = tuple(each for each, _ in others if each.way != "constant")
            return Explanation(True, recipe, filled, (edit,), also)
        for pair in _pairs(rows, seen[0].setting):
            recipe = _followed(seen, *pair)
            if recipe is not None:
                return Explanation(True, recipe, filled, pair)
    filled = contracts(contract)[0]
    errors = [trial.under(filled).error(RIGHT) for trial in trials]
    return Explanation(False, RIGHT, filled, error=max(errors))


def _followed(trials: Sequence[Trial], *script: StageEdit) -> Recipe | None:
    """The definition with a script applied, if the subject follows it."""
    recipe = RIGHT
    for edit in script:
        recipe = edit.applied(recipe)
    # The first call has the most to tell, so most scripts are ruled out by it alone.
    return fits(trials, recipe) if trials[0].may_match(recipe) else None


def _pairs(rows: Sequence[StageEdit], at: Setting) -> Iterator[tuple[StageEdit, StageEdit]]:
    """Two edits of different stages; of the scale those that give what was measured, where that was."""
    near = [each for each in rows if each.noun in PAIRED and each.way != "operation"]
    used = next((each.changes["scale"](at) for each in rows if each.way == "constant"), None)
    if used is not None:
        right = abs(used / right_scale(at) - 1) < SLOPE
        near = [
            each
            for each in near
            if "scale" not in each.changes
            or (not right and abs(used / each.changes["scale"](at) - 1) < SLOPE)
        ]
    for one, other in itertools.combinations(near, 2):
        if one.noun != other.noun and not set(one.changes) & set(other.changes):
            yield one, other
