"""Padding: hide the tokens that only make sequences of a batch equally long."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from clearhead._common.checks import check_tensor
from clearhead._common.hints import with_hints
from clearhead._common.torch_internals import is_concrete
from clearhead._text import shown
from clearhead.errors import ArgumentError, DeviceError, MaskError
from clearhead.masks.base import Mask
from clearhead.masks.per_row import PerRow
from clearhead.masks.spans import Extent, Spans, one_run, run_of_rows

Side = Literal["right", "left"]

NOT_READ = -1, 0
"""In the place of the smallest and the largest length, where they are not read: not all alike, and none too long."""


@dataclass(frozen=True, eq=False, repr=False)
class PaddedTo(Mask, kind="padded_to"):
    """The first (side "right": padding on the right) or the last (side "left") `lengths` keys of each row are real.

    `shortest` and `longest` are the limits of the lengths, or NOT_READ.
    """

    lengths: PerRow
    side: Side
    shortest: int
    longest: int

    @property
    def batch(self) -> int | None:
        """The number of lengths, or None if one length fits any batch."""
        return self.lengths.batch

    @property
    def device(self) -> torch.device | None:
        """The device of lengths that were given as a tensor, or None: plain numbers go to any device."""
        return self.lengths.device

    def check(self, extent: Extent) -> None:
        """Raise MaskError for another batch or a length above kv_len, DeviceError for a tensor on another device.

        Lengths that could not be read when the mask was made are not compared with kv_len.
        """
        super().check(extent)
        self.lengths.check_device(extent.device)
        if self.longest > extent.kv_len:
            raise MaskError(
                "mask.length-over",
                f"the mask {self.describe()} says that a row has {self.longest} real tokens; "
                f"there are kv_len={extent.kv_len} keys.",
            )

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, (batch or 1, 1, 1, keys), True for each key that is a real token of its row."""
        lengths = self.lengths.on(key_index.device, -1, 1, 1, 1)
        if self.side == "right":
            return key_index < lengths
        return key_index >= extent.kv_len - lengths

    def spans(self, extent: Extent) -> Spans:
        """Return one run for each query: the real tokens of its row, clipped to kv_len; one row per length."""
        _, _, query_len, kv_len, device, _ = extent
        first = torch.zeros(1, query_len, dtype=torch.int64, device=device)
        lengths = first + self.lengths.on(device, -1, 1)
        if self.side == "right":
            return one_run(first, lengths, kv_len)
        return one_run(kv_len - lengths, first + kv_len, kv_len)

    def common_run(self, extent: Extent) -> slice | None:
        """Return the run of real tokens, clipped to the keys.

        None if rows have different numbers or they cannot be read.
        """
        value = self.lengths.value
        if self.shortest < self.longest or (isinstance(value, Tensor) and not is_concrete(value)):
            return None
        kv_len = extent.kv_len
        real = min(self.longest, kv_len)
        return slice(0, real) if self.side == "right" else slice(kv_len - real, kv_len)

    def describe(self) -> str:
        """Return the call that makes this mask, such as `padding([3, 5], side="left")`."""
        side = "" if self.side == "right" else ', side="left"'
        return f"padding({self.lengths.describe()}{side})"


@dataclass(frozen=True, eq=False, repr=False)
class Valid(Mask, kind="valid"):
    """The keys at which `valid`, bool, (batch, kv_len) or (kv_len,) for all rows, is True are real."""

    valid: Tensor

    @property
    def _rows(self) -> Tensor:
        """The valid keys of each row, bool, (batch or 1, kv_len)."""
        return self.valid if self.valid.ndim > 1 else self.valid[None]

    @cached_property
    def runs(self) -> tuple[Tensor, Tensor] | None:
        """The first valid key of each row and the key after its last, int64, (batch or 1,) each; cached.

        None unless the valid keys of every row are neighbours. A row without any has 0 and 0. The tensor is read.
        """
        rows = self._rows
        count = rows.sum(-1)
        begins = rows[:, :1].sum(-1) + (rows[:, 1:] & ~rows[:, :-1]).sum(-1)
        first = (rows.cumsum(-1) == 0).sum(-1).masked_fill(count == 0, 0)
        return (first, first + count) if bool((begins <= 1).all()) else None

    @cached_property
    def run(self) -> slice | None:
        """The run of valid keys if it is one, and the same in all rows; slice(0, 0) if no key is valid; cached.

        None otherwise, or if the tensor is empty or cannot be read.
        """
        return run_of_rows(self._rows)

    @property
    def batch(self) -> int | None:
        """The batch size that the mask is tied to, or None if it fits any."""
        return None if self.valid.ndim == 1 else self.valid.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the tensor."""
        return self.valid.device

    def sizes(self) -> tuple[int, int]:
        """Return the number of keys, as query_len and as kv_len, though any number of queries fits."""
        return self.valid.shape[-1], self.valid.shape[-1]

    def check(self, extent: Extent) -> None:
        """Raise MaskError for another batch or kv_len, DeviceError if the query is on another device."""
        super().check(extent)
        kv_len, device = extent.kv_len, extent.device
        if self.valid.shape[-1] != kv_len:
            raise MaskError(
                "mask.kv-len",
                f"the mask {self.describe()} is for {self.valid.shape[-1]} keys; there are "
                f"kv_len={kv_len}.",
            )
        if self.valid.device != device:
            raise DeviceError(
                "mask.device",
                f"the mask must be on the query's device; its valid is on {self.valid.device}, "
                f"the query on {device}.",
            )

    def common_run(self, extent: Extent) -> slice | None:
        """Return `run`: the valid keys if they are one run, the same in all rows; otherwise None."""
        return self.run

    def block(self, queries: slice, keys: slice, extent: Extent) -> Tensor:
        """Return the rectangle of a range of queries and of keys as a view: bool, (batch or 1, 1, queries, keys)."""
        valid = self._rows[:, None, None, keys]
        return valid.expand(-1, -1, queries.stop - queries.start, -1)

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair whose key is marked as valid; as `Mask.visible` describes."""
        valid = self._rows
        rows = torch.arange(valid.shape[0], device=valid.device).view(-1, 1, 1, 1)
        return valid[rows, key_index]

    def spans(self, extent: Extent) -> Spans | None:
        """Return one run of valid keys for each query; None if the valid keys of a row have gaps."""
        if self.runs is None:
            return None
        size = -1, extent.query_len
        start, stop = (edge.view(-1, 1).expand(size).to(extent.device) for edge in self.runs)
        return one_run(start, stop, extent.kv_len)

    def describe(self) -> str:
        """Return the shape as text, such as `padding(<valid 2 × 7>)`."""
        return f"padding(<valid {' × '.join(map(str, self.valid.shape))}>)"


@with_hints
def padding(lengths_or_valid: int | Sequence[int] | Tensor, *, side: Side | None = None) -> Mask:
    """Hide the keys that only fill up a batch.

    Given lengths, row b of the batch has `lengths[b]` real tokens, and the padding is on the
    `side` that is named: the right by default. Given a bool tensor, it is True at real tokens.
    `padding([3])` and `padding([3], side="left")` over four tokens::

        ● ● ● ·     · ● ● ●
        ● ● ● ·     · ● ● ●
        ● ● ● ·     · ● ● ●
        ● ● ● ·     · ● ● ●

    Only keys are hidden. A query at a padded place still gets what it may see; a query with nothing
    to see gets zeros.

    Elsewhere: transformers `attention_mask` is `padding(attention_mask.bool())`;
    nn.MultiheadAttention `key_padding_mask` has True at *padding*, so it is
    `padding(~key_padding_mask)`; JAX `key_value_seq_lengths` is `padding(lengths)`.

    Args:
        lengths_or_valid: real tokens per row, of shape (batch,); or bool of shape (batch, kv_len),
            or (kv_len,) when all rows are alike, True = a real token.
        side: where the padding is, "right" (the default) or "left"; for lengths only.

    Raises:
        MaskError: codes `mask.negative-length`, `mask.valid-shape`, `mask.dtype` for values that
            cannot be meant; `mask.length-over`, `mask.kv-len`, `mask.batch` when it meets tensors
            of other sizes.
        ArgumentError: code `mask.side`, for another side, or a side next to a bool tensor.
        ArgumentTypeError: code `mask.not-whole`, if a length is not a whole number.

    Example:
        >>> import torch, clearhead as ch
        >>> print(ch.padding([1, 3]).draw(2, 3))
        batch 0
        ● · ·
        ● · ·
        batch 1
        ● ● ●
        ● ● ●
        >>> attention_mask = torch.tensor([[1, 1, 0]])
        >>> print(ch.padding(attention_mask.bool()).draw(1, 3))
        batch 0
        ● ● ·
    """
    given = lengths_or_valid
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        return _valid(given, side)
    if isinstance(given, Tensor) and given.ndim > 1:
        raise MaskError(
            "mask.dtype",
            "padding takes lengths of shape (batch,), or a bool tensor of shape (batch, kv_len) "
            f"that is True at real tokens; got {given.dtype} of shape {tuple(given.shape)}. "
            "A tokenizer's attention_mask becomes one with .bool().",
        )
    lengths = PerRow.read(given, "lengths")
    if side not in (None, "right", "left"):
        raise ArgumentError("mask.side", f'side must be "right" or "left"; got {shown(side)}.')
    limits = lengths.limits()
    if limits is not None and limits[0] < 0:
        raise MaskError(
            "mask.negative-length", f"lengths must be 0 or more tokens; got {lengths.describe()}."
        )
    return PaddedTo(lengths, side or "right", *(limits or NOT_READ))


def _valid(valid: Tensor, side: Side | None) -> Mask:
    """Return the mask of a copy of a bool tensor that is True at real tokens.

    Raises MaskError unless it has one or two dimensions, ArgumentError if a side is given, ArgumentTypeError for a
    nested or sparse tensor.
    """
    if side is not None:
        raise ArgumentError(
            "mask.side",
            f"side={shown(side)} goes with lengths; a bool tensor already says where the padding is.",
        )
    check_tensor("valid", valid)
    if valid.ndim not in (1, 2):
        raise MaskError(
            "mask.valid-shape",
            "padding takes a bool tensor of shape (batch, kv_len) or (kv_len,); got shape "
            f"{tuple(valid.shape)}. A mask of queries × keys is clearhead.dense(tensor).",
        )
    # A copy, because values computed from it are cached.
    return Valid(valid.clone())
