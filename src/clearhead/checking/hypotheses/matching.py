"""The one search: the nearest script of edits of the definition that gives what the subject gave on every call."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead._common.accuracy import measured
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import (
    EMPTY_STYLES,
    RIGHT,
    Recipe,
    Setting,
    StageEdit,
    right_scale,
)
from clearhead.checking.thresholds import FACTOR, FAR, MOSTLY, ROUNDING, SLOPE

# The stages that two mistakes at once are looked for in.
PAIRED = frozenset(("mask", "softmax", "scale", "bias", "softcap", "weights", "rope", "heads"))


@dataclass(frozen=True)
class Trial:
    """One call: the inputs of its attention, (batch, heads, len, dim), and the output that the subject returned.

    `target` is (batch, len, width) with merged heads, else (batch, heads, len, dim), in float64; `dtype` is the
    precision it was computed in.
    """

    name: str
    setting: Setting
    query: Tensor
    key: Tensor
    value: Tensor
    target: Tensor
    dtype: torch.dtype = torch.float64

    def under(self, contract: Contract) -> "Trial":
        """Return the same call under another contract."""
        return replace(self, setting=self.setting._replace(contract=contract))

    def result(self, recipe: Recipe, rounding: torch.dtype | None = None) -> Tensor | None:
        """Return the output of a recipe for the same inputs; with `rounding` they are first rounded to that dtype.

        It is computed in float64. None if its functions do not fit the inputs.
        """
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
        """Return the largest difference of a recipe, relative to the largest number of the target.

        Inf as in `distance`, and if the recipe cannot run on the inputs.
        """
        found = self.result(recipe)
        return torch.inf if found is None else distance(found, self.target)

    def may_match(self, recipe: Recipe) -> bool:
        """Return True if recipe and subject differ by at most `FAR` of the largest number of the subject.

        They are compared where both are finite: True if that is nowhere. False for another shape, and if the recipe
        cannot run on the inputs.
        """
        found = self.result(recipe)
        if found is None or found.shape != self.target.shape:
            return False
        both = found.isfinite() & self.target.isfinite()
        gap = (found - self.target)[both].abs()
        return not gap.numel() or bool(gap.max() <= FAR * self.target[both].abs().max())

    def matches(self, recipe: Recipe) -> bool:
        """Return True if the recipe has the subject's output up to the plain computation's error.

        Both must be non-finite in the same places. False if the recipe cannot run on the inputs.
        """
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
    """Return bfloat16 or float16 if it holds every number of the outputs exactly, whatever their dtype; else `dtype`.

    bfloat16 is tried first, and is returned for no outputs.
    """
    for coarse in (torch.bfloat16, torch.float16):
        if all(
            torch.equal(each.nan_to_num(), each.to(coarse).to(each.dtype).nan_to_num())
            for each in outputs
        ):
            return coarse
    return dtype


def distance(found: Tensor, target: Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest number of the target (at least 1e-30).

    inf if the shapes differ, or other places are not finite; which of NaN, ∞ and −∞ they hold is not compared. 0.0 if
    nothing is finite.
    """
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
        recipe: the definition with the script applied; the definition if nothing is known.
        contract: the declared one, with the mask that was found.
        script: the edits.
        error: the largest error of the definition if nothing is known, else 0.0.
        trials: the calls, if they are not those of the evidence.
    """

    known: bool
    recipe: Recipe
    contract: Contract
    script: tuple[StageEdit, ...] = ()
    error: float = 0.0
    trials: tuple[Trial, ...] = ()

    @property
    def right(self) -> bool:
        """True if it is known and the definition."""
        return self.known and not self.script


def contracts(contract: Contract) -> list[Contract]:
    """Return the contracts that are right.

    The given one, or one with causal=False and one with True if not declared.
    """
    if contract.causal is not None:
        return [contract]
    return [replace(contract, causal=False), replace(contract, causal=True)]


def window_of(seen: Tensor) -> tuple[int, int] | None:
    """Return (back, ahead): the numbers of keys before and after its own that every query sees.

    None if the pairs are no window, or `back` is 0 or reaches the first key. None also for fewer than four queries, and
    if one sees nothing.

    Args:
        seen: (query_len, kv_len), True where a query sees a key. A query's own key is ignored.
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
    """Yield the recipe in each style for rows that see nothing, or once if there are no such rows.

    Nothing if its mask cannot be computed for a call.
    """
    empties = False
    for trial in trials:
        try:
            empties |= not recipe.visible(trial.setting).any(-1).all().item()
        except (RuntimeError, AssertionError):
            return
    for style in EMPTY_STYLES if empties else EMPTY_STYLES[:1]:
        yield recipe.styled(style)


def fits(trials: Sequence[Trial], recipe: Recipe) -> Recipe | None:
    """Return the recipe in the first style in which it matches every call; None if there is none."""
    for styled in _styles(trials, recipe):
        if all(trial.matches(styled) for trial in trials):
            return styled
    return None


def follows(trials: Sequence[Trial], contract: Contract) -> tuple[Recipe, Contract] | None:
    """Return the right recipe and the contract, with causal filled in, that match every call; None if none does."""
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
    """Return the definition, else the nearest script of one edit, else of two, that matches all calls.

    If none does, the explanation is not `known`. Only the definition is tried if less than half of the outputs is
    finite.

    Args:
        trials: the calls; the first one rules out most scripts.
        contract: the declarations.
        table: returns the edits that are possible under a contract, the nearest first.
    """
    right = follows(trials, contract)
    if right is not None:
        return Explanation(True, *right)
    finite = torch.cat([trial.target.isfinite().flatten() for trial in trials])
    for filled in contracts(contract) if finite.double().mean() > MOSTLY else []:
        seen = [trial.under(filled) for trial in trials]
        rows = table(filled)
        pairs = _pairs(rows, seen[0].setting)
        for script in itertools.chain(((edit,) for edit in rows), pairs):
            recipe = _followed(seen, script)
            if recipe is not None:
                return Explanation(True, recipe, filled, script)
    filled = contracts(contract)[0]
    errors = [trial.under(filled).error(RIGHT) for trial in trials]
    return Explanation(False, RIGHT, filled, error=max(errors))


def _followed(trials: Sequence[Trial], script: Sequence[StageEdit]) -> Recipe | None:
    """Return the definition with a script applied, in the style that matches every call; None if it does not match."""
    recipe = RIGHT
    for edit in script:
        recipe = edit.applied(recipe)
    # The first call has the most to tell, so most scripts are ruled out by it alone.
    return fits(trials, recipe) if trials[0].may_match(recipe) else None


def _pairs(rows: Sequence[StageEdit], at: Setting) -> Iterator[tuple[StageEdit, StageEdit]]:
    """Yield pairs of edits of different nouns, all in `PAIRED`, and of different stages.

    "operation" edits are left out. If the scale was measured, edits of the scale count only if it is wrong and theirs
    is the measured one, both for the setting `at`.
    """
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
