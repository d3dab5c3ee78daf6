"""Take the operands of products that a recorder found, from another call."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from clearhead.recording.operations import PRODUCTS, UNCOUNTED, Operations
from clearhead.recording.recorder import Node


class Capture(Operations):
    """Take the operands of the operations at given places, and nothing else."""

    def __init__(self, places: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__()
        self.places = places
        self.operands: dict[int, tuple[Tensor, ...]] = {}

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, and keep copies of the operands that are asked for."""
        which = self.places.get(self.count, ()) if name not in UNCOUNTED else ()
        if which and all(i < len(args) and isinstance(args[i], Tensor) for i in which):
            self.operands[self.count] = tuple(self._operand(args[i]) for i in which)
        return func(*args, **kwargs)

    @staticmethod
    def _operand(taken: Tensor) -> Tensor:
        """A copy; a vector is a column, as the recorder has it."""
        copied = taken.detach().clone()
        return copied.unsqueeze(-1) if copied.ndim == 1 else copied


def operand_places(nodes: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """The places of the operands of products, for `Capture`."""
    return {node.place: PRODUCTS.get(node.name, (0, 1, 2)) for node in nodes}
