"""Gradients of PyTorch's fused attention: through the logsumexp, and none of second order."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.torch_internals import flash_cpu, flash_cpu_backward, is_plain
from clearhead.errors import UnsupportedError


def refuse_second(context: Tensor) -> Tensor:
    """Return the result of a fused call, whose gradient raises UnsupportedError when it is differentiated again.

    Without it PyTorch's error names an internal operator. Unchanged while something traces or transforms.
    """
    if context.requires_grad and is_plain(context) and context.grad_fn is not None:
        context.grad_fn.register_hook(_only_first)
    return context


def _only_first(grads: tuple[Tensor | None, ...], _: object) -> tuple[Tensor | None, ...] | None:
    """Return the gradients of a call as ones that raise UnsupportedError when they are differentiated.

    None, with which autograd keeps the gradients that it has, if grad mode is off. A hook of a node of the graph.
    """
    return _NoSecond.apply(*grads) if torch.is_grad_enabled() else None


class _NoSecond(torch.autograd.Function):
    """Identity of gradients that raises UnsupportedError when it is differentiated."""

    @staticmethod
    def forward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return views of the gradients; None stays None."""
        return tuple(None if each is None else each.view_as(each) for each in grads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        """Raise UnsupportedError: the fused kernel has first derivatives only."""
        raise UnsupportedError(
            "kernel.second-derivative",
            'kernel="fused" has first derivatives only; kernel="eager" has all of them.',
        )


class FlashWithLogsumexp(torch.autograd.Function):
    """PyTorch's flash attention on the CPU, with a gradient through the logsumexp as well."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the context, as wide as the query, and the logsumexp of each query, (batch, num_heads, query_len)."""
        context, total = flash_cpu(query, key, value, attn_mask, causal, scale)
        ctx.save_for_backward(query, key, value, attn_mask, context, total)
        ctx.causal, ctx.scale = causal, scale
        return context, total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value, from those of context and logsumexp.

        None for the other inputs.
        """
        grad_context, grad_total = grads
        query, key, value, attn_mask, context, total = ctx.saved_tensors
        # The gradient of a score is P · (dP − Σ P dP), and the logsumexp adds P · its gradient.
        # One more value column of ones, with that gradient, adds it to dP; its context is given
        # as 0, so that the sum does not take it away again.
        width = query.shape[3]
        query, key = F.pad(query, (0, 1)), F.pad(key, (0, 1))
        value = F.pad(value, (0, 1), value=1.0)
        context = F.pad(context, (0, 1))
        grad_context = torch.cat(
            [grad_context, grad_total[..., None].to(grad_context.dtype)], dim=-1
        )
        tensors, results = (query, key, value), (context, total)
        grads = flash_cpu_backward(grad_context, tensors, results, attn_mask, ctx.causal, ctx.scale)
        return *(each[..., :width] for each in grads), None, None, None
