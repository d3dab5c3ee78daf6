"""A mask as a user gives it: a description, a bool tensor, or none."""

from torch import Tensor

from clearhead.masks.base import Mask
from clearhead.masks.dense import dense


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """A mask as it is, a bool tensor as the mask that it draws, None for nothing hidden."""
    return mask if mask is None or isinstance(mask, Mask) else dense(mask)


def and_masks(mask: Mask | None, other: Mask | None) -> Mask | None:
    """The mask that shows what both show."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other
