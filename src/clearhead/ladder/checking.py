"""What the rungs check before they compute. Every error names the argument."""

from typing import Any

from torch import Tensor

from clearhead._common.torch_internals import is_autocast
from clearhead.errors import ArgumentTypeError, DeviceError, DtypeError, ShapeError


def check_tensor(name: str, value: Any) -> None:
    """Refuse what is no floating tensor."""
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(
            f"{name}.type", f"{name} must be a torch.Tensor; got {type(value).__name__}."
        )
    if not value.is_floating_point():
        hint = " Ids of tokens become vectors in an embedding." if name in ("x", "context") else ""
        raise DtypeError("rung.dtype", f"{name} must be floating; got {value.dtype}.{hint}")


def check_axes(name: str, value: Any, *axes: str, **sizes: int) -> None:
    """Refuse what is no floating tensor with these axes, and of these sizes where some are told."""
    check_tensor(name, value)
    expected = [sizes.get(axis, got) for axis, got in zip(axes, value.shape, strict=False)]
    if value.ndim != len(axes) or list(value.shape) != expected:
        words = [f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes]
        comma = "," if len(axes) == 1 else ""
        raise ShapeError(
            "rung.input",
            f"{name} must have shape ({', '.join(words)}{comma}); got {tuple(value.shape)}.",
        )


def check_tokens(
    name: str, tokens: Any, like: Tensor | None = None, *, batches: bool = False, **width: int
) -> None:
    """Refuse tokens that the weights were not made for.

    Args:
        name: of the argument.
        tokens: (tokens, width); with `batches` also (batch, tokens, width).
        like: a weight, whose dtype and device are expected.
        batches: whether a batch is understood.
        width: the name of the last axis and its size, such as `embed_dim=3`.
    """
    check_tensor(name, tokens)
    last = next((f"{axis}={size}" for axis, size in width.items()), "embed_dim")
    fits = tokens.ndim == 2 or (batches and tokens.ndim == 3)
    if not fits or any(tokens.shape[-1] != size for size in width.values()):
        shapes = f"(batch, tokens, {last}) or (tokens, {last})" if batches else f"(tokens, {last})"
        hint = " Batches come with BatchedAttention." if tokens.ndim == 3 and not batches else ""
        raise ShapeError(
            "rung.input", f"{name} must have shape {shapes}; got {tuple(tokens.shape)}.{hint}"
        )
    if like is None:
        return
    if tokens.dtype != like.dtype and not is_autocast(tokens):
        raise DtypeError(
            "rung.dtype",
            f"{name} must have the dtype of the weights, {like.dtype}; got {tokens.dtype}.",
        )
    if tokens.device != like.device:
        raise DeviceError(
            "rung.device", f"{name} is on {tokens.device}, the weights on {like.device}."
        )


def check_pair(
    x: Any,
    context: Any,
    like: Tensor,
    *,
    embed_dim: int,
    context_dim: int,
    batches: bool = False,
) -> None:
    """Refuse tokens, and what they attend to, that do not fit the weights or each other."""
    check_tokens("x", x, like, batches=batches, embed_dim=embed_dim)
    if context is None:
        if context_dim != embed_dim:
            raise ShapeError(
                "rung.context-missing",
                f"this rung attends to a context of width context_dim={context_dim}; call it with "
                "x and context.",
            )
        return
    check_tokens("context", context, like, batches=batches, context_dim=context_dim)
    if x.shape[:-2] != context.shape[:-2]:
        raise ShapeError(
            "rung.context-batch",
            "x and context must have the same batch; got shapes "
            f"{tuple(x.shape)} and {tuple(context.shape)}.",
        )
