"""A KV cache whose every step has the same shapes, for compiled, recorded and exported steps."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_tensor
from clearhead._common.hints import with_hints
from clearhead._common.torch_internals import is_capturing, is_exporting, is_tracing
from clearhead.errors import ArgumentError, ArgumentTypeError
from clearhead.layers.caches.columns import StaticCache
from clearhead.layers.caches.layout import Layout, check_valid, layout_of
from clearhead.masks.base import Mask
from clearhead.masks.padding import padding
from clearhead.masks.spans import Extent, Spans, one_run


@with_hints
class FixedCache(StaticCache):
    """A KV cache of fixed memory that returns all of it at every step, with a mask of the columns in use.

    The tokens held are its first columns, and their number is a tensor, so that every step of as many
    tokens is one graph: for `torch.compile`, for CUDA graphs, and, with `of` and `state`, for
    `torch.export` and ONNX. Attention costs `max_len` keys at each compiled step, however few are held.

    A step that is exported has the cache as tensors, which go in and come out again. Whether there is
    room is checked in eager mode only: a compiled or exported step fails where it writes.

    Args:
        max_len: the largest number of tokens, padding included.

    Raises:
        ArgumentTypeError, ArgumentError: codes `argument.type` and `argument.size`, for a max_len
            below 1.

    Example:
        >>> import torch
        >>> from clearhead.layers.caches import FixedCache
        >>> cache = FixedCache(8)
        >>> key, value = cache.append(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
        >>> key.shape, len(cache)
        (torch.Size([1, 2, 8, 4]), 5)
        >>> print(cache.mask().draw(2, 8))
        ● ● ● ● · · · ·
        ● ● ● ● ● · · ·
    """

    @classmethod
    def of(
        cls, keys: Tensor, values: Tensor, length: Tensor, valid: Tensor | None = None
    ) -> "FixedCache":
        """Return a cache that holds these tensors, as `state` returns them.

        Exported, it does not write to them, but makes new ones.

        Args:
            keys: (batch, num_kv_heads, max_len, head_dim).
            values: (batch, num_kv_heads, max_len, value_head_dim).
            length: int64, (), how many of the tokens are held; 0 for memory that is empty.
            valid: bool, (batch, max_len), True at real tokens and where there is none yet; None if
                all are real.

        Raises:
            ArgumentTypeError: codes `keys.type`, `values.type`, `length.type`, `valid.type`.
            ShapeError, DtypeError, DeviceError: as `append` does.
            ArgumentError: code `argument.size`, for a max_len of 0.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import FixedCache
            >>> empty = torch.zeros(1, 2, 8, 4)
            >>> cache = FixedCache.of(empty, empty.clone(), torch.tensor(0))
            >>> _ = cache.append(torch.randn(1, 2, 1, 4), torch.randn(1, 2, 1, 4))
            >>> keys, values, length = cache.state()
            >>> int(length)
            1
        """
        check_tensor("keys", keys)
        check_tensor("values", values)
        check_tensor("length", length)
        if length.ndim or length.dtype != torch.int64:
            raise ArgumentTypeError(
                "length.type",
                f"length must be an int64 tensor of no dimensions; got {length.dtype} of shape "
                f"{tuple(length.shape)}.",
            )
        layout = layout_of(keys, values, None)
        cache = cls(keys.shape[2])
        if valid is not None:
            check_valid(valid, layout.batch, cache.max_len, layout.device)
        cache._layout, cache._stores = layout, (keys, values)
        cache._length, cache._valid, cache._finite = length, valid, False
        return cache

    def state(self) -> tuple[Tensor, ...]:
        """Return the tensors of the cache, for `of`: keys, values, length, and `valid` only where there was padding.

        They are the cache's memory, not copies.

        Raises:
            ArgumentError: code `cache.empty`, before the first tokens.

        Example:
            >>> import torch
            >>> from clearhead.layers.caches import FixedCache
            >>> cache = FixedCache(8)
            >>> _ = cache.append(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
            >>> [tuple(each.shape) for each in cache.state()]
            [(1, 2, 8, 4), (1, 2, 8, 4), ()]
        """
        if self._length is None:
            raise ArgumentError(
                "cache.empty",
                "the cache has no tensors before its first tokens. Give it empty ones: "
                "FixedCache.of(keys, values, length) with a length of 0.",
            )
        padded = () if self._valid is None else (self._valid,)
        return (*self._stores, self._length, *padded)

    def describe(self) -> str:
        """Return the call that makes this cache, as text."""
        return f"FixedCache({self.max_len})"

    def mask(self) -> Mask:
        """Return the mask of the new queries over all columns, which hides those not in use, later ones and padding."""
        held = Held(self._held())
        return held if self._valid is None else held & padding(self._valid)

    @property
    def in_order(self) -> bool:
        """False always: the last query does not sit on the last key."""
        return False  # the last query does not sit on the last key

    def __len__(self) -> int:
        """Number of tokens held, padding included; reading it syncs a GPU."""
        return 0 if self._length is None else int(self._length)

    def _held(self) -> Tensor:
        """Return the number of columns held, int64, (); the cache's own tensor, or a new 0 on the CPU without one."""
        return torch.zeros((), dtype=torch.int64) if self._length is None else self._length

    def _real(self) -> int | Tensor:
        """Return which columns are real, (batch, max_len), if there was padding.

        Else max_len, or 0 before the first tokens.
        """
        if self._valid is not None:
            return self._valid
        return 0 if self._length is None else self.max_len

    def _check_room(self, new: int) -> None:
        """Raise TooLargeError if `new` more tokens do not fit; not checked in a trace or capture of a CUDA graph."""
        # The number of tokens is not there to be read in a step that is compiled, or captured as a graph.
        if not (is_tracing() or (self._length is not None and is_capturing(self._length))):
            super()._check_room(new)

    def _start(self, layout: Layout) -> None:
        """Set `_stores` as `ColumnCache._start`, `_length` to a 0 on the layout's device, and `_finite` to False."""
        super()._start(layout)
        self._length = layout.allocate(dtype=torch.int64)
        # Not looked at: what is known would be another graph once a step cannot read it.
        self._finite = False

    def _add(self, key: Tensor, value: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write keys and values after the held columns; return the whole stores, (batch, heads, max_len, dim) each.

        The stores are written in place, or replaced during an export. The caller stores `valid` and counts the columns.
        """
        columns = torch.arange(key.shape[2], device=key.device) + self._held()
        keys, values = self._stores
        keys, values = _written(keys, 2, columns, key), _written(values, 2, columns, value)
        self._stores = keys, values
        return keys, values

    def _record(self, new: int, valid: Tensor | None) -> None:
        """Record which of `new` columns are real, and add `new` to the length; `valid` of None means all are real."""
        if valid is not None or self._valid is not None:
            assert self._layout is not None
            assert self._length is not None
            if self._valid is None:
                self._valid = self._columns(self._layout.every(0))
            columns = torch.arange(new, device=self._layout.device) + self._length
            real = self._layout.every(new) if valid is None else valid
            self._valid = _written(self._valid, 1, columns, real)
        self._advance(new)

    def _advance(self, new: int) -> None:
        """Add `new` to the length, in place except during an export."""
        assert self._length is not None
        if is_exporting():
            self._length = self._length + new
        else:
            self._length += new  # in place, as compiled and recorded steps want it

    def _counts(self) -> int | Tensor:
        """Return the number of real tokens held: (batch,) if there was padding, else the length, ()."""
        held = self._held()
        if self._valid is None:
            return held
        columns = torch.arange(self.max_len, device=held.device)
        return (self._valid & (columns < held)).sum(-1)

    def _columns(self, valid: Tensor) -> Tensor:
        """Return `valid` padded with True to (batch, max_len).

        The stored tensor, overwritten in place, or a new one if none is stored.
        """
        with torch.inference_mode(False):
            every = nn.functional.pad(valid, (0, self.max_len - valid.shape[1]), value=True)
            return every if self._valid is None else self._valid.copy_(every)

    def _snapshot(self, new: int) -> dict[str, Any]:
        """Return the attributes to restore if `new` tokens are refused, with copies of the length and `valid`."""
        # Both are written to in place.
        copies = {"_length": self._length, "_valid": self._valid}
        return super()._snapshot(new) | {
            name: None if held is None else held.clone() for name, held in copies.items()
        }

    def _forget(self) -> None:
        """Zero the stores and set the length to None, for `reset`."""
        super()._forget()
        # Tokens held, int64, (); None before there are any.
        self._length: Tensor | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Held(Mask):
    """Keys up to the query's own, where the last query sits on the last of the `length` tokens held."""

    length: Tensor

    @property
    def device(self) -> torch.device:
        """The device of the length tensor."""
        return self.length.device

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return which pairs are visible, bool, broadcast: keys held, up to the position of each query."""
        return key_index <= query_index + (self.length - extent.query_len)

    def spans(self, extent: Extent) -> Spans:
        """Return one run for each query, from key 0 to the query's own position, included."""
        _, _, query_len, kv_len, device, _ = extent
        stop = torch.arange(query_len, device=device)[None] + (self.length - query_len + 1)
        return one_run(torch.zeros_like(stop), stop, kv_len)

    def common_run(self, extent: Extent) -> slice | None:
        """Return the keys that a single query sees, as a slice (syncs a GPU); None for several queries."""
        return (
            slice(0, max(0, min(int(self.length), extent.kv_len)))
            if extent.query_len == 1
            else None
        )

    def describe(self) -> str:
        """Return "held by the cache", the mask as text."""
        return "held by the cache"


def _written(store: Tensor, dim: int, columns: Tensor, new: Tensor) -> Tensor:
    """Return `store` with `new` at these columns of `dim`: changed in place, or a new tensor during an export."""
    if is_exporting():
        return store.index_copy(dim, columns, new)
    return store.index_copy_(dim, columns, new)
