"""A vector that is added behind the output projection of a layer, where its heads are summed."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.torch_internals import in_backward
from clearhead.editing.operation import Operation, chosen_queries
from clearhead.editing.places import Places
from clearhead.editing.selections import Selection
from clearhead.errors import EditError
from clearhead.watching.projections import projection_of


@dataclass(eq=False)
class AddToOutput(Operation):
    """A vector is added to the output of a layer.

    Attributes:
        query: the queries that it is for; None for all.
        vector: (embed_dim,).
        scale: times the vector.
        was_added: whether a projection has run that it was added behind.
    """

    query: Selection | None = None
    vector: Tensor = field(default_factory=lambda: torch.zeros(()))
    scale: float = 1.0
    was_added: bool = False

    def check_done(self, layer: str, model: str) -> None:
        """As of other operations; also code `edit.output`, where nothing was added."""
        super().check_done(layer, model)
        if not self.was_added:
            raise EditError(
                "edit.output",
                f"the output projection of {layer} of {model} did not run as a module of its own, as in "
                "nn.MultiheadAttention, so that nothing was added behind it. Add to the context, without "
                "output=True.",
            )

    def to_come(self, model: nn.Module, path: str, at: Places) -> "ToCome":
        """Return what adds it, once the layer has attended.

        Raises:
            EditError: codes `edit.output`, where no output projection is known, `edit.positions` and `edit.batch`.
        """
        projection = projection_of(model, path)
        if projection is None:
            raise EditError(
                "edit.output",
                f"the output projection of {path or 'the model'} is not known, so that nothing can be added behind it. "
                "Add to the context, without output=True.",
            )
        sizes = at.problem.batch, at.problem.query_len
        rows = torch.ones(sizes, dtype=torch.bool, device=at.problem.device)
        if self.query is not None:
            rows = rows & chosen_queries(self.query, at, sizes[0])
        return ToCome(self, projection, rows, path)


class ToCome(NamedTuple):
    """What is added once a projection has run.

    Attributes:
        operation: which adds it.
        projection: the module.
        rows: bool, (batch, query_len), the queries that it is for.
        path: of the module that attended.
    """

    operation: AddToOutput
    projection: nn.Module
    rows: Tensor
    path: str

    def added(self, output: object) -> Tensor:
        """Return the output with the vector; other queries keep theirs, bit for bit.

        Raises:
            EditError: codes `edit.output`, for an output of other tokens, and `edit.vector`.
        """
        operation, rows = self.operation, self.rows
        name = self.path or "the model"
        if not isinstance(output, Tensor) or output.shape[:-1].numel() != rows.numel():
            raise EditError(
                "edit.output",
                f"the output projection of {name} did not make one output for each of the {rows.numel()} queries that "
                "attended, so that nothing can be added behind it. Add to the context, without output=True.",
            )
        if operation.vector.shape != output.shape[-1:]:
            raise EditError(
                "edit.vector",
                f"vector must have shape (embed_dim,) = ({output.shape[-1]},) in {name}; got "
                f"{tuple(operation.vector.shape)}.",
            )
        operation.was_added = True
        if not in_backward():
            operation.tally.add(rows.sum() if bool((operation.vector != 0).any()) else 0)
        moved = output + operation.scale * operation.vector.to(output)
        return torch.where(rows.reshape(*output.shape[:-1], 1).to(output.device), moved, output)
