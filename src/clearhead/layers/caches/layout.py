"""The tensors that a cache takes, which tokens of a batch are real, and the slots that a rule fills with them."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import KEY_AXES, VALUE_AXES, as_int, check_tensor, describe_tensor
from clearhead._common.torch_internals import is_concrete, is_exporting, is_plain
from clearhead._text import shown
from clearhead.attention.problem import DTYPES
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DtypeError,
    SelectionError,
    ShapeError,
)
from clearhead.masks.base import Mask


class Layout(NamedTuple):
    """Sizes, dtype and device of the first keys and values, which all later ones must have."""

    batch: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def widths(self) -> tuple[int, int]:
        """The width of a key, and that of a value."""
        return self.head_dim, self.value_head_dim

    def allocate(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return zeros of this shape on the layout's device.

        They can be written to later, even if inference mode is on now.
        """
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=dtype, device=self.device)

    def every(self, new: int) -> Tensor:
        """Return a `valid` for `new` tokens that are all real: True, (batch, new)."""
        return torch.ones(self.batch, new, dtype=torch.bool, device=self.device)


def layout_of(key: Tensor, value: Tensor, held: Layout | None) -> Layout:
    """Return the layout of new keys and values.

    Args:
        key: the keys of the new tokens.
        value: their values.
        held: the layout of the tokens held; None before there are any.

    Raises:
        ArgumentTypeError: codes `key.type`, `value.type`, and `….layout`.
        ShapeError, DtypeError, DeviceError: codes `cache.shape`, `cache.dtype`, `cache.device`, if key and value do
            not fit each other or the layout that is held, have a size of 0 other than `new`, or a dtype not in DTYPES.
    """
    check_tensor("key", key)
    check_tensor("value", value)
    is_fit = key.ndim == value.ndim == 4 and key.shape[:3] == value.shape[:3]
    if not is_fit or 0 in (*key.shape[:2], key.shape[3], value.shape[3]):
        raise ShapeError(
            "cache.shape",
            "key and value must have shape (batch, num_kv_heads, new, head_dim) and (batch, "
            "num_kv_heads, new, value_head_dim), all but `new` 1 or more; got "
            f"{tuple(key.shape)} and {tuple(value.shape)}.",
        )
    batch, num_kv_heads, _, head_dim = key.shape
    layout = Layout(batch, num_kv_heads, head_dim, value.shape[3], key.dtype, key.device)
    if layout == held and (value.dtype, value.device) == (key.dtype, key.device):
        return layout
    dtypes = DTYPES if held is None else (held.dtype,)
    if value.dtype != key.dtype or key.dtype not in dtypes:
        expected = "float16, bfloat16, float32 or float64" if held is None else f"{held.dtype}"
        raise DtypeError(
            "cache.dtype",
            f"key and value must have one dtype, {expected}; got {key.dtype} and {value.dtype}.",
        )
    device = key.device if held is None else held.device
    if not device == key.device == value.device:
        raise DeviceError(
            "cache.device",
            f"key and value must be on {device}; got {key.device} and {value.device}.",
        )
    if held is not None and layout != held:
        raise ShapeError(
            "cache.shape",
            f"the cache holds batch={held.batch}, num_kv_heads={held.num_kv_heads}, "
            f"head_dim={held.head_dim}, value_head_dim={held.value_head_dim}; got\n"
            f"  key    {describe_tensor(key, KEY_AXES)}\n"
            f"  value  {describe_tensor(value, VALUE_AXES)}",
        )
    return layout


def check_valid(valid: Tensor, batch: int, new: int, device: torch.device) -> None:
    """Check that `valid` has one bool for each new token of each row.

    Raises:
        ArgumentTypeError: codes `valid.type` and `valid.layout`.
        DtypeError, ShapeError, DeviceError: codes `cache.valid-dtype`, `cache.valid` and
            `cache.valid-device`.
    """
    check_tensor("valid", valid)
    if valid.dtype != torch.bool:
        raise DtypeError(
            "cache.valid-dtype",
            f"valid must be bool, True at real tokens; got {valid.dtype}. A tokenizer's "
            "attention_mask becomes one with .bool().",
        )
    if valid.shape != (batch, new):
        raise ShapeError(
            "cache.valid",
            f"valid must have shape (batch, new) = ({batch}, {new}); got {tuple(valid.shape)}.",
        )
    if valid.device != device:
        raise DeviceError(
            "cache.valid-device",
            f"valid must be on the device of the keys, {device}; it is on {valid.device}.",
        )


def is_in_order(valid: Tensor) -> bool:
    """Return True if in every row the real tokens are neighbours, or there are none; valid is bool, (batch, tokens).

    False if it cannot be read, as while compiling or under vmap: masks by position are right for any row.
    """
    if not (is_plain(valid) and is_concrete(valid)):
        return False
    begins = valid[:, 1:] & ~valid[:, :-1]
    return not valid.numel() or bool((begins.sum(dim=1) + valid[:, 0].long() <= 1).all())


def row_lengths(lengths: Sequence[int] | Tensor, batch: int | None) -> Tensor:
    """Return a number of tokens for each row of a batch, int64, (batch,), on the CPU.

    `batch` is the expected number of rows; None accepts any but 0.

    Raises:
        ArgumentTypeError, ArgumentError: codes `length.type` and `length.negative`.
        ShapeError: code `cache.truncate-shape`, for another number of rows or of axes.
    """
    expected = "a whole number of tokens, or one for each row"
    rows = _whole_numbers("length", lengths, expected).cpu()
    if rows.ndim != 1 or rows.shape[0] == 0 or batch not in (None, rows.shape[0]):
        shape = "(batch,)" if batch is None else f"(batch,) = ({batch},)"
        raise ShapeError(
            "cache.truncate-shape",
            f"length must have shape {shape}, one for each row; got {tuple(rows.shape)}.",
        )
    if int(rows.min()) < 0:
        raise ArgumentError(
            "length.negative", f"length must be 0 or more tokens; got {int(rows.min())}."
        )
    return rows


def row_index(rows: Sequence[int] | Tensor, batch: int) -> Tensor:
    """Return rows of a batch as int64, (new_batch,), on the device of `rows`, or the CPU for a sequence.

    Raises:
        ArgumentTypeError: code `rows.type`, for anything but whole numbers.
        ShapeError: code `cache.reorder-shape`, for no row or several axes.
        SelectionError: code `cache.reorder`, for a row below 0, or of `batch` or more.
    """
    index = _whole_numbers("rows", rows, "whole numbers, one for each row of the new batch")
    if index.ndim != 1 or index.shape[0] == 0:
        raise ShapeError(
            "cache.reorder-shape",
            f"rows must have shape (new_batch,), with at least one row; got {tuple(index.shape)}.",
        )
    lowest, highest = int(index.min()), int(index.max())
    if lowest < 0 or highest >= batch:
        there = f"0 to {batch - 1}" if batch else "none: nothing was appended yet"
        raise SelectionError(
            "cache.reorder",
            f"rows must be those of the batch, {there}; got {lowest if lowest < 0 else highest}.",
        )
    return index


def _whole_numbers(name: str, given: Sequence[int] | Tensor, expected: str) -> Tensor:
    """Return integers as an int64 tensor: a sequence on the CPU, a tensor on its device.

    `expected` says in words what the argument `name` must be.
    Raises ArgumentTypeError, code `NAME.type`, for bool, float and complex tensors and for other numbers or objects.
    """
    if isinstance(given, Tensor):
        check_tensor(name, given)
        if not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool):
            return given.long()
    elif isinstance(given, Sequence) and all(as_int(number) is not None for number in given):
        return torch.tensor([int(number) for number in given], dtype=torch.int64, device="cpu")
    got = f"a tensor of {given.dtype}" if isinstance(given, Tensor) else shown(given)
    raise ArgumentTypeError(f"{name}.type", f"{name} must be {expected}; got {got}.")


class Slots(ABC):
    """The base of `Cache`: the stores, which columns are real tokens, and the methods of each kind of cache.

    A kind defines `_start` and `_add`; the other methods are those of a cache that holds every column.
    """

    def __init__(self) -> None:
        """Make an empty cache, without stores and without a layer."""
        # Keys and values, (batch, num_kv_heads, slots, width).
        self._stores: tuple[Tensor, ...] = ()
        self._exporting = is_exporting()
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy or pickle, without the layer: a copy belongs to no layer yet."""
        return vars(self) | {"_layer": None}

    @abstractmethod
    def __len__(self) -> int:
        """Number of tokens appended, padding included, and not cut off again."""

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
        """Raise TooLargeError if `new` more tokens do not fit; by default does nothing, as a cache makes room."""
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
        """Return the number of real tokens held: an int without padding, otherwise int64, (batch,)."""
        return self._seen if self._valid is None else self._valid.sum(-1)

    def _record(self, new: int, valid: Tensor | None) -> None:
        """Add `new` to the columns seen, and store which of them are real once any is padding.

        `valid` of None means all are real.
        """
        if valid is not None or self._valid is not None:
            assert self._layout is not None
            every = self._layout.every
            known = every(self._seen) if self._valid is None else self._valid
            self._valid = torch.cat([known, every(new) if valid is None else valid], dim=1)
        self._seen += new

    def _advance(self, new: int) -> None:
        """Add `new` to the columns seen; a negative number removes the last ones."""
        self._seen += new

    def _allocate(self, layout: Layout, slots: int) -> tuple[Tensor, ...]:
        """Return zeros for each store, (batch, num_kv_heads, slots, width); `_stores` is not set."""
        rows, heads, dtype = layout.batch, layout.num_kv_heads, layout.dtype
        return tuple(
            layout.allocate(rows, heads, slots, width, dtype=dtype) for width in layout.widths
        )

    def _snapshot(self, new: int) -> dict[str, Any]:
        """Return the attributes to restore if the next `new` tokens are refused: a shallow copy, tensors shared.

        Slots without a token may be overwritten, and are not copied.
        """
        return dict(vars(self))

    def _cut(self, counts: int | Tensor, lengths: Tensor) -> None:
        """Prepare the slots for a cut of each row to `counts` real tokens; by default a no-op.

        Raises ArgumentError if the next queries would see tokens that were dropped. `lengths` is the user's argument of
        `truncate`, as a tensor; `_valid` and `_seen` are changed by the caller.
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
