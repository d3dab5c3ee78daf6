"""KV caches with one column of memory for each token, padding included."""

from typing import Any

import torch
from torch import Tensor

from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.layout import (
    Layout,
    empty_columns,
    is_in_order,
    positions_from_valid,
)
from clearhead.masks.base import Mask
from clearhead.masks.full import full
from clearhead.masks.padding import padding


class ColumnCache(Cache):
    """Tokens in order, in tensors of (batch, num_kv_heads, capacity, width); views come back."""

    _MEMORY = "_stores"

    def __init__(self) -> None:
        super().__init__()
        self._stores: tuple[Tensor, ...] = ()
        # Which columns are real tokens, (batch, capacity); None as long as all of them are.
        self._valid: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        if self._valid is None:
            return torch.arange(self._seen, device=self._device)
        return positions_from_valid(self._valid[:, : self._seen])

    def mask(self) -> Mask:
        return full() if self._valid is None else padding(self._valid[:, : self._seen])

    @property
    def in_order(self) -> bool:
        return self._valid is None or is_in_order(self._valid[:, : self._seen])

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self._stores)

    def _shapes(self, layout: Layout) -> tuple[tuple[int, torch.dtype], ...]:
        """Width and dtype of each store."""
        return (layout.head_dim, layout.dtype), (layout.value_head_dim, layout.dtype)

    def _write(self, key: Tensor, value: Tensor, columns: slice) -> None:
        keys, values = self._stores
        keys[:, :, columns] = key
        values[:, :, columns] = value

    def _read(self, columns: slice) -> tuple[Tensor, Tensor]:
        keys, values = self._stores
        return keys[:, :, columns], values[:, :, columns]

    def _start(self, layout: Layout) -> None:
        self._stores = tuple(
            layout.allocate(layout.batch, layout.num_kv_heads, 0, width, dtype=dtype)
            for width, dtype in self._shapes(layout)
        )

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        stop = self._seen + key.shape[2]
        if stop > self._stores[0].shape[2]:
            # Twice what is needed now: the step after a long prompt then has room as well.
            self._grow(2 * stop)
        if valid is not None or self._valid is not None:
            self._record_valid(valid, stop)
        self._write(key, value, slice(self._seen, stop))
        return self._read(slice(0, stop))

    def _grow(self, capacity: int) -> None:
        """Move everything to memory of `capacity` columns."""
        assert self._layout is not None
        grown = []
        for store in self._stores:
            batch, heads, _, width = store.shape
            room = self._layout.allocate(batch, heads, capacity, width, dtype=store.dtype)
            room[:, :, : self._seen] = store[:, :, : self._seen]
            grown.append(room)
        self._stores = tuple(grown)

    def _record_valid(self, valid: Tensor | None, stop: int) -> None:
        """Record which of the new columns are real."""
        assert self._layout is not None
        capacity = self._stores[0].shape[2]
        if self._valid is None or self._valid.shape[1] < capacity:
            known = self._valid
            self._valid = self._layout.allocate(self._layout.batch, capacity, dtype=torch.bool)
            self._valid[:, : self._seen] = True if known is None else known[:, : self._seen]
        self._valid[:, self._seen : stop] = True if valid is None else valid

    def _counts(self) -> int | Tensor:
        return self._seen if self._valid is None else self._valid[:, : self._seen].sum(-1)

    def _cut(self, length: int) -> None:
        if length == 0:
            self._valid = None

    def _cut_rows(self, lengths: Tensor, longest: int) -> None:
        self._record_valid(None, self._seen)
        assert self._valid is not None
        columns = torch.arange(self._valid.shape[1], device=lengths.device)
        self._valid = self._valid & (columns < lengths[:, None])

    def _empty(self) -> int:
        return 0 if self._valid is None else empty_columns(self._valid[:, : len(self)])

    def _shift(self, free: int) -> None:
        held = len(self)
        for store in (*self._stores, self._valid):
            if store is not None:
                # In place: the memory stays where it is.
                columns = 1 if store is self._valid else 2
                kept = store.narrow(columns, free, held - free).clone()
                store.narrow(columns, 0, held - free).copy_(kept)

    def _moved(self, layout: Layout) -> dict[str, Any]:
        shapes = self._shapes(layout)
        stores = tuple(
            store.to(layout.device, dtype)
            for store, (_, dtype) in zip(self._stores, shapes, strict=True)
        )
        valid = None if self._valid is None else self._valid.to(layout.device)
        return {"_stores": stores, "_valid": valid}

    def _apart(self) -> dict[str, Any]:
        return {"_valid": None if self._valid is None else self._valid.clone()}

    def _take(self, rows: Tensor) -> None:
        assert self._layout is not None
        taken = []
        for store in self._stores:
            if rows.shape[0] == store.shape[0]:
                # In place: the memory stays where it is, as compiled and recorded steps want it.
                room = store
            else:
                room = self._layout.allocate(rows.shape[0], *store.shape[1:], dtype=store.dtype)
            room[:, :, : self._seen] = store[:, :, : self._seen].index_select(0, rows)
            taken.append(room)
        self._stores = tuple(taken)
        if self._valid is not None:
            self._valid = self._valid.index_select(0, rows)

    def _forget(self) -> None:
        self._stores = ()
        self._valid = None
