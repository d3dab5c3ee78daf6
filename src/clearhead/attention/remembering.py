"""A small call that is made again runs without its checks.

Checks and planning take longer than a small call computes. A call is recognised by the sizes, strides and dtypes of its
tensors, by its numbers, and by the kinds and shapes of its mask and bias; what is cached depends on no entry of a
tensor. Their entries are read in each call, for what is not finite. A call that is observed, and one that something
traces, transforms or lowers is made in full.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead import stages
from clearhead._common.kinds import ANSWERS
from clearhead._common.torch_internals import (
    is_forward_mode,
    is_inside_functorch,
    is_jit_tracing_here,
)
from clearhead.attention.biases import Bias
from clearhead.attention.distance_biases import Alibi
from clearhead.attention.kernels._fused_gradients import FirstDerivatives
from clearhead.attention.kernels._lowering import lower
from clearhead.attention.kernels._nonfinite import SMALL, short_together
from clearhead.attention.planning import observers
from clearhead.attention.problem import make_problem
from clearhead.masks import small
from clearhead.masks.base import Mask
from clearhead.masks.small import has_tensor, put, question, shown_small
from clearhead.masks.spans import Extent
from clearhead.masks.tiles import length

Attend = TypeVar("Attend", bound=Callable[..., Tensor])


class _Call(NamedTuple):
    """A checked call: the keys that it reads, None for all, and what hides others of them."""

    keys: slice | None
    causal: bool
    shown: tuple[Tensor | None, Tensor | None] | None
    """The mask and the queries that see something, as `shown_small` returns them; None if read in each call."""
    scale: float
    factor: float
    extent: Extent


def remembering(attend: Attend) -> Attend:
    """Run the third of several equal small calls, and each later one, without checks and planning."""

    @functools.wraps(attend)
    def remembered(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        bias: Bias | Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        **options: Any,
    ) -> Tensor:
        given = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap}
        alike = type(query) is type(key) is type(value) is Tensor
        if options or observers or not alike or torch.compiler.is_compiling():
            return attend(query, key, value, **given, **options)
        asked = _question(query, key, value, mask, bias, scale, softcap)
        call = None if asked is None else small.KEPT.get(asked)
        if call and is_untransformed(query, key, value):
            context = _run(call, query, key, value, mask, bias, softcap)
            if context is not None:
                return context
        context = attend(query, key, value, **given)
        is_small = 0 < query.numel() <= SMALL and (key.numel() <= SMALL or query.shape[-2] == 1)
        if asked is not None and is_small:
            if asked not in small.KEPT:
                put(small.KEPT, asked, None)
            elif call is None and is_untransformed(query, key, value):
                put(small.KEPT, asked, _checked(query, key, value, given) or False)
        return context

    return cast(Attend, remembered)


def _question(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: object,
    bias: object,
    scale: object,
    softcap: object,
) -> Hashable | None:
    """Return what a call is recognised by; None for one that is made in full."""
    numbers = scale, softcap
    if not {type(scale), type(softcap)} <= {float, type(None)}:
        return None
    if bias is not None:
        # The slopes of a paper are nobody's parameters.
        if type(bias) is not Alibi or not bias.follows or query.dtype != torch.float32:
            return None
        numbers = *numbers, bias.slopes.shape
    asked = None
    if mask is not None:
        asked = question(mask)
        if asked is None or isinstance(mask, Tensor):
            return None
    try:
        strides = query.stride(), key.stride(), value.stride()
    except RuntimeError:  # a sparse tensor has no strides
        return None
    dtypes = query.dtype, key.dtype, value.dtype
    return asked, numbers, query.shape, key.shape, value.shape, strides, dtypes


def _checked(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> _Call | None:
    """Return the call that these arguments are; None for one that is not small, or is not one fused call."""
    shape = query.shape
    if not (query.ndim == 4 and key.numel() and shape[3] == value.shape[3]):
        return None
    strides = [tensor.stride() for tensor in (query, key, value)]
    if any(step != 1 or row < shape[3] for *_, row, step in strides):
        return None
    problem = make_problem(query, key, value, **given)
    if problem.scale <= 0:
        return None
    masked, causal, keys = problem.mask is not None, False, None
    by_scores = problem.softcap is not None or problem.bias is not None
    if not by_scores and (problem.mask is None or not has_tensor(problem.mask)):
        piece, *others = lower(problem)
        if others or not (piece.whole or (piece.is_open and length(piece.keys))):
            return None
        masked, causal, keys = piece.masked, piece.causal, None if piece.whole else piece.keys
    elif by_scores and (query.dtype not in (torch.float32, torch.float64)):
        return None  # a product in 16 bits would round the scores
    if (key if keys is None else key[:, :, keys]).numel() > SMALL:
        return None
    if (masked or by_scores) and problem.query_len * problem.kv_len > small.MOST_PAIRS:
        return None
    shown = (None, None)
    if masked:
        assert problem.mask is not None
        shown = None if has_tensor(problem.mask) else shown_small(problem.mask, problem.extent)
    return _Call(keys, causal, shown, problem.scale, problem.factor, problem.extent)


def _run(
    call: _Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    bias: Any,
    softcap: float | None,
) -> Tensor | None:
    """Return the context of a checked call; None if an entry or a score may not be finite."""
    if call.keys is not None:
        key, value = key[:, :, call.keys], value[:, :, call.keys]
    if not short_together(query, key, value, call.factor):
        return None
    visible, seen = call.shown or shown_small(mask, call.extent)
    if softcap is None and bias is None:
        if wants_gradient(query, key, value):
            query, key, value = FirstDerivatives.apply(query, key, value)
        grouped = query.shape[1] != key.shape[1]
        context = F.scaled_dot_product_attention(
            query, key, value, visible, 0.0, call.causal, scale=call.scale, enable_gqa=grouped
        )
    else:
        groups = key.shape[1]
        rows = query.unflatten(1, (groups, -1)).flatten(2, 3) if query.shape[1] != groups else query
        scores = torch.matmul(rows * call.scale, key.mT).view(query.shape[:3] + key.shape[2:3])
        added = None if bias is None else _small_bias(bias, call.extent)
        scores = stages.masked_scores(stages.capped_scores(scores, softcap), added, visible)
        weights = scores.softmax(dim=-1).view(rows.shape[:3] + key.shape[2:3])
        context = torch.matmul(weights, value).view(query.shape)
    return context if seen is None else context.masked_fill(~seen, 0.0)


def _small_bias(bias: Alibi, extent: Extent) -> Tensor:
    """Return the bias of a small call as a tensor, which the bias caches."""
    asked = extent.query_len, extent.kv_len
    answers = vars(bias).setdefault(ANSWERS, {})
    if asked not in answers:
        with torch.inference_mode(False):
            whole = slice(0, extent.query_len), slice(0, extent.kv_len)
            put(answers, asked, bias.block(*whole, extent))
    return answers[asked]


def wants_gradient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return True if autograd records a call of these tensors."""
    followed = query.requires_grad or key.requires_grad or value.requires_grad
    return followed and torch.is_grad_enabled()


def is_untransformed(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return True for tensors on the CPU if nothing lowers, traces or transforms the call."""
    return (
        query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and not torch.is_autocast_enabled("cpu")
        and not is_inside_functorch()
        and not is_jit_tracing_here()
        and not is_forward_mode()
    )
