"""Evidence of what takes query, key and value: distinct sizes, seeded inputs, measured weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.foreign_names import size_of
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.attempts import (
    NAMES,
    Attempt,
    CallSizes,
    MeasuredWeights,
    as_trial,
    attempted,
    drawn,
    heads_first,
    measure_weights,
    planned,
    slope_of,
)
from clearhead.checking.evidence.base import Evidence, Settled, again
from clearhead.checking.evidence.cases import called
from clearhead.checking.evidence.half_precision import Halved, lost_by_plain, measure_halves
from clearhead.checking.hypotheses.edits import edits, fitted
from clearhead.checking.hypotheses.matching import (
    Explanation,
    Trial,
    distance,
    explain,
    follows,
    precision,
    window_of,
)
from clearhead.checking.hypotheses.recipe import RIGHT, Setting, StageEdit, right_visible
from clearhead.checking.subject.refusals import first_line
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import LARGE, UNREAD
from clearhead.errors import ModelError
from clearhead.recording.attempt import attempt


class EmptyRows(NamedTuple):
    """Queries that see nothing: the largest difference from what is declared, how many they are, and the first.

    `first` holds three numbers of it, `gradients` the inputs with gradients that are not finite.
    """

    gap: float
    rows: int
    first: tuple[float, ...]
    gradients: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class HeadsEvidence(Evidence):
    """Evidence of f(query, key, value), and of one that takes a mask too."""

    @cached_property
    def plan(self) -> list[CallSizes]:
        """Return the sizes of the planned calls, with the head_dim that an instance was made for."""
        args = self.given.args or {}
        known = (args[name] for name in args if size_of(name) == "head_dim")
        return planned(self.contract, next((each for each in known if isinstance(each, int)), None))

    @cached_property
    def _first(self) -> tuple[Subject, Attempt]:
        """The subject in the first dtype, value width or number of axes that works, and its main call, or a failure."""
        plan, seed = self.plan[0], self.seed
        tries = [(self.given, plan), (self.given.within(torch.float32), plan)]
        if plan.value_head_dim != plan.head_dim:
            # Only the width of the value may be what it cannot do.
            tries.append((self.given, plan._replace(value_head_dim=plan.head_dim)))
        attempts = []
        for subject, sizes in tries:
            attempts.append(attempted(subject, sizes, seed))
            if attempts[-1].output is not None:
                return subject, attempts[-1]
        if self.given.axes < 4:
            return replace(self, given=replace(self.given, axes=4))._first
        wanted = plan.batch, plan.num_heads, plan.query_len, plan.value_head_dim
        for axes in (3, 2):
            subject = replace(self.given, axes=axes)
            found = attempted(subject, plan, seed)
            if found.output is not None and found.output.shape == wanted:
                return subject, found
        return self.given, attempts[0]

    @cached_property
    def settled(self) -> Settled:
        """Return the first call, with the error if no attempt works.

        Raises:
            ModelError: code `check.output`, if the output has the shape of no context (not for other value widths).
        """
        subject, main = self._first
        given = dict(zip(NAMES, main.inputs, strict=False))
        if main.output is None:
            assert main.error is not None
            return Settled(subject, given, error=main.error)
        notes = ()
        if subject.axes < 4:
            notes = (
                ("axes", {"axes": "(batch, len, dim)" if subject.axes == 3 else "(len, dim)"}),
            )
        subject, output = again(subject, main.inputs, main.output)
        square = main.sizes.head_dim == main.sizes.value_head_dim
        if square and as_trial(replace(main, output=output), self.contract, subject.dtype) is None:
            raise ModelError(
                "check.output",
                f"{subject.name} must give (batch, num_heads, query_len, value_head_dim), or heads "
                f"side by side; from query {list(main.inputs[0].shape)} it gave {list(output.shape)}.",
            )
        return Settled(subject, given, output, None, notes)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """Return every planned call, main first; if only equal widths work, the main one with both widths."""
        main = replace(self._first[1], output=self.settled.output)
        if main.sizes.value_head_dim == self.plan[0].value_head_dim:
            rest = [attempted(self.subject, each, self.seed + 1) for each in self.plan[1:]]
        else:
            rest = [attempted(self.subject, self.plan[0], self.seed)]
        return [main, *rest]

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the numbers of heads and their widths, by name."""
        main = self._first[1].sizes
        names = ("num_heads", "num_kv_heads", "head_dim", "value_head_dim")
        return {name: getattr(main, name) for name in names}

    @cached_property
    def failed(self) -> list[tuple[CallSizes, Exception | None, str]]:
        """Return (sizes, error, description) of each call without a usable output; the error is None if it returned."""
        found = []
        for each in self.attempts:
            if as_trial(each, self.contract, self.subject.dtype) is None:
                shape = "" if each.output is None else str(list(each.output.shape))
                words = first_line(each.error) if each.error else f"the output has shape {shape}"
                found.append((each.sizes, each.error, words))
        return found

    @cached_property
    def trials(self) -> list[Trial]:
        """Return the calls with a usable output, as trials of the dtype that the outputs were rounded to."""
        found = [as_trial(each, self.contract, self.subject.dtype) for each in self.attempts]
        trials = [each for each in found if each is not None]
        rounded = precision([each.target for each in trials], self.subject.dtype)
        return [replace(each, dtype=rounded) for each in trials]

    @property
    def rounded(self) -> torch.dtype:
        """Return the dtype that the outputs were rounded to; there must be a trial."""
        return self.trials[0].dtype

    @cached_property
    def _window(self) -> tuple[int, int] | None:
        """Return the undeclared (back, ahead) window under which the subject is right; None if there is none.

        None as well if it is right without, a window or documents are declared, or a mask is passed.
        """
        contract = self.contract
        if contract.local or self.subject.takes == "qkv,mask":
            return None
        if follows(self.trials, contract) or self.measured is None:
            return None
        window = window_of((self.measured.weights.abs() > UNREAD)[0, 0])
        if window is None or (contract.causal and window[1]):
            return None
        filled = _with_window(contract, window)
        return window if follows([each for each in self.trials if _square(each)], filled) else None

    @cached_property
    def promised(self) -> Contract:
        """Return the contract, with the inferred window if there is one."""
        return self.contract if self._window is None else _with_window(self.contract, self._window)

    @cached_property
    def judged(self) -> list[Trial]:
        """Return the trials, only those with as many queries as keys if a window is right in them alone.

        Blocks of a window are cut for as many of both. If a known mistake is made there, all trials are judged.
        """
        square = [each for each in self.trials if _square(each)]
        if self.promised.window is None or len(square) == len(self.trials):
            return self.trials
        if not follows(square, self.promised):
            return self.trials
        return self.trials if explain(self.trials, self.promised, self.edits).known else square

    def edits(self, contract: Contract) -> list[StageEdit]:
        """Return the edits that are possible under a contract."""
        trials = [each.under(contract) for each in self.trials]
        masked = any(not right_visible(each.setting).all() for each in trials)
        weighed = self.weighings[0] if len(self.weighings) == 1 else None
        numbers = fitted(self.slope, weighed)
        given = self.subject.takes == "qkv,mask"
        return edits(contract, given=given, masked=masked, numbers=numbers)

    @cached_property
    def explained(self) -> Explanation:
        """Return the explanation of the judged trials."""
        return explain(self.judged, self.promised, self.edits)

    @cached_property
    def fitted_dim(self) -> int | None:
        """The undeclared head_dim that an instance was made for; None if it shows none, or is wrong there too."""
        if not any(each.code == "scale.wrong" for each in self.explained.script) and (
            self.explained.known or self.slope is None
        ):
            return None
        scale = (
            self.slope
            if self.slope is not None
            else self.explained.recipe.scale(self.trials[0].setting)
        )
        wanted = round(scale**-2)
        parts = [vars(part).values() for part in self.given.parts()]
        held = [each for some in ((self.given.args or {}).values(), *parts) for each in some]
        numbers = [each for each in held if isinstance(each, int | float)]
        near = any(
            abs(each - n) <= 1e-9 * abs(n) for each in numbers for n in (wanted, scale, 1 / scale)
        )
        declared = self.contract.sizes.get("head_dim", wanted)
        if declared != wanted or wanted < 1 or abs(wanted**-0.5 / scale - 1) > 1e-3 or not near:
            return None
        plans = planned(self.contract, wanted)[:3]
        made = [attempted(self.subject, each, self.seed) for each in plans]
        trials = [as_trial(each, self.contract, self.subject.dtype) for each in made]
        fitting = [each for each in trials if each is not None]
        return wanted if fitting and follows(fitting, self.contract) else None

    @cached_property
    def measured(self) -> MeasuredWeights | None:
        """The weights, with the identity as value; None if that fails, for merged heads, or not linear in it."""
        first = self.trials[0]
        with torch.no_grad():
            found, _ = attempt(measure_weights, self.subject, *self.inputs)
        if found is None or first.target.ndim != 4:
            return None
        # They are only those of an output that is linear in the value.
        value = stages.repeat_kv_heads(first.value, first.setting.num_heads)
        known = found.weights.isfinite().all() and first.target.isfinite().all()
        gap = distance(found.weights @ value, first.target) if known else torch.inf
        return found if gap < 1e-4 else None

    @cached_property
    def slope(self) -> float | None:
        """The slope of the log-weights over q·k; None if not measured, no line, or a bias or softcap is declared."""
        plain = all(
            getattr(self.contract, name) is None for name in ("softcap", "bias", "alibi_slopes")
        )
        if self.measured is None or not plain:
            return None
        return slope_of(self.measured, self.measured.weights.abs() > UNREAD)

    @cached_property
    def alone(self) -> float:
        """Return the relative difference of the last sample alone and in its batch; inf if shape or NaN differ."""
        alone = self.subject(*(each[-1:] for each in self.inputs)).detach()
        whole = self.output[-1:]
        same = alone.shape == whole.shape and torch.equal(alone.isnan(), whole.isnan())
        return distance(alone, whole) if same else torch.inf

    @cached_property
    def returned(self) -> Any:
        """Return the second item of the tuple that the subject returns, or None."""
        return self.subject.whole(*self.inputs)[1]

    @cached_property
    def leaks(self) -> tuple[str, ...] | None:
        """The sides, "key" or "value", that leak a hidden NaN; None if nothing is hidden, or the merge is wrong."""
        at = self.trials[0].under(self.explained.contract).setting
        seen = right_visible(at).expand(at.batch, at.num_heads, at.query_len, at.kv_len)
        hidden = (~seen).any(-2).all(1).all(0).nonzero()
        if not len(hidden):
            return None
        token = int(hidden[-1])
        if any(set(each.changes) & {"merge", "end"} for each in self.explained.script):
            return None
        run = by_heads(self.subject.spare())
        clean, blind, found = run(*self.inputs), ~seen[..., token], []
        for place, name in ((1, "key"), (2, "value")):
            spoilt = [each.clone() for each in self.inputs]
            spoilt[place][:, :, token] = torch.nan
            output = run(*spoilt)
            if not (output[blind].isfinite() | ~clean[blind].isfinite()).all():
                found.append(name)
        return tuple(found)

    @cached_property
    def empty(self) -> EmptyRows | None:
        """Queries that see no key, in float32; None if undeclared, refused, or without a mask and not causal."""
        filled, masked = self.explained.contract, self.subject.takes == "qkv,mask"
        if self.contract.empty_row is None or not (masked or filled.causal):
            return None
        plan = (
            self.plan[0] if masked else self.plan[0]._replace(query_len=self.plan[0].query_len + 3)
        )
        inputs = drawn(plan, masked, self.seed + 2)
        if masked:
            inputs[3][:, :, 1] = False
        # In float64 a score is still felt next to −1e9, in float32 it is not.
        found = called(by_heads(self.subject.within(torch.float32)), inputs)
        if isinstance(found, Exception):
            return None
        at = plan.setting(filled, *inputs[3:])
        empty = ~right_visible(at).any(-1).expand(found.shape[:-1])
        rows, mean = found[empty], RIGHT.group(inputs[2], at).mean(-2, keepdim=True)
        declared = 0.0 if self.contract.empty_row == "zero" else mean.expand_as(found)[empty]
        gap = float((rows - declared).abs().nan_to_num(torch.inf).max())
        blocked = _broken_gradients(self.subject, inputs) if found.isfinite().all() else ()
        return EmptyRows(gap, len(rows), tuple(rows[0, :3].tolist()), blocked)

    @cached_property
    def halves(self) -> list[tuple[torch.dtype, str, Halved]]:
        """(dtype, "usual" or "large", errors) for declared dtypes with both scores, and float32 with large ones."""
        filled, main = self.explained.contract, self._first[1].sizes
        mask = self.inputs[3] if len(self.inputs) > 3 else None
        at = main.setting(filled, mask)
        found = []
        for dtype in dict.fromkeys((*self.contract.dtypes, torch.float32)):
            run = by_heads(self.subject.within(dtype))
            for large in (False, True) if dtype in self.contract.dtypes else (True,):
                query, key, value = (self.inputs[index] for index in range(3))
                if large:
                    factor = (LARGE[dtype] / _largest_score(query, key, at)) ** 0.5
                    query, key = query * factor, key * factor
                given = (query, key, value, *self.inputs[3:])
                target = RIGHT.styled("zero").heads(query, key, value, at)
                plain = partial(lost_by_plain, query, key, value, at)
                measured = measure_halves(run, plain, given, target, dtype)
                found.append((dtype, "large" if large else "usual", measured))
        return found


def by_heads(subject: Subject) -> Callable[..., Tensor]:
    """Return the call of a subject with an output (batch, heads, query_len, value_head_dim), in float64."""
    return lambda *inputs: heads_first(subject(*inputs), *inputs[0].shape[1:3]).detach().double()


def _largest_score(query: Tensor, key: Tensor, at: Setting) -> float:
    """Return the largest scaled score, or that less the mean of its query if this is smaller; at least 1e-6."""
    scores = stages.scores(query, stages.repeat_kv_heads(key, at.num_heads)) * RIGHT.scale(at)
    above = scores - scores.mean(-1, keepdim=True)
    return max(min(scores.max().item(), above.max().item()), 1e-6)


def _broken_gradients(subject: Subject, inputs: tuple[Tensor, ...]) -> tuple[str, ...]:
    """Return the names of the inputs whose gradients are not finite; () if the call or its backward pass raises."""
    leaves = [each.clone().requires_grad_() for each in inputs[:3]]

    def gradients() -> Sequence[Tensor | None]:
        """Return the gradients of the output's sum; None for an input that it does not depend on."""
        output = subject(*leaves, *inputs[3:])
        return torch.autograd.grad(output.sum(), leaves, allow_unused=True)

    return tuple(
        name
        for name, each in zip(NAMES, attempt(gradients)[0] or (), strict=False)
        if each is not None and not each.isfinite().all()
    )


def _square(case: Trial) -> bool:
    """Return True if a trial has as many queries as keys."""
    return case.setting.query_len == case.setting.kv_len


def _with_window(contract: Contract, window: tuple[int, int]) -> Contract:
    """Return the contract with this window, and causal if the window does not look ahead."""
    return replace(contract, window=window, causal=window[1] == 0 or contract.causal)
