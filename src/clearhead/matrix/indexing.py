"""Validated indices into the weights: indices, pairs, slices, sets and bins."""

from collections.abc import Sequence
from types import EllipsisType

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_has_numbers, check_tensor
from clearhead._text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, SelectionError, ShapeError

Index = int | slice | EllipsisType | Sequence[int] | Tensor


def index_of(
    index: Index | tuple[Index, ...], shape: torch.Size
) -> tuple[list[tuple[Tensor | slice, bool]], list[int]]:
    """Return (index, is_int) for each of four axes, and the axes to squeeze, the last axis first.

    An int drops its axis, and so does a leading axis that the matrix, of this shape, never had; `...` and missing
    indices take a whole axis.

    Raises:
        SelectionError: code `matrix.index`, for too many indices or more than one `...`, and as `read_index`.
    """
    given = index if isinstance(index, tuple) else (index,)
    dots = [i for i, each in enumerate(given) if each is Ellipsis]
    count = len(given) - len(dots)
    if len(dots) > 1 or count > len(shape):
        raise SelectionError(
            "matrix.index",
            f"a matrix of {len(shape)} dimensions takes up to {len(shape)} indices and one `...`; "
            f"got {len(given)}.",
        )
    at = dots[0] if dots else len(given)
    full = [*given[:at], *[slice(None)] * (len(shape) - count), *given[at + 1 :]]
    picked = [
        read_index(each, size, axis)
        for axis, (each, size) in enumerate(zip(full, shape, strict=True))
    ]
    leading: list[tuple[Tensor | slice, bool]] = [(slice(None), False)] * (4 - len(picked))
    drop = {len(leading) + axis for axis, (_, single) in enumerate(picked) if single}
    return leading + picked, sorted(drop | set(range(len(leading))), reverse=True)


def read_index(index: Index, size: int, axis: int) -> tuple[Tensor | slice, bool]:
    """Return the index of one axis and True if it was a single int.

    The index is a slice, unchanged, or an int64 tensor of one dimension with indices from 0 on.

    Raises:
        SelectionError: code `matrix.index` if it is not an index, code `matrix.range` if it is out of range.
    """
    if isinstance(index, slice):
        return index, False
    tensor = _read_ints(index, size, axis, 1, "an int, a slice or one dimension of ints")
    return tensor.reshape(-1), tensor.ndim == 0


def read_pairs(
    query_index: int | Sequence[int] | Tensor,
    key_index: int | Sequence[int] | Tensor,
    sizes: tuple[int, int, int],
) -> tuple[Tensor, Tensor, bool]:
    """Return the queries and keys of pairs, int64 from 0 on, (batch or 1, pairs), with True if it is a single pair.

    `sizes` are batch, query_len and kv_len.

    Raises:
        SelectionError: codes `matrix.index`, `matrix.range` and `matrix.pairs`.
    """
    batch, query_len, kv_len = sizes
    read = [
        _read_ints(index, size, axis, 2, "ints of shape (pairs,) or (batch, pairs)")
        for index, size, axis in ((query_index, query_len, -2), (key_index, kv_len, -1))
    ]
    single = read[0].ndim == read[1].ndim == 0
    shapes = tuple(read[0].shape), tuple(read[1].shape)
    try:
        queries, keys = torch.broadcast_tensors(*read)
    except RuntimeError as error:
        raise SelectionError(
            "matrix.pairs",
            f"query_index and key_index must broadcast against each other; got shapes {shapes[0]} "
            f"and {shapes[1]}.",
        ) from error
    queries, keys = (torch.atleast_2d(each) for each in (queries, keys))
    if queries.shape[0] not in (1, batch):
        raise SelectionError(
            "matrix.pairs",
            f"pairs must have shape (pairs,) or (batch, pairs) with batch={batch}; got "
            f"{tuple(queries.shape)}.",
        )
    return queries, keys, single


def _read_ints(index: object, size: int, axis: int, most: int, expected: str) -> Tensor:
    """Return an index as an int64 tensor of at most `most` dimensions, from 0 on.

    Raises SelectionError, code `matrix.index`, for anything but integers, `expected` in words, whose data is
    available, and code `matrix.range`, for one out of range.
    """
    tensor = index if isinstance(index, Tensor) else _ints(index, size, axis)
    dtype = tensor.dtype
    real = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    if not real or tensor.is_meta or tensor.ndim > most:
        raise SelectionError(
            "matrix.index",
            f"axis {axis} takes {expected}; got {'a meta tensor' if tensor.is_meta else dtype} of "
            f"shape {tuple(tensor.shape)}.",
        )
    tensor = tensor.to(torch.int64)
    if tensor.numel():
        _check_range(int(tensor.min()), int(tensor.max()), size, axis)
    return tensor.remainder(size) if size else tensor


def _ints(index: object, size: int, axis: int) -> Tensor:
    """Return an int or a sequence of ints, negative ones unchanged, as an int64 tensor with 0 or 1 dimension.

    Raises SelectionError for anything else, and for an index out of range.
    """
    number = as_int(index)
    if number is not None:
        _check_range(number, number, size, axis)
        return torch.tensor(number)
    if isinstance(index, Sequence) and not isinstance(index, str | bytes):
        numbers = [each for number in index if (each := as_int(number)) is not None]
        if len(numbers) == len(index):
            _check_range(min(numbers, default=0), max(numbers, default=-1), size, axis)
            return torch.tensor(numbers, dtype=torch.int64)
    raise SelectionError(
        "matrix.index",
        f"axis {axis} takes an int, a slice or a list of ints; got {shown(index)}.",
    )


def _check_range(low: int, high: int, size: int, axis: int) -> None:
    """Raise SelectionError, code `matrix.range`, unless −size ≤ low and high < size."""
    if low < -size or high >= size:
        raise SelectionError(
            "matrix.range",
            f"index {shown(low if low < -size else high)} is out of range for axis {axis}, "
            f"which has {size}.",
        )


def as_indices(index: Tensor | slice, size: int, device: torch.device) -> Tensor:
    """Return a slice as int64 indices on a device, (n,); a tensor of indices is only moved there.

    Raises SelectionError for a slice that is not made of ints.
    """
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(size)
        except (TypeError, ValueError) as error:
            raise SelectionError("matrix.index", f"{index} is not a slice of ints.") from error
        count = len(range(start, stop, step))
        return torch.arange(count, device=device) * step + start
    return index.to(device)


def read_segments(
    segments: Tensor, sizes: tuple[int, int], device: torch.device
) -> tuple[Tensor, bool]:
    """Return membership, bool, (batch or 1, kv_len, sets), and True if `segments` was a single set, so bool.

    Args:
        segments: (kv_len,) or (batch, kv_len): bool, or for each key the index of its set, −1 for none.
        sizes: batch and kv_len.
        device: the device of the result.

    Raises:
        ArgumentTypeError, ShapeError, ArgumentError: codes `segments.type`, `segments.shape` and `segments.value`.
    """
    check_tensor("segments", segments, "a tensor of bool or of ints")
    kv_len = sizes[1]
    if tuple(segments.shape) not in ((kv_len,), sizes):
        raise ShapeError(
            "segments.shape",
            f"segments must have shape (kv_len,) = ({kv_len},) or (batch, kv_len) = {sizes}; got "
            f"{tuple(segments.shape)}.",
        )
    check_has_numbers("segments", segments)
    segments = torch.atleast_2d(segments).to(device)
    if segments.dtype == torch.bool:
        return segments[..., None], True
    if segments.is_floating_point() or segments.is_complex():
        raise ArgumentTypeError(
            "segments.type", f"segments must be bool or whole numbers; got {segments.dtype}."
        )
    low, high = (int(each) for each in torch.aminmax(segments)) if segments.numel() else (-1, -1)
    if low < -1 or high >= max(1, kv_len):
        raise ArgumentError(
            "segments.value",
            f"segments must be numbers from 0 to below kv_len={kv_len}, or -1 for none; got {low} "
            f"to {high}.",
        )
    return segments[..., None] == torch.arange(high + 1, device=device), False


def read_k(k: int, kv_len: int) -> int:
    """Return k as an int from 1 to kv_len; raise ArgumentError, code `top-k.value`, for anything else."""
    count = as_int(k)
    if count is None or not 1 <= count <= kv_len:
        raise ArgumentError(
            "top-k.value", f"k must be a whole number from 1 to kv_len={kv_len}; got {shown(k)}."
        )
    return count


def check_bins(rows: int, columns: int, queries: int, keys: int) -> None:
    """Raise ArgumentError, code `pool.size`, unless rows and columns are integers from 1 to `queries` and to `keys`."""
    for name, given, most, of in (
        ("rows", rows, queries, "queries"),
        ("columns", columns, keys, "keys"),
    ):
        count = as_int(given)
        if count is None or not 1 <= count <= most:
            raise ArgumentError(
                "pool.size",
                f"{name} must be a whole number from 1 to the number of {of}, {most}; got "
                f"{shown(given)}.",
            )


def take(tensor: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Return `tensor.index_select(axis, indices)`; the tensor itself, without a copy, if all indices are in order."""
    size = tensor.shape[axis]
    if indices.shape[0] == size and bool((indices == torch.arange(size).to(indices)).all()):
        return tensor
    return tensor.index_select(axis, indices)


def runs(rows: Tensor) -> list[slice]:
    """Return the slices that cover the ascending indices in a tensor, one for each run of neighbours; [] for none."""
    found: list[slice] = []
    for row in rows.tolist():
        if found and found[-1].stop == row:
            found[-1] = slice(found[-1].start, row + 1)
        else:
            found.append(slice(row, row + 1))
    return found


def bins(length: int, count: int, device: torch.device) -> Tensor:
    """Return the bin of each of `length` places, int64, (length,): `count` bins, in order and as equal as can be.

    Example:
        >>> bins(7, 3, torch.device("cpu"))
        tensor([0, 0, 0, 1, 1, 2, 2])
    """
    return torch.arange(length, device=device) * count // max(1, length)
