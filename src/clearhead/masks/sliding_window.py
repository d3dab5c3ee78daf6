"""Sliding windows: queries see near keys only (Beltagy et al., 2020, https://arxiv.org/abs/2004.05150)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.checks import as_int
from clearhead._common.hints import with_hints
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.masks.base import Mask
from clearhead.masks.causal import Positioned
from clearhead.masks.per_row import PerRow, bounded
from clearhead.masks.spans import Extent, Spans, one_run


@dataclass(frozen=True, eq=False, repr=False)
class SlidingWindow(Positioned, kind="sliding_window"):
    """Query position - left <= key position <= query position + right; None is no limit on that side."""

    left: int | None
    right: int | None

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair whose key is inside the window; as `Mask.visible` describes."""
        offset = self.offset_for(extent, -1, 1, 1, 1)
        distance = key_index - (query_index + offset)
        seen = torch.ones_like(distance, dtype=torch.bool)
        if self.left is not None:
            seen = seen & (distance >= -self.left)
        if self.right is not None:
            seen = seen & (distance <= self.right)
        return seen

    def spans(self, extent: Extent) -> Spans:
        """Return one run for each query: the keys of its window, clipped to kv_len; one row per offset."""
        query, kv_len = torch.arange(extent.query_len, device=extent.device), extent.kv_len
        position = query[None] + self.offset_for(extent, -1, 1)
        start = torch.zeros_like(position) if self.left is None else position - self.left
        unbounded = torch.full_like(position, kv_len)
        stop = unbounded if self.right is None else position + self.right + 1
        return one_run(start, stop, kv_len)

    def run_from(self, position: int, kv_len: int) -> tuple[int, int]:
        """Return (start, stop) of the window at `position`, clipped to [0, kv_len]; start = stop if it is empty."""
        start = 0 if self.left is None else max(0, min(position - self.left, kv_len))
        stop = kv_len if self.right is None else min(position + self.right + 1, kv_len)
        return start, max(start, stop)

    def describe(self) -> str:
        """Return the call that makes this mask, as text."""
        offset = "" if self.offset is None else f", offset={self.offset.describe()}"
        return f"sliding_window(left={self.left}, right={self.right}{offset})"


@with_hints
def sliding_window(
    *,
    left: int | None = None,
    right: int | None = None,
    offset: int | Sequence[int] | Tensor | None = None,
) -> Mask:
    """Return the mask in which each query attends to itself, `left` tokens before and `right` tokens after it.

    Query i has position `p = offset + i` and sees key positions `[p - left, p + right]`, both
    ends included. Positions are those of `causal`: without an offset the last query has the position of the
    last key. With left=1, right=0, and with left=1, right=2::

        ● · · ·     ● ● ● ·
        ● ● · ·     ● ● ● ●
        · ● ● ·     · ● ● ●
        · · ● ●     · · ● ●

    Elsewhere: transformers `sliding_window=W` is left=W-1, right=0; flash-attention
    `window_size=(L, R)` is left=L, right=R, with -1 for None.

    Args:
        left: tokens before the query, 0 or more; None is no limit.
        right: tokens after the query, 0 or more; None is no limit.
        offset: position of query 0, in tokens; one number, or one per row of the batch.

    Raises:
        ArgumentError: code `window.negative`, if `left` or `right` is below zero.
        ArgumentTypeError: code `window.type`, if one of them is not a whole number; `mask.not-whole`, of the offset.
        MaskError: code `mask.per-row`, if the offsets are not of shape (batch,).

    Example:
        >>> import clearhead as ch
        >>> print((ch.causal() & ch.sliding_window(left=2)).draw(2, 5))
        · ● ● ● ·
        · · ● ● ●
    """
    read = None if offset is None else PerRow.read(offset, "offset")
    return SlidingWindow(read, _side("left", left), _side("right", right))


def _side(name: str, given: int | None) -> int | None:
    """Return a side of the window as an integer, clamped as `bounded` does, or None for None.

    Raises ArgumentTypeError unless it is a whole number, ArgumentError if it is below 0; both name the argument.
    """
    if given is None:
        return None
    tokens = as_int(given)
    if tokens is None:
        raise ArgumentTypeError(
            "window.type",
            f"{name} must be a whole number of tokens or None; got {type(given).__name__}.",
        )
    if tokens < 0:
        raise ArgumentError(
            "window.negative",
            f"{name} must be 0 or more tokens, or None for no limit; got {shown(tokens)}.",
        )
    return bounded(tokens)
