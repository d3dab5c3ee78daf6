"""The operations on the contexts of heads, z: ablation, the context of another run, and a vector that is added."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.editing.call_positions import Places
from clearhead.editing.operation import Operation, Selection, chosen_queries
from clearhead.errors import EditError
from clearhead.matrix.head_results import Contexts


class HeadsAt(NamedTuple):
    """Selected heads in a call, and the positions of the call.

    Attributes:
        places: the positions of its queries.
        heads: their numbers.
        every: the numbers of all heads that the operation is for.
        path: of the module.
    """

    places: Places
    heads: list[int]
    every: list[int]
    path: str

    @property
    def name(self) -> str:
        """The path of the module; "the model" for the model itself."""
        return self.path or "the model"


Find = Callable[[str, list[int], int], Contexts]
"""Returns contexts by the path of a module, the numbers of the edited heads, and the number of the call."""


@dataclass(eq=False)
class OfContext(Operation):
    """An operation that replaces the context of some heads, or adds to it, for some queries or all.

    Attributes:
        query: the queries that it is for; None for all.
        find: the contexts that it takes; None for 0.
        scale: how many times they are added; None to replace the context.
        everywhere: True if they are the same at all positions, False if each position has its own.
        always: True if every chosen query counts as changed, whether or not its context differs.
        samples: those of the batch that it is for; None for all.
        length: the positions that the other run has, once the layer has run.
    """

    query: Selection | None = None
    find: Find | None = None
    scale: float | None = None
    everywhere: bool = False
    always: bool = False
    samples: slice | None = field(default=None, kw_only=True)
    length: int | None = None

    def check_done(self, layer: str, model: str) -> None:
        """Raise EditError, when the block ends, as other operations do, and if the other run has more positions.

        That is code `edit.context`, only where no query was chosen.
        """
        super().check_done(layer, model)
        tokens = self.tally.tokens["query"]
        if self.query is None and self.length is not None and self.length > tokens:
            raise EditError(
                "edit.context",
                f"the other run of {layer} has {self.length} positions; there were {tokens} tokens. The two texts must "
                "be as long, or query= chooses.",
            )

    def edited(self, context: Tensor, at: HeadsAt, *, counts: bool) -> Tensor:
        """Return the edited context of some heads, (batch, heads, query_len, value_head_dim); not in place.

        Other queries keep theirs, bit for bit. With `counts` the changed queries are added to the tally. Raises
        EditError as `made` does, and if queries or samples cannot be chosen.
        """
        batch, heads, query_len, _ = context.shape
        rows = None
        if self.query is not None:
            rows = chosen_queries(self.query, at.places, batch)
        if self.samples is not None:
            mine = torch.zeros(batch, 1, dtype=torch.bool, device=context.device)
            mine[self.samples] = True
            rows = mine.expand(-1, query_len) if rows is None else rows & mine
        made = self.made(context, at, rows)
        if rows is not None:
            made = torch.where(rows[:, None, :, None], made, context)
        if counts and self.always:
            of_rows = query_len if rows is None else rows.sum()
            self.tally.add(heads * of_rows * (batch if rows is None else batch // len(rows)))
        elif counts:
            self.tally.add((made != context).any(dim=-1).sum())
        return made

    def made(self, context: Tensor, at: HeadsAt, rows: Tensor | None) -> Tensor:
        """Return the new context of all queries: 0 without `find`, its context, or `context` + `scale` · that.

        Only `rows` of it, bool, (batch or 1, query_len), are used; None is all. Stores the number of positions found
        as `length`, unless one context is for all of them.

        Raises:
            EditError: codes `edit.context` and `edit.positions`, if the contexts that it takes do not fit.
        """
        if self.find is None:
            return context.new_zeros(context.shape)
        other = self._fitting(self.find(at.path, at.every, self.number), context, at)
        if not self.everywhere:
            self.length = other.shape[2]
            places = _positions(self.length, at, rows)
            other = other if places is None else other[:, :, places.to(other.device)]
        other = other.to(context).expand(context.shape)
        return other if self.scale is None else context + self.scale * other

    def _fitting(self, given: Contexts, context: Tensor, at: HeadsAt) -> Tensor:
        """Return the given contexts of the heads of a call, (batch or 1, heads, positions, value_head_dim).

        Raises EditError, code `edit.context`, if they have another batch or width, or not all of the heads.
        """
        other, (batch, _, _, width) = given.context, context.shape
        numbers = list(range(other.shape[1])) if given.heads is None else list(given.heads)
        has_heads = len(numbers) == other.shape[1] and set(at.every) <= set(numbers)
        if other.shape[0] in (1, batch) and has_heads and other.shape[3] == width:
            return other[:, [numbers.index(head) for head in at.heads]]
        raise EditError(
            "edit.context",
            f"the contexts for heads {at.every} of {at.name} must have shape (batch or 1, heads, positions, "
            f"value_head_dim) = ({batch}, {len(at.every)}, …, {width}); got {tuple(other.shape)}, of heads {numbers}. "
            "A tensor is of just the heads that are edited, context[:, heads]; a vector or a mean has one position; of "
            "beams, repeat each row: context.repeat_interleave(num_beams, 0).",
        )


def _positions(length: int, at: HeadsAt, rows: Tensor | None) -> Tensor | None:
    """Return the positions, (query_len,), of the queries among `length` of another run; None where they are the same.

    Only the queries of `rows` (None: all) must have one there; others are clamped. Raises EditError: `edit.positions`
    if positions are unknown or differ by row, `edit.context` if one is beyond `length`.
    """
    places = at.places
    query, query_len = places.query, places.problem.query_len
    if query is not None and query_len == length == places.tokens:
        return None
    if query is not None and query.ndim == 2 and bool((query == query[:1]).all()):
        query = query[0]
    if query is None or query.ndim == 2:
        raise EditError(
            "edit.positions",
            f"the positions of the queries of {at.name} cannot be told here, or differ from row to row, so that "
            "those of another run cannot be found. Run the whole text at once.",
        )
    needed = query if rows is None else query[rows.any(dim=0)]
    if needed.numel() and int(needed.max()) >= length:
        raise EditError(
            "edit.context",
            f"the other run has {length} positions in {at.name}; position {int(needed.max())} is asked for. The two "
            f"texts must be as long, or query= chooses: query=slice(0, {length}).",
        )
    return query.clamp(0, max(0, length - 1))
