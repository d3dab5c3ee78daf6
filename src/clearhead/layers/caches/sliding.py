"""A KV cache that is a ring buffer of the last tokens (Beltagy et al., 2020, https://arxiv.org/abs/2004.05150)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import check_length, check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentError, DeviceError, MaskError
from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.layout import Layout, positions_from_valid
from clearhead.masks.base import Mask
from clearhead.masks.full import full
from clearhead.masks.padding import padding
from clearhead.masks.sliding_window import sliding_window
from clearhead.masks.spans import Spans, one_run


@with_hints
class SlidingCache(Cache):
    """A KV cache of the last tokens: each query sees itself and the `window` − 1 tokens before it.

    A ring buffer, in which a single token replaces the oldest: then `append` returns the ring, a
    view, in the order of its slots. For several tokens it returns keys and values in order: the
    `window` − 1 before them, and all that are new, so that every query of a long prompt finds what
    it sees. In a batch with padding, the window of each row is counted in its own real tokens.

    A token that the ring has dropped is lost: `truncate` can go back by 1 + spare tokens at least,
    those of a call that was refused included.

    Args:
        window: tokens that a query sees, itself included; `sliding_window(left=window - 1)`.
        spare: more tokens to hold, for going back.

    Raises:
        ArgumentTypeError, ArgumentError: codes `argument.type` and `argument.size`, for a window
            below 1; `length.type` and `length.negative`, for spare.

    Example:
        >>> import torch, clearhead as ch
        >>> from clearhead.layers.caches import SlidingCache
        >>> cache = SlidingCache(4)
        >>> for new in (7, 1):
        ...     key, value = cache.append(torch.randn(1, 2, new, 8), torch.randn(1, 2, new, 8))
        ...     print(key.shape[2], cache.positions.tolist())
        7 [0, 1, 2, 3, 4, 5, 6]
        4 [4, 5, 6, 7]
    """

    _MEMORY = "_rings"

    def __init__(self, window: int, *, spare: int = 0) -> None:
        super().__init__()
        check_sizes(window=window)
        self.window = window
        self.spare = check_length("spare", spare)
        self._forget()

    def describe(self) -> str:
        spare = f", spare={self.spare}" if self.spare else ""
        return f"SlidingCache({self.window}{spare})"

    @property
    def positions(self) -> Tensor:
        if self._in_order is not None:
            return self._in_order[0]
        return self._places(min(self._seen, self._size)).clamp(min=0)

    def mask(self) -> Mask:
        if self._in_order is not None:
            return self._in_order[1]
        count = min(self._seen, self._size)
        if isinstance(self._total, int) and count <= self.window:
            return full()
        places = self._places(count)
        return padding((places >= 0) & (places > self._last - self.window))

    @property
    def in_order(self) -> bool:
        if not isinstance(self._total, int):
            return False
        return self._in_order is not None or self._total <= self._size

    @property
    def nbytes(self) -> int:
        return sum(ring.nbytes for ring in self._rings)

    @property
    def _size(self) -> int:
        """Number of tokens that the ring holds."""
        return self.window + self.spare

    @property
    def _last(self) -> int | Tensor:
        """The position of the last token: one for all rows alike, or (batch, 1)."""
        return self._total - 1 if isinstance(self._total, int) else self._total[:, None] - 1

    def _start(self, layout: Layout) -> None:
        shape = (layout.batch, layout.num_kv_heads, self._size)
        # Zeros, since a row with fewer tokens than others shows places that were never written.
        self._rings = tuple(
            layout.allocate(*shape, width, zeros=True)
            for width in (layout.head_dim, layout.value_head_dim)
        )

    def _forget(self) -> None:
        self._rings: tuple[Tensor, ...] = ()
        # Real tokens so far, and the most there were before some were cut off: an int for all rows
        # alike, or (batch,) once there was padding. Token t of a row lies at place t % size.
        self._total: int | Tensor = 0
        self._written: int | Tensor = 0
        # The column, padding counted, in which the token of each place came; with padding only.
        self._column: Tensor | None = None
        # The column in which the first token of each row came, (batch,); with padding only.
        self._first: Tensor | None = None
        # Positions and mask of keys that `append` returned in order; None for the ring as it is.
        self._in_order: tuple[Tensor, Mask] | None = None

    def _snapshot(self, new: int) -> dict[str, Any]:
        state = super()._snapshot(new)
        if new > 1 + self.spare or self.window == 1:
            # They take the place of tokens that the next query sees.
            column = None if self._column is None else self._column.clone()
            copies = tuple(ring.clone() for ring in self._rings)
            return state | {"_rings": copies, "_column": column}
        # Other tokens are lost, as if the new ones had been appended and cut off again.
        if isinstance(self._total, int):
            return state | {"_written": max(int(self._written), self._total + new)}
        written = torch.maximum(torch.as_tensor(self._written), self._total + new)
        return state | {"_written": written}

    def _counts(self) -> int | Tensor:
        return self._total

    def _places(self, count: int) -> Tensor:
        """The position of the token at each of the first places, below 0 where there is none."""
        assert self._rings or not count
        device = self._rings[0].device if self._rings else None
        return self._last - (self._last - torch.arange(count, device=device)) % self._size

    def _oldest(self) -> int | Tensor:
        """The position of the oldest token that is held."""
        oldest = self._written - self._size
        return max(0, oldest) if isinstance(oldest, int) else oldest.clamp(min=0)

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        new = key.shape[2]
        if valid is not None and self._column is None:
            self._count_by_row(key.shape[0])
        if isinstance(self._total, int):
            return self._add_alike(key, value, new, self._total)
        if valid is None:
            valid = torch.ones(key.shape[0], new, dtype=torch.bool, device=key.device)
        return self._add_by_row(key, value, valid, self._total)

    def _add_alike(self, key: Tensor, value: Tensor, new: int, total: int) -> tuple[Tensor, Tensor]:
        """`append` for rows that are all of one length."""
        stop = total + new
        held = min(total, self.window - 1)
        as_ring = new == 1 or stop <= self._size
        kept = (key, value)
        if not as_ring and held:
            places = torch.arange(total - held, total, device=key.device) % self._size
            kept = tuple(
                torch.cat([ring.index_select(2, places), given], dim=2)
                for ring, given in zip(self._rings, kept, strict=True)
            )
        for ring, given in zip(self._rings, (key, value), strict=True):
            last = min(new, self._size)
            first = (stop - last) % self._size
            straight = min(last, self._size - first)
            ring[:, :, first : first + straight] = given[:, :, new - last : new - last + straight]
            ring[:, :, : last - straight] = given[:, :, new - last + straight :]
        self._total = stop
        self._written = max(int(self._written), stop)
        self._in_order = None
        if as_ring:
            kept = tuple(ring[:, :, : min(stop, self._size)] for ring in self._rings)
        if new != 1:
            first = 0 if as_ring else total - held
            positions = torch.arange(first, stop, device=key.device)
            self._in_order = positions, sliding_window(left=self.window - 1)
        return kept[0], kept[1]

    def _add_by_row(
        self, key: Tensor, value: Tensor, valid: Tensor, total: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`append` for rows of different length."""
        new = key.shape[2]
        position = positions_from_valid(valid) + total[:, None]
        kept = (key, value)
        self._in_order = None
        if new != 1:
            held = min(self._seen, self.window - 1)
            older = total[:, None] + torch.arange(-held, 0, device=key.device)
            place = (older % self._size)[:, None, :, None]
            kept = tuple(
                torch.cat(
                    [ring.gather(2, place.expand(*ring.shape[:2], -1, ring.shape[3])), given], 2
                )
                for ring, given in zip(self._rings, kept, strict=True)
            )
            positions = torch.cat([older.clamp(min=0), position], dim=1)
            real = torch.cat([older >= 0, valid], dim=1)
            self._in_order = positions, padding(real) & RowWindow(self.window, positions)
        assert self._first is not None
        padded = (valid.cumsum(-1) == 0).sum(-1)
        self._first = torch.where(total == 0, self._seen + padded, self._first)
        self._total = total + valid.sum(-1)
        self._written = torch.maximum(torch.as_tensor(self._written), self._total)
        row, column = (valid & (position >= self._total[:, None] - self._size)).nonzero(
            as_tuple=True
        )
        place = position[row, column] % self._size
        for ring, given in zip(self._rings, (key, value), strict=True):
            ring[row, :, place] = given[row, :, column]
        assert self._column is not None
        self._column[row, place] = self._seen + column
        if new == 1:
            kept = tuple(ring[:, :, : self._seen + 1] for ring in self._rings)
        return kept[0], kept[1]

    def _count_by_row(self, batch: int) -> None:
        """Count the tokens of each row by itself from now on."""
        # Written to later on, which a tensor made in inference mode would not allow outside of it.
        with torch.inference_mode(False):
            self._column = self._places(self._size).expand(batch, -1).clone()
            self._first = torch.zeros(batch, dtype=torch.int64, device=self._column.device)
            self._total, self._written = (
                torch.full((batch,), int(count), device=self._column.device)
                for count in (self._total, self._written)
            )

    def _cut(self, length: int) -> None:
        if length == self._seen:
            return
        rings = self._rings
        if length == 0:
            self._forget()
            self._rings = rings
            return
        oldest = self._oldest()
        if not isinstance(oldest, int):
            self._cut_by_row(length, str(length))
            return
        self._check_held(self.window > 1 and max(0, length - self.window + 1) < oldest, str(length))
        self._total, self._in_order = length, None

    def _cut_by_row(self, length: int | Tensor, text: str) -> None:
        """The same for rows that are counted by themselves; `length` may be (batch, 1)."""
        oldest = self._oldest()
        assert self._column is not None
        assert isinstance(oldest, Tensor)
        place = self._places(self._size)
        held = place >= oldest[:, None]
        stays = held & (self._column < length)
        total = self._counts() - (held & ~stays).sum(-1)
        assert self._first is not None
        empty = self._first[:, None] >= length
        total = total.masked_fill(empty[:, 0], 0)
        # Where no token stays, more of the dropped ones may have come after the cut.
        unknown = ~stays.any(-1) & (oldest > 0) & ~empty[:, 0]
        wanted = (total - self.window + 1).clamp(min=0)
        self._check_held(bool((unknown | ((wanted < oldest) & (total > 0))).any()), text)
        self._total, self._in_order = total, None
        # An empty row begins another text, of which nothing is lost yet.
        self._written = torch.as_tensor(self._written).masked_fill(total == 0, 0)

    def _check_held(self, lost: bool, text: str) -> None:
        if lost:
            raise ArgumentError(
                "cache.truncate",
                f"length={text} is too far back: the first query after it would see tokens that "
                f"{self.describe()} has dropped, of {self._seen}. A larger spare holds more.",
            )

    def _cut_rows(self, lengths: Tensor, longest: int) -> None:
        before = dict(vars(self))
        if self._column is None:
            self._count_by_row(len(lengths))
        try:
            self._cut_by_row(lengths[:, None], f"{lengths.tolist()}")
        except ArgumentError:
            vars(self).update(before)
            raise

    def _empty(self) -> int:
        if self._first is None:
            return 0
        assert isinstance(self._total, Tensor)
        return int(self._first.masked_fill(self._total == 0, self._seen).min())

    def _shift(self, free: int) -> None:
        assert self._column is not None
        assert self._first is not None
        self._column, self._first = self._column - free, self._first - free

    def _moved(self, layout: Layout) -> dict[str, Any]:
        moved = {
            name: each.to(layout.device) if isinstance(each, Tensor) else each
            for name, each in vars(self).items()
            if name in ("_total", "_written", "_column", "_first")
        }
        rings = tuple(ring.to(layout.device, layout.dtype) for ring in self._rings)
        return moved | {"_rings": rings, "_in_order": None}

    def _apart(self) -> dict[str, Any]:
        return {"_column": None if self._column is None else self._column.clone()}

    def _take(self, rows: Tensor) -> None:
        self._rings = tuple(ring.index_select(0, rows) for ring in self._rings)
        self._in_order = None
        if self._column is not None:
            assert isinstance(self._total, Tensor)
            assert isinstance(self._written, Tensor)
            assert self._first is not None
            self._first = self._first.index_select(0, rows)
            self._column = self._column.index_select(0, rows)
            self._total = self._total.index_select(0, rows)
            self._written = self._written.index_select(0, rows)


@dataclass(frozen=True, eq=False, repr=False)
class RowWindow(Mask):
    """Keys less than `window` tokens before the query, by the position of each key of each row.

    `position`, (batch, kv_len), never falls along a row; the last query sits on the last key.
    """

    window: int
    position: Tensor

    @property
    def batch(self) -> int | None:
        return self.position.shape[0]

    @property
    def device(self) -> torch.device | None:
        return self.position.device

    def check(
        self, batch: int, num_heads: int, query_len: int, kv_len: int, device: torch.device
    ) -> None:
        super().check(batch, num_heads, query_len, kv_len, device)
        if kv_len != self.position.shape[1] or query_len > kv_len:
            raise MaskError(
                "mask.kv-len",
                f"the mask {self.describe()} is for {self.position.shape[1]} keys and the last of "
                f"their queries; there are kv_len={kv_len} and query_len={query_len}.",
            )
        if device != self.position.device:
            raise DeviceError(
                "mask.device",
                f"the mask must be on the query's device; its positions are on "
                f"{self.position.device}, the query on {device}.",
            )

    def visible(
        self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int
    ) -> Tensor:
        row = torch.arange(self.position.shape[0], device=self.position.device).view(-1, 1, 1, 1)
        query = self.position[row, query_index + (kv_len - query_len)]
        return self.position[row, key_index] > query - self.window

    def spans(self, query_len: int, kv_len: int, device: torch.device) -> Spans | None:
        query = self.position[:, kv_len - query_len :]
        start = torch.searchsorted(self.position, query - self.window, right=True)
        return one_run(start, torch.full_like(start, kv_len), kv_len)

    def describe(self) -> str:
        rows, kv_len = self.position.shape
        return f"row_window({self.window}, <positions {rows} × {kv_len}>)"
