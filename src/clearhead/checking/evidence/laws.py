"""The laws of attention, asked of calls: the same again, sample by sample, unchanged by length, linear in the value.

They hold whatever the mechanism is declared to be, so a subject that breaks one is wrong whether or not its
mistake has a name.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from clearhead.checking.evidence.cases import Case, Inputs, called
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import ROUNDING
from clearhead.recording.recorder import Recorder, storage_of
from clearhead.recording.thresholds import MOVES


def in_turn(subject: Subject, calls: Sequence[Inputs]) -> Iterator[Case]:
    """Yield cases: calls of one copy, one after the other, each compared with the same call of a fresh copy."""
    copy = subject.fresh()
    for number, inputs in enumerate(calls):
        at = f"call {number + 1}, {list(inputs[0].shape)}"
        fresh = partial(subject.fresh(), *inputs)
        yield Case(at, partial(copy, *inputs), fresh, MOVES[subject.dtype])


def reseeded(subject: Subject, inputs: Inputs) -> bool:
    """Return True if the caller's random numbers after a call are the same from two seeds; False if the call raises.

    The global generator is seeded.
    """
    after = []
    for seed in (11, 12):
        torch.manual_seed(seed)
        if isinstance(called(subject.spare(), inputs), Exception):
            return False
        after.append(torch.rand(2))
    return torch.equal(*after)


def by_samples(subject: Subject, inputs: Inputs, output: Tensor) -> Iterator[Case]:
    """Yield cases: the last sample alone, and all samples in reverse order, each compared with the batch.

    Nothing for one sample, or an output without a batch.
    """
    batch = inputs[0].shape[0]
    if batch < 2 or output.shape[:1] != (batch,):
        return
    for places in [batch - 1], list(reversed(range(batch))):
        at, chosen = "samples " + ", ".join(map(str, places)), torch.tensor(places)
        call = partial(subject.fresh(), *(each[chosen] for each in inputs))
        yield Case(at, call, output[chosen], ROUNDING[subject.dtype])


def lost(recorded: Recorder, output: Tensor) -> bool:
    """Return True if an operation hides scores, and its result is read by nothing."""
    read = recorded.read | {storage_of(output)}
    return any(
        step.name in ("masked_fill", "where") and step.result not in read for step in recorded.steps
    )
