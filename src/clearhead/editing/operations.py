"""The operations of an edit on one call of attention, and the context that they make of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clearhead import stages
from clearhead.attention.biases import Bias, DenseBias
from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.editing.places import Places
from clearhead.editing.selections import Selection
from clearhead.editing.with_heads import with_heads
from clearhead.errors import EditError
from clearhead.masks.algebra import Or
from clearhead.masks.base import Mask
from clearhead.masks.coerce import and_masks
from clearhead.masks.dense import dense
from clearhead.masks.tiles import portions
from clearhead.matrix.matrix import AttentionMatrix, matrix_of
from clearhead.watching.recording import of_heads

PORTION = 1 << 22
"""Pairs of a mask that are read at a time."""


@dataclass(eq=False)
class Operation:
    """One operation on some heads of a layer; its subclasses say which.

    Attributes:
        heads: their numbers, or a slice of all.
    """

    heads: tuple[int, ...] | slice

    def chosen(self, num_heads: int, path: str) -> list[int]:
        """Return the numbers of the heads.

        Raises:
            EditError: code `edit.heads`, for a head that the module does not have.
        """
        if isinstance(self.heads, slice):
            return list(range(num_heads)[self.heads])
        if max(self.heads) >= num_heads:
            raise EditError(
                "edit.heads",
                f"heads {list(self.heads)} are edited; {path or 'the model'} has "
                f"num_heads={num_heads}.",
            )
        return list(self.heads)


@dataclass(eq=False)
class Hide(Operation):
    """Some queries do not see some keys."""

    query: Selection | None
    key: Selection | None

    def mask(self, places: Places, batch: int) -> Mask:
        """The pairs that stay visible."""
        parts: list[Mask] = []
        if self.query is not None:
            parts.append(dense(~self.rows(places, batch)[:, None, :, None]))
        if self.key is not None:
            parts.append(dense(~self.key.at(places.key, batch)[:, None, None]))
        return parts[0] if len(parts) == 1 else Or(*parts)

    def rows(self, places: Places, batch: int) -> Tensor:
        """The queries, (batch or 1, query_len)."""
        assert self.query is not None
        if places.query is None:
            raise EditError(
                "edit.positions",
                "query= chooses queries by their position in the text, which cannot be told here: "
                f"a call has as many as {places.total} keys, other than queries, and no cache of "
                "transformers or clearhead. Choose by key= alone, or run the whole text at once.",
            )
        return self.query.at(places.query, batch)


@dataclass(eq=False)
class Restrict(Operation):
    """Pairs are visible only where a mask shows them as well."""

    shown: Mask

    def mask(self, places: Places, problem: Problem) -> Mask:
        """The mask of the positions of this call."""
        if places.is_plain:
            total = problem.query_len, problem.kv_len
            self._check(problem, *total)
            return self.shown
        if places.query is None:
            raise EditError(
                "edit.positions",
                "a mask needs the positions of the queries, which cannot be told here: there is no "
                "cache of transformers or clearhead. Run the whole text at once.",
            )
        self._check(problem, places.total, places.total)
        query, key = (torch.atleast_2d(each) for each in (places.query, places.key))
        key = key.clamp(max=places.total - 1)
        return dense(
            self.shown.visible(
                query[:, None, :, None], key[:, None, None], places.total, places.total
            )
        )

    def _check(self, problem: Problem, query_len: int, kv_len: int) -> None:
        self.shown.check(problem.batch, problem.num_heads, query_len, kv_len, problem.device)


@dataclass(eq=False)
class ScaleKeys(Operation):
    """The weights of some keys are multiplied, and all are normalised again."""

    key: Selection | None
    log_factor: float

    def bias(self, places: Places, problem: Problem) -> Tensor:
        """Return what is added to the scores, (batch or 1, 1, 1, kv_len)."""
        chosen = torch.ones_like(places.key, dtype=torch.bool)[None]
        if self.key is not None:
            chosen = self.key.at(places.key, problem.batch)
        added = torch.zeros(chosen.shape, dtype=stages.upcast(problem.query[:0]).dtype)
        return added.to(chosen.device).masked_fill(chosen, self.log_factor)[:, None, None]


@dataclass(eq=False)
class Ablate(Operation):
    """The context of a head is 0, or a mean."""

    mean: Tensor | None

    def context(self, own: Tensor, heads: list[int], path: str) -> Tensor:
        """The context of some of the heads, (batch, heads, query_len, value_head_dim)."""
        batch, num_heads, query_len, width = own.shape
        new = own.new_zeros(batch, len(heads), query_len, width)
        if self.mean is None:
            return new
        every = self.chosen(num_heads, path)
        if tuple(self.mean.shape) not in ((width,), (len(every), width)):
            raise EditError(
                "edit.mean",
                f"mean must have shape (heads, value_head_dim) = {(len(every), width)} in "
                f"{path or 'the model'}; got {tuple(self.mean.shape)}.",
            )
        mean = self.mean.to(own.device, own.dtype)
        return new + (mean if mean.ndim == 1 else mean[[every.index(head) for head in heads], None])


@dataclass(eq=False)
class Patterns(Operation):
    """The weights of a head are those of another run."""

    other: Callable[[str], AttentionMatrix]

    def problem(self, call: Problem, places: Places, heads: list[int], path: str) -> Problem:
        """The call of another run with the values of this one.

        Raises:
            EditError: code `edit.patterns`, where the two runs have other sizes.
        """
        other = self.other(path).problem
        sizes = [(each.num_heads, each.query_len, each.kv_len) for each in (other, call)]
        if sizes[0] != sizes[1] or other.batch not in (1, call.batch):
            raise EditError(
                "edit.patterns",
                f"the other run has batch, num_heads, query_len, kv_len = {(other.batch, *sizes[0])} "
                f"in {path or 'the model'}; this call has {(call.batch, *sizes[1])}. The two "
                "texts must be as long; of a generation, run both on the whole text.",
            )
        part = of_heads(other, heads, path)
        group, key_group = call.num_heads // call.num_kv_heads, len(heads) // part.num_kv_heads
        picked = [heads[place * key_group] // group for place in range(part.num_kv_heads)]
        value = call.value[:, torch.tensor(picked, device=call.device)]
        query, key = (each.expand(call.batch, -1, -1, -1) for each in (part.query, part.key))
        query, key = (each.to(call.device, call.query.dtype) for each in (query, key))
        return part.replace(query=query, key=key, value=value, dropout=call.dropout)


@dataclass(eq=False)
class Average(Operation):
    """The mean context of heads over all real queries that run; it changes nothing.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with ch.edit(layer) as edit:
        ...     means = edit[0].heads[:].average()
        ...     output = layer(torch.randn(1, 5, 8))
        >>> means.value.shape, means.queries
        (torch.Size([2, 4]), 5)
    """

    sums: Tensor | None = None
    queries: int = 0

    @property
    def value(self) -> Tensor:
        """(heads, value_head_dim), in the order of the heads.

        Raises:
            EditError: code `edit.no-average`, before any query ran.
        """
        if self.sums is None or not self.queries:
            raise EditError("edit.no-average", "no query ran in the layer that is averaged.")
        return self.sums / self.queries

    def add(self, context: Tensor, problem: Problem, heads: list[int], path: str) -> None:
        """Count the context of some of the heads, (batch, heads, query_len, value_head_dim)."""
        every, real = self.chosen(problem.num_heads, path), matrix_of(problem).real
        context = context.detach().double()
        if real is not None:
            context = torch.where(real[:, None, :, None], context, 0.0)
        if self.sums is None:
            self.sums = context.new_zeros(len(every), context.shape[3])
        self.sums[[every.index(head) for head in heads]] += context.sum(dim=(0, 2))
        if every[0] in heads:
            rows = problem.batch * problem.query_len
            self.queries += rows if real is None else int(real.sum())


@dataclass(eq=False)
class EditedCall:
    """One call of attention, and the operations on it.

    Heads and queries that no operation touches keep the context of the model's own kernel, bit for
    bit. What is hidden or scaled is attended to again, by the kernel that `attend` takes.
    """

    problem: Problem
    operations: Sequence[Operation]
    places: Places
    path: str
    _groups: dict[tuple[int, ...], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        part = self.problem.part
        is_share = part is not None and part.heads is not None
        if is_share and any(each.heads != slice(None) for each in self.operations):
            raise EditError(
                "edit.parallel",
                f"the heads of {self.path or 'the model'} are shared among ranks, and some of them are "
                "edited; edit all of them, or a model that has them in one place.",
            )
        chosen: list[list[int]] = [[] for _ in range(self.problem.num_heads)]
        for number, operation in enumerate(self.operations):
            for head in operation.chosen(self.problem.num_heads, self.path):
                chosen[head].append(number)
        # Heads with the same operations are attended to at once.
        self._groups = {}
        for head, numbers in enumerate(chosen):
            if numbers:
                self._groups.setdefault(tuple(numbers), []).append(head)
        for numbers in self._groups:
            self._check([self.operations[number] for number in numbers])

    def _check(self, operations: list[Operation]) -> None:
        patterns = [each for each in operations if isinstance(each, Patterns)]
        scores = [each for each in operations if isinstance(each, Hide | Restrict | ScaleKeys)]
        if len(patterns) > 1 or (patterns and scores):
            raise EditError(
                "edit.conflict",
                f"a head of {self.path or 'the model'} has the patterns of another run, which "
                "cannot be hidden, scaled or replaced once more.",
            )

    def context(self, own: Tensor) -> Tensor:
        """Return the edited context, from that of the model's own kernel."""
        result = own
        for numbers, heads in self._groups.items():
            index = torch.tensor(heads, device=own.device)
            operations = [self.operations[number] for number in numbers]
            mine = new = own[:, index]
            if any(isinstance(each, RESCORING) for each in operations):
                new = self._rescored(operations, heads, mine)
            for each in operations:
                if isinstance(each, Patterns):
                    new = run(each.problem(self.problem, self.places, heads, self.path))
                elif isinstance(each, Ablate):
                    new = each.context(own, heads, self.path)
            for each in operations:
                if isinstance(each, Average):
                    each.add(new, self.problem, heads, self.path)
            if new is not mine:
                result = result.index_copy(1, index, new.to(own.dtype))
        return result

    def read(self) -> Problem:
        """Return the call with what is hidden, added and taken from other runs, for who watches it."""
        call = self.problem
        for numbers, heads in self._groups.items():
            others = torch.ones(1, call.num_heads, 1, 1, dtype=torch.bool, device=call.device)
            others[:, heads] = False
            for number in numbers:
                operation = self.operations[number]
                mask, bias = self._change(operation)
                if mask is not None:
                    call = call.replace(mask=and_masks(call.mask, Or(dense(others), mask)))
                if bias is not None:
                    call = call.replace(bias=self._sum(call, bias.masked_fill(others, 0.0)))
                if isinstance(operation, Patterns):
                    other = operation.problem(self.problem, self.places, heads, self.path)
                    call = with_heads(call, other, heads)
        return call

    def _change(self, operation: Operation) -> tuple[Mask | None, Tensor | None]:
        """The mask and the bias that an operation adds to the call."""
        if isinstance(operation, Hide):
            return operation.mask(self.places, self.problem.batch), None
        if isinstance(operation, Restrict):
            return operation.mask(self.places, self.problem), None
        if isinstance(operation, ScaleKeys):
            return None, operation.bias(self.places, self.problem)
        return None, None

    def _sum(self, call: Problem, added: Tensor) -> Bias:
        """The bias of a call and another one; a description becomes a tensor."""
        if call.bias is None:
            return DenseBias(added)
        return DenseBias(
            call.bias.to_dense(call.query_len, call.kv_len, device=call.device) + added
        )

    def _rescored(self, operations: list[Operation], heads: list[int], own: Tensor) -> Tensor:
        """The context of heads with other scores; queries that are not edited keep their own."""
        problem = part_of(self.problem, heads, self.path)
        rows = torch.zeros(1, 1, self.problem.query_len, dtype=torch.bool, device=own.device)
        for operation in operations:
            mask, bias = self._change(operation)
            if mask is not None:
                problem = problem.replace(mask=and_masks(problem.mask, mask))
            if bias is not None:
                problem = problem.replace(bias=self._sum(problem, bias))
            if isinstance(operation, Hide) and operation.query is not None:
                rows = rows | operation.rows(self.places, self.problem.batch)[:, None]
            elif isinstance(operation, RESCORING):
                rows = torch.ones_like(rows)
        # A query that saw nothing before, padding, keeps what the model's kernel gives it.
        rows = rows & _seeing(self.problem)
        if rows.shape[1] > 1:
            rows = rows[:, heads]
        new = run(problem.replace(keys_finite=False))
        return torch.where(rows[..., None], new.to(own.dtype), own)


RESCORING = (Hide, Restrict, ScaleKeys)
"""The operations on the scores."""


def part_of(call: Problem, heads: list[int], path: str) -> Problem:
    """Return the call of some heads, with the key heads and the values that they use."""
    return call if len(heads) == call.num_heads else of_heads(call, heads, path)


def _seeing(call: Problem) -> Tensor:
    """True for the queries that see a key, (batch or 1, num_heads or 1, query_len)."""
    if call.mask is None or not call.query_len or not call.kv_len:
        return torch.ones(1, 1, call.query_len, dtype=torch.bool, device=call.device)
    if call.spans is not None:
        return (call.spans.stop > call.spans.start).any(dim=-1)[:, None]
    size = PORTION // (math.prod(call.mask.leading) * call.kv_len or 1)
    blocks = [call.visible(rows) for rows in portions(call.query_len, max(1, size))]
    return torch.cat([each.any(dim=-1) for each in blocks if each is not None], dim=2)
