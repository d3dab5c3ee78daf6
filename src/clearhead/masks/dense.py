"""Any mask at all, as a tensor of queries × keys."""

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.checks import check_tensor
from clearhead._common.hints import with_hints
from clearhead.errors import ArgumentTypeError, DeviceError, MaskError
from clearhead.masks.base import Mask
from clearhead.masks.spans import Extent, run_of_rows

MOST_ROWS = 16
"""The largest number of rows of a tensor that are read for the keys that all queries see."""


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask, kind="dense"):
    """A mask held as a bool tensor: True where the query may attend to the key.

    The shape is (batch or 1, num_heads or 1, query_len or 1, kv_len or 1).
    """

    tensor: Tensor

    @property
    def batch(self) -> int | None:
        """The batch size that the mask is tied to, or None if it fits any."""
        return None if self.tensor.shape[0] == 1 else self.tensor.shape[0]

    @property
    def heads(self) -> int | None:
        """The number of query heads that the mask is tied to, or None if it fits any."""
        return None if self.tensor.shape[1] == 1 else self.tensor.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the tensor."""
        return self.tensor.device

    def sizes(self) -> tuple[int, int]:
        """Return the query_len and kv_len of the tensor, 1 where it fits any."""
        return self.tensor.shape[2], self.tensor.shape[3]

    def check(self, extent: Extent) -> None:
        """Raise MaskError unless the tensor broadcasts to the call, DeviceError if the query is on another device."""
        super().check(extent)
        batch, _, query_len, kv_len, device, _ = extent
        rows, columns = self.tensor.shape[2:]
        if columns not in (1, kv_len) or rows not in (1, query_len):
            real = (
                " A mask of two dimensions is (query_len, kv_len) at any batch size; which keys of "
                "each row are real is clearhead.padding(valid)."
            )
            raise MaskError(
                "mask.shape",
                f"the mask has {rows} × {columns} (queries × keys); expected "
                f"query_len={query_len} × kv_len={kv_len}."
                f"{real if (rows, columns) == (batch, kv_len) else ''}",
            )
        if self.tensor.device != device:
            raise DeviceError(
                "mask.device",
                f"the mask must be on the query's device; it is on {self.tensor.device}, "
                f"the query on {device}.",
            )

    def common_run(self, extent: Extent) -> slice | None:
        """Return the run of keys that every query sees, if all see exactly these.

        None if queries differ or have gaps, and for more than MOST_ROWS rows in all, one column for all keys, or values
        that cannot be read.
        """
        is_few = self.tensor.shape[:3].numel() <= MOST_ROWS
        is_read = is_few and self.tensor.shape[3] == extent.kv_len
        return run_of_rows(self.tensor.flatten(0, 2)) if is_read else None

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the entries of the tensor for the given pairs, as `Mask.visible` describes.

        An axis of size 1 is broadcast.
        """
        batch, heads, rows, columns = self.tensor.shape
        device = self.tensor.device
        if rows == 1:
            query_index = query_index.new_zeros(1, 1, 1, 1)  # and so not gathered for each query
        if columns == 1:
            key_index = key_index.new_zeros(1, 1, 1, 1)
        samples = torch.arange(batch, device=device).view(-1, 1, 1, 1)
        head = torch.arange(heads, device=device).view(1, -1, 1, 1)
        return self.tensor[samples, head, query_index, key_index]

    def block(self, queries: slice, keys: slice, extent: Extent) -> Tensor:
        """Return a rectangle as a view: bool, (batch or 1, heads or 1, queries, keys)."""
        rows = slice(0, 1) if self.tensor.shape[2] == 1 else queries
        columns = slice(0, 1) if self.tensor.shape[3] == 1 else keys
        sizes = queries.stop - queries.start, keys.stop - keys.start
        return self.tensor[:, :, rows, columns].expand(-1, -1, *sizes)

    def describe(self) -> str:
        """Return the shape as text, such as `dense(<1 × 1 × 5 × 5>)`."""
        return f"dense(<{' × '.join(map(str, self.tensor.shape))}>)"


@with_hints
def dense(tensor: Tensor) -> Mask:
    """Return the mask in which each query attends where the tensor is True; the tensor is not copied.

    `dense(torch.tensor([[True, False], [True, True]]))`::

        ● ·
        ● ●

    It holds the tensor, of tokens × tokens values.

    Two dimensions are (query_len, kv_len), as in PyTorch. A tensor of (batch, kv_len) is read so too where the batch
    has as many samples as there are tokens; write `padding(valid)` for the real keys of each row.

    Elsewhere: PyTorch `attn_mask` of dtype bool is this; nn.MultiheadAttention `attn_mask` has
    True where attending is *forbidden*, so it is `dense(~attn_mask)`.

    Args:
        tensor: bool, True = may attend, of shape (query_len, kv_len) or
            (batch, num_heads, query_len, kv_len), where each size may be 1, as in PyTorch.
            Three dimensions are refused: they could mean samples or heads.

    Raises:
        ArgumentTypeError: code `mask.type` for an object that is not a tensor, `mask.layout` for one that is not dense.
        MaskError: code `mask.dtype` for a tensor that is not bool, `mask.ambiguous` for three
            dimensions, `mask.dimensions` for fewer than two or more than four.

    Example:
        >>> import torch, clearhead as ch
        >>> ch.dense(torch.tensor([[True, False], [True, True]]))
        dense(<1 × 1 × 2 × 2>)
        ● ·
        ● ●
    """
    if inspect.isfunction(tensor):
        raise ArgumentTypeError(
            "mask.type",
            f"mask must be a Mask or a bool tensor; got the function {tensor.__name__}. "
            f"Call it: {tensor.__name__}(…).",
        )
    check_tensor("mask", tensor, "a Mask, such as clearhead.causal(), or a bool tensor")
    if tensor.dtype != torch.bool:
        added = "; numbers to add to the scores go to bias=" if tensor.is_floating_point() else ""
        raise MaskError(
            "mask.dtype",
            f"mask must be bool, True = may attend; got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}. A tensor of 0 and 1 becomes a mask with .bool() (True = may "
            f"attend){added}.",
        )
    if tensor.ndim == 3:
        raise MaskError(
            "mask.ambiguous",
            f"mask of shape {tuple(tensor.shape)} could be one mask for each sample or one for "
            "each head; say which: mask[:, None] for (batch, 1, query_len, kv_len), mask[None] "
            "for (1, num_heads, query_len, kv_len).",
        )
    if tensor.ndim not in (2, 4):
        raise MaskError(
            "mask.dimensions",
            "mask must have shape (query_len, kv_len) or (batch, num_heads, query_len, kv_len); "
            f"got {tuple(tensor.shape)}. Which keys are real is clearhead.padding(valid).",
        )
    return Dense(tensor if tensor.ndim == 4 else tensor[None, None])


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """Return a mask or None unchanged, and a bool tensor as a Dense mask.

    Raise the error of `dense` for anything else.
    """
    return mask if mask is None or isinstance(mask, Mask) else dense(mask)


def and_masks(mask: Mask | None, other: Mask | None) -> Mask | None:
    """Return `mask & other`; the other one if one of them is None, and None if both are."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other
