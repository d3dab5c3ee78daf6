"""The calls of a script in eval mode that several laws read, made once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from clearhead.testing.training.rehearsal import LossCall, Rehearsal, Script, draw_by, same

Measured = str | Sequence[str] | None
# The share of the target in the gradient of a cross-entropy is a half; a little less with smoothed labels.
SHARE = 0.45
# Tokens of a text that are changed one at a time, at most; steps in which parameters are watched.
PLACES, STEPS = 12, 3


class NotAskedError(Exception):
    """The law does not apply to the script; the text says why."""


class NotJudgedError(Exception):
    """The law applies and cannot be measured; the text says why."""


@dataclass(frozen=True)
class Targets:
    """The targets of a loss, as its gradient with respect to the logits shows them.

    The gradient of a cross-entropy is weight · (softmax − target), which is negative at the target alone.

    Attributes:
        ids: the target of each row of logits.
        weights: the weight of each row; 0 where it has no target.
        plain: True for the cross-entropy of the softmax, without another term.
    """

    ids: Tensor
    weights: Tensor
    plain: bool

    @property
    def used(self) -> Tensor:
        """True at the rows that have a target."""
        return self.weights > 0


def targets(call: LossCall) -> Targets | None:
    """Read the targets of a call; None if its loss is not a cross-entropy of the logits."""
    if call.output is None or call.logits is None:
        return None
    if not call.output.requires_grad or not call.loss.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(call.loss, call.output, retain_graph=True, allow_unused=True)
    if gradient is None:
        return None
    logits = call.logits.double()
    rows = gradient.detach().double().view_as(logits)
    size = rows.abs().sum(-1)
    used = size > 1e-6 * size.max()
    down, ids = rows.min(-1)
    clear = -down >= SHARE * size
    if not used.any() or clear[used].double().mean() < 0.99:
        return None
    left = 1 - logits.softmax(-1).gather(-1, ids[..., None])[..., 0].clamp_max(1 - 1e-12)
    plain = bool((rows.sum(-1).abs() <= 1e-3 * size)[used].all())
    if not plain and logits.logsumexp(-1).abs().max() < 1e-3:
        # The model returns log-probabilities, and the loss picks one.
        left, plain = torch.ones_like(left), True
    return Targets(ids, torch.where(used, -down / left, 0.0), plain)


@dataclass(frozen=True)
class ParameterSteps:
    """The parameters after some steps of training, by names.

    Attributes:
        wanting: those that require a gradient.
        reached: those that got one.
        moved: those that changed.
        counts: how often the optimizer has each.
        others: parameters of the optimizer that the model does not have, and that got no gradient.
        untied: pairs that were one parameter before the steps, and are two after them.
    """

    wanting: list[str]
    reached: set[str]
    moved: set[str]
    counts: dict[str, int]
    others: int
    untied: list[str]


class ScriptCalls:
    """A script on a copy in eval mode, with what several laws read of it."""

    def __init__(self, script: Script) -> None:
        self.script, self.rehearsal = script, Rehearsal(script)

    @cached_property
    def base(self) -> LossCall:
        """The call of the batch as it is."""
        return self.rehearsal.call()

    @property
    def logits(self) -> Tensor:
        """The logits of the base call."""
        if self.base.logits is None:
            raise NotJudgedError("the loss does not call model(…), or the model returns no logits")
        return self.base.logits

    @cached_property
    def read(self) -> Targets | None:
        """The targets of the base call; None if its loss is not a cross-entropy of the logits."""
        return targets(self.base)

    @property
    def targets(self) -> Targets:
        """The targets of the base call."""
        if self.read is None:
            raise NotJudgedError(
                "the loss is no cross-entropy of the logits that the model returns"
            )
        return self.read

    @property
    def padding(self) -> dict[str, Tensor]:
        """True at the padding of each entry of tokens that has some."""
        entries = {n: each for n, each in self.script.tokens.items() if each.ndim == 2}
        padded = {name: ~self.script.real(each) for name, each in entries.items()}
        return {name: each for name, each in padded.items() if each.any()}

    @cached_property
    def draws_inputs(self) -> bool:
        """True if the loss draws the inputs of the model, such as tokens that are hidden."""
        one, other = (self.rehearsal.call(seed=seed) for seed in (1, 2))
        return not same(one.inputs, other.inputs)

    def other_tokens(self, name: str, there: Tensor) -> Tensor:
        """An entry with other tokens at some places, each one that the entry has elsewhere.

        Negative numbers, which losses ignore, and padding are not changed.
        """
        script, entry = self.script, self.script.tokens[name]
        known = script.real(entry) & (entry >= 0)
        if isinstance(script.documents, int):
            known = known & (entry != script.documents)
        values = entry[known].unique()
        if len(values) < 2:
            return entry.clone()
        following = values[(torch.searchsorted(values, entry.clamp_min(0)) + 1) % len(values)]
        return torch.where(there & known, following, entry)

    def moved(self, **changed: Tensor) -> Tensor:
        """The change of each row of logits with other entries; 0 where it is rounding."""
        with torch.no_grad():
            logits = self.rehearsal.call(self.script.having(**changed)).logits
        return self.beyond_noise(logits)

    def beyond_noise(self, logits: Tensor | None) -> Tensor:
        """The difference of each row of logits to those of the base call; 0 where it is rounding."""
        if logits is None:
            raise NotJudgedError("the model returns no logits for other tokens")
        gap = (logits - self.logits).abs().amax(-1)
        eps = max(100 * torch.finfo(torch.float32).eps, 2 * torch.finfo(logits.dtype).eps)
        return gap.where(gap > eps * self.logits.abs().max(), 0.0)

    @cached_property
    def ahead(self) -> int | None:
        """The number of tokens by which the logits see ahead; negative if they see no token at their own place, None
        if no token moves them."""
        if self.logits.ndim < 3:
            raise NotJudgedError("the logits have no axis of tokens")
        text, distances = self.script.text, []
        every = max(1, math.ceil((text.shape[1] - 1) / PLACES))
        for place in sorted({*range(1, text.shape[1], every), text.shape[1] - 1} - {0}):
            there = torch.zeros_like(text, dtype=torch.bool)
            there[:, place] = True
            moved = self.moved(**{self.script.name: self.other_tokens(self.script.name, there)})
            distances += [place - row for row in moved.amax(0).nonzero()[:1, 0].tolist()]
        return max(distances, default=None)

    @cached_property
    def steps(self) -> ParameterSteps:
        """The parameters after `STEPS` steps on another copy in training mode."""
        rehearsal = Rehearsal(self.script, training=True)
        model, groups = rehearsal.model, rehearsal.optimizer.param_groups
        named = dict(model.named_parameters())
        held = [each for group in groups for each in group["params"]]
        known = {id(each) for each in named.values()}
        others = [each for each in held if id(each) not in known]
        before, ties = {name: each.detach().clone() for name, each in named.items()}, _ties(model)
        reached, lost = set[str](), len(others)
        draw_by(0)
        for _ in range(STEPS):
            rehearsal.step()
            reached |= {n for n, e in named.items() if e.grad is not None and bool(e.grad.any())}
            lost = min(lost, sum(each.grad is None for each in others))
        ids = [id(each) for each in held]
        after = model.named_parameters()
        return ParameterSteps(
            [name for name, each in named.items() if each.requires_grad],
            reached,
            {name for name, each in after if not torch.equal(before[name], each)},
            {name: ids.count(id(each)) for name, each in named.items()},
            lost,
            [" and ".join(each) for each in ties - _ties(model)],
        )


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(each), []).append(name)
    return {tuple(each) for each in names.values() if len(each) > 1}
