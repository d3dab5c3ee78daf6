"""What PyTorch keeps private, or answers slowly when asked in public; each use has a test."""

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.autograd import forward_ad


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


# Of attention: transformations, and the operators behind scaled_dot_product_attention and softmax.


def is_plain(tensor: Tensor) -> bool:
    """Return True if nothing traces or transforms what is computed with a tensor.

    Private: `torch._C._functorch.is_functorch_wrapped_tensor`, in 2.6 to 2.13 and before.

    Example:
        >>> is_plain(torch.ones(2))
        True
    """
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not is_functorch_wrapped_tensor(tensor)
    )


def is_forward_mode() -> bool:
    """Return True inside `forward_ad.dual_level()`, where tensors may have tangents.

    Private: `forward_ad._current_level`, −1 outside of any level, in 2.6 to 2.13 and before. What is
    public, to unpack a tensor, costs some microseconds for each.
    """
    return forward_ad._current_level >= 0


def has_tangent(tensor: Tensor) -> bool:
    """Return True if a tensor has a tangent, or may have: a transformation of torch.func around
    another one, as for a Hessian, does not show what is inside.

    Private: `torch._C._functorch.get_unwrapped`, in 2.6 to 2.13 and before.
    """
    if forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    inner = get_unwrapped(tensor) if is_functorch_wrapped_tensor(tensor) else tensor
    return inner is not tensor and is_functorch_wrapped_tensor(inner)


def flash_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the context and the logsumexp of PyTorch's flash attention on the CPU.

    Private: `aten::_scaled_dot_product_flash_attention_for_cpu`, which
    `F.scaled_dot_product_attention` calls and which alone gives the logsumexp, in 2.6 to 2.13.
    """
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )


def flash_cpu_backward(
    grad_context: Tensor,
    tensors: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value of `flash_cpu`.

    Private: `aten::_scaled_dot_product_flash_attention_for_cpu_backward`, in 2.6 to 2.13.

    Args:
        grad_context: the gradient of the context.
        tensors: query, key and value.
        results: the context and the logsumexp.
        attn_mask, is_causal, scale: as in the forward pass.
    """
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_context, *tensors, *results, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )


def softmax_backward_(grads: Tensor, weights: Tensor) -> Tensor:
    """Turn gradients of weights into those of their scores, in place: the last axis is the softmax's.

    Private: `aten::_softmax_backward_data.out`, the backward of `torch.softmax`, in 2.6 to 2.13.

    Example:
        >>> softmax_backward_(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
        tensor([[ 0.2500, -0.2500]])
    """
    return torch.ops.aten._softmax_backward_data.out(
        grads, weights, grads.ndim - 1, grads.dtype, grad_input=grads
    )
