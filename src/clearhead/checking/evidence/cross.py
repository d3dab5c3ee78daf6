"""Evidence of cross-attention: f(x, context)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from clearhead._common.foreign_names import size_of
from clearhead.checking.evidence.base import Recorded, Settled, again
from clearhead.checking.evidence.cases import called
from clearhead.checking.evidence.feeding import Feed, feed, has_group_norm
from clearhead.checking.evidence.tokens import TokensEvidence
from clearhead.checking.subject.subject import Subject
from clearhead.recording.provenance import Dependency, Provenance, measure, provenance


@dataclass(frozen=True, eq=False)
class CrossEvidence(TokensEvidence):
    """The dependencies on both sides, and the attentions inside."""

    @cached_property
    def _feed(self) -> Feed:
        """Return the sizes of the calls; raise ModelError if the width of a token cannot be found."""
        return feed(self.given, self.contract)

    @cached_property
    def feed(self) -> Feed:
        """Return the sizes of the calls, without a batch if the first call had none."""
        return replace(self._feed, plain=self.settled.inputs["x"].ndim == 2)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The widths of a token of x, "d_in", and of the context, "d_context"."""
        return {"d_in": self._feed.width, "d_context": self._feed.context_width}

    def _inputs(self, fed: Feed, lens: tuple[int, int], seed: int) -> dict[str, Tensor]:
        """Return random "x" of lens[0] tokens and "context" of lens[1] tokens, by name."""
        return {
            "x": fed.draw(lens[0], seed),
            "context": fed.draw(lens[1], seed + 1, width=fed.context_width),
        }

    @cached_property
    def settled(self) -> Settled:
        """The first call that works, of (5, 7) or (7, 7) tokens, with or without a batch, in float64 or float32.

        If none works, the first error, and no output. ModelError as in `_feed`.
        """
        fed, first = self._feed, None
        given = self._inputs(fed, (5, 7), self.seed)
        # Sides that are swapped in part fit each other only where the lengths are equal.
        for lens in ((5, 7), (7, 7)):
            for plain in (False, True):
                for dtype in (torch.float64, torch.float32):
                    tried = self._inputs(replace(fed, plain=plain), lens, self.seed)
                    subject = self.given if dtype == torch.float64 else self.given.within(dtype)
                    output = called(subject, tuple(tried.values()))
                    if isinstance(output, Exception):
                        first = first or output
                        continue
                    if plain and output.ndim != 2:
                        continue
                    subject, output = again(subject, tuple(tried.values()), output)
                    notes = (("without-batch", {}),) if plain else ()
                    return Settled(subject, tried, output, None, notes)
        return Settled(self.given, given, error=first)

    def fitted_context(self, subject: Subject) -> tuple[Tensor, ...]:
        """Return x and the context, repeated and cut to the d_context of an instance's arguments.

        Unchanged without one.
        """
        x, context = self.settled.inputs.values()
        args = subject.args or {}
        width = next((args[n] for n in args if size_of(n) == "d_context"), context.shape[-1])
        return x, context.repeat(1, 1, width)[..., :width]

    @property
    def alike(self) -> bool:
        """True if x and context have the same number of tokens, because other numbers failed."""
        x, context = self.inputs
        return x.shape[-2] == context.shape[-2]

    @property
    def short(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        """The inputs of the first call, which are short."""
        return self.settled.inputs

    @cached_property
    def other(self) -> Recorded | None:
        """The record of a second call, of other values and lengths; None if it cannot be recorded."""
        lens = (7, 7) if self.alike else (7, 5)
        return self.record(*self._inputs(self.feed, lens, self.seed + 1).values())

    @cached_property
    def dependencies(self) -> tuple[Dependency, Dependency]:
        """The dependencies of the outputs, first on the tokens of x, then on those of the context."""
        subject, plain = self.subject.spare(), self.feed.plain
        x, context = (each[None] if plain else each for each in self.inputs)

        def given(*both: Tensor) -> tuple[Tensor, ...]:
            """Return the arguments of a call, the first samples if calls have no batch."""
            return tuple((each[0] if plain else each).to(subject.dtype) for each in both)

        run = partial(measure, subject.bare, swapped=has_group_norm(subject))
        more = torch.Generator().manual_seed(self.seed), self.observed
        return (
            run(lambda each: given(each, context), x, *more),
            run(lambda each: given(x, each), context, *more),
        )

    @property
    def dependency(self) -> Dependency:  # type: ignore[override]
        """The dependencies on the tokens of x."""
        return self.dependencies[0]

    @cached_property
    def sources(self) -> tuple[Provenance | None, ...]:
        """Return the provenance of the rows of each attention in `observed`; None for one as in `provenance`."""
        return tuple(provenance(each, self.dependencies) for each in self.observed)

    @property
    def _window(self) -> None:
        """Return None: cross-attention has no inferred window."""
        return None

    @cached_property
    def from_x(self) -> tuple[str, ...] | None:
        """Return which of query, key and value come from x alone; None if tokens are unknown or nothing attends."""
        first = self.inputs[0].shape[-2]
        found: dict[str, None] = {}
        for source in self.sources:
            if source is None or not source.known:
                return None
            for name, rows in zip(("query", "key", "value"), source.rows, strict=True):
                token = rows[source.blocks]
                if bool(((token >= 0) & (token < first)).any()) and not bool(
                    (token >= first).any()
                ):
                    found[name] = None
        return tuple(found) if self.sources else None
