"""Weights that come from elsewhere: a book, a tutorial, another rung."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.errors import ArgumentError, ArgumentTypeError, DeviceError, DtypeError, ShapeError


def check_given(
    sizes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The given weights, if they are exactly those that are expected.

    Args:
        sizes: for each name the shape that is expected.
        given: for each name the tensor, or None for none.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in given.items():
        if tensor is None and name not in sizes:
            continue
        if name not in sizes:
            raise ArgumentError(
                "rung.weight-unexpected", f"{name} was given, and this rung has no place for it."
            )
        if tensor is None:
            raise ArgumentError(
                "rung.weight-missing", f"{name} must be given too, with shape {sizes[name]}."
            )
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(
                f"{name}.type", f"{name} must be a torch.Tensor; got {type(tensor).__name__}."
            )
        if tuple(tensor.shape) != sizes[name]:
            turned = tensor.ndim == 2 and tuple(tensor.mT.shape) == sizes[name]
            hint = " A weight of nn.Linear has to be turned: weight.mT." if turned else ""
            raise ShapeError(
                "rung.weight",
                f"{name} must have shape {sizes[name]}; got {tuple(tensor.shape)}.{hint}",
            )
        found[name] = tensor
        first = next(iter(found.values()))
        if not tensor.is_floating_point() or tensor.dtype != first.dtype:
            raise DtypeError(
                "rung.dtype",
                f"given weights must be floating, of one dtype; got {tensor.dtype} for {name}.",
            )
        if tensor.device != first.device:
            raise DeviceError(
                "rung.device",
                f"given weights must be on one device; got {first.device}, and {tensor.device} "
                f"for {name}.",
            )
    return found


def trainable(tensor: Tensor) -> nn.Parameter:
    """A copy of the numbers, as a parameter."""
    return nn.Parameter(tensor.detach().clone(memory_format=torch.contiguous_format))


def fill(layers: Mapping[str, nn.Linear], given: Mapping[str, Tensor | None]) -> None:
    """Give linear layers the weights of `x @ weight + bias`; nothing changes if one is refused.

    Args:
        layers: each by the name of its weight, such as `query`.
        given: by that name the weight, (inputs, outputs), and as `query_bias` the bias, (outputs,).
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for name, layer in layers.items():
        sizes[name] = (layer.in_features, layer.out_features)
        if layer.bias is not None:
            sizes[f"{name}_bias"] = (layer.out_features,)
    found = check_given(sizes, given)
    for name, layer in layers.items():
        layer.weight = trainable(found[name].mT)
        if layer.bias is not None:
            layer.bias = trainable(found[f"{name}_bias"])
