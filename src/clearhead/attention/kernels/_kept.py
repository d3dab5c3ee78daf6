"""Answers kept for small calls that ask the same again: masks as tensors, and the fused call that a problem is.

Kept is what no number of the tensors decides. A question is told from others by sizes, strides, dtypes and the numbers
of a mask, or by the mask itself where it holds a tensor, a copy of what was given, and then kept with it. A mask that
may change is always asked anew.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead._common.torch_internals import (
    can_sync,
    is_forward_mode,
    is_inside_functorch,
    is_jit_tracing_here,
)
from clearhead.attention.kernels._lowering import lower
from clearhead.attention.kernels._nonfinite import SMALL, short_together
from clearhead.attention.kernels._one_query import context_if_finite
from clearhead.attention.problem import Problem
from clearhead.masks.algebra import And, Or
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.padding import PaddedTo, Valid
from clearhead.masks.sliding_window import SlidingWindow
from clearhead.masks.tiles import length

MOST_PAIRS = 1 << 14
"""Above so many pairs a mask takes no longer to make than the call that it is for."""

MOST = 64
"""The answers that are kept at most, in all and with each mask."""

Answers = dict[Hashable, Any]

_KEPT: Answers = {}

OWN = "_answers"
"""The attribute of a mask that keeps the answers about it, where it holds a tensor."""


class _Call(NamedTuple):
    """A fused call: the keys that it reads, None for all; its mask, the queries that see something, the causal flag."""

    keys: slice | None
    mask: Tensor | None
    seen: Tensor | None
    causal: bool
    scale: float


def repeat(query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None) -> Tensor | None:
    """The context of a small call like one that has passed every check before, without other options; None for any
    other call, also where a number is not finite."""
    if not type(query) is type(key) is type(value) is Tensor:
        return None
    answers, question = _answers(mask)
    if answers is None:
        return None
    call = answers.get(_asked(query, key, value, question))
    if call is None or not is_plain_call(query, key, value):
        return None
    if call.keys is not None:
        key, value = key[:, :, call.keys], value[:, :, call.keys]
    if key.numel() > SMALL:
        return context_if_finite(query, key, value, call.scale)
    if not short_together(query, key, value):
        return None
    context = F.scaled_dot_product_attention(
        query, key, value, call.mask, 0.0, call.causal, scale=call.scale
    )
    return context if call.seen is None else context.masked_fill(~call.seen, 0.0)


def keep(problem: Problem, mask: Mask | Tensor | None) -> None:
    """Keep the call that a small problem without options is, for `repeat`, if it is asked for the second time.

    Args:
        problem: it has run.
        mask: as it was given.
    """
    query, key, value = problem.query, problem.key, problem.value
    if mask is not problem.mask or not 0 < query.numel() <= SMALL or not key.numel():
        return
    if key.numel() > SMALL and query.shape[2] != 1:
        return
    answers, question = _answers(mask, begin=True)
    shape = query.shape
    if (
        answers is None
        or problem.dims != 4
        or not type(query) is type(key) is type(value) is Tensor
        or not (shape[1] == key.shape[1] and shape[3] == value.shape[3])
        or not is_plain_call(query, key, value)
    ):
        return
    strides = [each.stride() for each in (query, key, value)]
    asked = _asked(query, key, value, question)
    if asked is None or any(step != 1 or row < shape[3] for *_, row, step in strides):
        return
    if asked not in answers:
        _put(answers, asked, None)
        return
    piece, *others = lower(problem)
    if others or not (piece.whole or (piece.is_open and length(piece.keys))):
        return
    if key.numel() > SMALL and not piece.is_open:
        return
    shown, seen = shown_mask(problem) if piece.masked else (None, None)
    keys = None if piece.whole else piece.keys
    _put(answers, asked, _Call(keys, shown, seen, piece.causal, problem.scale))


def shown_mask(
    problem: Problem, queries: slice | None = None, keys: slice | None = None
) -> tuple[Tensor, Tensor | None]:
    """A part of the mask as a tensor, and which queries see something, (…, queries, 1); None for all.

    A query that sees nothing is shown everything, and its result is to be thrown away: kernels disagree
    about such queries, in the gradient above all.
    """
    # In this order: a size that is compared while PyTorch traces holds what it traces to such sizes.
    small = queries is None and can_sync(problem.query)
    small = small and problem.query_len * problem.kv_len <= MOST_PAIRS
    answers, question = _answers(problem.mask) if small else (None, None)
    if answers is None:
        return _shown(problem, queries, keys)
    # What is made in inference mode cannot be kept for a backward pass.
    asked = question, problem.query_len, problem.kv_len, torch.is_inference_mode_enabled()
    answer = answers.get(asked)
    if answer is None:
        answer = _shown(problem, None, None)
        if type(answer[0]) is Tensor:  # no mode makes others of them
            _put(answers, asked, answer)
    return answer


def _shown(
    problem: Problem, queries: slice | None, keys: slice | None
) -> tuple[Tensor, Tensor | None]:
    visible = problem.visible(queries, keys)
    mask = problem.mask
    assert visible is not None
    assert mask is not None
    if keys is None and can_sync(problem.query) and _each_sees(mask, problem):
        return visible, None
    seen = visible.any(dim=-1, keepdim=True)
    return (visible, None) if all_seen(problem, seen) else (visible | ~seen, seen)


def _each_sees(mask: Mask, problem: Problem) -> bool:
    """Return True for a few masks whose numbers say that each query sees a key, so that no pair is read."""
    if type(mask) is PaddedTo and mask.side == "left":
        return mask.shortest > 0
    return _each_sees_the_first(mask, problem)


def _each_sees_the_first(mask: Mask, problem: Problem) -> bool:
    if type(mask) is And:
        left, right = mask.left, mask.right
        return _each_sees_the_first(left, problem) and _each_sees_the_first(right, problem)
    if type(mask) is Causal:
        return mask.offset is None and problem.query_len <= problem.kv_len
    return type(mask) is PaddedTo and mask.side == "right" and mask.shortest > 0


def all_seen(problem: Problem, seen: Tensor) -> bool:
    """Return True if every query sees a key, as far as that can be read at once."""
    return can_sync(problem.query) and bool(seen.all())


def _put(answers: Answers, asked: Hashable, answer: object) -> None:
    if len(answers) >= MOST:
        answers.clear()
    answers[asked] = answer


def _asked(query: Tensor, key: Tensor, value: Tensor, question: Hashable) -> Hashable | None:
    """A call without options; None for tensors that have no strides."""
    try:
        return (
            question,
            query.shape,
            query.stride(),
            query.dtype,
            key.shape,
            key.stride(),
            key.dtype,
            value.shape,
            value.stride(),
            value.dtype,
        )
    except RuntimeError:
        return None


def is_plain_call(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return True on the CPU if nothing lowers, traces or transforms the call, and no gradient is wanted."""
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        return False
    return (
        query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and not torch.is_autocast_enabled("cpu")
        and not is_inside_functorch()
        and not is_jit_tracing_here()
        and not is_forward_mode()
    )


def _answers(mask: Mask | Tensor | None, *, begin: bool = False) -> tuple[Answers | None, Hashable]:
    """Return the answers kept about a mask, and what tells it from others there. None where nothing is: of a
    mask that may change, and of one with a tensor that is met for the first time, unless it is to `begin`."""
    if mask is None:
        return _KEPT, None
    if not isinstance(mask, Mask):
        return None, None
    own = vars(mask).get(OWN)
    if own is not None:
        return own, None
    question = _question(mask)
    if question == OWN:
        if begin:
            vars(mask)[OWN] = {}
        return None, None
    return (None if question is None else _KEPT), question


def _question(mask: Mask) -> Hashable | None:
    """The numbers of a mask, OWN if it holds a tensor, or None if it may change."""
    if type(mask) is And or type(mask) is Or:
        left, right = _question(mask.left), _question(mask.right)
        if left is None or right is None:
            return None
        return OWN if OWN in (left, right) else (type(mask), left, right)
    if type(mask) is Causal or type(mask) is SlidingWindow:
        offset = None if mask.offset is None else mask.offset.value
        if isinstance(offset, Tensor):
            return OWN
        window = (mask.left, mask.right) if isinstance(mask, SlidingWindow) else None
        return type(mask), offset, window
    return OWN if type(mask) is PaddedTo or type(mask) is Valid else None
