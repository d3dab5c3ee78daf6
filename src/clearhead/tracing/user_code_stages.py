"""The stages that a user's code computed, under the names of the definition, and the first one that differs from it."""

import math
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.hypotheses.recipe import Setting, declared_bias, right_scale, right_visible
from clearhead.recording.thresholds import HIDDEN
from clearhead.recording.weighing import Change, weigh
from clearhead.tracing.traced_call import Expected, Step, stage_axes
from clearhead.tracing.user_code import SIDES, Recording

STAGE_OF = {
    "scale": "scaled_scores",
    "scales": "scaled_scores",
    "cap": "capped_scores",
    "hide": "masked_scores",
    "fill": "masked_scores",
    "number": "masked_scores",
    "add": "masked_scores",
}
"""The stage that a change of the scores makes; any other makes changed_scores."""

NO_CHANGE = {
    "scaled_scores": "no scale",
    "capped_scores": "no softcap",
    "masked_scores": "no mask, no bias",
}
FORMULAS = {
    "scale": "{} × {}{}",
    "scales": "{}, each head times a number of its own",
    "cap": "{}, through tanh",
    "hide": "{}, {} for the hidden pairs",
    "fill": "{}, {} for the hidden pairs",
    "number": "{} + {} for some pairs",
    "add": "{} + bias",
    "dropout": "dropout: some {} 0, the others × {}",
}
"""A change in words, of the name of the stage before it, its number and 1/√head_dim, or "", in brackets."""
ORDER = tuple(NO_CHANGE)
OVER = {
    "keys": "softmax({}) over the keys",
    "queries": "softmax({}) over the queries: each column sums to one, not each row",
    "blocks": "softmax({}) over heads or samples: no row sums to one",
    "all": "softmax({}) over all pairs at once: no row sums to one",
}
UNCOMPARED = ("alibi_slopes", "sinks", "rope")
"""The declarations that are not compared with the definition here; `check` does."""


class StagesOfCode:
    """The stages from query, key and value to the context, in the order of the code.

    Attributes:
        lead: the names of the axes before the last two: of samples and of heads, as the inputs have them.
        steps: each stage as a trace shows it.
        values: by the name of each stage, its numbers as (blocks, rows, columns) in float64.
        read: the changes of the scores.
        undropped: the weights before dropout; None unless dropout is the last change.
    """

    undropped: Tensor | None

    def __init__(self, recording: Recording) -> None:
        self.recording, self.steps = recording, list[Step]()
        self.values: dict[str, Tensor] = {}
        self.lead, self._sizes = _leading_axes(recording)
        self._attention = recording.attention
        self.read, self.undropped = weigh(self._attention), None
        for name, origin in zip(SIDES, recording.origins, strict=True):
            node = origin.node
            place = 0 if node is None or node.kind == "input" else node.place
            self._add(name, getattr(self._attention, name), recording.formula(name), place)
        self._add_scores()
        self._add_weights()
        formula = f"{self._current()} · value"
        self._add("context", self._attention.context, formula, self._attention.layout.context.place)

    def in_axes_of_call(self, blocks: Tensor) -> Tensor:
        """Return (blocks, rows, columns) with the axes of the call, in the precision of the code."""
        return blocks.reshape(*self._sizes, *blocks.shape[1:]).to(self.recording.dtype)

    def _add(
        self, name: str, values: Tensor, formula: str, place: int = 0, standard: bool = True
    ) -> None:
        """Append a stage to `steps` and `values`; a stage of the definition without a place repeats the one before.

        `standard` is stored in the step.
        """
        same_as = self._current() if name in stages.NAMES and not place else None
        line = self.recording.line(place) if place else ""
        axes, tensor = stage_axes(self.lead, name), self.in_axes_of_call(values)
        self.steps.append(Step(name, tensor, axes, formula, same_as, line, standard))
        self.values[name] = values

    def _current(self) -> str:
        """Return the name of the last stage that is not a repetition."""
        return self.steps[-1].same_as or self.steps[-1].name

    def _numbered(self, name: str) -> str:
        """Return the name for another stage: unchanged for the first one, then "name_2", "name_3"."""
        count = sum(each.startswith(name) for each in self.values)
        return f"{name}_{count + 1}" if count else name

    def _add_scores(self) -> None:
        """Append the scores and the stages up to the softmax.

        A stage out of the definition's order, or not in the definition, is named "changed_scores", then
        "changed_scores_2", ….
        """
        place = self._attention.layout.scores.place
        self._add("scores", self._attention.scores, "query · keyᵀ", place)
        groups = _by_stage(self.read.before)
        early = set[str]()
        for index, (name, group) in enumerate(groups):
            later = [ORDER.index(other) for other, _ in groups[index + 1 :] if other in ORDER]
            if name not in ORDER or any(each <= ORDER.index(name) for each in later):
                early.add(name)
                name = self._numbered("changed_scores")
            else:
                self._repeat(ORDER[: ORDER.index(name)], early)
            origin = formula = self._current()
            for change in group:
                formula = self._formula(change, formula, self.values[self.steps[-1].name])
            last = group[-1].stage
            standard = _is_standard(name, group, origin)
            self._add(name, last.values, formula, last.place, standard)
        self._repeat(ORDER, early)

    def _repeat(self, names: Sequence[str], early: set[str]) -> None:
        """Append those of the named stages that are missing, as repetitions.

        `early` are names that the code did out of order.
        """
        for name in names:
            if name not in self.values:
                formula = "done earlier" if name in early else NO_CHANGE[name]
                self._add(name, self.values[self.steps[-1].name], formula)

    def _add_weights(self) -> None:
        """Append the weights and the stages after the softmax; set `undropped`."""
        read, scores = self.read, self._current()
        found = self._attention.stages
        place = next((stage.place for stage in found if stage.values is read.shares), 0)
        if read.axis is not None:
            formula = OVER[read.axis].format(scores)
        elif torch.equal(read.shares, read.entering):
            formula, place = "no softmax", 0
        else:
            formula = f"{read.normaliser or 'another operation'}({scores}), no softmax"
        self._add("weights", read.shares, formula, place, read.axis == "keys" or not place)
        for change in read.after:
            before = self.steps[-1].name
            is_last = change.kind == "dropout" and change is read.after[-1]
            self.undropped = self.values[before] if is_last else None
            name = "dropped_weights" if is_last else self._numbered("changed_weights")
            formula = self._formula(change, self._current(), self.values[before])
            stage, standard = change.stage, is_last and before == "weights"
            self._add(name, stage.values, formula, stage.place, standard)
        if "dropped_weights" not in self.values:
            self._add("dropped_weights", self.values[self.steps[-1].name], "no dropout")

    def _formula(self, change: Change, before: str, values: Tensor) -> str:
        """Return a change of scores or weights in words.

        `before` names the stage that it changes, `values` are its numbers.
        """
        number, after, root = change.number, change.stage.values, ""
        if change.kind == "scale":
            head_dim = self._attention.query.shape[-1]
            is_root = math.isclose(number, head_dim**-0.5, rel_tol=1e-5)
            root = f" (1/√{head_dim})" if is_root else ""
        elif change.kind == "dropout":
            number = dropout_factor(change, values)
        elif change.kind == "hide" and change.cells is not None:
            number = float(max(after[change.cells], default=-math.inf))
        if change.kind in FORMULAS:
            return FORMULAS[change.kind].format(before, _written(number), root)
        if change.stage.name.endswith("softmax"):
            return f"softmax({before}): a softmax of weights"
        if torch.allclose(after * values.sum(-1, keepdim=True), values, atol=1e-6):
            return f"{before}, each row divided by its sum"
        return f"{before}, changed by {change.stage.name.strip('_') or 'an unknown operation'}"

    def first_difference(self) -> Expected | None:
        """Return the first stage that differs from the definition for the code's query, key and value.

        None if none does, or if something in `UNCOMPARED` is declared. Without a declared mask, the pairs that the code
        hides, or tries to hide, are the intended ones. Scores and weights are compared only if the weights that
        multiply the values differ; the context is compared with the code's own weights. Rows that see no key are not
        compared, except in the scaled scores, where hidden pairs are not.
        """
        contract = self.recording.contract
        if any(getattr(contract, name) is not None for name in UNCOMPARED):
            return None
        got, gain = self.values, self._attention.gain
        (blocks, queries, width), keys = got["query"].shape, got["key"].shape[1]
        at = Setting(contract, blocks, 1, 1, queries, keys, width, got["value"].shape[-1])
        visible = self._visible(at)
        sees = visible.any(-1, keepdim=True)
        scaled = got["scaled_scores"]
        if gain is not None:
            scaled = stages.scaled_scores(got["query"] @ got["key"].mT, right_scale(at) / gain)
        capped = stages.capped_scores(scaled, contract.softcap)
        masked = stages.masked_scores(capped, declared_bias(at), visible)
        weights = stages.weights(masked)
        mixed = got["dropped_weights"] if self.undropped is None else self.undropped
        context = got["dropped_weights"] @ got["value"]
        changed = [name for name in got if name.startswith("changed_weights")]
        hidden = _hidden(got["masked_scores"], capped)
        own = got | dict.fromkeys(changed, mixed)
        own["masked_scores"] = got["masked_scores"].masked_fill(hidden, -torch.inf)
        right = {"scaled_scores": scaled, "masked_scores": masked, "weights": weights}
        right |= dict.fromkeys(changed, weights) | {"context": context}
        names = ["context"] if self._same(mixed, weights, sees) else list(right)
        for name in names:
            where = ~_hidden(own[name], scaled) if name == "scaled_scores" else sees
            if not self._same(own[name], right[name], where):
                return Expected(name, self.in_axes_of_call(right[name]))
        return None

    def _visible(self, at: Setting) -> Tensor:
        """Return bool (blocks, queries, keys), True for pairs that should be visible.

        Without a declared mask these are the pairs that the code does not hide or lower. With one, they are the
        declared pairs, without keys that an argument hides from all queries.
        """
        contract = self.recording.contract
        hidden = torch.zeros_like(self._attention.scores, dtype=torch.bool)
        for change in self.read.changes:
            lowers = change.kind == "hide" or (
                change.kind in ("fill", "number") and change.number <= 0
            )
            if lowers and change.cells is not None:
                hidden = hidden | change.cells
        if contract.causal is None and contract.window is None:
            return ~hidden
        declared = right_visible(at).expand(hidden.shape)
        # A mask that is an argument hides whole keys: padding.
        return declared & ~(hidden.all(-2, keepdim=True) & self.recording.masked)

    def _same(self, one: Tensor, other: Tensor, where: Tensor) -> bool:
        """Return True if numbers are equal up to half of the digits where `where`, broadcast to them, is True."""
        place = where.expand(other.shape)
        return equal_to_rounding(one[place], other[place], self.recording.dtype)


def equal_to_rounding(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Return True if shapes are equal and numbers differ by at most √eps of a dtype times the largest finite |other|.

    NaN equals NaN. The largest counts as 1 if none is finite, and 1e-34 is always allowed.
    """
    if one.shape != other.shape:
        return False
    finite = other[other.isfinite()].abs()
    size = math.sqrt(torch.finfo(dtype).eps) * (float(finite.max()) if len(finite) else 1.0)
    return torch.allclose(one.to(other.dtype), other, rtol=0, atol=max(size, 1e-34), equal_nan=True)


def dropout_factor(change: Change, before: Tensor) -> float:
    """Return the median factor by which dropout scales the values it keeps; 1 if it keeps none."""
    after = change.stage.values
    kept = (after != 0) & (before != 0) & after.isfinite()
    return float((after[kept] / before[kept]).median()) if bool(kept.any()) else 1.0


def _leading_axes(recording: Recording) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and the sizes of the axes before rows and columns.

    The inputs' own if these are heads already: ("batch", "num_heads") or ("num_heads",). Else "batch" if the inputs
    have it, unless all samples are one text, and "num_heads" if there are several.
    """
    first, batch, heads = recording.floats[0], recording.batch, recording.heads
    if first.ndim == 4 and heads == 1:
        return ("batch", "num_heads"), tuple(first.shape[:2])
    if first.ndim == 3 and recording.by_sides and heads == 1:
        return ("num_heads",), (batch,)
    has_batch = first.ndim > 2 and batch == first.shape[:-2].numel()
    has_heads = heads > 1 or (batch > 1 and not has_batch)
    names, sizes = ("batch",) * has_batch, (batch,) * has_batch
    return names + ("num_heads",) * has_heads, sizes + (heads,) * has_heads


def _by_stage(changes: Sequence[Change]) -> list[tuple[str, list[Change]]]:
    """Return (stage, changes) for each run of changes that make the same stage, such as two masks, in order.

    Changes without an effect on the weights ("same", "shift") are left out.
    """
    real = [change for change in changes if change.kind not in ("same", "shift")]
    groups = groupby(real, lambda change: STAGE_OF.get(change.kind, "changed_scores"))
    return [(name, list(group)) for name, group in groups]


def _is_standard(name: str, group: Sequence[Change], before: str) -> bool:
    """Return True if the code computes a stage as the definition does: one scale of the scores, or sums and −∞ as mask.

    `before` names the stage before it. False for other stages.
    """
    if name == "scaled_scores":
        return before == "scores" and all(each.kind == "scale" for each in group)
    return name == "masked_scores" and all(
        each.kind == "add"
        or (each.kind == "hide" and bool((each.stage.values[each.cells] == -torch.inf).all()))
        for each in group
    )


def _hidden(values: Tensor, before: Tensor) -> Tensor:
    """Return bool, True where a score is −∞ or at least 60 below that of `before`, so that its weight is 0."""
    return (values == -torch.inf) | (values - before <= -HIDDEN)


def _written(number: float) -> str:
    """Return a number with four significant digits, and − and ∞ as signs."""
    if math.isinf(number):
        return "−∞" if number < 0 else "+∞"
    return f"{number:.4g}".replace("-", "−")
