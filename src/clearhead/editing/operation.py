"""One operation of an edit, the queries and keys that a user chooses for it, and the counts of what it changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import as_int, as_ints
from clearhead._common.rows import MeasuredRows
from clearhead._common.torch_internals import is_concrete, is_transformed
from clearhead._text import shown
from clearhead.attention.problem import Problem
from clearhead.editing.call_positions import Places
from clearhead.editing.rescoring import Rescoring
from clearhead.errors import ArgumentError, ArgumentTypeError, EditError


@dataclass(frozen=True, eq=False)
class Selection:
    """Positions of tokens, counted from the beginning of the sequence, negative ones from its end.

    Attributes:
        name: of the argument, for messages.
        given: a slice, an int64 tensor (count,), or a bool tensor, (len,) or (batch, len).
        first: the position that the shortest sequence has of those that are chosen; None for one that is
            read from a bool tensor, and for no position.
    """

    name: str
    given: slice | Tensor
    first: int | None

    @property
    def tokens(self) -> int:
        """The length of the shortest sequence that has one of the positions; 0 if any has."""
        if self.first is None:
            return 0
        return self.first + 1 if self.first >= 0 else -self.first

    def at(self, positions: Tensor, batch: int, end: Tensor | int) -> Tensor:
        """Return a bool tensor, True at the chosen positions, (batch or 1, count).

        Args:
            positions: int64, (count,) or (batch, count).
            batch: samples of the call.
            end: the position after the last token, from which negative ones count; (batch or 1, count
                or 1) where rows differ.

        Raises:
            EditError: code `edit.batch`, for a choice that is made for another batch.

        Example:
            >>> selection("key", slice(2, None)).at(torch.arange(4), batch=1, end=4)
            tensor([[False, False,  True,  True]])
            >>> selection("key", -1).at(torch.arange(4), batch=1, end=torch.tensor([[4], [3]]))
            tensor([[False, False, False,  True],
                    [False, False,  True, False]])
        """
        positions = torch.atleast_2d(positions)
        if isinstance(self.given, slice):
            return self._within(self.given, positions, end)
        given = self.given.to(positions.device)
        if given.dtype != torch.bool:
            chosen = torch.isin(positions, given[given >= 0])
            for back in given[given < 0]:
                chosen = chosen | (positions == end + back)
            return chosen
        given = torch.atleast_2d(given)
        if given.shape[0] not in (1, batch):
            raise EditError(
                "edit.batch",
                f"{self.name} chooses tokens of {given.shape[0]} samples; the call has a batch of "
                f"{batch}. Of beams, repeat each row: {self.name}.repeat_interleave(num_beams, 0).",
            )
        if not given.shape[1]:
            return torch.zeros_like(positions, dtype=torch.bool)
        rows = max(given.shape[0], positions.shape[0])
        place = positions.clamp(0, given.shape[1] - 1).expand(rows, -1)
        inside = (positions >= 0) & (positions < given.shape[1])
        return given.expand(rows, -1).gather(1, place) & inside

    def _within(self, given: slice, positions: Tensor, end: Tensor | int) -> Tensor:
        """Return a bool tensor like `positions`, True inside a slice; its negative bounds count from `end`."""
        start, stop, step = given.start or 0, given.stop, given.step or 1
        if start < 0:
            start = (torch.as_tensor(end, device=positions.device) + start).clamp(min=0)
        if stop is not None and stop < 0:
            stop = end + stop
        chosen = (positions >= start) & ((positions - start) % step == 0)
        return chosen if stop is None else chosen & (positions < stop)


def selection(name: str, given: object) -> Selection | None:
    """Return chosen positions as a `Selection`; None, which means all positions, stays None.

    Args:
        name: of the argument.
        given: a position, a slice or range, positions, or a bool tensor, (len,) or (batch, len),
            that is True at what is chosen. Negative positions count from the end.

    Raises:
        ArgumentTypeError: code `edit.selection`, for anything else.
        ArgumentError: code `edit.position`, for a slice that goes backwards.

    Example:
        >>> selection("key", [0, 3]).first, selection("key", None) is None
        (0, True)
    """
    if given is None:
        return None
    expected = (
        f"{name} must be a position, a slice, positions, a bool tensor of shape (len,) or (batch, "
        "len), or None for all"
    )
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        if given.ndim not in (1, 2):
            raise ArgumentTypeError("edit.selection", f"{expected}; got {tuple(given.shape)}.")
        return Selection(name, given.detach().clone(), None)
    if isinstance(given, Tensor) and not given.is_floating_point() and given.ndim <= 1:
        given = given.tolist()
    if isinstance(given, slice):
        if (
            as_ints([given.start or 0, given.stop or 0, 1 if given.step is None else given.step])
            is None
        ):
            raise ArgumentTypeError("edit.selection", f"{expected}; got {shown(given)}.")
        if given.step is not None and given.step < 1:
            raise ArgumentError(
                "edit.position", f"{name} must be a slice that goes forwards; got {shown(given)}."
            )
        return Selection(name, given, max(0, given.start or 0))
    if as_int(given) is not None:
        given = [given]
    numbers = as_ints(given) if isinstance(given, Sequence) else None
    if numbers is None:
        raise ArgumentTypeError("edit.selection", f"{expected}; got {shown(given)}.")
    # Beyond any length there is.
    places = torch.tensor([max(-FAR, min(each, FAR)) for each in numbers], dtype=torch.int64)
    first = min(numbers, key=lambda each: each if each >= 0 else -each - 1, default=None)
    return Selection(name, places, first)


FAR = 1 << 60
"""A position that no text has."""


def heads_text(heads: tuple[int, ...] | slice) -> str:
    """Return heads as they are written in code.

    Example:
        >>> heads_text(slice(2, None)), heads_text((0, -1))
        ('heads[2:]', 'heads[0, -1]')
    """
    if isinstance(heads, slice):
        limits = ["" if each is None else str(each) for each in (heads.start, heads.stop)]
        step = "" if heads.step is None else f":{heads.step}"
        return f"heads[{':'.join(limits)}{step}]"
    return f"heads{list(heads)}"


class EditCounts(NamedTuple):
    """The counts of one operation of an edit, over all calls in the block.

    Attributes:
        layer: the requested path or glob.
        operation: such as "heads[2].hide".
        calls: of attention, of the modules that are like the layer, since the operation was added.
        heads: of these modules together.
        queries: of these heads and all samples, each with a context that is another; None where
            numbers cannot be read, as in torch.vmap.
    """

    layer: str
    operation: str
    calls: int
    heads: int
    queries: int | None


class EditReport(MeasuredRows[EditCounts]):
    """The counts of what each operation of an edit changed; it can be printed and iterated.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())
        >>> with ch.edit(layer) as edit:
        ...     edit[0].hide(query=[1, 2], key=2)
        ...     output = layer(torch.randn(1, 5, 8))
        >>> edit.report[0].queries
        2
    """

    ROW = EditCounts

    def _cell(self, value: object) -> str:
        """Return the text of a cell; "(the model)" for an empty path."""
        return "(the model)" if value == "" else super()._cell(value)


@dataclass(eq=False)
class Tally:
    """Counts of what an operation has changed so far."""

    calls: int = 0
    heads: dict[str, int] = field(default_factory=dict)
    queries: Tensor | int = 0
    known: bool = True
    tokens: dict[str, int] = field(default_factory=lambda: {"query": 0, "key": 0})
    """The most tokens of the sequences of queries and of keys."""

    def call(self, path: str, heads: int, tokens: int, key_tokens: int) -> None:
        """Count a call of a module with this number of edited heads, and note the longest sequences."""
        self.calls += 1
        self.heads[path] = heads
        for name, found in (("query", tokens), ("key", key_tokens)):
            self.tokens[name] = max(self.tokens[name], found)

    def add(self, queries: Tensor | int) -> None:
        """Add changed queries, without waiting for an accelerator.

        A tensor that cannot be read makes the count unknown.
        """
        if isinstance(queries, Tensor) and (is_transformed(queries) or not is_concrete(queries)):
            self.known = False
        else:
            self.queries = self.queries + queries

    def counts(self, layer: str, operation: str) -> EditCounts:
        """Return everything that was counted, as the row of a layer and an operation, which only name it.

        The number of queries is None if it is unknown.
        """
        queries = int(self.queries) if self.known else None
        return EditCounts(layer, operation, self.calls, sum(self.heads.values()), queries)


@dataclass(eq=False)
class Operation:
    """One operation on some heads of a layer; subclasses define it.

    Attributes:
        heads: their numbers, negative ones from the last, or a slice of all.
        call: the number of the call of the module that it is for; None for all.
        number: that of the call that runs.
        tally: what it has changed so far.
    """

    heads: tuple[int, ...] | slice
    call: int | None = field(init=False, default=None)
    number: int = field(init=False, default=0)
    tally: Tally = field(init=False, default_factory=Tally)

    def chosen(self, num_heads: int, path: str) -> list[int]:
        """Return the numbers of the heads from 0, in the order given.

        Raises:
            EditError: code `edit.heads`, for a head that the module does not have, one that is there
                twice, and for none.
        """
        every, given = range(num_heads), self.heads
        if isinstance(given, slice):
            found, wanted = list(every[given]), 1
        else:
            found = [every[head] for head in given if -num_heads <= head < num_heads]
            wanted = len(given)
        if len(set(found)) < wanted:
            raise EditError(
                "edit.heads",
                f"{heads_text(given)} are edited; {path or 'the model'} has num_heads={num_heads}.",
            )
        return found

    def rescores(self, places: Places, problem: Problem) -> Rescoring | None:
        """Return the changes to the scores of a call; None if the operation does not change scores, as by default."""
        return None

    def check_done(self, layer: str, model: str) -> None:
        """Raise, when the block ends, if the operation is for a position that no sequence had.

        Args:
            layer: the requested layer, for messages.
            model: the class of the model, for the message.

        Raises:
            EditError: code `edit.no-token`, for a position that no sequence had.
        """
        for chosen in (getattr(self, "query", None), getattr(self, "key", None)):
            if isinstance(chosen, Selection) and chosen.tokens > self.tally.tokens[chosen.name]:
                raise EditError(
                    "edit.no-token",
                    f"{chosen.name}= of {layer} begins at position {chosen.first}; there were "
                    f"{self.tally.tokens[chosen.name]} tokens.",
                )


def chosen_queries(chosen: Selection, places: Places, batch: int) -> Tensor:
    """Return the chosen queries of a call, bool, (batch or 1, query_len).

    Raises:
        EditError: codes `edit.positions`, where the positions are not known, and `edit.batch`.
    """
    if places.query is None:
        raise EditError(
            "edit.positions",
            "query= chooses queries by their position in the text, which cannot be told here: "
            f"the call has {places.problem.kv_len} keys for {places.problem.query_len} queries, and "
            "no cache of transformers or clearhead that counts these. Choose by key= alone, or run "
            "the whole text at once.",
        )
    return chosen.at(places.query, batch, places.query_end)
