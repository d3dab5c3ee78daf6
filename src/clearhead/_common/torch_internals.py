"""What PyTorch keeps private, or answers slowly when asked in public; each use has a test."""

import torch
from torch import Tensor


def is_autocast(tensor: Tensor) -> bool:
    """Whether autocast is on where a tensor is; of the meta device it knows nothing.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     is_autocast(torch.ones(1)), is_autocast(torch.ones(1, device="meta"))
        (True, False)
    """
    # The name of a device is made anew each time that it is asked for.
    device = "cpu" if tensor.is_cpu else tensor.device.type
    return device != "meta" and torch.is_autocast_enabled(device)
