"""KV caches with one column of memory for each token, padding included."""

from torch import Tensor

from clearhead.layers.caches.base import Cache
from clearhead.layers.caches.layout import Layout


class ColumnCache(Cache):
    """A token takes the slot of its column, so that tokens are in order; views come back."""

    def _start(self, layout: Layout) -> None:
        self._stores = self._allocate(layout, 0)

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        stop = self._seen + key.shape[2]
        if stop > self._stores[0].shape[2]:
            assert self._layout is not None
            # Twice what is needed now: the step after a long prompt then has room as well.
            self._grow(self._layout, 2 * stop)
        kept: list[Tensor] = []
        for store, new in zip(self._stores, self._encode(key, value), strict=True):
            store[:, :, self._seen : stop] = new
            kept.append(store[:, :, :stop])
        return self._decode(kept)

    def _shift(self, free: int) -> None:
        super()._shift(free)
        held = len(self)
        for store in self._stores:
            # In place: the memory stays where it is.
            store[:, :, : held - free] = store[:, :, free:held].clone()
