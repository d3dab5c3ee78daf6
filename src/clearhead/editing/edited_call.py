"""The operations of an edit on one call of attention, and the context that results."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import in_backward
from clearhead.attention.biases import DenseBias
from clearhead.attention.planning import run
from clearhead.attention.problem import Problem
from clearhead.editing.call_positions import Places
from clearhead.editing.context_operations import HeadsAt, OfContext
from clearhead.editing.operation import Operation, Selection, chosen_queries
from clearhead.editing.rescoring import Rescoring, apart, attended_anew, number_of_queries, touched
from clearhead.errors import EditError
from clearhead.masks.algebra import Or
from clearhead.masks.base import Mask
from clearhead.masks.dense import dense
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.watching.recording import of_heads


def with_heads(call: Problem, other: Problem, heads: list[int]) -> Problem:
    """Return a call with the scores and sinks of `heads` from `other`, which has just these heads, in order.

    All scores become its bias, O(tokens²); the values stay its own.
    """
    index = torch.tensor(heads, device=call.device)
    (scores, sinks), (others, other_sinks) = _scores(call), _scores(other)
    scores = scores.index_copy(1, index, others.to(scores))
    visible = scores != -torch.inf
    value = stages.repeat_kv_heads(call.value, call.num_heads)
    return call.replace(
        query=torch.zeros_like(call.query),
        key=stages.repeat_kv_heads(torch.zeros_like(call.key), call.num_heads),
        value=value,
        mask=dense(visible),
        bias=DenseBias(scores.masked_fill(~visible, 0.0)),
        softcap=None,
        sinks=None
        if call.sinks is None is other.sinks
        else sinks.index_copy(0, index, other_sinks.to(sinks)),
    )


def _scores(call: Problem) -> tuple[Tensor, Tensor]:
    """Return the masked scores of a call, upcast, (batch, num_heads, query_len, kv_len), and its sinks, (num_heads,).

    The sinks are −∞ for heads without one.
    """
    query, key = stages.upcast(call.query), stages.repeat_kv_heads(call.key, call.num_heads)
    scores = stages.scores(query, key, call.factor) * call.scale
    capped = stages.capped_scores(scores, call.softcap)
    bias = call.bias_block()
    sinks = scores.new_full((call.num_heads,), -math.inf)
    return (
        stages.masked_scores(capped, bias, call.visible()),
        sinks if call.sinks is None else call.sinks.to(sinks),
    )


@dataclass(eq=False)
class Hide(Operation):
    """An operation that hides keys from queries."""

    query: Selection | None
    key: Selection | None

    def rescores(self, places: Places, problem: Problem) -> Rescoring:
        """Return the mask of the pairs that stay visible, with the chosen queries and keys.

        Raises EditError: `edit.positions`, for queries where positions are unknown; `edit.batch`, for another batch.
        """
        queries = None if self.query is None else chosen_queries(self.query, places, problem.batch)
        keys = None if self.key is None else self.key.at(places.key, problem.batch, places.key_end)
        rows = None if queries is None else dense(~queries[:, None, :, None])
        columns = None if keys is None else dense(~keys[:, None, None])
        mask = columns if rows is None else rows if columns is None else Or(rows, columns)
        return Rescoring(mask, queries=queries, keys=keys)


@dataclass(eq=False)
class Restrict(Operation):
    """An operation that restricts visible pairs to those of a mask."""

    shown: Mask

    def rescores(self, places: Places, problem: Problem) -> Rescoring:
        """Return the mask at the positions of this call; keys that are no tokens stay visible.

        Raises EditError, code `edit.positions`, where positions are unknown, and what the mask raises for the length.
        """
        if places.is_plain:
            self.shown.check(problem.extent)
            return Rescoring(self.shown)
        if places.query is None:
            raise EditError(
                "edit.positions",
                "a mask needs the positions of the queries, which cannot be told here: there is no "
                "cache of transformers or clearhead that counts them. Run the whole text at once.",
            )
        tokens, key_tokens = places.tokens, places.key_tokens
        extent = problem.extent._replace(query_len=tokens, kv_len=key_tokens)
        self.shown.check(extent)
        query, key = (torch.atleast_2d(each) for each in (places.query, places.key))
        inside = key.clamp(0, max(0, key_tokens - 1))
        shown = self.shown.visible(query[:, None, :, None], inside[:, None, None], extent)
        return Rescoring(dense(shown | (key < 0)[:, None, None]))


@dataclass(eq=False)
class ScaleKeys(Operation):
    """An operation that scales the weights of some keys, and normalises all weights again."""

    key: Selection | None
    log_factor: float

    def rescores(self, places: Places, problem: Problem) -> Rescoring:
        """Return the bias to add to the scores, (batch or 1, 1, 1, kv_len): log_factor at the chosen keys, else 0.

        Raises EditError, code `edit.batch`, for keys that were chosen for another batch.
        """
        chosen = torch.ones_like(places.key, dtype=torch.bool)[None]
        if self.key is not None:
            chosen = self.key.at(places.key, problem.batch, places.key_end)
        added = torch.zeros(chosen.shape, dtype=stages.upcast(problem.query[:0]).dtype)
        added = added.to(chosen.device).masked_fill(chosen, self.log_factor)[:, None, None]
        return Rescoring(bias=added, keys=added[:, 0, 0] != 0)


@dataclass(eq=False)
class Patterns(Operation):
    """An operation that uses the weights of another run.

    Attributes:
        other: the matrices of the other run that may be those of a call, by path and number of the call.
    """

    other: Callable[[str, int], Sequence[AttentionMatrix]]

    def problem(self, call: Problem, places: Places, heads: list[int], path: str) -> Problem:
        """Return the call of the other run in these heads, with the values of this one; the first that fits is taken.

        Raises:
            EditError: code `edit.patterns`, where the two runs have other sizes, or the other has no such call.
        """
        others = [each.problem for each in self.other(path, self.number)]
        sizes = [(each.num_heads, each.query_len, each.kv_len) for each in (*others, call)]
        fitting = [
            each
            for each, size in zip(others, sizes, strict=False)
            if size == sizes[-1] and each.batch in (1, call.batch)
        ]
        if not fitting:
            got = (others[0].batch, *sizes[0]) if others else f"no call {self.number}"
            raise EditError(
                "edit.patterns",
                f"the other run has batch, num_heads, query_len, kv_len = {got} "
                f"in {path or 'the model'}; this call has {(call.batch, *sizes[-1])}. The two "
                "texts must be as long, and steps as many.",
            )
        other = fitting[0]
        part = of_heads(other, heads, path)
        group, key_group = call.num_heads // call.num_kv_heads, len(heads) // part.num_kv_heads
        picked = [heads[place * key_group] // group for place in range(part.num_kv_heads)]
        value = call.value[:, torch.tensor(picked, device=call.device)]
        query, key = (each.expand(call.batch, -1, -1, -1) for each in (part.query, part.key))
        query, key = (each.to(call.device, call.query.dtype) for each in (query, key))
        return part.replace(query=query, key=key, value=value, dropout=call.dropout)


@dataclass(eq=False)
class EditedCall:
    """One call of attention, with the operations on it.

    Heads and queries that no operation touches keep the context of the model's own kernel, bit for
    bit. What is hidden or scaled is attended to again, by the kernel that `attend` takes.
    """

    problem: Problem
    operations: Sequence[Operation]
    places: Places
    path: str
    _groups: dict[tuple[int, ...], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Group the heads by the operations on them.

        Raises EditError: `edit.heads` as `Operation.chosen`, `edit.conflict` as `_check`, and `edit.parallel` for an
        edit of some heads where ranks share them.
        """
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
        """Raise EditError, code `edit.conflict`, if a head has two patterns, or one with an edit of its scores."""
        patterns = [each for each in operations if isinstance(each, Patterns)]
        scores = [each for each in operations if isinstance(each, Hide | Restrict | ScaleKeys)]
        if len(patterns) > 1 or (patterns and scores):
            raise EditError(
                "edit.conflict",
                f"a head of {self.path or 'the model'} has the patterns of another run, which "
                "cannot be hidden, scaled or replaced once more.",
            )

    def context(self, own: Tensor) -> Tensor:
        """Return the edited context, from that of the model's own kernel, `own`, which is not changed.

        The tallies of the operations count the call and its queries, except in a backward pass. Raises EditError if an
        operation does not fit the call.
        """
        result, places, num_heads = own, self.places, self.problem.num_heads
        counts = not in_backward()  # the recomputation of a checkpoint, which was counted
        for each in self.operations if counts else ():
            heads = len(each.chosen(num_heads, self.path))
            each.tally.call(self.path, heads, places.tokens, places.key_tokens)
        for numbers, heads in self._groups.items():
            index = torch.tensor(heads, device=own.device)
            operations = [self.operations[number] for number in numbers]
            mine = new = own[:, index]
            new = self._rescored(operations, heads, mine, counts=counts)
            for each in operations:
                if isinstance(each, Patterns):
                    other = each.problem(self.problem, places, heads, self.path)
                    with apart(other):
                        new = run(other)
                    if counts:
                        each.tally.add(mine.shape[:3].numel())
                elif isinstance(each, OfContext):
                    every = each.chosen(num_heads, self.path)
                    new = each.edited(new, HeadsAt(places, heads, every, self.path), counts=counts)
            if new is not mine:
                result = result.index_copy(1, index, new.to(own.dtype))
        return result

    def read(self) -> Problem:
        """Return the call with the edits of its scores and weights applied, as a watch records it.

        `problem` is not changed. Contexts that are replaced are not in it. Raises EditError if an operation does not
        fit the call.
        """
        call = self.problem
        for numbers, heads in self._groups.items():
            others = torch.ones(1, call.num_heads, 1, 1, dtype=torch.bool, device=call.device)
            others[:, heads] = False
            for number in numbers:
                operation = self.operations[number]
                change = operation.rescores(self.places, self.problem)
                call = call if change is None else change.among(others).applied(call)
                if isinstance(operation, Patterns):
                    other = operation.problem(self.problem, self.places, heads, self.path)
                    call = with_heads(call, other, heads)
        return call

    def _rescored(
        self, operations: list[Operation], heads: list[int], own: Tensor, *, counts: bool
    ) -> Tensor:
        """Return the context of heads with edited scores; queries whose weights stay the same keep theirs.

        `own` is the context of just these heads by the model's kernel, and returned itself if no operation changes
        scores. `counts` adds the changed queries to the tallies.
        """
        call = self.problem
        call = edited = call if len(heads) == call.num_heads else of_heads(call, heads, self.path)
        rows: Tensor | None = None
        for operation in operations:
            change = operation.rescores(self.places, self.problem)
            if change is not None:
                edited = change.applied(edited)
                changed = touched(call, change)
                rows = changed if rows is None else rows | changed
                if counts:
                    operation.tally.add(number_of_queries(call, changed))
        return own if rows is None else attended_anew(edited, rows, own)
