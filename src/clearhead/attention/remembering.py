"""A small call that was made twice is remembered, and made again without its checks.

Checks and planning take longer than a small call computes. A call is recognised by the sizes, strides and dtypes of
its tensors and by the numbers of its mask; what is kept depends on no number of the tensors. Their numbers are read for
what is not finite. A call with options, one that is observed, and one that something traces, transforms, lowers or
differentiates is made in full.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.torch_internals import (
    is_forward_mode,
    is_inside_functorch,
    is_jit_tracing_here,
)
from clearhead.attention.kernels._kept import answers_about, put, shown_mask
from clearhead.attention.kernels._lowering import lower
from clearhead.attention.kernels._nonfinite import SMALL, short_together
from clearhead.attention.planning import observers
from clearhead.attention.problem import make_problem
from clearhead.masks.base import Mask
from clearhead.masks.tiles import length

Attend = TypeVar("Attend", bound=Callable[..., Tensor])


class _Call(NamedTuple):
    """A fused call: the keys that it reads, None for all; its mask, the queries that see something, the causal flag."""

    keys: slice | None
    mask: Tensor | None
    seen: Tensor | None
    causal: bool
    scale: float


def remembering(attend: Attend) -> Attend:
    """Make the third of several equal small calls, and each later one, by the fused call that they are."""

    @functools.wraps(attend)
    def remembered(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        alike = type(query) is type(key) is type(value) is Tensor
        if options or observers or not alike or torch.compiler.is_compiling():
            return attend(query, key, value, mask=mask, **options)
        answers, question = answers_about(mask)
        asked: Hashable = None
        if answers is not None:
            try:
                strides = query.stride(), key.stride(), value.stride()
                dtypes = query.dtype, key.dtype, value.dtype
                asked = question, query.shape, key.shape, value.shape, strides, dtypes
            except RuntimeError:  # a sparse tensor has no strides
                return attend(query, key, value, mask=mask)
            call = answers.get(asked)
            if call and is_plain_call(query, key, value):
                read = key, value
                if call.keys is not None:
                    read = key[:, :, call.keys], value[:, :, call.keys]
                if short_together(query, *read):
                    context = F.scaled_dot_product_attention(
                        query, *read, call.mask, 0.0, call.causal, scale=call.scale
                    )
                    return context if call.seen is None else context.masked_fill(~call.seen, 0.0)
        context = attend(query, key, value, mask=mask)
        small = 0 < query.numel() <= SMALL and (key.numel() <= SMALL or query.shape[-2] == 1)
        if answers is not None and small:
            if asked not in answers:
                put(answers, asked, None)
            elif answers[asked] is None and is_plain_call(query, key, value):
                put(answers, asked, _fused_call(query, key, value, mask) or False)
        return context

    return cast(Attend, remembered)


def _fused_call(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> _Call | None:
    """Return the one fused call that is these arguments, if they are one."""
    shape = query.shape
    if not (
        query.ndim == 4 and key.numel() and shape[1] == key.shape[1] and shape[3] == value.shape[3]
    ):
        return None
    strides = [each.stride() for each in (query, key, value)]
    if any(step != 1 or row < shape[3] for *_, row, step in strides):
        return None
    problem = make_problem(query, key, value, mask=mask)
    piece, *others = lower(problem)
    if others or not (piece.whole or (piece.is_open and length(piece.keys))):
        return None
    keys = None if piece.whole else piece.keys
    if (key if keys is None else key[:, :, keys]).numel() > SMALL:
        return None
    shown, seen = shown_mask(problem) if piece.masked else (None, None)
    return _Call(keys, shown, seen, piece.causal, problem.scale)


def is_plain_call(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return True on the CPU if nothing lowers, traces or transforms the call, and no gradient is wanted."""
    followed = query.requires_grad or key.requires_grad or value.requires_grad
    return (
        not (followed and torch.is_grad_enabled())
        and query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and not torch.is_autocast_enabled("cpu")
        and not is_inside_functorch()
        and not is_jit_tracing_here()
        and not is_forward_mode()
    )
