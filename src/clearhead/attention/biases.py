"""Biases that are added to the scores: the base of every description, and the bias that is a tensor.

A bias is never a mask. It is added after scale and softcap; a mask then hides.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.checks import check_length, check_tensor
from clearhead._common.kinds import Filed
from clearhead.errors import (
    ArgumentTypeError,
    DeviceError,
    DtypeError,
    ShapeError,
    UnsupportedError,
)
from clearhead.masks.base import Mask
from clearhead.masks.selected import places_in_whole
from clearhead.masks.spans import Extent


class Bias(Filed, ABC):
    """Values added to the scores, computed for the requested part of the matrix.

    Example:
        >>> import clearhead as ch
        >>> ch.alibi(2).to_dense(1, 3)
        tensor([[[[-0.1250, -0.0625, -0.0000]],
        <BLANKLINE>
                 [[-0.0078, -0.0039, -0.0000]]]])
    """

    @abstractmethod
    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the bias of pairs of a query and a key.

        Args:
            query_index: int64, four dimensions (batch, 1, queries, keys), any of size 1.
            key_index: indices of keys, in the same form; the two broadcast against each other.
            extent: the sizes of the whole call.

        Returns:
            Floating, four dimensions that broadcast to (batch, num_heads, queries, keys).
        """

    def block(self, queries: slice, keys: slice, extent: Extent) -> Tensor:
        """Return the bias for a range of queries and a range of keys: floating, four dimensions that broadcast.

        The slices are indices into the whole call, whose sizes `extent` has; an axis on which the bias does not depend
        may have size 1, and the batch axis is not cut. Here it is computed by `at`.
        """
        device = extent.device
        query_index = torch.arange(queries.start, queries.stop, device=device).view(1, 1, -1, 1)
        key_index = torch.arange(keys.start, keys.stop, device=device).view(1, 1, 1, -1)
        return self.at(query_index, key_index, extent)

    @abstractmethod
    def describe(self) -> str:
        """Return the bias in a few words, such as `alibi(8)`."""

    @property
    def numbers(self) -> Tensor | None:
        """The tensor that the bias is made of and that may require grad; None without one."""
        return None

    @property
    def requires_grad(self) -> bool:
        """True if a tensor in the bias requires grad; False if it holds none."""
        return self.numbers is not None and self.numbers.requires_grad

    @property
    def may_hide(self) -> bool:
        """True if the bias may contain −∞, which hides a key as a mask does; True also if that is unknown."""
        return True

    @property
    def by_distance(self) -> bool:
        """True if each head's bias depends on the distance alone; `at` then accepts keys outside of the call."""
        return False

    def check(self, extent: Extent) -> None:
        """Raise an error if the bias does not fit a call of these sizes, dtype and device; here it fits every call."""
        return

    def of_heads(self, heads: Tensor) -> "Bias":
        """Return the bias of some of its heads, or itself if it is the same for all; here it always raises.

        Args:
            heads: int64, (heads,), the indices of the heads.

        Raises:
            UnsupportedError: code `bias.heads-apart`, for a class that cannot select heads.
        """
        raise UnsupportedError(
            "bias.heads-apart",
            f"the bias {self.describe()} cannot be given to some of the heads; alibi, relative and a "
            "tensor can.",
        )

    def within(self, dtype: torch.dtype) -> "Bias":
        """Return the bias in the precision used for scores of `dtype`; here itself, unchanged."""
        return self

    def on(self, device: torch.device) -> "Bias":
        """Return the bias with its tensors on a device, which saves a copy in each later use; here itself."""
        return self

    def to_dense(
        self, query_len: int, kv_len: int, *, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return the bias as a tensor that broadcasts to (batch, num_heads, query_len, kv_len).

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            device: where to put the tensor.

        Raises:
            ArgumentError: if a length is negative.
            ArgumentTypeError: if a length is not a whole number.
        """
        query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
        extent = Extent(1, 1, query_len, kv_len, torch.device(device))
        return self.block(slice(0, query_len), slice(0, kv_len), extent)


def check_bias_tensor(numbers: Tensor, extent: Extent) -> None:
    """Raise an error unless the tensor of a bias has the query's dtype or float32, and the query's device.

    Args:
        numbers: the tensor of the bias.
        extent: the sizes of the call, with the dtype and device of the query.

    Raises:
        DtypeError, DeviceError: codes `bias.dtype` and `bias.device`.
    """
    dtype, device = extent.dtype, extent.device
    if numbers.dtype not in (dtype, torch.float32):
        raise DtypeError(
            "bias.dtype",
            f"bias must have the query's dtype, {dtype}, or float32; got {numbers.dtype}.",
        )
    if numbers.device != device:
        raise DeviceError(
            "bias.device",
            f"bias must be on the query's device; it is on {numbers.device}, the query on "
            f"{device}.",
        )


@dataclass(frozen=True, eq=False)
class DenseBias(Bias, kind="dense_bias"):
    """A tensor that broadcasts to (batch, num_heads, query_len, kv_len)."""

    tensor: Tensor

    @property
    def numbers(self) -> Tensor | None:
        """The tensor itself, which may require grad."""
        return self.tensor

    def check(self, extent: Extent) -> None:
        """Raise ShapeError, `bias.shape`, unless the tensor, of four dimensions, broadcasts to the call.

        DtypeError or DeviceError as `check_bias_tensor` raises them.
        """
        shape = tuple(self.tensor.shape)
        full = extent[:4]
        if any(size not in (1, full_size) for size, full_size in zip(shape, full, strict=True)):
            raise ShapeError(
                "bias.shape",
                f"bias must broadcast to (batch, num_heads, query_len, kv_len) = {full}; "
                f"got {shape}.",
            )
        check_bias_tensor(self.tensor, extent)

    def block(self, queries: slice, keys: slice, extent: Extent) -> Tensor:
        """Return a rectangle as a view of the tensor, (batch or 1, num_heads or 1, queries or 1, keys or 1)."""
        rows = slice(0, 1) if self.tensor.shape[2] == 1 else queries
        columns = slice(0, 1) if self.tensor.shape[3] == 1 else keys
        return self.tensor[:, :, rows, columns]

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the entries of the tensor for the given pairs, (batch or 1, num_heads or 1, queries, keys).

        An axis of size 1 is broadcast; arguments are those of `Bias.at`.
        """
        batch, heads, rows, columns = self.tensor.shape
        samples = torch.arange(batch, device=self.tensor.device).view(-1, 1, 1, 1)
        head = torch.arange(heads, device=self.tensor.device).view(1, -1, 1, 1)
        row = query_index if rows > 1 else torch.zeros_like(query_index)
        column = key_index if columns > 1 else torch.zeros_like(key_index)
        return self.tensor[samples, head, row, column]

    def of_heads(self, heads: Tensor) -> Bias:
        """Return the bias of the given heads, int64 indices; itself if it is the same for all heads."""
        if self.tensor.shape[1] == 1:
            return self
        return DenseBias(self.tensor.index_select(1, heads.to(self.tensor.device)))

    def describe(self) -> str:
        """Return the shape as text, such as `<1 × 8 × 5 × 5>`."""
        return f"<{' × '.join(map(str, self.tensor.shape))}>"


@dataclass(frozen=True, eq=False)
class SumOfBiases(Bias, kind="sum_of_biases"):
    """Two biases, `left` and `right`, that are both added to the scores.

    It holds no tensor of its own (`numbers` is None).
    """

    left: Bias
    right: Bias

    @property
    def requires_grad(self) -> bool:
        """True if a tensor in either bias requires grad."""
        return self.left.requires_grad or self.right.requires_grad

    @property
    def may_hide(self) -> bool:
        """True if either bias may contain −∞, which hides a key."""
        return self.left.may_hide or self.right.may_hide

    def check(self, extent: Extent) -> None:
        """Raise the error of the first of the two biases that does not fit a call of these sizes."""
        self.left.check(extent)
        self.right.check(extent)

    def within(self, dtype: torch.dtype) -> Bias:
        """Return the sum with both biases in the precision used for scores of `dtype`."""
        return SumOfBiases(self.left.within(dtype), self.right.within(dtype))

    def on(self, device: torch.device) -> Bias:
        """Return the sum with the tensors of both biases on `device`."""
        return SumOfBiases(self.left.on(device), self.right.on(device))

    def of_heads(self, heads: Tensor) -> Bias:
        """Return the sum of both biases of the given heads, int64 indices; raise if one of them cannot select heads."""
        return SumOfBiases(self.left.of_heads(heads), self.right.of_heads(heads))

    def block(self, queries: slice, keys: slice, extent: Extent) -> Tensor:
        """Return the sum of the blocks of both biases, as `Bias.block` describes."""
        return self.left.block(queries, keys, extent) + self.right.block(queries, keys, extent)

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the sum of both biases at the given pairs, as `Bias.at` describes."""
        pairs = query_index, key_index, extent
        return self.left.at(*pairs) + self.right.at(*pairs)

    def describe(self) -> str:
        """Return both descriptions, such as `alibi(8) + <1 × 1 × 5 × 5>`."""
        return f"{self.left.describe()} + {self.right.describe()}"


@dataclass(frozen=True, eq=False)
class SelectedBias(Bias):
    """Some rows, columns and heads of another bias, which keeps its own positions.

    query_len and kv_len are the lengths that the other bias is for. some_rows and some_columns are int64 indices into
    these, some_heads a slice; None selects all. Made by `select_bias`.
    """

    bias: Bias
    query_len: int
    kv_len: int
    some_rows: Tensor | None = None
    some_columns: Tensor | None = None
    some_heads: slice | None = None

    @property
    def numbers(self) -> Tensor | None:
        """The tensor that the whole bias is made of, which may require grad, or None."""
        return self.bias.numbers

    @property
    def requires_grad(self) -> bool:
        """True if a tensor in the whole bias requires grad."""
        return self.bias.requires_grad

    @property
    def may_hide(self) -> bool:
        """True if the whole bias may contain −∞, which hides a key."""
        return self.bias.may_hide

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the entries of the whole bias for indices into the selection, as `Bias.at` describes."""
        query, key = places_in_whole(self.some_rows, self.some_columns, query_index, key_index)
        whole = extent._replace(query_len=self.query_len, kv_len=self.kv_len)
        added = self.bias.at(query, key, whole)
        if self.some_heads is None or added.shape[1] == 1:
            return added
        return added[:, self.some_heads]

    def describe(self) -> str:
        """Return the description of the whole bias, without the selection."""
        return self.bias.describe()


def select_bias(
    bias: Bias,
    lengths: tuple[int, int],
    *,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    some_heads: slice | None = None,
) -> Bias:
    """Return the bias of some rows, columns and heads of a bias for `lengths`, (query_len, kv_len).

    None selects all. A tensor is indexed at once, but for axes of size 1; any other bias becomes a `SelectedBias`.

    Args:
        bias: the bias of the whole matrix.
        lengths: the numbers of queries and of keys of the whole matrix.
        rows: int64 indices of queries.
        columns: int64 indices of keys.
        some_heads: the slice of heads.
    """
    if not isinstance(bias, DenseBias):
        return SelectedBias(bias, *lengths, rows, columns, some_heads)
    tensor = bias.tensor
    if rows is not None and tensor.shape[2] > 1:
        tensor = tensor.index_select(2, rows.to(tensor.device))
    if columns is not None and tensor.shape[3] > 1:
        tensor = tensor.index_select(3, columns.to(tensor.device))
    if some_heads is not None and tensor.shape[1] > 1:
        tensor = tensor[:, some_heads]
    return DenseBias(tensor)


def as_bias(bias: Tensor | Bias) -> Bias:
    """Return a Bias unchanged, or a floating tensor of two or four dimensions as one; raise an error for anything else.

    Raises:
        ArgumentTypeError: code `bias.type`, for what is neither a tensor nor a bias.
        DtypeError: code `bias.dtype`, for a tensor that is not floating.
        ShapeError: code `bias.dimensions`, for fewer than two or more than four dimensions, or for
            three, which could mean samples or heads.
    """
    if isinstance(bias, Bias):
        return bias
    if isinstance(bias, Mask):
        raise ArgumentTypeError(
            "bias.type",
            f"bias must be a floating tensor or a Bias; got the mask {bias.describe()}. "
            "A mask goes to mask=.",
        )
    check_tensor("bias", bias, "a floating tensor or a Bias")
    if not bias.is_floating_point():
        hint = " A bool tensor is a mask: mask=." if bias.dtype == torch.bool else ""
        raise DtypeError(
            "bias.dtype",
            f"bias is added to the scores and must be floating; got {bias.dtype}.{hint}",
        )
    if bias.ndim not in (2, 4):
        hint = (
            " Three could mean samples or heads: bias[:, None] or bias[None]."
            if bias.ndim == 3
            else ""
        )
        raise ShapeError(
            "bias.dimensions",
            "bias must have shape (query_len, kv_len) or (batch, num_heads, query_len, kv_len), "
            f"where each size may be 1; got {tuple(bias.shape)}.{hint}",
        )
    return DenseBias(bias if bias.ndim == 4 else bias[None, None])
