"""Causal masks: no query sees a later key (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from clearhead._common.hints import Nothing, catching, refusal
from clearhead.masks.base import Mask
from clearhead.masks.per_row import PerRow
from clearhead.masks.spans import Spans, one_run


@dataclass(frozen=True, eq=False, repr=False)
class Positioned(Mask):
    """A mask that compares positions: key j is at position j, query i at `offset + i`.

    Without an offset of its own the last query sits on the last key: `kv_len - query_len`.
    """

    offset: PerRow | None

    @property
    def batch(self) -> int | None:
        return None if self.offset is None else self.offset.batch

    @property
    def device(self) -> torch.device | None:
        return None if self.offset is None else self.offset.device

    def check(
        self, batch: int, num_heads: int, query_len: int, kv_len: int, device: torch.device
    ) -> None:
        if self.offset is not None:  # without one it fits any
            super().check(batch, num_heads, query_len, kv_len, device)
            self.offset.check_device(device)

    def offset_for(
        self, query_len: int, kv_len: int, device: torch.device, *shape: int
    ) -> int | Tensor:
        """Position of query 0: an int, or a tensor of the given shape with one per row."""
        return kv_len - query_len if self.offset is None else self.offset.on(device, *shape)

    @abstractmethod
    def run_from(self, position: int, kv_len: int) -> tuple[int, int]:
        """The first key that a query at a position sees, and the one after the last, if all keys went
        on without an end."""

    def common_run(self, query_len: int, kv_len: int) -> slice | None:
        first = kv_len - query_len if self.offset is None else self.offset.value
        if isinstance(first, Tensor):
            return None
        run = _cut(self.run_from(first, kv_len), kv_len)
        # Neither edge goes back: where the last query sees what the first does, all of them do.
        last = first + query_len - 1
        alike = query_len < 2 or run == _cut(self.run_from(last, kv_len), kv_len)
        return slice(*run) if alike else None


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Positioned, kind="causal"):
    """Key position <= query position."""

    def visible(
        self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int
    ) -> Tensor:
        offset = self.offset_for(query_len, kv_len, key_index.device, -1, 1, 1, 1)
        return key_index <= query_index + offset

    def spans(self, query_len: int, kv_len: int, device: torch.device) -> Spans | None:
        position = torch.arange(query_len, device=device)[None] + self.offset_for(
            query_len, kv_len, device, -1, 1
        )
        return one_run(torch.zeros_like(position), position + 1, kv_len)

    def run_from(self, position: int, kv_len: int) -> tuple[int, int]:
        return 0, position + 1

    def describe(self) -> str:
        return "causal()" if self.offset is None else f"causal(offset={self.offset.describe()})"


def _cut(run: tuple[int, int], kv_len: int) -> tuple[int, int]:
    """The keys of a run that there are."""
    start = max(0, min(run[0], kv_len))
    return start, max(start, min(run[1], kv_len))


@catching
def causal(
    *more: *tuple[()],
    offset: int | Sequence[int] | Tensor | None = None,
    **others: Unpack[Nothing],
) -> Mask:
    """Let each query attend to itself and to what came before it.

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
    if more or others:
        raise refusal(causal, more, others)
    return Causal(None if offset is None else PerRow.read(offset, "offset"))
