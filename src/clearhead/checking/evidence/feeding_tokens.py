"""Evidence of the first calls of what takes tokens: what it is fed with, its masks, other lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from clearhead._text import shown
from clearhead.checking.evidence.base import Evidence, Recorded, Settled, again, with_masks
from clearhead.checking.evidence.cases import called
from clearhead.checking.evidence.feeding import (
    Feed,
    call_error,
    feed,
    has_group_norm,
    longest,
    shortened,
    size_named,
)
from clearhead.checking.subject.calling import may_hide_by_itself, unfilled_mask
from clearhead.checking.subject.embedding import Embedded
from clearhead.checking.subject.refusals import output_error, raised_with_line
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import LONGEST
from clearhead.errors import ModelError
from clearhead.recording.attempt import attempt
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.provenance import Dependency, measure


@dataclass(frozen=True, eq=False)
class FedEvidence(Evidence):
    """Evidence of calls with tokens, whatever attends inside."""

    @cached_property
    def feed(self) -> Feed:
        """Return the sizes of the calls; raise ModelError if the width of a token cannot be found."""
        return feed(self.masked, self.contract)

    @property
    def masked(self) -> Subject:
        """The subject, with a mask of real tokens next to x if it takes one."""
        return with_masks(self.given, self.given.takes == "x,mask")

    @cached_property
    def settled(self) -> Settled:
        """Return the first call, in float64, or in float32 if that raises or is not finite; the error if both raise.

        Raises:
            ModelError: codes `check.output`, for another shape of output, `check.mask` and `check.width`.
        """
        subject, main = self.masked, self.feed.draw(self.feed.lengths[0], self.seed)
        given = {"x": main}
        output = called(subject, (main,))
        if isinstance(output, Exception):
            error, subject = output, subject.within(torch.float32)
            output = called(subject, (main,))
            if isinstance(output, Exception):
                return Settled(self.masked, given, error=error)
        subject, output = again(subject, (main,), output)
        vectors = output.ndim == main.ndim and output.shape[:-1] == main.shape[:-1]
        square = vectors and Feed.as_wide_as_long(subject, main, output)
        if not vectors or square:
            raise output_error(subject.name, main, output, square=square)
        return self._with_its_mask(subject, given, output)

    def _with_its_mask(
        self, subject: Subject, given: Mapping[str, Tensor], output: Tensor
    ) -> Settled:
        """Return the first call, with a causal mask passed only if the module does not hide the future itself.

        Raises:
            ModelError: code `check.mask`, if it sees the future because a mask parameter was not passed.
        """
        notes: tuple[tuple[str, Mapping[str, Any]], ...] = ()
        if not self.contract.causal:
            return Settled(subject, given, output, None, notes)
        if may_hide_by_itself(subject.run):
            bare = replace(subject, hands_mask=False)
            if not self._sees_all(bare, given["x"]):
                return Settled(bare, given, bare(given["x"]).detach(), None, notes)
            return Settled(subject, given, output, None, (("hands-mask", {}),))
        model = subject.run.model if isinstance(subject.run, Embedded) else subject.run
        name = unfilled_mask(model, subject.takes)
        if name is None or not self._sees_all(subject, given["x"]):
            return Settled(subject, given, output, None, notes)
        # If it is causal as soon as a mask of real tokens comes, the mask does not hide the future.
        sees_all, _ = attempt(self._sees_all, with_masks(subject, masks=True), given["x"])
        if sees_all is not False:
            raise ModelError(
                "check.mask",
                f"{subject.name} takes {name}, for which takes={shown(subject.takes)} hands over nothing, "
                "and without it the future is seen. If the causal mask is to come by it, check a "
                f"function that passes it: lambda x: attention(x, {name}=…). If not, this is "
                "mask.missing.",
            )
        return Settled(subject, given, output, None, notes)

    def _sees_all(self, subject: Subject, x: Tensor) -> bool:
        """Return True if every output depends on every token of x."""
        return bool(self.measured(subject, x).moves.all())

    def measured(
        self, subject: Subject, x: Tensor, observed: Sequence[ObservedAttention] = ()
    ) -> Dependency:
        """Return which outputs of a subject depend on which tokens of x, with operands of the observed attentions."""
        spare, generator = subject.spare(), torch.Generator().manual_seed(self.seed)

        def given(x: Tensor) -> tuple[Tensor, ...]:
            """Return the argument of a call for x (batch, tokens, width): its first sample if calls have no batch."""
            return ((x[0] if self.feed.plain else x).to(spare.dtype),)

        swapped = has_group_norm(spare)
        return measure(spare.bare, given, self.batched(x), generator, observed, swapped=swapped)

    def call_error(self, error: Exception) -> ModelError:
        """Return the error for a subject that does not accept x."""
        masks = {
            f"mask{i or ''}": each for i, each in enumerate(self.masked.others(self.inputs[0]))
        }
        return call_error(self.given, {**self.settled.inputs, **masks}, error)

    def batching(self, subject: Subject) -> Any:
        """Return a function of x, (batch, tokens, width), that calls the subject, with x[0] if it has no batch."""
        return (lambda x: subject(x[0])[None]) if self.feed.plain else subject

    def batched(self, x: Tensor) -> Tensor:
        """Return x as (batch, tokens, width)."""
        return x[None] if self.feed.plain else x

    @cached_property
    def short(self) -> Mapping[str, Tensor]:
        """Return the input with 4 tokens, as "x", or all of it if the subject does not take fewer."""
        return {"x": shortened(self.subject, self.inputs[0], 4)}

    @cached_property
    def other(self) -> Recorded | None:
        """The record of a second call, of other values and maybe another length; None if none works."""
        first, *more = self.feed.lengths
        for length, batch in dict.fromkeys(((more[0] if more else first, 3), (first, 2))):
            x = self.feed.draw(length, self.seed + 1, batch)
            recorded = self.record(x)
            if recorded is not None and recorded.output.shape[:-1] == x.shape[:-1]:
                return recorded
        return None

    @cached_property
    def lengths(self) -> dict[int, str]:
        """The outcome of calls of 1, 2 and 3 tokens, by their number; only fewer tokens than in the first call.

        It is "" if the output is finite, "NaN" if it is not, or the error that was raised.
        """
        found = {}
        for tokens in (1, 2, 3):
            if tokens >= self.inputs[0].shape[-2]:
                continue
            output = called(self.subject.spare(), (self.feed.draw(tokens, self.seed),))
            if isinstance(output, Exception):
                found[tokens] = raised_with_line(output)
            else:
                found[tokens] = "" if output.isfinite().all() else "NaN"
        return found

    @cached_property
    def at_longest(self) -> str | None:
        """The first line of the error of a call with the promised number of tokens, "" if it works.

        None if the number is unknown or too large, and for a function.
        """
        longest_ = size_named("context_length", self.given, self.contract)
        if longest_ is None or longest_ > LONGEST or self.subject.module is None:
            return None
        output = called(self.subject.spare(), (self.feed.draw(longest_, self.seed, batch=1),))
        return raised_with_line(output).splitlines()[0] if isinstance(output, Exception) else ""

    @property
    def promised_length(self) -> int | None:
        """Return the most tokens that the subject declares; None if unknown."""
        return longest(self.given, self.contract)
