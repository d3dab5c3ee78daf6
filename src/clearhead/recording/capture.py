"""Take the operands of products that a recorder found, from another call."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from clearhead.recording.operations import PRODUCTS, UNCOUNTED, Operations
from clearhead.recording.recorder import Node


class Capture(Operations):
    """Copy the operands of the operations at given places; record nothing else.

    Attributes:
        places: by the number of an operation (from 1, `UNCOUNTED` ones are skipped), the indices of the arguments to
            copy.
        operands: by the same number, the copies; no entry where the operation did not run or such an argument is no
            tensor.
    """

    def __init__(self, places: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__()
        self.places = places
        self.operands: dict[int, tuple[Tensor, ...]] = {}

    def operation(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation and return its result.

        First copy its operands to `operands`, by its number, if that is in `places` and these are tensors.
        """
        which = self.places.get(self.count, ()) if name not in UNCOUNTED else ()
        if which and all(i < len(args) and isinstance(args[i], Tensor) for i in which):
            self.operands[self.count] = tuple(self._operand(args[i]) for i in which)
        return func(*args, **kwargs)

    @staticmethod
    def _operand(taken: Tensor) -> Tensor:
        """Return a detached copy; a vector (n,) becomes a column (n, 1), as in the recorder."""
        copied = taken.detach().clone()
        return copied.unsqueeze(-1) if copied.ndim == 1 else copied


def operand_places(nodes: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """Return the argument indices of each node's operands, by the number of its operation.

    They are (0, 1, 2) for a fused attention, as for any name that is no product.
    """
    return {node.place: PRODUCTS.get(node.name, (0, 1, 2)) for node in nodes}
