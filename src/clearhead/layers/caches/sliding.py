"""A KV cache that is a ring buffer of the last tokens (Beltagy et al., 2020, https://arxiv.org/abs/2004.05150)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._common.checks import check_length, check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentError
from clearhead.layers.caches.cache import Cache
from clearhead.layers.caches.layout import Layout
from clearhead.layers.positions import MaskByPosition, Positions, positions_from_valid
from clearhead.masks.base import Mask
from clearhead.masks.full import full
from clearhead.masks.padding import padding
from clearhead.masks.sliding_window import sliding_window


@with_hints
class SlidingCache(Cache):
    """A KV cache of the last tokens: each query sees itself and the `window` − 1 tokens before it.

    A ring buffer, in which a single token replaces the oldest: then `append` returns the ring, a
    view, in the order of its slots. For several tokens it returns keys and values in order: the
    `window` − 1 before them, and all that are new, so that every query of a long prompt finds what
    it sees. In a batch with padding, the window of each row is counted in its own real tokens, and
    which tokens were real is kept for all of them, a byte each.

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

    def __init__(self, window: int, *, spare: int = 0) -> None:
        super().__init__()
        check_sizes(window=window)
        self.window = window
        self.spare = check_length("spare", spare)
        # Number of tokens that the ring holds.
        self._size = self.window + self.spare

    def describe(self) -> str:
        """Return the call that makes this cache, as text."""
        spare = f", spare={self.spare}" if self.spare else ""
        return f"SlidingCache({self.window}{spare})"

    @property
    def positions(self) -> Tensor:
        """The position of each key that `append` returned, (kv_len,) or (batch, kv_len).

        After a cut, of each slot of the ring; 0 for an empty one, which `mask` hides.
        """
        return super().positions if self._shown else self._places()[0].clamp(min=0)

    def mask(self) -> Mask:
        """Return the mask over the keys that `append` returned: the last `window` real tokens of each query.

        After a single token it is a padding mask over the slots, or `full()` if all of them are visible.
        """
        if self._shown is not None:
            return self._shown[1]
        if self._valid is None and min(self._seen, self._size) <= self.window:
            return full()
        places, last = self._places()
        return padding((places >= 0) & (places > last - self.window))

    @property
    def in_order(self) -> bool:
        """True if the keys that `append` returned are in the order of their tokens; False after any padding."""
        return self._valid is None and (self._shown is not None or self._seen <= self._size)

    def _places(self) -> tuple[Tensor, int | Tensor]:
        """Return the position of the token in each used slot of the ring, and the position of the last token.

        Slots that are empty in a row have positions below 0. The shapes are (slots,) and an int, or (batch, slots) and
        (batch, 1).
        """
        total = self._counts()
        last = total - 1 if isinstance(total, int) else total[:, None] - 1
        places = torch.arange(min(self._seen, self._size), device=self._device)
        return last - (last - places) % self._size, last

    def _start(self, layout: Layout) -> None:
        """Set `_stores` to new zeros of `window + spare` slots."""
        self._stores = self._allocate(layout, self._size)

    def _forget(self) -> None:
        """Drop the stores and set the position of the oldest token to 0, for `reset`."""
        super()._forget()
        # The position of the oldest token held: one for all rows alike, or (batch,).
        self._oldest: int | Tensor = 0

    def _oldest_after(self, total: int | Tensor) -> int | Tensor:
        """Return the position of the oldest token held after `total` tokens were written: an int, or (batch,).

        Changes nothing.
        """
        if isinstance(self._oldest, int) and isinstance(total, int):
            return max(self._oldest, total - self._size)
        return torch.maximum(torch.as_tensor(self._oldest), torch.as_tensor(total) - self._size)

    def _snapshot(self, new: int) -> dict[str, Any]:
        """Return the attributes to restore if `new` tokens are refused.

        The rings are copied if these tokens overwrite some that the next query sees; otherwise the tokens that they may
        overwrite count as dropped.
        """
        state = super()._snapshot(new)
        if new > 1 + self.spare or self.window == 1:
            # They take the place of tokens that the next query sees.
            return state | {"_stores": tuple(ring.clone() for ring in self._stores)}
        # Other tokens are lost, as if the new ones had been appended and cut off again.
        return state | {"_oldest": self._oldest_after(self._counts() + new)}

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write keys and values to their slots in the ring, and return the keys and values that the call attends to.

        For one token that is the ring, a view; for any other number, new tensors of the `window` − 1 tokens before and
        the new ones, or the arguments themselves if none are held. Sets `_shown`, the positions and mask of the
        returned keys (None for one token), and `_oldest`.
        """
        new, size, total = key.shape[2], self._size, self._counts()
        if valid is None and isinstance(total, int):
            positions = torch.arange(total, total + new, device=key.device)
            counts = total + new
        else:
            assert self._layout is not None
            valid = self._layout.every(new) if valid is None else valid
            total = torch.as_tensor(total, device=key.device).expand(len(key))[:, None]
            positions = total + positions_from_valid(valid)
            counts = total[:, 0] + valid.sum(-1)
        returned, self._shown = (key, value), None
        if new != 1:
            held = min(self._seen, self.window - 1)
            older = total + torch.arange(-held, 0, device=key.device)
            shown = torch.cat([older.clamp(min=0), positions], dim=-1)
            mask = sliding_window(left=self.window - 1)
            if valid is not None:
                real = torch.cat([older >= 0, valid], dim=1)
                mask = padding(real) & MaskByPosition(mask, Positions(positions, shown))
            self._shown = shown, mask
            if held:
                before = (_at(ring, older % size) for ring in self._stores)
                pairs = zip(before, (key, value), strict=True)
                keys, values = (torch.cat(pair, dim=2) for pair in pairs)
                returned = keys, values
        self._write((key, value), positions, valid, counts)
        self._oldest = self._oldest_after(counts)
        if new == 1:
            keys, values = (ring[:, :, : self._seen + new] for ring in self._stores)
            returned = keys, values
        return returned

    def _write(
        self, every: Sequence[Tensor], positions: Tensor, valid: Tensor | None, counts: int | Tensor
    ) -> None:
        """Write new tokens to the slots of their positions, in place; of more tokens than slots, the last ones.

        Args:
            every: the new keys and values.
            positions: of the new tokens, (new,) or (batch, new).
            valid: which are real, (batch, new); padding is not written. None if all are.
            counts: real tokens of each row after this call, (batch,); read only with `valid`.
        """
        size = self._size
        if valid is None:
            place = positions[-size:] % size
            for ring, given in zip(self._stores, every, strict=True):
                ring.index_copy_(2, place, given[:, :, -size:])
            return
        assert isinstance(counts, Tensor)
        row, column = (valid & (positions >= counts[:, None] - size)).nonzero(as_tuple=True)
        place = positions[row, column] % size
        for ring, given in zip(self._stores, every, strict=True):
            ring[row, :, place] = given[row, :, column]

    def _cut(self, counts: int | Tensor, lengths: Tensor) -> None:
        """Check that each row can go back to `counts` tokens, and update the oldest position; the ring is not changed.

        Raises ArgumentError, code `cache.truncate`, if tokens that the next query sees were dropped; `lengths` is for
        its text.
        """
        total, oldest = torch.as_tensor(counts), self._oldest
        lost = (total > 0) & ((total - self.window + 1).clamp(min=0) < oldest)
        if self.window > 1 and bool(lost.any()):
            text = int(lengths) if len(lengths) == 1 else lengths.tolist()
            raise ArgumentError(
                "cache.truncate",
                f"length={text} is too far back: the first query after it would see tokens that "
                f"{self.describe()} has dropped, of {self._seen}. A larger spare holds more.",
            )
        # An empty row begins another text, and nothing of that is lost yet.
        if isinstance(counts, int):
            self._oldest = oldest if counts else 0
        else:
            self._oldest = torch.where(total == 0, 0, oldest)

    def _take(self, rows: Tensor) -> None:
        """Select rows of the ring, and of the oldest position where it differs by row, in place."""
        super()._take(rows)
        if isinstance(self._oldest, Tensor):
            self._oldest = self._oldest[rows]


def _at(ring: Tensor, places: Tensor) -> Tensor:
    """Return a copy of the entries of a ring, (batch, heads, slots, width), in slots `places`, (n,) or (batch, n)."""
    if places.ndim == 1:
        return ring.index_select(2, places)
    return ring.gather(2, places[:, None, :, None].expand(*ring.shape[:2], -1, ring.shape[3]))
