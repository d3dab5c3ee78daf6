"""The operations on the contexts of heads, z: ablation, the context of another run, and a vector that is added."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.editing.operation import Operation, chosen_queries
from clearhead.editing.places import Places
from clearhead.editing.selections import Selection
from clearhead.errors import EditError
from clearhead.matrix.contexts import Contexts


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


@dataclass(eq=False)
class OfContext(Operation):
    """An operation that replaces the context of some heads, for some queries or all.

    Attributes:
        query: the queries that it is for; None for all.
        samples: the chosen samples of the batch, in the same form.
    """

    query: Selection | None = None
    samples: slice | None = field(default=None, kw_only=True)

    def edited(self, context: Tensor, at: HeadsAt, *, counts: bool) -> Tensor:
        """Return the edited context of some heads, (batch, heads, query_len, value_head_dim).

        Other queries keep theirs, bit for bit.
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

    @property
    def always(self) -> bool:
        """True if every chosen query counts as changed, whether or not its context differs."""
        return False

    @abstractmethod
    def made(self, context: Tensor, at: HeadsAt, rows: Tensor | None) -> Tensor:
        """Return the new context of all queries; of it only `rows`, bool, (batch or 1, query_len), is used."""


FindMean = Callable[[str, list[int]], Tensor]
"""Returns the mean context of some heads of a module, by its path and their numbers."""


@dataclass(eq=False)
class Ablate(OfContext):
    """An operation that sets the context of a head to 0, or to a mean.

    Attributes:
        mean: finds it; None for 0.
    """

    mean: FindMean | None = None

    @property
    def always(self) -> bool:
        """True: an ablated context counts as changed, even if it was 0 or the mean already."""
        return True

    def made(self, context: Tensor, at: HeadsAt, rows: Tensor | None) -> Tensor:
        """Return a context of zeros, or the mean of each head, in the shape of `context`; `rows` is ignored.

        Raises:
            EditError: code `edit.mean`, if the mean has another shape.
        """
        new = context.new_zeros(context.shape)
        if self.mean is None:
            return new
        mean, width = self.mean(at.path, at.every), context.shape[3]
        if tuple(mean.shape) not in ((width,), (len(at.every), width)):
            raise EditError(
                "edit.mean",
                f"mean must have shape (heads, value_head_dim) = {(len(at.every), width)} in "
                f"{at.name}; got {tuple(mean.shape)}.",
            )
        return new + _of_heads(mean.to(context), at)


@dataclass(eq=False)
class AddVector(OfContext):
    """An operation that adds a vector to the context of a head."""

    vector: Tensor = field(default_factory=lambda: torch.zeros(()))
    scale: float = 1.0

    def made(self, context: Tensor, at: HeadsAt, rows: Tensor | None) -> Tensor:
        """Return the context plus `scale` times the vector; `rows` is ignored.

        Raises:
            EditError: code `edit.vector`, if the vector has another shape.
        """
        width = context.shape[3]
        if tuple(self.vector.shape) not in ((width,), (len(at.every), width)):
            raise EditError(
                "edit.vector",
                f"vector must have shape (value_head_dim,) = {(width,)}, or (heads, value_head_dim) = "
                f"{(len(at.every), width)}, in {at.name}; got {tuple(self.vector.shape)}.",
            )
        return context + self.scale * _of_heads(self.vector.to(context), at)


Find = Callable[[str, list[int]], Contexts]
"""Returns contexts by the path of a module and the numbers of its heads that an operation is for."""


def _nothing(path: str, heads: list[int]) -> Contexts:
    """Raise NotImplementedError; the default of a field that is always given."""
    raise NotImplementedError


@dataclass(eq=False)
class Replace(OfContext):
    """An operation that sets the context of a head to that of another run, at the same positions.

    Attributes:
        find: the contexts of the other run.
        length: the positions that it has, once the layer has run.
    """

    find: Find = _nothing
    length: int | None = None

    def check_done(self, layer: str, model: str) -> None:
        """As of other operations; also code `edit.context`, for a run of more positions."""
        super().check_done(layer, model)
        tokens = self.tally.tokens["query"]
        if self.query is None and self.length is not None and self.length > tokens:
            raise EditError(
                "edit.context",
                f"the other run of {layer} has {self.length} positions; there were {tokens} tokens. The two texts must "
                "be as long, or query= chooses.",
            )

    def made(self, context: Tensor, at: HeadsAt, rows: Tensor | None) -> Tensor:
        """Return the context of the other run at the positions of the queries, in the shape of `context`.

        Raises:
            EditError: codes `edit.context` and `edit.positions`, if the other run does not fit.
        """
        other = _fitting(self.find(at.path, at.every), context, at)
        self.length = other.shape[2]
        places = _positions(self.length, at, rows)
        other = other if places is None else other[:, :, places.to(other.device)]
        return other.to(context).expand(context.shape)


def _fitting(found: Contexts, context: Tensor, at: HeadsAt) -> Tensor:
    """Return the contexts of the heads of a call, (batch or 1, heads, positions, value_head_dim)."""
    other, (batch, _, _, width) = found.context, context.shape
    numbers = list(range(other.shape[1])) if found.heads is None else list(found.heads)
    has_heads = len(numbers) == other.shape[1] and set(at.every) <= set(numbers)
    if other.shape[0] not in (1, batch) or not has_heads or other.shape[3] != width:
        raise EditError(
            "edit.context",
            "what replaces the context must have shape (batch or 1, heads, positions, value_head_dim) = "
            f"({batch}, {len(at.every)}, …, {width}) in {at.name}; it has {tuple(other.shape)}. A tensor "
            "is of just the heads that are edited, context[:, heads]; of beams, repeat each row: "
            "context.repeat_interleave(num_beams, 0).",
        )
    return other[:, [numbers.index(head) for head in at.heads]]


def _of_heads(vectors: Tensor, at: HeadsAt) -> Tensor:
    """Return one vector for all heads unchanged, or the rows of these heads, (heads, 1, value_head_dim)."""
    if vectors.ndim == 1:
        return vectors
    return vectors[[at.every.index(head) for head in at.heads], None]


def _positions(length: int, at: HeadsAt, rows: Tensor | None) -> Tensor | None:
    """Return the positions of the queries among `length` of another run, or None where they are the same."""
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
