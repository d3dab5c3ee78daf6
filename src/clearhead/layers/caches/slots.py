"""The slots of a cache, and the rule by which a kind of cache fills them."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._common.torch_internals import is_exporting
from clearhead.layers.caches.layout import Layout
from clearhead.masks.base import Mask


class Slots(ABC):
    """The base of `Cache`: the stores, which columns are real tokens, and the methods of each kind of cache.

    A kind defines `_start` and `_add`; the other methods are those of a cache that holds every column.
    """

    def __init__(self) -> None:
        # Keys, values, and what else encodes them, (batch, num_kv_heads, slots, width).
        self._stores: tuple[Tensor, ...] = ()
        self._exporting = is_exporting()
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy or pickle, without the layer: a copy belongs to no layer yet."""
        return vars(self) | {"_layer": None}

    @abstractmethod
    def __len__(self) -> int: ...

    def reset(self) -> None:
        """Drop everything, as if the cache were new: other shapes may follow.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import GrowingCache
            >>> cache = GrowingCache()
            >>> _ = cache.append(torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4))
            >>> cache.reset()
            >>> len(cache)
            0
        """
        self._layout: Layout | None = None
        # Columns appended, and which of them are real, (batch, columns); None as long as all are.
        self._seen = 0
        self._valid: Tensor | None = None
        # Positions and mask of the keys that `append` returned, where they are not those held.
        self._shown: tuple[Tensor, Mask] | None = None
        self._finite = True
        # What came last: how many tokens, and which of them are real.
        self._appended: tuple[int, Tensor | None] = (0, None)
        self._layer: weakref.ref[object] | None = None
        self._forget()

    @property
    def _device(self) -> torch.device | None:
        """The device of the stores; None before the first append."""
        return None if self._layout is None else self._layout.device

    def _check_room(self, new: int) -> None:
        """Raise TooLargeError if n more tokens do not fit; by default does nothing, as a cache makes room."""
        return

    @abstractmethod
    def _start(self, layout: Layout) -> None:
        """Set `_stores` to memory for tokens of this layout, before the first append."""

    @abstractmethod
    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write tokens that fit to their slots, and return the keys and values for the call to attend to.

        The new tokens are not counted in `_seen` and `_valid` yet. `valid` is (batch, new), None if all are real.
        """

    def _real(self) -> int | Tensor:
        """Return the number of keys held if all are real and in order; otherwise which are real, (batch, keys)."""
        return self._seen if self._valid is None else self._valid

    def _counts(self) -> int | Tensor:
        """Return the number of real tokens: an int if all rows are equal, otherwise (batch,) or a tensor ()."""
        return self._seen if self._valid is None else self._valid.sum(-1)

    def _record(self, new: int, valid: Tensor | None) -> None:
        """Add n to the columns seen, and store which of them are real once any is padding.

        `valid` of None means all are real.
        """
        if valid is not None or self._valid is not None:
            assert self._layout is not None
            every = self._layout.every
            known = every(self._seen) if self._valid is None else self._valid
            self._valid = torch.cat([known, every(new) if valid is None else valid], dim=1)
        self._seen += new

    def _advance(self, new: int) -> None:
        """Add n to the columns seen; a negative n removes the last ones."""
        self._seen += new

    def _allocate(self, layout: Layout, slots: int) -> tuple[Tensor, ...]:
        """Return zeros for each store, (batch, num_kv_heads, slots, width); `_stores` is not set."""
        return tuple(
            layout.allocate(layout.batch, layout.num_kv_heads, slots, width, dtype=dtype)
            for width, dtype in self._shapes(layout)
        )

    def _shapes(self, layout: Layout) -> tuple[tuple[int, torch.dtype], ...]:
        """Return (width, dtype) of each store: by default of keys, then of values."""
        return (layout.head_dim, layout.dtype), (layout.value_head_dim, layout.dtype)

    def _encode(self, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values in the format of the stores, one tensor a store; by default unchanged."""
        return key, value

    def _decode(self, stored: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the keys and values of some columns of the stores, one tensor a store; by default unchanged."""
        keys, values = stored
        return keys, values

    def _snapshot(self, new: int) -> dict[str, Any]:
        """Return the attributes to restore if the next n tokens are refused: a shallow copy, tensors shared.

        Slots without a token may be overwritten, and are not copied.
        """
        return dict(vars(self))

    def _cut(self, counts: int | Tensor, lengths: Tensor) -> None:
        """Truncate each row to `counts` real tokens, which are in the first `lengths` columns, or raise.

        By default a no-op.
        """
        return

    def _columns(self, valid: Tensor) -> Tensor:
        """Return which columns are real, bool, in the shape that the cache stores; by default unchanged."""
        return valid

    def _take(self, rows: Tensor) -> None:
        """Select rows of the stores, in this order: in place, or in new stores if the batch size changes.

        The stores must have been allocated.
        """
        assert self._layout is not None
        batch, _, slots, _ = self._stores[0].shape
        held, old = min(len(self), slots), self._stores
        if len(rows) != batch:
            self._stores = self._allocate(self._layout._replace(batch=len(rows)), slots)
        for store, before in zip(self._stores, old, strict=True):
            store[:, :, :held] = before[:, :, :held].index_select(0, rows)

    def _forget(self) -> None:
        """Drop the stores, for `reset`."""
        self._stores = ()
