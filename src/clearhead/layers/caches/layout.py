"""The tensors that a cache takes: their layout, and which tokens of a batch are real."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.checks import KEY_AXES, VALUE_AXES, as_int, check_tensor, describe_tensor
from clearhead._common.torch_internals import is_concrete, is_plain
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


class Layout(NamedTuple):
    """Sizes, dtype and device of the first keys and values, which all later ones must have."""

    batch: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    dtype: torch.dtype
    device: torch.device

    def allocate(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Zeros that can be written to later, even if inference mode is on now."""
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=dtype, device=self.device)

    def every(self, new: int) -> Tensor:
        """A `valid` for tokens that are all real, bool, (batch, new)."""
        return torch.ones(self.batch, new, dtype=torch.bool, device=self.device)


def layout_of(key: Tensor, value: Tensor, kept: Layout | None) -> Layout:
    """The layout of new keys and values.

    Raises:
        ArgumentTypeError: codes `key.type`, `value.type`, and `….layout`.
        ShapeError, DtypeError, DeviceError: codes `cache.shape`, `cache.dtype`, `cache.device`, for
            a key and a value that do not go together, or with the layout that is kept.
    """
    check_tensor("key", key)
    check_tensor("value", value)
    batch, num_kv_heads, new, head_dim = key.shape if key.ndim == 4 else (0, 0, 0, 0)
    *others, value_head_dim = value.shape if value.ndim == 4 else (0, 0, 0, 0)
    layout = Layout(batch, num_kv_heads, head_dim, value_head_dim, key.dtype, key.device)
    if others != [batch, num_kv_heads, new] or 0 in layout[:4]:
        raise ShapeError(
            "cache.shape",
            "key and value must have shape (batch, num_kv_heads, new, head_dim) and (batch, "
            "num_kv_heads, new, value_head_dim), all but `new` 1 or more; got "
            f"{tuple(key.shape)} and {tuple(value.shape)}.",
        )
    if value.dtype != key.dtype or key.dtype not in DTYPES:
        raise DtypeError(
            "cache.dtype",
            "key and value must have one dtype, float16, bfloat16, float32 or float64; got "
            f"{key.dtype} and {value.dtype}.",
        )
    if value.device != key.device:
        raise DeviceError(
            "cache.device",
            f"key and value must be on one device; got {key.device} and {value.device}.",
        )
    if kept is None or layout == kept:
        return layout
    if layout.dtype != kept.dtype:
        raise DtypeError(
            "cache.dtype", f"the cache holds {kept.dtype}; got keys and values of {layout.dtype}."
        )
    if layout.device != kept.device:
        raise DeviceError(
            "cache.device",
            f"the cache is on {kept.device}; got keys and values on {layout.device}.",
        )
    raise ShapeError(
        "cache.shape",
        f"the cache holds batch={kept.batch}, num_kv_heads={kept.num_kv_heads}, "
        f"head_dim={kept.head_dim}, value_head_dim={kept.value_head_dim}; got\n"
        f"  key    {describe_tensor(key, KEY_AXES)}\n"
        f"  value  {describe_tensor(value, VALUE_AXES)}",
    )


def check_valid(valid: Tensor, batch: int, new: int, device: torch.device) -> None:
    """Refuse a `valid` that is not one bool for each new token of each row.

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
            f"valid must be where the keys are, on {device}; it is on {valid.device}.",
        )


def is_in_order(valid: Tensor) -> bool:
    """True if in every row the real tokens are neighbours; valid is bool, (batch, tokens).

    False where it cannot be read, while compiling: to go by position is right for any row.
    """
    if not (is_plain(valid) and is_concrete(valid)):
        return False
    begins = valid[:, 1:] & ~valid[:, :-1]
    return not valid.numel() or bool((begins.sum(dim=1) + valid[:, 0].long() <= 1).all())


def empty_columns(valid: Tensor) -> int:
    """The number of first columns in which no row has a real token; valid is bool, (batch, tokens)."""
    real = valid.any(dim=0)
    return int((real.cumsum(0) == 0).sum())


def positions_from_valid(valid: Tensor) -> Tensor:
    """The number of real tokens before each token of its row, int64, (batch, tokens)."""
    return valid.cumsum(-1) - valid.long()


def row_lengths(lengths: Sequence[int] | Tensor, batch: int | None) -> Tensor:
    """A number of tokens for each row of a batch, int64, (batch,), on the CPU.

    Raises:
        ArgumentTypeError, ArgumentError: codes `length.type` and `length.negative`.
        ShapeError: code `cache.truncate-shape`; None is any batch.
    """
    expected = "length must be a whole number of tokens, or one for each row; got"
    if isinstance(lengths, Tensor):
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise ArgumentTypeError("length.type", f"{expected} a tensor of {lengths.dtype}.")
        given = lengths.long().cpu()
    else:
        if any(as_int(each) is None for each in lengths):
            raise ArgumentTypeError("length.type", f"{expected} {shown(lengths)}.")
        given = torch.tensor([int(each) for each in lengths], dtype=torch.int64, device="cpu")
    if given.ndim != 1 or given.shape[0] == 0 or batch not in (None, given.shape[0]):
        wanted = "(batch,)" if batch is None else f"(batch,) = ({batch},)"
        raise ShapeError(
            "cache.truncate-shape",
            f"length must have shape {wanted}, one for each row; got {tuple(given.shape)}.",
        )
    if int(given.min()) < 0:
        raise ArgumentError(
            "length.negative", f"length must be 0 or more tokens; got {int(given.min())}."
        )
    return given


def row_index(rows: Sequence[int] | Tensor, batch: int) -> Tensor:
    """Rows of a batch as int64, (new_batch,).

    Raises:
        ArgumentTypeError: code `rows.type`.
        ShapeError: code `cache.reorder-shape`.
        SelectionError: code `cache.reorder`.
    """
    expected = "rows must hold whole numbers, one for each row that goes on; got"
    if isinstance(rows, Tensor):
        check_tensor("rows", rows)
        if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
            raise ArgumentTypeError("rows.type", f"{expected} a tensor of {rows.dtype}.")
        index = rows.long()
    else:
        if not isinstance(rows, Sequence) or any(as_int(row) is None for row in rows):
            raise ArgumentTypeError("rows.type", f"{expected} {shown(rows)}.")
        index = torch.tensor([int(row) for row in rows], dtype=torch.int64, device="cpu")
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
