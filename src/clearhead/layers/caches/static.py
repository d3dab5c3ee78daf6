"""A KV cache of fixed size."""

from typing import Any

from torch import Tensor

from clearhead._common.checks import check_sizes
from clearhead._common.hints import with_hints
from clearhead.errors import TooLargeError
from clearhead.layers.caches.columns import ColumnCache
from clearhead.layers.caches.layout import Layout


@with_hints
class StaticCache(ColumnCache):
    """A KV cache of fixed memory, allocated at the first tokens and never moved after.

    `reset()` keeps the memory, emptied, for tokens of the same shape. A step that takes the cache as
    an argument can be compiled, and is recompiled at most once for its length.

    Args:
        max_len: the largest number of tokens, padding included.

    Raises:
        ArgumentTypeError, ArgumentError: codes `argument.type` and `argument.size`, for a max_len
            below 1.

    Example:
        >>> import torch
        >>> from clearhead.layers.caches import StaticCache
        >>> cache = StaticCache(8)
        >>> _ = cache.append(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
        >>> cache
        <StaticCache(8), 5 tokens>
        >>> cache.append(torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4))
        Traceback (most recent call last):
        ...
        clearhead.errors.TooLargeError: [cache.full] the cache has room for max_len=8 tokens and holds 5; got 4 more.
    """

    def __init__(self, max_len: int) -> None:
        super().__init__()
        check_sizes(max_len=max_len)
        self.max_len = max_len

    def describe(self) -> str:
        return f"StaticCache({self.max_len})"

    def _check_room(self, batch: int, new: int, valid: Tensor | None) -> None:
        held = len(self)
        if held + new > self.max_len:
            raise TooLargeError(
                "cache.full",
                f"the cache has room for max_len={self.max_len} tokens and holds {held}; got "
                f"{new} more.",
            )

    def _start(self, layout: Layout) -> None:
        shape = (layout.batch, layout.num_kv_heads, self.max_len)
        wanted = [(*shape, *each, layout.device) for each in self._shapes(layout)]
        # After a reset the memory is there, and stays if the new tokens fit into it.
        if [(*store.shape, store.dtype, store.device) for store in self._stores] != wanted:
            self._stores = self._allocate(layout, self.max_len)

    def _apart(self) -> dict[str, Any]:
        # Memory that never moves, as compiled and recorded steps want it.
        return {"_stores": tuple(store.clone() for store in self._stores)}

    def _forget(self) -> None:
        for store in self._stores:
            store.zero_()
