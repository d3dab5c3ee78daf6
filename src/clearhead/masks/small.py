"""Masks as tensors for small calls, cached.

A mask is recognised by its kind and its numbers; of its tensors by their shapes, never by their entries. A mask that
consists of numbers is cached as a tensor. One that holds a tensor is computed again in each call, except for copies of
the user's tensor, which nobody else can change: then the mask object itself holds the result.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from clearhead._common.kinds import ANSWERS
from clearhead.masks.algebra import And, Or
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal
from clearhead.masks.dense import Dense
from clearhead.masks.documents import Documents
from clearhead.masks.padding import PaddedTo, Valid
from clearhead.masks.per_row import PerRow
from clearhead.masks.sliding_window import SlidingWindow
from clearhead.masks.spans import Extent

MOST_PAIRS = 1 << 14
"""Number of pairs above which making the mask takes less time than the call itself."""

MOST = 64
"""The answers that are cached at most, in all and with each mask."""

Answers = dict[Hashable, Any]

KEPT: Answers = {}

EMPTY: Answers = {}
"""Stands for the answers of a mask that has none."""

QUESTION = "question"
"""The place of its question among the answers of a mask."""

NUMBERS: dict[type, tuple[str, ...]] = {
    Causal: ("offset",),
    SlidingWindow: ("offset", "left", "right"),
    PaddedTo: ("lengths", "side", "longest"),
    Valid: ("valid",),
    Documents: ("ids", "follows"),
    Dense: ("tensor",),
    PerRow: ("value", "follows"),
    And: ("left", "right"),
    Or: ("left", "right"),
}
"""The attributes on which the checks of a mask depend, and all that it shows."""

COPIES = (Valid, PaddedTo, Documents)
"""Masks whose tensor is a copy of the user's."""


def question(part: object) -> Hashable | None:
    """Return the kind and the numbers of a mask as a hashable key; None for a mask with a part that is not in NUMBERS.

    A tensor is represented by its shape and device, so that equal keys do not mean equal masks.
    """
    if part is None or type(part) in (int, bool, str):
        return part, type(part)
    if type(part) is Tensor:
        return Tensor, part.shape, part.device
    names = NUMBERS.get(type(part))
    if names is None:
        return None
    numbers = tuple([question(getattr(part, name)) for name in names])
    return None if None in numbers else (type(part), numbers)


def question_of(mask: Mask) -> Hashable | None:
    """Return the `question` of a mask, the class Causal alone for a causal mask without an offset.

    Any other is stored on the mask, for `shown_small`, if nobody else can change its tensors; None if it has none.
    """
    if type(mask) is Causal and mask.offset is None:
        return Causal  # the mask of most small calls
    asked = question(mask)
    if asked is not None and holds_copies(mask):
        vars(mask).setdefault(ANSWERS, {})[QUESTION] = asked
    return asked


def has_tensor(mask: Mask) -> bool:
    """Return False if the `question` of a mask determines it; True if it may hold a tensor.

    False only for combinations by & and | of causal and sliding-window masks without an offset per sample.
    """
    if type(mask) is And or type(mask) is Or:
        return has_tensor(mask.left) or has_tensor(mask.right)
    if type(mask) is Causal or type(mask) is SlidingWindow:
        return mask.offset is not None and type(mask.offset.value) is not int
    return True


def holds_copies(mask: Mask) -> bool:
    """Return True if a mask of NUMBERS holds no tensor, or only copies of the user's, which nobody else can change."""
    if type(mask) is And or type(mask) is Or:
        return holds_copies(mask.left) and holds_copies(mask.right)
    return type(mask) in COPIES or not has_tensor(mask)


def shown_small(mask: Mask, extent: Extent) -> tuple[Tensor, Tensor | None]:
    """Return a mask of at most MOST_PAIRS pairs as a bool tensor, and which queries see a key, or None if all do.

    The second is (…, queries, 1). The row of a query that sees nothing is all True. The result is cached: in KEPT for
    a mask without a tensor, on the mask for one with copies; a mask with the user's tensor is computed again.
    """
    asked: Hashable = None
    answers: Answers | None = vars(mask).get(ANSWERS)
    if answers is None:
        if not has_tensor(mask):
            answers, asked = KEPT, question(mask)
        elif holds_copies(mask):
            answers = vars(mask).setdefault(ANSWERS, {})
    asked = asked, extent.query_len, extent.kv_len
    answer = None if answers is None else answers.get(asked)
    if answer is None:
        # What is made in inference mode cannot be saved for a backward pass.
        with torch.inference_mode(False):
            visible = _block(mask, extent)
            seen = visible.any(dim=-1, keepdim=True)
            answer = (visible, None) if bool(seen.all()) else (visible | ~seen, seen)
        if answers is not None and type(visible) is Tensor:  # no mode makes others of them
            put(answers, asked, answer)
    return answer


def _block(mask: Mask, extent: Extent) -> Tensor:
    """Return the whole mask: bool, (batch or 1, heads or 1, query_len, kv_len).

    The left side of an `&` may be cached.
    """
    if type(mask) is And and not has_tensor(mask.left):
        visible, seen = shown_small(mask.left, extent)
        right = _block(mask.right, extent)
        return visible & right if seen is None else visible & seen & right
    return mask.block(slice(0, extent.query_len), slice(0, extent.kv_len), extent)


def put(answers: Answers, asked: Hashable, answer: object) -> None:
    """Store an answer under `asked`, in place; all others are dropped first if there are MOST."""
    if len(answers) >= MOST:
        answers.clear()
    answers[asked] = answer
