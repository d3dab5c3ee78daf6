"""A small call that is made again runs without its checks.

Checks and planning take longer than a small call computes. A call is recognised by the sizes, strides and dtypes of its
tensors, by its numbers, and by the kinds and shapes of its mask and bias; what is cached depends on no entry of a
tensor. Their entries are read in each call, for what is not finite. A call that is observed, and one that something
traces, transforms or lowers is made in full.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

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
from clearhead.masks.small import Path, conjuncts, has_tensor, hide, mask_key, put
from clearhead.masks.spans import Extent
from clearhead.masks.tiles import length

Attend = TypeVar("Attend", bound=Callable[..., Tensor])


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """The result of the checks of a small call, from which an equal call is repeated.

    `keys` is the slice of keys to read, None for all. `by_scores` is True for two products around a softmax, else
    `causal` and `scale` are arguments of PyTorch's fused call. `factor` is that of the problem, by which the check for
    finite inputs multiplies; `extent` has the sizes.
    """

    keys: slice | None
    causal: bool
    by_scores: bool
    added: Tensor | None
    """Bias and mask as a tensor that is added to the scores, without the parts at `varying`; None if there is none."""
    varying: tuple[Path, ...]
    """The parts of the mask that hold tensors, which are read in each call."""
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
        *rest: Any,
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
        is_other = rest or options or observers or not alike or not is_known
        if is_other or torch.compiler.is_compiling():
            return attend(query, key, value, *rest, **given, **options)
        # Each call of a Python function here takes as long as a small operation.
        numbers: Hashable = ()
        if bias is not None or scale is not None or softcap is not None:
            numbers = _numbers(query, bias, scale, softcap)
        stored = small.EMPTY if mask is None else vars(mask).get(ANSWERS, small.EMPTY)
        shape: Hashable = ()
        if mask is not None:
            shape = stored.get(small.QUESTION) or mask_key(mask)
        try:
            strides = query.stride(), key.stride(), value.stride()
        except RuntimeError:  # a sparse tensor has no strides
            return attend(query, key, value, **given)
        dtypes = query.dtype, key.dtype, value.dtype
        asked = shape, numbers, query.shape, key.shape, value.shape, strides, dtypes
        is_recognised = numbers is not None and shape is not None
        call = small.KEPT.get(asked) if is_recognised else False
        if call and is_untransformed(query, key, value):
            added = stored.get(call, call.added)
            if call.varying and call not in stored:
                added = _added(call, cast(Mask, mask), shape)
            context = _repeated(call, query, key, value, added, softcap)
            if context is not None:
                return context
        context = attend(query, key, value, **given)
        is_small = 0 < query.numel() <= SMALL and (key.numel() <= SMALL or query.shape[-2] == 1)
        if is_recognised and is_small:
            if asked not in small.KEPT:
                put(small.KEPT, asked, None)
            elif call is None and is_untransformed(query, key, value):
                put(small.KEPT, asked, _checked(query, key, value, given) or False)
        return context

    return cast(Attend, remembered)


def _added(call: _Call, mask: Mask, shape: Hashable) -> Tensor:
    """Compute the tensor that is added to the scores, with the parts of the mask that hold tensors; looks nothing up.

    If these parts are copies of the user's tensors, it is stored in the mask under `call`, with `shape` as its
    question, in place of the one before.
    """
    added, is_copied = call.added, True
    assert added is not None
    for path in call.varying:
        part: Any = mask
        for name in path:
            part = getattr(part, name)
        added = hide(added, part, call.extent)
        is_copied = is_copied and type(part) in small.COPIES
    if is_copied and type(added) is Tensor:  # no mode makes others of them
        vars(mask)[ANSWERS] = {small.QUESTION: shape, call: added}
    return added


def _repeated(
    call: _Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Tensor | None,
    softcap: float | None,
) -> Tensor | None:
    """Return the context of a call without checks, (batch, num_heads, query_len, head_dim).

    None if the inputs may not be finite. `added` is added to the scores.
    """
    if call.keys is not None:
        key, value = key[:, :, call.keys], value[:, :, call.keys]
    if call.by_scores:
        return context_by_scores(query, key, value, call.scale, added, softcap)
    if not short_together(query, key, value, call.factor):
        return None
    if added is not None and added.is_inference() and torch.is_grad_enabled():
        added = added.clone()  # which a backward pass may need
    context = F.scaled_dot_product_attention(
        query, key, value, added, 0.0, call.causal, scale=call.scale, enable_gqa=True
    )
    return refuse_second(context) if context.requires_grad else context


def _numbers(query: Tensor, bias: object, scale: object, softcap: object) -> Hashable | None:
    """Return a hashable key for the options of a call; None for a call that must be checked in full.

    None is returned if scale or softcap is neither a float nor None, and for a bias other than alibi with the slopes of
    the paper for a float32 query, or with a softcap.
    """
    if not {type(scale), type(softcap)} <= {float, type(None)}:
        return None
    if bias is None:
        return scale, softcap
    if softcap is not None or type(bias) is not Alibi or query.dtype != torch.float32:
        return None
    # The slopes of a paper are nobody's parameters.
    return (scale, bias.slopes.shape) if bias.follows else None


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
    varying: list[Path] = []
    extent, factor = problem.extent, problem.factor
    with torch.inference_mode(False):  # what is made in it cannot be saved for a backward pass
        added = problem.bias_block()
        if masked and problem.mask is not None:
            added = query.new_zeros(()) if added is None else added
            for path, part in conjuncts(problem.mask):
                if has_tensor(part):
                    varying.append(path)
                else:
                    added = hide(added, part, extent)
    return _Call(keys, causal, by_scores, added, tuple(varying), problem.scale, factor, extent)


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
