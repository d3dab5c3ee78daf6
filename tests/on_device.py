"""Tensors of a device whose numbers cannot be read: PyTorch's `meta`, in place of a GPU that need not be there.

Reading one of its numbers is an error there, where on a GPU the host would wait. A copy between the two sides is
recorded.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

DEVICE = torch.device("meta")


class Recorded(TorchDispatchMode):
    """A mode that keeps what is done on the device.

    Attributes:
        operations: the name of each operation, and the tensors that it made, of which a view, and what is
            written in place, are none.
        waits: copies between host and device for which the host would wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, list[Tensor]]] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
        new = [each for each in tree_flatten(made)[0] if isinstance(each, Tensor)]
        if any(each.is_meta for each in (*given, *new)):
            name = func.__name__.split(".")[0]
            sides = {each.is_meta for each in (*given, *new) if each.ndim}
            # The last argument of copy_ is non_blocking.
            late = kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,))
            if name in ("_to_copy", "copy_") and len(sides) > 1 and not late:
                self.waits.append(f"{name} {[tuple(each.shape) for each in given]}")
            if not func.is_view and not name.endswith("_"):
                self.operations.append((name, new))
        return made


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor of the device."""
    return torch.empty(shape, dtype=dtype, device=DEVICE)
