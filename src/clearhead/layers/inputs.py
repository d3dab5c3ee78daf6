"""What layers check of their inputs, and how they see heads in them."""

import torch
from torch import Tensor

from clearhead.errors import DeviceError, DtypeError


def check_beside(name: str, tensor: Tensor, weight: Tensor) -> None:
    """Refuse an input that the weights of a layer cannot be multiplied with.

    Raises:
        DtypeError: code `layer.dtype`, unless autocast brings both to one precision.
        DeviceError: code `layer.device`.
    """
    if tensor.dtype != weight.dtype and not (_is_cast(tensor) and _is_cast(weight)):
        raise DtypeError(
            "layer.dtype",
            f"{name} must have the dtype of the layer's weights, {weight.dtype}; got "
            f"{tensor.dtype}.",
        )
    if tensor.device != weight.device:
        raise DeviceError(
            "layer.device",
            f"{name} is on {tensor.device}, the layer's weights on {weight.device}.",
        )


def _is_cast(tensor: Tensor) -> bool:
    """Whether autocast brings the tensor to the precision of its products."""
    device = tensor.device.type
    return (
        tensor.is_floating_point()
        and tensor.dtype != torch.float64
        and device != "meta"  # which autocast does not know
        and torch.is_autocast_enabled(device)
    )


def split_heads(projected: Tensor, num_heads: int) -> Tensor:
    """(batch, tokens, num_heads · dim) as (batch, num_heads, tokens, dim), without a copy."""
    if projected.ndim == 2:
        projected = projected[None]
    batch, tokens, width = projected.shape
    return projected.view(batch, tokens, num_heads, width // num_heads).transpose(1, 2)
