"""Evidence: everything that is measured of a subject, once, and nothing that is judged."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.cases import called, converted, measure_strides, repeated, written
from clearhead.checking.evidence.feeding import call_error
from clearhead.checking.evidence.gradients import Gradients, measure_gradients
from clearhead.checking.evidence.state import State, measure_state
from clearhead.checking.evidence.training import Training, measure_training
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ModelError
from clearhead.recording.attempt import attempt
from clearhead.recording.lines import Lines, lines_of
from clearhead.recording.observed import ObservedAttention, attentions
from clearhead.recording.recorder import Recorder, storage_of
from clearhead.recording.weighing import EXPONENTIALS, Weighing, weigh


@dataclass(frozen=True)
class Settled:
    """The first call: the subject in the dtype in which it works, its inputs by name, and its output or error.

    `notes` are remarks: a key of the catalogue, and its values.
    """

    subject: Subject
    inputs: Mapping[str, Tensor]
    output: Tensor | None = None
    error: Exception | None = None
    notes: tuple[tuple[str, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True)
class Recorded:
    """A call under the recorder: the record, the output, and the attentions in it."""

    recorder: Recorder
    output: Tensor
    attentions: tuple[ObservedAttention, ...]


@dataclass(frozen=True, eq=False)
class Evidence(ABC):
    """Measurements of a subject; each is made at its first access, and cached.

    Every part is a function of the subject alone, which none of them changes.
    """

    given: Subject
    contract: Contract
    seed: int

    @cached_property
    @abstractmethod
    def settled(self) -> Settled:
        """The first call; it holds the error if all attempts fail."""

    def call_error(self, error: Exception) -> ModelError:
        """Return the error for a subject that accepts none of the inputs."""
        return call_error(self.given, self.settled.inputs, error)

    @property
    def subject(self) -> Subject:
        """The subject in the precision in which it is called."""
        return self.settled.subject

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the first call."""
        return tuple(self.settled.inputs.values())

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the calls, by name."""

    @cached_property
    def output(self) -> Tensor:
        """The output of the first call, without a graph; the call must have worked."""
        assert self.settled.output is not None
        return self.settled.output.detach()

    @cached_property
    def repetition(self) -> float:
        """The largest difference of equal calls, relative to the largest number; inf if NaN or ∞ differ in place."""
        return repeated(lambda: self.subject(*self.inputs))

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The names of the inputs that a call writes to, or that hold NaN."""
        names = list(self.settled.inputs)
        return tuple(names[index] for index in written(self.subject.bare, self.inputs))

    @cached_property
    def strided(self) -> tuple[float, bool]:
        """The largest relative difference on strided views of the inputs, and True if the call raises for one."""
        return measure_strides(self.subject.bare, self.inputs)

    @cached_property
    def short(self) -> Mapping[str, Tensor]:
        """The inputs for measurements of many calls, by name; those of the first call."""
        return self.settled.inputs

    @cached_property
    def gradients(self) -> Gradients:
        """The gradients of inputs and parameters, compared with differences."""
        return measure_gradients(self.subject.spare(), self.short, self.seed)

    @cached_property
    def training(self) -> Training:
        """The effects of training mode."""

        def observed(trained: Subject) -> Sequence[ObservedAttention]:
            """Return the attentions in a call in training mode; () if it cannot be recorded."""
            found = record(trained, self.inputs)
            return () if found is None else found.attentions

        return measure_training(self.subject, self.inputs, self.output, observed)

    @cached_property
    def state(self) -> State:
        """The state of a module, and where its numbers come from."""
        return measure_state(self.given, self.recorded.recorder if self.recorded else None)

    def record(self, *tensors: Tensor) -> Recorded | None:
        """Return a call under the recorder; None for code that fails under it."""
        return record(self.subject, tensors)

    @cached_property
    def recorded(self) -> Recorded | None:
        """The first call under the recorder; None for code that fails under it."""
        return self.record(*self.inputs)

    @cached_property
    def observed(self) -> tuple[ObservedAttention, ...]:
        """The attentions inside the first call; () if it was not recorded."""
        return self.recorded.attentions if self.recorded is not None else ()

    @cached_property
    def weighings(self) -> tuple[Weighing, ...]:
        """The changes of the scores of each attention in `observed`."""
        return tuple(weigh(each) for each in self.observed)

    @cached_property
    def lines(self) -> Lines:
        """The lines and operations of the first call."""
        return lines_of(self.subject.spare().bare, converted(self.inputs, self.subject.dtype))

    @cached_property
    def broke(self) -> tuple[str, tuple[str, int] | None] | None:
        """The first operation that returned NaN from inputs without NaN, and its (file, line) or None.

        None if there is none.
        """
        return self.lines.first_nan

    @property
    def plain_exp(self) -> bool:
        """True if some attention takes exp of scores from which nothing was subtracted."""
        return any(
            stage.name in EXPONENTIALS and all(change.kind != "shift" for change in read.before)
            for each, read in zip(self.observed, self.weighings, strict=True)
            for stage in each.stages
        )


def record(subject: Subject, tensors: Sequence[Tensor]) -> Recorded | None:
    """Run a copy of a subject on copies of the inputs under the recorder.

    Return None for code that fails under a mode.
    """
    spare = subject.spare()
    names = {storage_of(each): name for name, each in spare.parameters().items()}
    # Copies: code that writes to its inputs must not change those of the next call.
    turned = list(converted(tensors, subject.dtype))
    buffers = spare.module.buffers() if spare.module is not None else ()
    recorder = Recorder(turned, names, map(storage_of, buffers))

    def run() -> Recorded:
        """Call the copy under the recorder, and return the record; its errors are raised."""
        with torch.no_grad(), recorder:
            output = spare.bare(*turned)
        return Recorded(recorder, output, attentions(recorder))

    return attempt(run)[0]


def again(subject: Subject, inputs_: Sequence[Tensor], output: Tensor) -> tuple[Subject, Tensor]:
    """Return the subject and its output, in float32 if only that is finite, else as given.

    A constant such as finfo.min of another precision is no mistake in that precision.
    """
    if subject.dtype != torch.float64 or bool(output.isfinite().all()):
        return subject, output
    single = subject.within(torch.float32)
    found = called(single, tuple(inputs_))
    if isinstance(found, Exception) or not found.isfinite().all():
        return subject, output
    return single, found


def with_masks(subject: Subject, masks: bool) -> Subject:
    """Return the subject called with x and a mask of True, (batch, tokens); itself if `masks` is False."""
    if not masks:
        return subject
    return replace(subject, others=lambda x: (torch.ones(x.shape[:2], dtype=torch.bool),))
