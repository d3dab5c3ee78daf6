"""Masks made of masks: `&`, `|` and `~`."""

from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from clearhead.errors import DeviceError, MaskError
from clearhead.masks.base import Mask
from clearhead.masks.causal import Positioned
from clearhead.masks.spans import Extent, Spans, complement, intersection, union

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class _Pair(Mask, ABC):
    """Two masks, `left` and `right`, of the same batch, heads and device.

    Raises MaskError or DeviceError when made from masks that differ in these, or if one of them is `cross` and one
    counts positions through the whole row.
    """

    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        """Raise MaskError if batch or heads differ, or one is `cross` and one counts through the whole row.

        Raises DeviceError if they are on different devices.
        """
        left, right = self.left, self.right
        for name in ("batch", "heads"):
            a = getattr(left, name)
            if a is not None and (b := getattr(right, name)) is not None and a != b:
                raise MaskError(
                    f"mask.{name}",
                    f"masks of different {name} cannot be combined: {left.describe()} is for {a}, "
                    f"{right.describe()} for {b}.",
                )
        if left.device is not None and right.device is not None and left.device != right.device:
            raise DeviceError(
                "mask.device",
                "masks on different devices cannot be combined: "
                f"{left.describe()} is on {left.device}, {right.describe()} on {right.device}.",
            )
        if left.cross or right.cross:
            for each in leaves(self):
                if isinstance(each, Positioned) and each.offset is None:
                    raise MaskError(
                        "mask.documents-beside",
                        f"{each.describe()} counts through the whole row, where queries and keys of "
                        "one document stand apart. To count in each document: documents(…, "
                        f"queries=…, mask={each.describe()}).",
                    )

    @property
    def cross(self) -> bool:
        """True if one of the masks is between different tokens, as `Mask.cross` describes."""
        return self.left.cross or self.right.cross

    @property
    def batch(self) -> int | None:
        """The batch size that one of the masks is tied to, or None."""
        return _either(self.left.batch, self.right.batch)

    @property
    def heads(self) -> int | None:
        """The number of heads that one of the masks is tied to, or None."""
        return _either(self.left.heads, self.right.heads)

    @property
    def device(self) -> torch.device | None:
        """The device that one of the masks is tied to, or None."""
        return _either(self.left.device, self.right.device)

    def check(self, extent: Extent) -> None:
        """Raise MaskError or DeviceError, of the first mask that does not fit the sizes or the device."""
        self.left.check(extent)
        self.right.check(extent)

    def sizes(self) -> tuple[int, int] | None:
        """Return (query_len, kv_len) as the left mask fixes it, else as the right one does; None if neither does."""
        return self.left.sizes() or self.right.sizes()

    def _both_spans(self, extent: Extent) -> tuple[Spans, Spans] | None:
        """Return the spans of both masks, or None if one of them has none."""
        left = self.left.spans(extent)
        right = None if left is None else self.right.spans(extent)
        return None if left is None or right is None else (left, right)


class And(_Pair, kind="and"):
    """A key is visible if both masks show it."""

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair that both masks allow; arguments are those of `Mask.visible`."""
        return self.left.visible(query_index, key_index, extent) & self.right.visible(
            query_index, key_index, extent
        )

    def spans(self, extent: Extent) -> Spans | None:
        """Return the runs of keys that both masks allow, or None if one of the masks has no spans."""
        both = self._both_spans(extent)
        return both and intersection(*both, extent.kv_len)

    def common_run(self, extent: Extent) -> slice | None:
        """Return the overlap of the common runs of both masks, which may be empty, or None if one of them has none."""
        left = self.left.common_run(extent)
        right = None if left is None else self.right.common_run(extent)
        if left is None or right is None:
            return None
        start = max(left.start, right.start)
        return slice(start, max(start, min(left.stop, right.stop)))

    def describe(self) -> str:
        """Return the mask as an expression, such as `causal() & prefix(2)`, with brackets where they are needed."""
        return f"{_bracketed(self.left, And)} & {_bracketed(self.right, And)}"


class Or(_Pair, kind="or"):
    """A key is visible if one of the masks shows it."""

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair that at least one mask allows.

        Arguments are those of `Mask.visible`.
        """
        return self.left.visible(query_index, key_index, extent) | self.right.visible(
            query_index, key_index, extent
        )

    def spans(self, extent: Extent) -> Spans | None:
        """Return the runs of keys that at least one mask allows, or None if one of the masks has no spans."""
        both = self._both_spans(extent)
        return both and union(*both, extent.kv_len)

    def describe(self) -> str:
        """Return the mask as an expression, such as `causal() | prefix(2)`, with brackets where they are needed."""
        return f"{_bracketed(self.left, Or)} | {_bracketed(self.right, Or)}"


@dataclass(frozen=True, eq=False, repr=False)
class Not(Mask, kind="not"):
    """A key is visible if the mask hides it."""

    mask: Mask

    @property
    def cross(self) -> bool:
        """True if the negated mask is between different tokens, as `Mask.cross` describes."""
        return self.mask.cross

    @property
    def batch(self) -> int | None:
        """The batch size that the negated mask is tied to, or None if it fits any."""
        return self.mask.batch

    @property
    def heads(self) -> int | None:
        """The number of query heads that the negated mask is tied to, or None if it fits any."""
        return self.mask.heads

    @property
    def device(self) -> torch.device | None:
        """The device that the negated mask is tied to, or None if it fits any."""
        return self.mask.device

    def check(self, extent: Extent) -> None:
        """Raise the MaskError or DeviceError of the negated mask if it does not fit a call."""
        self.mask.check(extent)

    def sizes(self) -> tuple[int, int] | None:
        """Return the (query_len, kv_len) that the negated mask fixes, or None if it fits any."""
        return self.mask.sizes()

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair that the negated mask hides.

        Arguments are those of `Mask.visible`.
        """
        return ~self.mask.visible(query_index, key_index, extent)

    def spans(self, extent: Extent) -> Spans | None:
        """Return the runs of keys that the negated mask hides, at most one more than it has; None if that has none."""
        inside = self.mask.spans(extent)
        return None if inside is None else complement(inside, extent.kv_len)

    def describe(self) -> str:
        """Return the mask as an expression, such as `~causal()`, with brackets where they are needed."""
        return f"~{_bracketed(self.mask, Not)}"


def leaves(mask: Mask) -> Iterator[Mask]:
    """Yield the masks of an expression that are not combinations of others, from left to right.

    A single mask is its own leaf.
    """
    if isinstance(mask, _Pair):
        yield from leaves(mask.left)
        yield from leaves(mask.right)
    elif isinstance(mask, Not):
        yield from leaves(mask.mask)
    else:
        yield mask


def goes_by_distance(mask: Mask) -> bool:
    """Return True if visibility depends only on the distance of key and query, the same for all samples.

    Only combinations of causal and sliding-window masks without an offset per sample are recognised.

    Example:
        >>> import clearhead as ch
        >>> goes_by_distance(ch.causal() & ch.sliding_window(left=3)), goes_by_distance(ch.prefix(2))
        (True, False)
    """
    return all(
        isinstance(leaf, Positioned)
        and (leaf.offset is None or not isinstance(leaf.offset.value, Tensor))
        for leaf in leaves(mask)
    )


def hides_later(mask: Mask) -> bool:
    """Return True if the expression shows, without evaluation, that no query sees a later key.

    False means that it is not known, as for `~`, a tensor, or an offset.

    Example:
        >>> import clearhead as ch
        >>> hides_later(ch.causal() & ch.prefix(2)), hides_later(ch.causal() | ch.prefix(2))
        (True, False)
    """
    if isinstance(mask, And):
        return hides_later(mask.left) or hides_later(mask.right)
    if isinstance(mask, Or):
        return hides_later(mask.left) and hides_later(mask.right)
    return isinstance(mask, Positioned) and mask.offset is None and mask.run_from(0, 2)[1] < 2


def _either(a: T | None, b: T | None) -> T | None:
    """Return the first of two values that is not None; None if both are."""
    return b if a is None else a


def _bracketed(mask: Mask, around: type[Mask]) -> str:
    """Return the mask as an expression, in brackets if it is a combination with another operator than `around`."""
    text = mask.describe()
    return f"({text})" if isinstance(mask, _Pair) and not isinstance(mask, around) else text
