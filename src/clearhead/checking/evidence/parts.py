"""Evidence of a part of attention: scores of queries and keys, weights of scores, context of weights and values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.foreign_names import side_of
from clearhead.checking.evidence.base import Evidence, Settled
from clearhead.checking.evidence.cases import called
from clearhead.checking.evidence.feeding import shapes_of
from clearhead.checking.hypotheses.matching import distance
from clearhead.checking.subject.refusals import first_line, named_tensors, raised_with_line
from clearhead.checking.subject.signatures import needed, of_call
from clearhead.checking.subject.subject import Subject
from clearhead.checking.thresholds import ROUNDING, SPREAD_HEADS
from clearhead.errors import ModelError
from clearhead.recording.operations import Unfilled

Inputs = tuple[Tensor, ...]
# Queries, keys and the width of a call: other primes on every axis, as many of both, and one.
CALLS = ((3, 5, 2), (5, 3, 2), (5, 5, 3), (1, 1, 2))


@dataclass(frozen=True)
class PartDefinition:
    """A part of attention.

    Attributes:
        names: of its inputs.
        gives: the name of its result.
        right: its definition.
        shapes: returns the shapes of the inputs from (queries, keys, width).
        rows, columns: what a row and a column of the result belong to.
    """

    names: tuple[str, ...]
    gives: str
    right: Callable[..., Tensor]
    shapes: Callable[[int, int, int], tuple[tuple[int, ...], ...]]
    rows: str
    columns: str


PARTS: Mapping[str, PartDefinition] = {
    "query,key": PartDefinition(
        ("query", "key"), "scores", stages.scores, lambda q, k, d: ((q, d), (k, d)), "query", "key"
    ),
    "scores": PartDefinition(
        ("scores",), "weights", stages.weights, lambda q, k, d: ((q, k),), "query", "key"
    ),
    "weights,value": PartDefinition(
        ("weights", "value"), "context", stages.matmul, lambda q, k, d: ((q, k), (k, d)),
        "query", "dimension",
    ),
}  # fmt: skip


def part_of(function: Callable[..., object]) -> str | None:
    """Return the part of attention that a function is by the names of its required parameters; None if it is none.

    Example:
        >>> part_of(lambda queries, keys: queries @ keys.mT), part_of(lambda x: x)
        ('query,key', None)
    """
    names = tuple(needed(of_call(function)))
    sides = tuple(side_of(each) or each for each in names)
    return next((each for each, part in PARTS.items() if part.names in (names, sides)), None)


@dataclass(frozen=True)
class PartCall:
    """One call: its inputs, the right result, and the result, or None and the error."""

    inputs: Inputs
    expected: Tensor
    found: Tensor | None
    error: Exception | None = None

    @property
    def fits(self) -> bool:
        """True if the result has the right shape; False for an error."""
        return self.found is not None and self.found.shape == self.expected.shape

    def matches(self, other: Tensor) -> bool:
        """Return True if the result equals these numbers up to rounding; False for an error."""
        if self.found is None:
            return False
        return distance(other.double(), self.found.double()) <= ROUNDING[self.found.dtype]

    @property
    def right(self) -> bool:
        """True if the result is right up to rounding."""
        return self.matches(self.expected)


@dataclass(frozen=True, eq=False)
class PartEvidence(Evidence):
    """Evidence of a function that is a part of attention; with `tables`, called on matrices without a batch only."""

    tables: bool = False

    @property
    def part(self) -> PartDefinition:
        """The part that it is declared to be."""
        return PARTS[self.given.takes]

    def drawn(self, sizes: tuple[int, int, int], leading: Sequence[int], seed: int) -> Inputs:
        """Return random inputs with these leading axes, in float64; weights sum to one over the keys."""
        generator = torch.Generator().manual_seed(seed)
        found = [
            torch.randn((*leading, *shape), generator=generator, dtype=torch.float64) * SPREAD_HEADS
            for shape in self.part.shapes(*sizes)
        ]
        if self.part.names[0] == "weights":
            found[0] = found[0].softmax(-1)
        return tuple(found)

    def right(self, *inputs: Tensor) -> Tensor:
        """Return the result of the definition; scores are multiplied by a declared scale."""
        found = self.part.right(*inputs)
        scale = self.contract.scale
        return found if scale is None or self.given.takes != "query,key" else found * scale

    def call(self, subject: Subject, inputs: Inputs, unfilled: float = torch.nan) -> PartCall:
        """Return one call of a copy, in which tensors that are never filled hold `unfilled`; an error is caught."""
        expected = self.right(*inputs)
        with Unfilled(unfilled):
            found = called(subject.spare(), inputs)
        if isinstance(found, Exception):
            return PartCall(inputs, expected, None, found)
        return PartCall(inputs, expected, found)

    @cached_property
    def _first(self) -> tuple[Subject, tuple[int, ...], PartCall]:
        """The subject in the dtype, and the leading axes, that work, and that call; the first attempt if none works."""
        found = []
        for leading in ((),) if self.tables else ((), (2,), (2, 3)):
            for subject in (self.given, self.given.within(torch.float32)):
                for sizes in (CALLS[0], CALLS[2]):
                    made = self.call(subject, self.drawn(sizes, leading, self.seed))
                    found.append((subject, leading, made))
                    if made.found is not None:
                        return found[-1]
        return found[0]

    @property
    def leading(self) -> tuple[int, ...]:
        """The sizes of the axes before the matrix that work: (), (2,) or (2, 3)."""
        return self._first[1]

    @cached_property
    def settled(self) -> Settled:
        """The first call, in the dtype and with the leading axes that work.

        It holds an error if none work, or, with `tables`, if the function returns a mapping.
        """
        subject, _, made = self._first
        given, error = dict(zip(self.part.names, made.inputs, strict=True)), made.error
        if self.tables and error is None:
            raw = self.given.original(*(each.clone() for each in made.inputs))
            if isinstance(raw, Mapping):
                error = TypeError(f"a table of numbers was expected; got {type(raw).__name__}")
        return Settled(subject, given, made.found, error)

    def call_error(self, error: Exception) -> ModelError:
        """Return the error with the line that raised, without advice on sizes."""
        return ModelError(
            "check.call",
            f"{self.given.name} raised {raised_with_line(error)}"
            f"{named_tensors(error)}\nwith\n{shapes_of(self.settled.inputs)}",
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        """{}: a part has no sizes to report."""
        return {}

    @cached_property
    def calls(self) -> tuple[PartCall, ...]:
        """A call for each of `CALLS`, the most telling first."""
        inputs = [self.drawn(sizes, self.leading, self.seed) for sizes in CALLS]
        return tuple(self.call(self.subject, each) for each in inputs)

    def dependents(self, call: PartCall, which: int, row: int) -> list[int]:
        """Return the rows of a result (its columns for the second input) that change with a row of an input.

        [] if the changed call fails or returns another shape. `call` must have a result.
        """
        changed = [each.clone() for each in call.inputs]
        changed[which][..., row, :] += torch.linspace(0.5, 1.5, changed[which].shape[-1]).double()
        other = self.call(self.subject, tuple(changed)).found
        assert call.found is not None
        if other is None or other.shape != call.found.shape:
            return []
        felt = (other - call.found).double().nan_to_num().abs() > ROUNDING[call.found.dtype]
        return felt.movedim(which - 2, 0).flatten(1).any(1).nonzero().flatten().tolist()

    @cached_property
    def large(self) -> PartCall:
        """A call with scores so large that exp overflows float32."""
        scores = torch.tensor([[88.0, 89.0], [1.0, 90.0]], dtype=torch.float32)
        inputs = (scores.expand(*self.leading, 2, 2),)
        return self.call(self.given.within(torch.float32), inputs)

    def refusal(self) -> str:
        """Return the first line of the first error among the calls; "" if none failed."""
        return next((first_line(each.error) for each in self.calls if each.error is not None), "")


def flattened(call: PartCall) -> PartCall:
    """Return a call as one without leading axes: its first sample; unchanged for matrices."""

    def first(tensor: Tensor) -> Tensor:
        """Return the first matrix of a tensor; a tensor of at most two axes is returned unchanged."""
        return tensor.flatten(0, -3)[0] if tensor.ndim > 2 else tensor

    return replace(
        call,
        inputs=tuple(map(first, call.inputs)),
        expected=first(call.expected),
        found=None if call.found is None else first(call.found),
    )
