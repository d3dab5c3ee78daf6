"""Causal masks: no query sees a later key (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.hints import with_hints
from clearhead.masks.base import Mask
from clearhead.masks.per_row import PerRow
from clearhead.masks.spans import Extent, Spans, one_run


@dataclass(frozen=True, eq=False, repr=False)
class Positioned(Mask):
    """A mask that compares positions: key j is at position j, query i at `offset + i`.

    `offset` is one integer or one per sample; with None the last query has the position of the last key, which is
    `kv_len - query_len` for query 0.
    """

    offset: PerRow | None

    @property
    def batch(self) -> int | None:
        """The batch size that the mask is tied to, or None if it fits any."""
        return None if self.offset is None else self.offset.batch

    @property
    def device(self) -> torch.device | None:
        """The device of the tensor that the mask holds, or None if it fits any."""
        return None if self.offset is None else self.offset.device

    def check(self, extent: Extent) -> None:
        """Raise MaskError or DeviceError if the offsets do not fit the batch or the device.

        Without an offset any call fits.
        """
        if self.offset is not None:  # without one it fits any
            super().check(extent)
            self.offset.check_device(extent.device)

    def offset_for(self, extent: Extent, *shape: int) -> int | Tensor:
        """Return the position of query 0: an int, or a tensor of shape `shape` if there is one per sample."""
        if self.offset is None:
            return extent.kv_len - extent.query_len
        return self.offset.on(extent.device, *shape)

    @abstractmethod
    def run_from(self, position: int, kv_len: int) -> tuple[int, int]:
        """Return the run of keys, (start, stop), that a query at `position` sees, clipped to [0, kv_len].

        start = stop if it sees none. Neither edge may fall from a query to a later one.
        """

    def common_run(self, extent: Extent) -> slice | None:
        """Return the run of keys, maybe empty, that every query sees, if all see exactly these.

        None if the first and the last query see different keys, or if the offset is a tensor.
        """
        query_len, kv_len = extent.query_len, extent.kv_len
        first = kv_len - query_len if self.offset is None else self.offset.value
        if isinstance(first, Tensor):
            return None
        run = self.run_from(first, kv_len)
        # Neither edge goes back: where the last query sees what the first does, all of them do.
        last = first + query_len - 1
        alike = query_len < 2 or run == self.run_from(last, kv_len)
        return slice(*run) if alike else None


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Positioned, kind="causal"):
    """Key position <= query position, where `offset` is the position of query 0."""

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return a bool tensor, True for each pair whose key is not later than its query.

        As `Mask.visible` describes.
        """
        offset = self.offset_for(extent, -1, 1, 1, 1)
        return key_index <= query_index + offset

    def spans(self, extent: Extent) -> Spans:
        """Return one run for each query: the keys up to its own position, clipped to kv_len; one row per offset."""
        query = torch.arange(extent.query_len, device=extent.device)
        position = query[None] + self.offset_for(extent, -1, 1)
        return one_run(torch.zeros_like(position), position + 1, extent.kv_len)

    def run_from(self, position: int, kv_len: int) -> tuple[int, int]:
        """Return (0, position + 1), clipped to [0, kv_len]: the keys up to `position`."""
        return 0, max(0, min(position + 1, kv_len))

    def describe(self) -> str:
        """Return `causal()`, or `causal(offset=…)`."""
        return "causal()" if self.offset is None else f"causal(offset={self.offset.describe()})"


@with_hints
def causal(*, offset: int | Sequence[int] | Tensor | None = None) -> Mask:
    """Return the mask in which each query sees itself and earlier tokens.

    Key j is visible to query i if `j <= offset + i`. Without an offset the *last* query sits on the
    *last* key, `offset = kv_len - query_len`, which is what decoding with a cache needs. Four
    queries over four keys, two over five, five over two::

        ● · · ·     ● ● ● ● ·     · ·
        ● ● · ·     ● ● ● ● ●     · ·
        ● ● ● ·                   · ·
        ● ● ● ●                   ● ·
                                  ● ●

    Elsewhere: PyTorch `is_causal=True` is `causal(offset=0)` (counted from the first key) and
    `causal_lower_right` is `causal()`; flash-attention since 2.1 is `causal()`; ONNX is `causal()`
    with a cache and `causal(offset=0)` without.

    Args:
        offset: position of query 0, in tokens; one number, or one per row of the batch.

    Raises:
        ArgumentTypeError: code `mask.not-whole`, if the offset is not made of whole numbers.
        MaskError: code `mask.per-row`, if the offsets are not of shape (batch,).

    Example:
        >>> import clearhead as ch
        >>> print(ch.causal(offset=1).draw(2, 4))
        ● ● · ·
        ● ● ● ·
    """
    return Causal(None if offset is None else PerRow.read(offset, "offset"))
