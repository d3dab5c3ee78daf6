"""Evidence of an object that decodes with a cache: reset(), step(x), full(x)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import ROTARY
from clearhead.checking.evidence.arranging import Arrangement
from clearhead.checking.evidence.base import Evidence, Settled
from clearhead.checking.evidence.feeding import Feed, feed
from clearhead.checking.evidence.raw import projected
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.subject.copying import duplicate
from clearhead.checking.subject.refusals import first_line, raised
from clearhead.checking.subject.subject import Subject
from clearhead.errors import ArgumentTypeError, ModelError
from clearhead.recording.observed import ObservedAttention, attentions
from clearhead.recording.recorder import Recorder


class TypedDecoder:
    """A decoder that is handed tensors of one dtype."""

    def __init__(self, run: Any, dtype: torch.dtype) -> None:
        self.run, self.dtype = run, dtype

    def reset(self) -> None:
        self.run.reset()

    def step(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.run.step(x.to(self.dtype)).double()

    def full(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.run.full(x.to(self.dtype)).double()


@dataclass(frozen=True)
class Wrong:
    """A way to hand tokens over that gives something else than full(x).

    `first` is the first token that differs, `inside` whether all is right as long as no token has
    left the window.
    """

    name: str
    shapes: tuple[list[int], list[int]]
    gap: float
    first: int
    moves: Tensor
    full: Tensor
    inside: bool
    banded: bool


class Taken(NamedTuple):
    """What the first attention of the last chunk reads, against full(x).

    `query`: the position at which full(x) would give the last query, −1 for none; `keys`: that of every key;
    `values`: whether full(x) would give every value, at whatever position; `empty`: whether weight goes to
    places that nothing was written to, of which nothing else is asked.
    """

    query: int
    keys: tuple[int, ...]
    values: bool
    empty: bool = False


@dataclass(frozen=True, eq=False)
class DecodingEvidence(Evidence):
    """Token by token, in chunks and with a prefill, all against full(x)."""

    @cached_property
    def feed(self) -> Feed:
        return feed(self.given, self.contract)

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"d_in": self.feed.width}

    def fresh(self, subject: Subject | None = None) -> TypedDecoder:
        """A decoder whose cache is that of the object as it was given."""
        subject = subject or self.subject
        run = duplicate(subject.run) if subject.copied else subject.run
        return TypedDecoder(run, subject.dtype)

    @cached_property
    def settled(self) -> Settled:
        """full(x), in the precision that its cache bears.

        Raises:
            ArgumentTypeError: code `check.decode`, for an object without one of the methods.
            ModelError: code `check.call`, if full(x) fails.
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
            try:
                output = self.fresh(each).full(x)
                stepped(self.fresh(each), x, [1] * x.shape[1])
            except Exception:  # a cache may be of another precision
                continue
            return Settled(each, {"x": x}, output)
        # What steps fail at is told; full(x) is what everything is held against.
        try:
            return Settled(subject, {"x": x}, self.fresh(subject).full(x))
        except Exception as error:
            raise ModelError(
                "check.call",
                f"{subject.name}.full was called with x {list(x.shape)} and raised {raised(error)}",
            ) from error

    @cached_property
    def schedules(self) -> dict[str, list[int]]:
        """Ways to hand over so many tokens."""
        tokens = self.inputs[0].shape[1]
        return {
            "token by token": [1] * tokens,
            "prefill, then token by token": [tokens - 3, 1, 1, 1],
            "in chunks": [4, 3, *([2] * ((tokens - 7) // 2)), *([1] * ((tokens - 7) % 2))],
        }

    @cached_property
    def ways(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The schedules that differ from full(x), and those that are refused."""
        wrong, refused = {}, {}
        for name, chunks in self.schedules.items():
            try:
                found = stepped(self.fresh(), self.inputs[0], chunks)
            except Exception as error:  # a way may be refused
                refused[name] = first_line(error)
                continue
            if found.shape != self.output.shape or distance(found, self.output) > self._close:
                wrong[name] = found
        return wrong, refused

    @property
    def _close(self) -> float:
        return 1e-5 if self.subject.dtype == torch.float64 else 1e-4

    @cached_property
    def wrong(self) -> Wrong | None:
        """The first way that is wrong, from which token on, and what it sees there."""
        if not self.ways[0]:
            return None
        name, found = next(iter(self.ways[0].items()))
        whole, x = self.output, self.inputs[0]
        chunks, gap, first = self.schedules[name], torch.zeros(1), 0
        if found.shape == whole.shape:
            gap = (found - whole).abs().nan_to_num(torch.inf).amax((0, -1))
            beyond = (gap > 0.1 * self._close * whole.abs().max()).nonzero()
            first = int(beyond[0]) if len(beyond) else 0
        full = self.full_moves
        steps = dependency(lambda each: stepped(self.fresh(), each, chunks), x, self._generator)
        window = self.contract.window
        reach = window[0] if window is not None and window[0] else 0
        band = reach or _band(full)
        return Wrong(
            name,
            (list(found.shape), list(whole.shape)),
            float(gap.max()),
            first,
            steps,
            full,
            bool(band) and self._right_inside(x[:, : max(band, 2)]),
            bool(band),
        )

    @property
    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def full_moves(self) -> Tensor:
        """The dependencies of full(x)."""
        return dependency(lambda x: self.fresh().full(x), self.inputs[0], self._generator)

    def _right_inside(self, x: Tensor) -> bool:
        tokens = x.shape[1]
        whole = self.fresh().full(x)
        for chunks in ([1] * tokens, [2, *([1] * (tokens - 2))], [tokens]):
            found = stepped(self.fresh(), x, chunks)
            if found.shape != whole.shape or distance(found, whole) > self._close:
                return False
        return True

    @cached_property
    def stale(self) -> str | None:
        """The difference of a second run after reset() from the first; "" if it does not, None if that
        cannot be asked."""
        if not self.subject.copied:
            return None
        x = self.inputs[0]
        for name, chunks in self.schedules.items():
            try:
                first = stepped(self.fresh(), x, chunks)
            except Exception:  # a way that is refused is told of elsewhere
                continue
            used, gap = self.fresh(), torch.inf
            try:
                stepped(used, x.flip(1) * 1.5, chunks)
                # Fewer tokens went in, so that a position that was kept is another one.
                used.reset()
                used.step(x[:, :2])
                again = stepped(used, x, chunks)
                gap = distance(again, first)
                words = f"differ by up to {gap:.3g} of the largest number, {name}"
            except Exception as error:  # a cache that is full after one run has not been reset
                words = f"fail, {name}: {first_line(error)}"
            if gap > 0.1 * self._close:
                return words
        return ""

    @cached_property
    def kept_by_full(self) -> bool:
        """True if full(x) gives something else after a call of full or of step."""
        if not self.subject.copied:
            return False
        x, used = self.inputs[0], self.fresh()
        try:
            used.reset()
            used.full(x.flip(1))
            after_full = used.full(x)
            used.reset()
            used.step(x[:, :2])
            after_step = used.full(x)
        except Exception:  # what is refused is told of elsewhere
            return False
        return any(
            each.shape != self.output.shape or distance(each, self.output) > self._close
            for each in (after_full, after_step)
        )

    @cached_property
    def shared(self) -> bool:
        """True if what one object keeps changes the steps of another."""
        if not self.subject.copied:
            return False
        x = self.inputs[0][:, :4]
        one, other = self.fresh(), self.fresh()
        try:
            alone = stepped(self.fresh(), x, [2, 2])
            one.reset()
            other.reset()
            first = one.step(x[:, :2])
            other.step(x[:, :2].flip(1) * 1.5)
            found = torch.cat([first, one.step(x[:, 2:])], 1)
        except Exception:  # what is refused is told of elsewhere
            return False
        return found.shape != alone.shape or distance(found, alone) > self._close

    @cached_property
    def refusal(self) -> Exception | None:
        """The error of steps, where no way to hand tokens over is taken."""
        found: Exception | None = None
        for chunks in self.schedules.values():
            try:
                stepped(self.fresh(), self.inputs[0], chunks)
            except Exception as error:  # which is what is asked for
                found = error
                continue
            return None
        return found

    @cached_property
    def turned(self) -> bool | None:
        """True if full(x) changes its queries between their projection and the scores, as a rotation does; None
        where that was not seen."""
        x = self.inputs[0].to(self.subject.dtype)
        recorder = Recorder([x], {}, ())
        try:
            with torch.no_grad(), recorder:
                self.fresh().run.full(x)
            first = attentions(recorder)[0]
            heads = Arrangement(len(first.query) // len(x), batch_first=True)
            made = projected(recorder, [first], heads, self.contract)
        except Exception:  # code that looks at what its tensors are may fail under a mode
            return None
        return None if made is None or made.query is None else made.turned

    def taken(self, name: str) -> Taken | None:
        """What is read at the end of a schedule; None where that was not seen."""
        x, last = self.inputs[0], self.schedules[name][-1]
        tokens = x.shape[1]
        reach = min(2 * tokens, self.feed.longest or 2 * tokens)
        try:
            decoder = self.fresh()
            stepped(decoder, x[:, :-last], self.schedules[name][:-1])
            seen = _first(decoder.run.step, x[:, -last:].to(self.subject.dtype))
            whole = _first(self.fresh().run.full, x.to(self.subject.dtype))
            # Each token at every position.
            rows = [
                _first(self.fresh().run.full, each.to(self.subject.dtype).repeat(1, reach, 1))
                for each in x.split(1, dim=1)
            ]
        except Exception:  # code that looks at what its tensors are may fail under a mode
            return None
        if seen.key.shape != whole.key.shape:
            return Taken(-1, (), True, empty=True) if _reads_empty(seen) else None
        keys, values = (
            tuple(self._place(each[:, token], other[token], token) for token in range(tokens))
            if each.shape == there.shape
            else (-1,)
            for each, there, other in (
                (seen.key, whole.key, [row.key for row in rows]),
                (seen.value, whole.value, [row.value for row in rows]),
            )
        )
        query = self._place(seen.query[:, -1], rows[-1].query, tokens - 1)
        return Taken(query, keys, -1 not in values)

    def _place(self, row: Tensor, rows: Tensor, expected: int) -> int:
        order = sorted(range(rows.shape[1]), key=lambda place: place != expected)
        return next((place for place in order if distance(row, rows[:, place]) <= self._close), -1)

    @cached_property
    def rotates(self) -> bool:
        """True if anything in the object, or in the code of its methods, is named as rotations are."""
        run = self.given.run
        names = set(vars(run)) if hasattr(run, "__dict__") else set()
        if isinstance(run, nn.Module):
            names |= {name for name, _ in run.named_buffers()}
            names |= {name for name, _ in run.named_modules()}
        names |= set(_names_in_code(type(run)))
        return any(word in name.lower() for name in names for word in ROTARY)


def _first(run: Callable[[Tensor], Tensor], x: Tensor) -> ObservedAttention:
    """The first attention of a call."""
    recorder = Recorder([x], {}, ())
    with torch.no_grad(), recorder:
        run(x)
    return attentions(recorder)[0]


def _reads_empty(seen: ObservedAttention) -> bool:
    """True if the last query gives weight to keys of zeros, as room that is kept for later tokens holds."""
    empty, weights = (seen.key == 0).all(-1), seen.weights[:, -1]
    return not seen.tangled and empty.shape == weights.shape and bool(weights[empty].any())


def _names_in_code(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for method in vars(each).values():
            code = getattr(method, "__code__", None)
            if code is not None:
                yield from (method.__name__, *code.co_names)


def stepped(decoder: TypedDecoder, x: Tensor, chunks: Sequence[int]) -> Tensor:
    """The outputs for x (batch, tokens, dim), handed over in chunks after a reset."""
    decoder.reset()
    outputs, start = [], 0
    for size in chunks:
        outputs.append(decoder.step(x[:, start : start + size]))
        start += size
    return torch.cat(outputs, 1).detach()


def dependency(run: Callable[[Tensor], Tensor], x: Tensor, generator: torch.Generator) -> Tensor:
    """moves[i, j]: output i moves with token j."""
    still = run(x)
    moves = torch.zeros(still.shape[1], x.shape[1], dtype=torch.bool)
    for token in range(x.shape[1]):
        changed = x.clone()
        changed[:, token] += torch.randn(x.shape[-1], generator=generator, dtype=x.dtype)
        gap = (run(changed) - still).nan_to_num(0.0).abs().amax((0, -1))
        moves[:, token] = gap > 1e-9
    return moves


def _band(moves: Tensor) -> int:
    """The tokens that outputs reach back, if that is less than everything; 0 for no limit."""
    last = moves[-1].nonzero()
    reach = moves.shape[0] - 1 - int(last[0]) if len(last) else 0
    return reach if 0 < reach < moves.shape[0] - 1 else 0
