"""A small call that is made again runs without its checks.

Checks and planning take longer than a small call computes. A call is recognised by the sizes, strides and dtypes of its
tensors, by its numbers, and by the kinds and shapes of its mask and bias; what is cached depends on no entry of a
tensor. Their entries are read in each call, for what is not finite. A call that is observed, and one that something
traces, transforms or lowers is made in full.
"""

from collections.abc import Callable, Hashable
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.kinds import ANSWERS
from clearhead._common.torch_internals import (
    is_forward_mode,
    is_inside_functorch,
    is_jit_tracing_here,
)
from clearhead.attention.biases import Bias
from clearhead.attention.distance_biases import Alibi
from clearhead.attention.kernels._by_scores import context_by_scores, fits
from clearhead.attention.kernels._fused_gradients import refuse_second
from clearhead.attention.kernels._lowering import lower
from clearhead.attention.kernels._nonfinite import SMALL, short_together
from clearhead.attention.planning import observers
from clearhead.attention.problem import make_problem
from clearhead.masks import small
from clearhead.masks.base import Mask
from clearhead.masks.small import has_tensor, put, question_of, shown_small
from clearhead.masks.spans import Extent
from clearhead.masks.tiles import length

Attend = TypeVar("Attend", bound=Callable[..., Tensor])


class _Call(NamedTuple):
    """The result of the checks of a small call, from which an equal call is repeated.

    `keys` is the slice of keys to read, None for all. `by_scores` is True for two products around a
    softmax, else `causal` and `scale` are arguments of PyTorch's fused call. `factor` is that of the
    problem, by which the check for finite inputs multiplies; `extent` has the sizes.
    """

    keys: slice | None
    causal: bool
    by_scores: bool
    shown: tuple[Tensor | None, Tensor | None] | None
    """The mask and the queries that see something, as `shown_small` returns them; None if read in each call."""
    scale: float
    factor: float
    extent: Extent


def remembering(attend: Attend) -> Attend:
    """Return `attend` wrapped so that repeated equal small calls skip checks and planning from the third on.

    The first call of a kind marks its key in `small.KEPT`, and the second stores there its `_Call`, or False if it
    cannot be repeated. Calls with sinks, dropout, a kernel or across, with observers, with subclasses of Tensor or
    masks of another class than those of `small.NUMBERS`, and compiled calls always run `attend` in full.
    """

    @wraps(attend)
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
        """Repeat a cached call without checks, or call `attend` in full; arguments and result are those of `attend`."""
        given = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap}
        alike = type(query) is type(key) is type(value) is Tensor
        is_known = mask is None or type(mask) in small.NUMBERS
        if options or observers or not alike or not is_known or torch.compiler.is_compiling():
            return attend(query, key, value, **given, **options)
        # Each call of a Python function here takes as long as a small operation.
        numbers: Hashable = ()
        if bias is not None or scale is not None or softcap is not None:
            numbers = _numbers(query, bias, scale, softcap)
        shape = None if mask is None else vars(mask).get(ANSWERS, small.EMPTY).get(small.QUESTION)
        if shape is None and mask is not None:
            shape = question_of(cast(Mask, mask))
        try:
            strides = query.stride(), key.stride(), value.stride()
        except RuntimeError:  # a sparse tensor has no strides
            return attend(query, key, value, **given)
        dtypes = query.dtype, key.dtype, value.dtype
        asked = shape, numbers, query.shape, key.shape, value.shape, strides, dtypes
        is_recognised = numbers is not None and (mask is None or shape is not None)
        call = small.KEPT.get(asked) if is_recognised else False
        if call and is_untransformed(query, key, value):
            keys, values = key, value
            if call.keys is not None:
                keys, values = key[:, :, call.keys], value[:, :, call.keys]
            visible, seen = call.shown or shown_small(cast(Mask, mask), call.extent)
            if bias is not None:
                added = _small_bias(cast(Alibi, bias), call.extent)
                visible = added if visible is None else added.where(visible, -torch.inf)
            context = None
            if call.by_scores:
                context = context_by_scores(query, keys, values, call.scale, visible, softcap)
            elif short_together(query, keys, values, call.factor):
                context = F.scaled_dot_product_attention(
                    query,
                    keys,
                    values,
                    visible,
                    0.0,
                    call.causal,
                    scale=call.scale,
                    enable_gqa=query.shape[1] != key.shape[1],
                )
                if context.grad_fn is not None:
                    context.grad_fn.register_hook(partial(refuse_second, (query, keys, values)))
            if context is not None:
                return context if seen is None else context.masked_fill(~seen, 0.0)
        context = attend(query, key, value, **given)
        is_small = 0 < query.numel() <= SMALL and (key.numel() <= SMALL or query.shape[-2] == 1)
        if is_recognised and is_small:
            if asked not in small.KEPT:
                put(small.KEPT, asked, None)
            elif call is None and is_untransformed(query, key, value):
                put(small.KEPT, asked, _checked(query, key, value, given) or False)
        return context

    return cast(Attend, remembered)


def _numbers(query: Tensor, bias: object, scale: object, softcap: object) -> Hashable | None:
    """Return a hashable key for the options of a call; None for a call that must be checked in full.

    None is returned if scale or softcap is neither a float nor None, and for a bias other than alibi with the slopes of
    the paper for a float32 query, or with a softcap.
    """
    if not {type(scale), type(softcap)} <= {float, type(None)}:
        return None
    if bias is None:
        return scale, softcap
    # The slopes of a paper are nobody's parameters.
    if (
        softcap is not None
        or type(bias) is not Alibi
        or not bias.follows
        or query.dtype != torch.float32
    ):
        return None
    return scale, bias.slopes.shape


def _checked(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> _Call | None:
    """Return a checked call that can be repeated, or None; raise as `make_problem` does.

    None if the tensors have not four dimensions or an empty key, if their widths differ or their rows overlap or have
    strides, for a scale ≤ 0, a 16-bit query with softcap, a larger mask than a small call has, more keys unless two
    products compute the call, and where the mask needs more than one fused call. Nothing is computed.
    """
    if not (query.ndim == 4 and key.numel() and query.shape[3] == value.shape[3]):
        return None
    strides = [tensor.stride() for tensor in (query, key, value)]
    if any(step != 1 or row < query.shape[3] for *_, row, step in strides):
        return None
    problem = make_problem(query, key, value, **given)
    if problem.scale <= 0:
        return None
    masked, causal, keys = problem.mask is not None, False, None
    by_scores = problem.softcap is not None
    is_plain = not by_scores and problem.bias is None
    if is_plain and (problem.mask is None or not has_tensor(problem.mask)):
        piece, *others = lower(problem)
        if others or not (piece.whole or (piece.is_open and length(piece.keys))):
            return None
        masked, causal, keys = piece.masked, piece.causal, None if piece.whole else piece.keys
    elif by_scores and (query.dtype not in (torch.float32, torch.float64)):
        return None  # a product in 16 bits would round the scores
    read = slice(None) if keys is None else keys
    key, value = key[:, :, read], value[:, :, read]
    if key.numel() > SMALL:
        by_scores = True
        if not is_plain or masked or causal or not fits(query, key, value, False):
            return None
    if (masked or not is_plain) and problem.query_len * problem.kv_len > small.MOST_PAIRS:
        return None
    shown = (None, None)
    if masked:
        assert problem.mask is not None
        shown = None if has_tensor(problem.mask) else shown_small(problem.mask, problem.extent)
    return _Call(keys, causal, by_scores, shown, problem.scale, problem.factor, problem.extent)


def _small_bias(bias: Alibi, extent: Extent) -> Tensor:
    """Return the bias of a small call as a tensor, (1, num_heads, query_len, kv_len).

    It is cached on the bias by lengths.
    """
    asked = extent.query_len, extent.kv_len
    answers = vars(bias).setdefault(ANSWERS, {})
    if asked not in answers:
        with torch.inference_mode(False):
            put(answers, asked, bias.block(slice(0, asked[0]), slice(0, asked[1]), extent))
    return answers[asked]


def wants_gradient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return True if grad mode is on and one of these tensors requires grad."""
    followed = query.requires_grad or key.requires_grad or value.requires_grad
    return followed and torch.is_grad_enabled()


def is_untransformed(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return True if all are on the CPU, without autocast, torch.func, torch.jit.trace and forward mode."""
    return (
        query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and not torch.is_autocast_enabled("cpu")
        and not is_inside_functorch()
        and not is_jit_tracing_here()
        and not is_forward_mode()
    )
