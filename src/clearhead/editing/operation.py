"""One operation of an edit, and the queries that it is for."""

from dataclasses import dataclass, field

from torch import Tensor

from clearhead.attention.problem import Problem
from clearhead.editing.places import Places
from clearhead.editing.report import Tally
from clearhead.editing.rescoring import Rescoring
from clearhead.editing.selections import Selection, heads_text
from clearhead.errors import EditError


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
