"""The calls of a script in eval mode and its first steps of training, each made once for all laws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clearhead.testing.training.script import LossCall, Rehearsal, Script, draw_by

Measured = str | Sequence[str] | None
# The share of the target in the gradient of a cross-entropy is a half; a little less with smoothed labels.
SHARE = 0.45
# Tokens of a text that are changed one at a time, at most; steps in which parameters are watched.
PLACES, STEPS = 12, 3


class NotAskedError(Exception):
    """Raised by a law that does not apply to the script; the text says why."""


class NotJudgedError(Exception):
    """Raised by a law that applies and cannot be measured; the text says why."""


@dataclass(frozen=True)
class Targets:
    """The targets of a loss, read from its gradient with respect to the logits.

    The gradient of a cross-entropy is weight · (softmax − target), which is negative at the target alone.

    Attributes:
        ids: the target of each row of logits, (batch, tokens) or (batch,).
        weights: the weight of each row, in the same shape; 0 where it has no target.
        plain: True for the cross-entropy of the softmax, without another term.
    """

    ids: Tensor
    weights: Tensor
    plain: bool

    @property
    def used(self) -> Tensor:
        """True at the rows that have a target, bool in the shape of `ids`."""
        return self.weights > 0


def targets(call: LossCall) -> Targets | None:
    """Return the targets of a call.

    None if there are no logits, the loss has no gradient with respect to them, or it is no cross-entropy: in 99 % of
    the rows the target must have nearly half of the gradient.
    """
    if call.output is None or not call.output.requires_grad or not call.loss.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(call.loss, call.output, retain_graph=True, allow_unused=True)
    if gradient is None:
        return None
    logits, rows = call.output.detach().double(), gradient.detach().double()
    size = rows.abs().sum(-1)
    used = size > 1e-6 * size.max()
    lowest, ids = rows.min(-1)
    clear = -lowest >= SHARE * size
    if not used.any() or clear[used].double().mean() < 0.99:
        return None
    left = 1 - logits.softmax(-1).gather(-1, ids[..., None])[..., 0].clamp_max(1 - 1e-12)
    plain = bool((rows.sum(-1).abs() <= 1e-3 * size)[used].all())
    if not plain and logits.logsumexp(-1).abs().max() < 1e-3:
        # The model returns log-probabilities, and the loss picks one.
        left, plain = torch.ones_like(left), True
    return Targets(ids, torch.where(used, -lowest / left, 0.0), plain)


class ScriptCalls:
    """A copy of a script in eval mode, with cached results that several laws read.

    The first access of a cached property calls the copy.
    """

    def __init__(self, script: Script) -> None:
        self.script, self.rehearsal = script, Rehearsal(script)

    @cached_property
    def base(self) -> LossCall:
        """The call of the loss on the batch as it is (cached)."""
        return self.rehearsal.call()

    @property
    def logits(self) -> Tensor:
        """The logits of the base call; raises NotJudgedError if there are none."""
        if self.base.logits is None:
            raise NotJudgedError("the loss does not call model(…), or the model returns no logits")
        return self.base.logits

    @cached_property
    def read(self) -> Targets | None:
        """The targets of the base call; None if its loss is not a cross-entropy of the logits (cached)."""
        return targets(self.base)

    @property
    def targets(self) -> Targets:
        """The targets of the base call; raises NotJudgedError if there are none."""
        if self.read is None:
            raise NotJudgedError(
                "the loss is no cross-entropy of the logits that the model returns"
            )
        return self.read

    def other_tokens(self, name: str, there: Tensor) -> Tensor:
        """Return a copy of an entry of ids, with the next larger id of the entry at the places where `there` is True.

        The largest id becomes the smallest. Padding, document ends and negative ids, which losses ignore, do not
        change; nothing changes if the entry has fewer than two ids.
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

    def change(self, **entries: Tensor) -> Tensor:
        """Call the loss with some entries of the batch replaced, and return `difference` of that call.

        Raises as that does.
        """
        with torch.no_grad():
            return self.difference(self.rehearsal.call(self.script.with_entries(**entries)))

    def difference(self, call: LossCall) -> Tensor:
        """Return the largest difference of each row of logits to the base call, without the last axis.

        0 where it is rounding. Raises NotJudgedError if one of the calls has no logits.
        """
        if call.logits is None:
            raise NotJudgedError("the model returns no logits for other tokens")
        gap = (call.logits - self.logits).abs().amax(-1)
        eps = max(100 * torch.finfo(torch.float32).eps, 2 * torch.finfo(call.logits.dtype).eps)
        return gap.where(gap > eps * self.logits.abs().max(), 0.0)

    @cached_property
    def lookahead(self) -> int | None:
        """The largest number of tokens by which the logits see ahead, over at most about 12 changed places (cached).

        Negative if they do not see the token at their own place; None if no token changes them. Raises NotJudgedError
        if the logits have no axis of tokens.
        """
        if self.logits.ndim < 3:
            raise NotJudgedError("the logits have no axis of tokens")
        text, distances = self.script.text, []
        every = max(1, math.ceil((text.shape[1] - 1) / PLACES))
        for place in sorted({*range(1, text.shape[1], every), text.shape[1] - 1} - {0}):
            there = torch.zeros_like(text, dtype=torch.bool)
            there[:, place] = True
            changed = self.change(**{self.script.name: self.other_tokens(self.script.name, there)})
            distances += [place - row for row in changed.amax(0).nonzero()[:1, 0].tolist()]
        return max(distances, default=None)

    @cached_property
    def steps(self) -> dict[str, list[str]]:
        """The parameters that break a law of the first three steps, by the code of the law; [] where it holds (cached).

        "train.gradient": never a gradient other than 0. "train.optimizer": not held by the optimizer exactly once, or
        held, not the model's and without a gradient. "train.moved": held, with a gradient, and unchanged.
        "train.frozen": changed without requires_grad. A copy is trained.
        """
        rehearsal = Rehearsal(self.script, training=True)
        named = dict(rehearsal.model.named_parameters())
        held = [one for group in rehearsal.optimizer.param_groups for one in group["params"]]
        before = {name: one.detach().clone() for name, one in named.items()}
        known, reached, unused = set(map(id, named.values())), set[str](), len(held)
        draw_by(0)
        for _ in range(STEPS):
            rehearsal.step()
            reached |= {n for n, one in named.items() if one.grad is not None and one.grad.any()}
            unused = min(unused, sum(id(one) not in known and one.grad is None for one in held))
        moved = {name for name, one in named.items() if not torch.equal(before[name], one)}
        ids = list(map(id, held))
        counts = {name: ids.count(id(one)) for name, one in named.items() if one.requires_grad}
        return {
            "train.gradient": [name for name in counts if name not in reached],
            "train.optimizer": [f"{name} ({n} times)" for name, n in counts.items() if n != 1]
            + [f"{unused} that are not the model's"] * (unused > 0),
            "train.moved": [n for n in counts if counts[n] and n in reached - moved],
            "train.frozen": sorted(moved - counts.keys()),
        }
