"""What layers check of their inputs, and how they see heads in them."""

import torch
from torch import Tensor, nn

from clearhead._common.torch_internals import is_autocast
from clearhead.errors import DeviceError, DtypeError


def is_plain(projection: nn.Module) -> bool:
    """Whether a projection is its weight times the input and its bias, both parameters of its own;
    not what was put in its place, such as one of low rank beside it, of whole numbers, or pruned."""
    return (
        type(projection).forward is nn.Linear.forward
        and "forward" not in vars(projection)
        and "weight" in projection._parameters
    )


def check_beside(name: str, tensor: Tensor, projection: nn.Module) -> None:
    """Refuse an input that a projection of a layer cannot be multiplied with.

    One that is not plain knows by itself what it takes, and its weight may not be there yet.

    Raises:
        DtypeError: code `layer.dtype`, unless autocast brings both to one precision.
        DeviceError: code `layer.device`.
    """
    if not is_plain(projection) or projection._forward_pre_hooks:
        return
    weight = projection._parameters["weight"]
    assert weight is not None
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
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and is_autocast(tensor)


def split_heads(projected: Tensor, num_heads: int) -> Tensor:
    """(batch, tokens, num_heads · dim) as (batch, num_heads, tokens, dim), without a copy."""
    if projected.ndim == 2:
        projected = projected[None]
    batch, tokens, width = projected.shape
    return projected.view(batch, tokens, num_heads, width // num_heads).transpose(1, 2)
