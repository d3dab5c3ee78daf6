"""Masks as tensors for small calls, cached.

A mask is recognised by its kind and its numbers; of its tensors by their shapes, never by their entries. The parts
that consist of numbers are cached as a tensor. Those that hold a tensor are computed again in each call, except for
copies of the user's tensor, which nobody else can change: then the mask object itself holds the result.
"""

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

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

HIDDEN = torch.tensor(-torch.inf, device="cpu")

MOST = 64
"""The largest number of cached answers."""

Answers = dict[Hashable, Any]

KEPT: Answers = {}

EMPTY: Answers = {}
"""Stands for the answers of a mask that has none."""

QUESTION = "question"
"""The place of its `mask_key` among the answers of a mask."""

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

PLAIN = frozenset({int, bool, str, type(None)})
"""Attributes that are numbers or words."""

COPIES = (Valid, PaddedTo, Documents)
"""Masks whose tensor is a copy of the user's."""


def mask_key(mask: object) -> Hashable | None:
    """Return the kind and the numbers of a mask as a hashable key; None for a mask with a part that is not in NUMBERS.

    A tensor is represented by its shape and device, so that equal keys do not mean equal masks.
    """
    names = NUMBERS.get(type(mask))
    if names is None:
        return None
    numbers: list[Hashable] = [type(mask)]
    for name in names:
        part = getattr(mask, name)
        if type(part) in PLAIN:
            numbers += type(part), part
        elif type(part) is Tensor:
            numbers += part.shape, part.device
        elif (inner := mask_key(part)) is not None:
            numbers.append(inner)
        else:
            return None
    return tuple(numbers)


def has_tensor(mask: Mask) -> bool:
    """Return False if the `mask_key` of a mask determines it; True if it may hold a tensor.

    False only for combinations by & and | of causal and sliding-window masks without an offset per sample.
    """
    if type(mask) is And or type(mask) is Or:
        return has_tensor(mask.left) or has_tensor(mask.right)
    if type(mask) is Causal or type(mask) is SlidingWindow:
        return mask.offset is not None and type(mask.offset.value) is not int
    return True


Path = tuple[str, ...]
"""The names of attributes that lead from a mask to a part of it."""


def conjuncts(mask: Mask, path: Path = ()) -> Iterator[tuple[Path, Mask]]:
    """Yield (path, mask) for each mask that a mask combines by &; one for which `has_tensor` is False stays whole.

    A path is `path` and the names of the attributes that lead to the part, such as ("left", "right").
    """
    if type(mask) is And and has_tensor(mask):
        yield from conjuncts(mask.left, (*path, "left"))
        yield from conjuncts(mask.right, (*path, "right"))
    else:
        yield path, mask


def hide(added: Tensor, mask: Mask, extent: Extent) -> Tensor:
    """Return a new tensor with −∞ where the mask hides a key from a query, and the entries of `added` elsewhere.

    `added` is a tensor to add to the scores; it broadcasts with (batch or 1, heads or 1, queries, keys).
    """
    visible = mask.block(slice(0, extent.query_len), slice(0, extent.kv_len), extent)
    return torch.where(visible, added, HIDDEN)


def shown_small(mask: Mask, extent: Extent) -> tuple[Tensor, Tensor | None]:
    """Return a mask of at most MOST_PAIRS pairs as a bool tensor, and which queries see a key, or None if all do.

    The second is (…, queries, 1). The row of a query that sees nothing is all True. The result of a mask without a
    tensor is cached.
    """
    asked = None if has_tensor(mask) else (mask_key(mask), extent.query_len, extent.kv_len)
    answer = None if asked is None else KEPT.get(asked)
    if answer is None:
        # What is made in inference mode cannot be saved for a backward pass.
        with torch.inference_mode(False):
            visible = mask.block(slice(0, extent.query_len), slice(0, extent.kv_len), extent)
            seen = visible.any(dim=-1, keepdim=True)
            answer = (visible, None) if bool(seen.all()) else (visible | ~seen, seen)
        if asked is not None and type(visible) is Tensor:  # no mode makes others of them
            put(KEPT, asked, answer)
    return answer


def put(answers: Answers, asked: Hashable, answer: object) -> None:
    """Store an answer under `asked`, in place; all others are dropped first if there are MOST."""
    if len(answers) >= MOST:
        answers.clear()
    answers[asked] = answer
