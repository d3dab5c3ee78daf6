"""Evidence of an object that decodes with a cache: reset(), step(x), full(x)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.evidence.base import Evidence, Settled
from clearhead.checking.evidence.cases import Broken, Case, broken, called
from clearhead.checking.evidence.feeding import Feed, feed
from clearhead.checking.subject.copying import duplicate
from clearhead.checking.subject.refusals import first_line, raised_with_line
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ArgumentTypeError, ModelError
from clearhead.recording.provenance import measure


class TypedDecoder:
    """The decoder `run`, its inputs cast to one dtype, its outputs in float64 without gradient, its errors raised."""

    def __init__(self, run: Any, dtype: torch.dtype) -> None:
        self.run, self.dtype = run, dtype

    def reset(self) -> None:
        """Empty the cache."""
        self.run.reset()

    def step(self, x: Tensor) -> Tensor:
        """Return the outputs of the next tokens, x (batch, tokens, dim), and cache them."""
        with torch.no_grad():
            return self.run.step(x.to(self.dtype)).double()

    def full(self, x: Tensor) -> Tensor:
        """Return the outputs of all tokens of x, (batch, tokens, dim), at once."""
        with torch.no_grad():
            return self.run.full(x.to(self.dtype)).double()


@dataclass(frozen=True, eq=False)
class DecodingEvidence(Evidence):
    """Token by token, in chunks and with a prefill, all against full(x)."""

    @cached_property
    def feed(self) -> Feed:
        """Return the sizes of the calls; raise ModelError if the width of a token cannot be found."""
        return feed(self.given, self.contract)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The width of a token, "d_in"."""
        return {"d_in": self.feed.width}

    def fresh(self, subject: Subject | None = None) -> TypedDecoder:
        """Return a decoder on a copy of the subject's object (default `self.subject`), or on itself if not `copied`."""
        subject = subject or self.subject
        run = duplicate(subject.run) if subject.copied else subject.run
        return TypedDecoder(run, subject.dtype)

    @cached_property
    def settled(self) -> Settled:
        """Return the first call, full(x), in float64, or in float32 if only that works step by step.

        Raises:
            ArgumentTypeError: code `check.decode`, for an object without one of the methods.
            ModelError: code `check.call`, if full(x) fails; `check.width`, if the width of a token cannot be found.
        """
        subject = self.given
        for name in ("reset", "step", "full"):
            if not callable(getattr(subject.run, name, None)):
                raise ArgumentTypeError(
                    "check.decode",
                    "takes='decode' wants an object with reset(), step(x) and full(x); "
                    f"{subject.name} has no {name}.",
                )
        window = self.contract.window
        reach = window[0] if window is not None and window[0] else 0
        tokens = max(11, 2 * reach + 7)
        x = self.feed.draw(min(tokens, self.feed.longest or tokens), self.seed)
        for each in (subject, subject.within(torch.float32)):
            output = called(self.fresh(each).full, (x,))
            steps = called(partial(stepped, self.fresh(each), x, [1] * x.shape[1]))
            # The cache may have another precision than float64.
            if isinstance(output, Tensor) and isinstance(steps, Tensor):
                return Settled(each, {"x": x}, output)
        output = called(self.fresh(subject).full, (x,))
        if isinstance(output, Tensor):
            return Settled(subject, {"x": x}, output)
        raise ModelError(
            "check.call",
            f"{subject.name}.full was called with x {list(x.shape)} and raised {raised_with_line(output)}",
        ) from output

    @cached_property
    def schedules(self) -> dict[str, list[int]]:
        """Return the chunk sizes of each schedule, by its name."""
        tokens = self.inputs[0].shape[1]
        return {
            "token by token": [1] * tokens,
            "prefill, then token by token": [tokens - 3, 1, 1, 1],
            "in chunks": [4, 3, *([2] * ((tokens - 7) // 2)), *([1] * ((tokens - 7) % 2))],
        }

    @cached_property
    def outputs(self) -> dict[str, Tensor | Exception]:
        """Return the output of each schedule, or the error that it raised, by name."""
        x = self.inputs[0]
        return {
            name: called(lambda chunks=chunks: stepped(self.fresh(), x, chunks))
            for name, chunks in self.schedules.items()
        }

    @property
    def refused(self) -> dict[str, str]:
        """Return the first line of the error of each schedule that raises, by name."""
        errors = {n: each for n, each in self.outputs.items() if isinstance(each, Exception)}
        return {name: first_line(error) for name, error in errors.items()}

    @property
    def _close(self) -> float:
        """Return the largest relative difference that counts as rounding: 1e-5 in float64, else 1e-4."""
        return 1e-5 if self.subject.dtype == torch.float64 else 1e-4

    @cached_property
    def wrong(self) -> tuple[Broken, Tensor] | None:
        """The first schedule whose outputs differ from full(x), and the dependencies of its steps, (tokens, tokens).

        None if none does. Schedules that raise are left out.
        """
        outputs = {n: each for n, each in self.outputs.items() if isinstance(each, Tensor)}
        cases = (Case(n, out.clone, self.output, self._close) for n, out in outputs.items())
        found = broken("steps", cases)
        if found is None:
            return None
        chunks = self.schedules[found.at]
        return found, self._moves(lambda x: stepped(self.fresh(), x, chunks))

    def _moves(self, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the dependencies of outputs on tokens, bool, (tokens, tokens)."""
        generator = torch.Generator().manual_seed(self.seed)
        return measure(run, lambda x: (x,), self.inputs[0], generator).moves

    @cached_property
    def full_moves(self) -> Tensor:
        """Return the dependencies of full(x), bool, (tokens, tokens)."""
        return self._moves(lambda x: self.fresh().full(x))

    @cached_property
    def stale(self) -> Broken | None:
        """The first case in which a run affects another: after a reset, in full(x), or in another object.

        None if none does. None too if the object cannot be copied.
        """
        if not self.subject.copied:
            return None
        return (
            broken("reset", self._after_reset(), refused="reset")
            or broken("full", self._full_again())
            or broken("shared", self._of_two())
        )

    def _after_reset(self) -> Iterator[Case]:
        """Yield a case for each schedule that works: after other tokens and a reset its first output must recur."""
        x = self.inputs[0]
        for name, chunks in self.schedules.items():
            first, used = self.outputs[name], self.fresh()
            if not isinstance(first, Tensor):
                continue

            def again(used: TypedDecoder = used, chunks: list[int] = chunks) -> Tensor:
                """Run other tokens and two tokens, then return the outputs for x; each run begins with a reset."""
                stepped(used, x.flip(1) * 1.5, chunks)
                # Fewer tokens, so that a position that is left over is another one.
                stepped(used, x, [2])
                return stepped(used, x, chunks)

            yield Case(f"after reset(), {name}", again, first, 0.1 * self._close)

    def _full_again(self) -> Iterator[Case]:
        """Yield two cases: full(x) must return the same output after full() on other tokens and after a step."""
        x, used = self.inputs[0], self.fresh()
        for name, before in (
            ("full(x) again", lambda: used.full(x.flip(1))),
            ("full(x) after a step", lambda: used.step(x[:, :2])),
        ):

            def again(before: Callable[[], Tensor] = before) -> Tensor:
                """Reset the decoder, call `before`, and return full(x)."""
                used.reset()
                before()
                return used.full(x)

            yield Case(name, again, self.output, self._close)

    def _of_two(self) -> Iterator[Case]:
        """Yield one case: the steps of one decoder must not change when a second one steps between them."""
        x, one, other = self.inputs[0][:, :4], self.fresh(), self.fresh()

        def steps() -> Tensor:
            """Return the outputs of `one` for four tokens, with a step of `other` in between."""
            one.reset()
            other.reset()
            first = one.step(x[:, :2])
            other.step(x[:, :2].flip(1) * 1.5)
            return torch.cat([first, one.step(x[:, 2:])], 1)

        alone = partial(stepped, self.fresh(), x, [2, 2])
        yield Case("steps of two objects in turn", steps, alone, self._close)


def stepped(decoder: TypedDecoder, x: Tensor, chunks: Sequence[int]) -> Tensor:
    """Return the outputs for x (batch, tokens, dim), passed in chunks of these sizes after a reset."""
    decoder.reset()
    outputs, start = [], 0
    for size in chunks:
        outputs.append(decoder.step(x[:, start : start + size]))
        start += size
    return torch.cat(outputs, 1).detach()
