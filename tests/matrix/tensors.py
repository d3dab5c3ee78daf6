"""The tensors of a summary, in one order."""

from typing import Any

from torch import Tensor

from clearhead.matrix.summary import each_tensor


def tensors_of(kept: Any) -> list[Tensor]:
    """Return every tensor of a summary, or of one of its fields."""
    tensors: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    each_tensor(kept, keep)
    return tensors
