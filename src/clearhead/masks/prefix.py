"""A prefix that every query sees (Raffel et al., 2020, https://arxiv.org/abs/1910.10683)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead.errors import MaskError
from clearhead.masks.base import Mask
from clearhead.masks.per_row import PerRow
from clearhead.masks.spans import Extent, Spans, one_run


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask, kind="prefix"):
    """Key position < length, for every query; `length` is one integer or one per sample."""

    length: PerRow

    @property
    def batch(self) -> int | None:
        """The batch size that the mask is tied to, or None if it fits any."""
        return self.length.batch

    @property
    def device(self) -> torch.device | None:
        """The device of the tensor that the mask holds, or None if it fits any."""
        return self.length.device

    def check(self, extent: Extent) -> None:
        """Raise MaskError if the lengths are not those of the batch, DeviceError if they are on another device."""
        super().check(extent)
        self.length.check_device(extent.device)

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair whose key is in the prefix; as `Mask.visible` describes."""
        return key_index < self.length.on(key_index.device, -1, 1, 1, 1)

    def spans(self, extent: Extent) -> Spans:
        """Return one run for each query: the keys of the prefix, clipped to kv_len."""
        start = torch.zeros(1, extent.query_len, dtype=torch.int64, device=extent.device)
        return one_run(start, start + self.length.on(extent.device, -1, 1), extent.kv_len)

    def describe(self) -> str:
        """Return the call that makes this mask, as text."""
        return f"prefix({self.length.describe()})"


@with_hints
def prefix(length: int | Sequence[int] | Tensor) -> Mask:
    """Return the mask in which every query attends to the first `length` keys.

    Alone it hides the rest; `causal() | prefix(length)` is the mask of a prefix language model.
    `prefix(2)`, and `causal() | prefix(2)`::

        ● ● · ·     ● ● · ·
        ● ● · ·     ● ● · ·
        ● ● · ·     ● ● ● ·
        ● ● · ·     ● ● ● ●

    A prefix longer than the keys shows them all.

    Elsewhere: FlexAttention `or_masks(causal, prefix)`; x-transformers `PrefixDecoder`.

    Args:
        length: tokens in the prefix, 0 or more; one number, or one per row of the batch.

    Raises:
        MaskError: code `mask.negative-length`, if a length is below zero; `mask.per-row`, if the
            lengths are not of shape (batch,).
        ArgumentTypeError: code `mask.not-whole`, if a length is not a whole number.

    Example:
        >>> import clearhead as ch
        >>> print((ch.causal() | ch.prefix(2)).draw(3, 3))
        ● ● ·
        ● ● ·
        ● ● ●
    """
    read = PerRow.read(length, "length")
    limits = read.limits()
    if limits is not None and limits[0] < 0:
        raise MaskError(
            "mask.negative-length", f"length must be 0 or more tokens; got {read.describe()}."
        )
    return Prefix(read)
