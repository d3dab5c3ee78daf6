"""One operation of an edit, the queries that it is for, and the counts of what it changed."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from clearhead._common.rows import MeasuredRows
from clearhead._common.torch_internals import is_concrete, is_transformed
from clearhead.attention.problem import Problem
from clearhead.editing.call_positions import Places
from clearhead.editing.rescoring import Rescoring
from clearhead.editing.selections import Selection, heads_text
from clearhead.errors import EditError


class EditCounts(NamedTuple):
    """The counts of one operation of an edit, over all calls in the block.

    Attributes:
        layer: the path, or the glob, that it was asked for.
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
            layer: what it was asked for, for messages.
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
