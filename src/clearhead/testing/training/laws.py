"""The laws of training, one row each: a change of a call, and what is compared."""

import math
from collections.abc import Callable, Mapping

import torch

from clearhead.testing.training.calls import Measured, ScriptCalls
from clearhead.testing.training.learning import documents, leak, order, padding, target, weights
from clearhead.testing.training.rehearsal import Rehearsal
from clearhead.testing.training.running import (
    accumulation,
    alone,
    decoding,
    dropout,
    evaluation,
    replay,
    resume,
    tied,
)

BY_HEART = 20

# Each law by its code, in the order of the report.
LAWS: Mapping[str, Callable[[ScriptCalls], Measured]] = {
    "train.leak": leak,
    "train.target": target,
    "train.documents": documents,
    "train.order": order,
    "train.padding": padding,
    "train.weights": weights,
    "train.accumulation": accumulation,
    "train.gradient": lambda c: [n for n in c.steps.wanting if n not in c.steps.reached],
    "train.optimizer": lambda c: (
        [f"{n} ({c.steps.counts[n]} times)" for n in c.steps.wanting if c.steps.counts[n] != 1]
        + [f"{c.steps.others} that are not the model's"] * (c.steps.others > 0)
    ),
    "train.moved": lambda c: [
        n for n in c.steps.wanting if n in c.steps.reached - c.steps.moved and c.steps.counts[n]
    ],
    "train.frozen": lambda c: sorted(c.steps.moved - set(c.steps.wanting)),
    "train.tied": tied,
    "train.dropout": dropout,
    "train.eval": evaluation,
    "train.replay": replay,
    "train.resume": resume,
    "train.decoding": decoding,
    "train.alone": alone,
}


def start(calls: ScriptCalls) -> str | None:
    """The first loss next to that of equal probabilities."""
    read = calls.read
    if read is None or not read.plain:
        return None
    mean, classes = float(calls.base.loss) / float(read.weights.sum()), calls.logits.shape[-1]
    return f"the first loss is {mean:.3f}, and ln {classes} = {math.log(classes):.3f}"


def heart(calls: ScriptCalls) -> str:
    """The loss before and after some steps on one batch."""
    rehearsal = Rehearsal(calls.script)
    for _ in range(BY_HEART):
        rehearsal.step(seed=0)
    with torch.no_grad():
        end = rehearsal.call().loss.item()
    return f"{BY_HEART} steps on one batch change the loss from {calls.base.loss.item():.3f} to {end:.3f}"


# Measurements that are noted, and never fail.
NOTES: Mapping[str, Callable[[ScriptCalls], str | None]] = {
    "train.start": start,
    "train.heart": heart,
}
