"""DTensors, PyTorch's tensors that know which rank has which part of them."""

import sys
from typing import Any


def is_dtensor(tensor: object) -> bool:
    """True for a DTensor; their module, which takes long to import, is not imported for it."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
