"""The private parts of PyTorch, and public ones that answer slowly; each use has a test.

A part that a version of PyTorch no longer has is refused by its name where it is first used.
"""

from typing import Any

import torch
from torch import Tensor

from clearhead.errors import UnsupportedError


def private(path: str) -> Any:
    """Return a private part of PyTorch.

    Raises:
        UnsupportedError: code `torch.private`, where this version of PyTorch does not have it.

    Example:
        >>> private("_C.gone")
        Traceback (most recent call last):
        ...
        clearhead.errors.UnsupportedError: [torch.private] torch._C.gone must be there; PyTorch ... no longer has it.
    """
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise UnsupportedError(
            "torch.private",
            f"torch.{path} must be there; PyTorch {torch.__version__} no longer has it.",
        )
    return found


def is_autocast(tensor: Tensor) -> bool:
    """Return True if autocast is on where a tensor is; the meta device has none.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     is_autocast(torch.ones(1)), is_autocast(torch.ones(1, device="meta"))
        (True, False)
    """
    # The name of a device is made anew each time that it is asked for.
    device = "cpu" if tensor.is_cpu else tensor.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def is_transformed(tensor: Tensor) -> bool:
    """Return True inside a transformation of torch.func, such as vmap, whose tensors hold no numbers.

    Example:
        >>> torch.vmap(lambda row: print(is_transformed(row)) or row)(torch.ones(1, 2))
        True
        tensor([[1., 1.]])
    """
    return private("_C._functorch.is_functorch_wrapped_tensor")(tensor)


def argument_names(operation: str) -> tuple[str, ...]:
    """Return the names of the arguments of an operation that PyTorch has in C++, in their order.

    Example:
        >>> argument_names("_native_multi_head_attention")[:5]
        ('query', 'key', 'value', 'embed_dim', 'num_head')
    """
    return tuple(each.name for each in private(f"ops.aten.{operation}.default._schema").arguments)
