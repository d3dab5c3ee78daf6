"""Descriptions of masks that a model materialised."""

import torch
from torch import Tensor

from clearhead.masks.base import Mask
from clearhead.masks.causal import causal
from clearhead.masks.documents import documents
from clearhead.masks.full import full
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
    if tensor.is_meta or tensor.numel() == 0:
        return None
    if tensor.ndim == 4:
        if not _alike(tensor, 1):
            return None
        rows = tensor[:, 0]
    else:
        rows = tensor if tensor.ndim == 3 else tensor[None]
    if _alike(rows, 0):
        rows = rows[:1]
    elif tensor.ndim == 3:
        return None
    query_len, kv_len = rows.shape[1:]
    # The last query sees every key that is real, in both.
    valid = rows[:, -1]
    everything = bool(valid.all())
    real = full() if everything else padding(valid[0] if len(valid) == 1 else valid)
    if torch.equal(rows, valid[:, None].expand_as(rows)):
        return real
    past = torch.ones(query_len, kv_len, dtype=torch.bool, device=tensor.device)
    past = past.tril_(kv_len - query_len)
    if torch.equal(rows, valid[:, None] & past):
        return causal() if everything else causal() & real
    found = _read_window(rows)
    return _read_chunks(rows[0]) if found is None and len(rows) == 1 else found


def _read_chunks(rows: Tensor) -> Mask | None:
    """Return a mask of causal chunks, of any sizes, for (query_len, kv_len), bool; None for any other pattern."""
    query_len, kv_len = rows.shape
    first = rows.to(torch.uint8).argmax(dim=1)
    if query_len != kv_len or bool((first.diff() < 0).any()):
        return None
    places = torch.arange(kv_len, device=rows.device)
    if not torch.equal(rows, (places >= first[:, None]) & (places <= places[:, None])):
        return None
    # A chunk begins at the first key of its queries.
    chunk = torch.unique_consecutive(first, return_inverse=True)[1]
    begins = torch.searchsorted(chunk, chunk)
    return documents(chunk) & causal() if torch.equal(first, begins) else None


def _read_window(rows: Tensor) -> Mask | None:
    """Return a sliding window, with padding if there is any; None for any other pattern.

    The window is causal or on both sides. `rows` is bool, (batch or 1, query_len, kv_len), with at least one True.
    """
    query_len, kv_len = rows.shape[1:]
    key = torch.arange(kv_len, device=rows.device)
    behind = key[kv_len - query_len :, None] - key if query_len <= kv_len else None
    if behind is None:
        return None
    left = max(0, int(behind.expand_as(rows)[rows].max()))
    right = max(0, -int(behind.expand_as(rows)[rows].min()))
    band = (behind <= left) & (behind >= -right)
    # A key that no window reaches is not known to be padding.
    valid = rows.any(dim=1) | ~band.any(dim=0)
    if not torch.equal(rows, band & valid[:, None]):
        return None
    window = sliding_window(left=left, right=right or None)
    mask = window if right else causal() & window
    if bool(valid.all()):
        return mask
    return mask & padding(valid[0] if len(valid) == 1 else valid)


def read_bias(tensor: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Split an additive mask into the mask that it implies and the remaining bias; None for each if absent.

    −∞ and the lowest number of the dtype hide, as in the models of transformers. A meta tensor or one of whole numbers
    is all bias.

    Returns:
        bool, True = may attend, or None if nothing is hidden; and the rest, or None if that is 0.

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
    return ~hidden if hides else None, rest if bool((rest != 0).any()) else None


def _alike(tensor: Tensor, dim: int) -> bool:
    """Return True if all slices along a dimension are equal, or there is one."""
    first = tensor.narrow(dim, 0, 1)
    # A broadcast dimension is the same memory.
    spread = tensor.shape[dim] == 1 or tensor.stride(dim) == 0
    return spread or torch.equal(tensor, first.expand_as(tensor))
