"""Descriptions of masks that a model materialised."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.documents import documents
from clearhead.masks.full import Full, full
from clearhead.masks.padding import padding
from clearhead.masks.sliding_window import sliding_window


def read_mask(tensor: Tensor) -> Mask | None:
    """Return the description of a materialised mask if it is a known pattern; None if not.

    The patterns are `full()`, `padding(valid)`, `causal()`, a sliding window, causal or on both sides, and these
    with padding; and chunks, `documents(ids) & causal()`, the same in every sample.

    With padding on the left some queries of the last see nothing, as in the tensor.

    Args:
        tensor: bool, True = may attend, (query_len, kv_len) or (batch, num_heads, query_len,
            kv_len), where query_len may be 1 for all queries alike. Three dimensions are read if
            the first of them makes no difference; else they could mean samples or heads.

    Returns:
        A mask of O(tokens) numbers, or None for any other tensor.

    Example:
        >>> import torch
        >>> read_mask(torch.ones(3, 5).tril(2).bool())
        causal()
        ● · · · · ·
        ● ● · · · ·
        ● ● ● · · ·
        ● ● ● ● · ·
        ● ● ● ● ● ·
        ● ● ● ● ● ●
        >>> read_mask(torch.eye(3).bool().flip(0)) is None
        True
    """
    if tensor.is_meta or tensor.numel() == 0 or (tensor.ndim == 4 and not _alike(tensor, 1)):
        return None
    rows = tensor[:, 0] if tensor.ndim == 4 else tensor if tensor.ndim == 3 else tensor[None]
    if _alike(rows, 0):
        rows = rows[:1]
    elif tensor.ndim == 3:
        return None
    return next((mask for mask in _patterns(rows) if _draws(mask, rows)), None)


def _patterns(rows: Tensor) -> Iterator[Mask]:
    """Yield each description that a bool tensor, (batch or 1, query_len, kv_len), may have, if it has one at all."""
    query_len, kv_len = rows.shape[1:]
    # The last query sees every key that is real, in both.
    real = padding_of(rows[:, -1])
    yield real
    yield among(causal(), real)
    if query_len > kv_len:
        return
    place = torch.arange(kv_len, device=rows.device)
    behind = (place[kv_len - query_len :, None] - place).expand_as(rows)[rows]
    left, right = max(0, int(behind.max())), max(0, -int(behind.min()))
    window = sliding_window(left=left, right=right or None)
    window = window if right else causal() & window
    # A key that no window reaches is not known to be padding.
    reached = _block(window, rows)[0, 0].any(dim=0)
    yield among(window, padding_of(rows.any(dim=1) | ~reached))
    if len(rows) == 1 and query_len == kv_len:
        # A chunk begins at the first key of its queries.
        first = rows[0].to(torch.uint8).argmax(dim=1)
        yield documents(torch.unique_consecutive(first, return_inverse=True)[1]) & causal()


def padding_of(valid: Tensor) -> Mask:
    """Return the mask of the keys that are True, bool, (batch or 1, kv_len)."""
    if bool(valid.all()):
        return full()
    return padding(valid[0] if len(valid) == 1 else valid)


def among(mask: Mask, real: Mask) -> Mask:
    """Return a mask and a mask of real keys as one, without a part that hides nothing."""
    return mask if isinstance(real, Full) else mask & real


def _block(mask: Mask, rows: Tensor) -> Tensor:
    """Return a mask as a tensor, bool, (batch or 1, 1, query_len, kv_len), of the lengths and device of `rows`."""
    query_len, kv_len = rows.shape[1:]
    extent = mask.extent(query_len, kv_len, rows.device)
    return mask.block(slice(0, query_len), slice(0, kv_len), extent)


def _draws(mask: Mask, rows: Tensor) -> bool:
    """Return True if a mask shows exactly the pairs that are True in `rows`, (batch or 1, query_len, kv_len)."""
    return torch.equal(_block(mask, rows)[:, 0].expand_as(rows), rows)


def read_bias(tensor: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Split an additive mask into the mask that it implies and the remaining bias; None for each if absent.

    −∞ and the lowest number of the dtype hide, as in the models of transformers. A meta tensor or one of whole numbers
    is all bias.

    Returns:
        bool, True = may attend, or None if nothing is hidden; and the rest, or None if that is 0 without a gradient.

    Example:
        >>> import torch
        >>> read_bias(torch.tensor([0.0, -torch.inf]))
        (tensor([ True, False]), None)
        >>> read_bias(torch.tensor([1.0, -1e30]))
        (None, tensor([ 1.0000e+00, -1.0000e+30]))
    """
    if tensor.is_meta or not tensor.is_floating_point():
        return None, tensor
    hidden = tensor <= torch.finfo(tensor.dtype).min
    hides = bool(hidden.any())
    rest = tensor.masked_fill(hidden, 0.0) if hides else tensor
    adds = rest.requires_grad or bool((rest != 0).any())
    return ~hidden if hides else None, rest if adds else None


def _alike(tensor: Tensor, dim: int) -> bool:
    """Return True if all slices along a dimension are equal, or there is one."""
    first = tensor.narrow(dim, 0, 1)
    # A broadcast dimension is the same memory.
    spread = tensor.shape[dim] == 1 or tensor.stride(dim) == 0
    return spread or torch.equal(tensor, first.expand_as(tensor))
