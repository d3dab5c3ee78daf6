"""Values cached with a mask for small calls: the mask as a tensor, and what `remembering` keeps.

An answer is kept with the mask itself where it holds a tensor, a copy of the user's, and else by the numbers of the
mask. A mask that may change is read again in each call.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from clearhead._common.kinds import ANSWERS
from clearhead._common.torch_internals import can_sync
from clearhead.attention.problem import Problem
from clearhead.masks.algebra import And, Or
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.padding import PaddedTo, Valid
from clearhead.masks.sliding_window import SlidingWindow

MOST_PAIRS = 1 << 14
"""Number of pairs above which making the mask takes less time than the call itself."""

MOST = 64
"""The answers that are kept at most, in all and with each mask."""

Answers = dict[Hashable, Any]

_KEPT: Answers = {}


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
    answers, question = answers_about(problem.mask) if small else (None, None)
    if answers is None:
        return _shown(problem, queries, keys)
    # What is made in inference mode cannot be kept for a backward pass.
    asked = question, problem.query_len, problem.kv_len, torch.is_inference_mode_enabled()
    answer = answers.get(asked)
    if answer is None:
        answer = _shown(problem, None, None)
        if type(answer[0]) is Tensor:  # no mode makes others of them
            put(answers, asked, answer)
    return answer


def _shown(
    problem: Problem, queries: slice | None, keys: slice | None
) -> tuple[Tensor, Tensor | None]:
    visible = problem.visible(queries, keys)
    assert visible is not None
    seen = visible.any(dim=-1, keepdim=True)
    return (visible, None) if all_seen(problem, seen) else (visible | ~seen, seen)


def all_seen(problem: Problem, seen: Tensor) -> bool:
    """Return True if every query sees a key, as far as that can be read at once."""
    return can_sync(problem.query) and bool(seen.all())


def put(answers: Answers, asked: Hashable, answer: object) -> None:
    if len(answers) >= MOST:
        answers.clear()
    answers[asked] = answer


def answers_about(mask: Mask | Tensor | None) -> tuple[Answers | None, Hashable]:
    """Return the answers kept about a mask, and what tells it from others there; None for a mask that may change."""
    if mask is None:
        return _KEPT, None
    if not isinstance(mask, Mask):
        return None, None
    own = vars(mask).get(ANSWERS)
    if own is not None:
        return own, None
    question = _question(mask)
    if question == ANSWERS:
        return vars(mask).setdefault(ANSWERS, {}), None
    return (None if question is None else _KEPT), question


def _question(mask: Mask) -> Hashable | None:
    """The numbers of a mask, ANSWERS if it holds a tensor, or None if it may change."""
    if type(mask) is And or type(mask) is Or:
        left, right = _question(mask.left), _question(mask.right)
        if left is None or right is None:
            return None
        return ANSWERS if ANSWERS in (left, right) else (type(mask), left, right)
    if type(mask) is Causal or type(mask) is SlidingWindow:
        offset = None if mask.offset is None else mask.offset.value
        if isinstance(offset, Tensor):
            return ANSWERS
        window = (mask.left, mask.right) if isinstance(mask, SlidingWindow) else None
        return type(mask), offset, window
    return ANSWERS if type(mask) is PaddedTo or type(mask) is Valid else None
