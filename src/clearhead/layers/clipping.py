"""Gradients clipped by their norm, of parameters that ranks share in several ways."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from clearhead._common.checks import check_number
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentTypeError
from clearhead.sharding.dtensors import is_dtensor


@with_hints
def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """Scale the gradients of all parameters, so that their norm together is at most `max_norm`.

    Where `tensor_parallel` has shared some layers of a model, gradients are DTensors beside plain ones,
    and under FSDP2 DTensors of several meshes, which PyTorch's `clip_grad_norm_` does not take together.
    Every rank calls it with the same parameters. A gradient that is no DTensor counts once: it is the
    same on all ranks that share heads.

    Args:
        parameters: those of a model; the ones without a gradient are left out. The gradients are changed.
        max_norm: the largest norm, 0 or more.
        norm_type: the p of the p-norm, above 0; `math.inf` for the largest number.

    Returns:
        The norm before, (), the same on every rank: that of one process.

    Raises:
        ArgumentTypeError: codes `parameters.type`, `max_norm.type` and `norm_type.type`.
        ArgumentError: codes `max_norm.value` and `norm_type.value`.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=4)
        >>> layer(torch.randn(1, 3, 8)).sum().backward()
        >>> norm = ch.layers.clip_grad_norm(layer.parameters(), 0.1)
        >>> norm > 0.1, torch.nn.utils.get_total_norm([each.grad for each in layer.parameters()])
        (tensor(True), tensor(0.1000))
    """
    limit = check_number("max_norm", max_norm, "a number, 0 or more", lambda norm: norm >= 0)
    power = check_number("norm_type", norm_type, "a number above 0", lambda power: power > 0)
    every = [parameters] if isinstance(parameters, Tensor) else list(_checked(parameters))
    # What is added up together has to lie on one mesh.
    groups: dict[Any, list[Tensor]] = {}
    for each in every:
        grad: Any = each.grad
        if grad is not None:
            groups.setdefault(grad.device_mesh if is_dtensor(grad) else None, []).append(each)
    norms: list[Tensor] = []
    for some in groups.values():
        norm: Any = get_total_norm([each.grad for each in some if each.grad is not None], power)
        norms.append(norm.full_tensor() if is_dtensor(norm) else norm)
    if not norms:
        return torch.tensor(0.0)
    device = norms[0].device
    total = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), power)
    for some in groups.values():
        clip_grads_with_norm_(some, limit, total)
    return total


def _checked(parameters: object) -> Iterable[Tensor]:
    """The parameters, or a refusal of what is none."""
    every = list(parameters) if isinstance(parameters, Iterable) else [parameters]
    for each in every:
        if not isinstance(each, Tensor):
            raise ArgumentTypeError(
                "parameters.type",
                "parameters must be those of a model, tensors such as model.parameters() gives; got "
                f"{type(each).__name__}.",
            )
        yield each
