"""Biases that are added to the scores: a tensor, or a description of one that costs O(heads).

A bias is never a mask. It is added after scale and softcap; a mask then hides.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_length, check_tensor
from clearhead.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DtypeError,
    ShapeError,
)
from clearhead.masks.base import Mask


class Bias(ABC):
    """Numbers added to the scores, worked out for the part of the matrix that is asked for.

    Example:
        >>> import clearhead as ch
        >>> ch.alibi(2).to_dense(1, 3)
        tensor([[[[-0.1250, -0.0625, -0.0000]],
        <BLANKLINE>
                 [[-0.0078, -0.0039, -0.0000]]]])
    """

    @abstractmethod
    def block(
        self, queries: slice, keys: slice, query_len: int, kv_len: int, device: torch.device
    ) -> Tensor:
        """The rectangle of the bias for some queries and keys: floating, four dimensions."""

    def at(self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int) -> Tensor:
        """The bias of chosen pairs; here a `block` for each, which a subclass may do better.

        Args:
            query_index: int64, four dimensions (batch, 1, queries, keys), any of size 1.
            key_index: likewise; the two broadcast against each other.
            query_len: how many queries there are in all.
            kv_len: how many keys there are in all.

        Returns:
            Floating, four dimensions that broadcast to (batch, num_heads, queries, keys).
        """
        queries, keys = torch.broadcast_tensors(query_index, key_index)
        device = key_index.device
        if not queries.numel():
            return torch.zeros(queries.shape, device=device)
        rows = []
        for sample in range(queries.shape[0]):
            places = zip(
                queries[sample].flatten().tolist(), keys[sample].flatten().tolist(), strict=True
            )
            blocks = [
                self.block(slice(i, i + 1), slice(j, j + 1), query_len, kv_len, device)
                for i, j in places
            ]
            row = torch.cat(blocks, dim=3)
            row = row[sample : sample + 1] if row.shape[0] > 1 and queries.shape[0] > 1 else row
            rows.append(row.unflatten(3, queries.shape[2:])[:, :, 0])
        return torch.cat(rows)

    @abstractmethod
    def describe(self) -> str:
        """The bias in a few words."""

    @property
    def numbers(self) -> Tensor | None:
        """The tensor that the bias is made of, where it is made of one that may be trained."""
        return None

    @property
    def requires_grad(self) -> bool:
        """True if something in the bias is trained."""
        return self.numbers is not None and self.numbers.requires_grad

    @property
    def may_hide(self) -> bool:
        """True if −∞ may stand in the bias, which hides a key as a mask does."""
        return True

    def check(
        self,
        batch: int,
        num_heads: int,
        query_len: int,
        kv_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Refuse sizes, a dtype or a device that the bias was not made for."""
        return

    def to_dense(
        self, query_len: int, kv_len: int, *, device: torch.device | str = "cpu"
    ) -> Tensor:
        """The bias as a tensor that broadcasts to (batch, num_heads, query_len, kv_len).

        Args:
            query_len: number of queries, in tokens.
            kv_len: number of keys, in tokens.
            device: where to put the tensor.

        Raises:
            ArgumentError: if a length is negative.
            ArgumentTypeError: if a length is not a whole number.
        """
        query_len, kv_len = check_length("query_len", query_len), check_length("kv_len", kv_len)
        return self.block(
            slice(0, query_len), slice(0, kv_len), query_len, kv_len, torch.device(device)
        )


class ByPair(Bias):
    """A bias that is worked out pair by pair, by `at`."""

    def block(
        self, queries: slice, keys: slice, query_len: int, kv_len: int, device: torch.device
    ) -> Tensor:
        query_index = torch.arange(queries.start, queries.stop, device=device).view(1, 1, -1, 1)
        key_index = torch.arange(keys.start, keys.stop, device=device).view(1, 1, 1, -1)
        return self.at(query_index, key_index, query_len, kv_len)

    @abstractmethod
    def at(self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int) -> Tensor:
        """The bias of pairs, as `Bias.at` says."""


def _check_beside(numbers: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Return True if the numbers of a bias can stand beside a query of this dtype and device."""
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
class DenseBias(Bias):
    """A tensor that broadcasts to (batch, num_heads, query_len, kv_len)."""

    tensor: Tensor

    @property
    def numbers(self) -> Tensor | None:
        return self.tensor

    def check(
        self,
        batch: int,
        num_heads: int,
        query_len: int,
        kv_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = tuple(self.tensor.shape)
        full = (batch, num_heads, query_len, kv_len)
        if any(size not in (1, full_size) for size, full_size in zip(shape, full, strict=True)):
            raise ShapeError(
                "bias.shape",
                f"bias must broadcast to (batch, num_heads, query_len, kv_len) = {full}; "
                f"got {shape}.",
            )
        _check_beside(self.tensor, dtype, device)

    def block(
        self, queries: slice, keys: slice, query_len: int, kv_len: int, device: torch.device
    ) -> Tensor:
        rows = slice(0, 1) if self.tensor.shape[2] == 1 else queries
        columns = slice(0, 1) if self.tensor.shape[3] == 1 else keys
        return self.tensor[:, :, rows, columns]

    def at(self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int) -> Tensor:
        batch, heads, rows, columns = self.tensor.shape
        samples = torch.arange(batch, device=self.tensor.device).view(-1, 1, 1, 1)
        head = torch.arange(heads, device=self.tensor.device).view(1, -1, 1, 1)
        row = query_index if rows > 1 else torch.zeros_like(query_index)
        column = key_index if columns > 1 else torch.zeros_like(key_index)
        return self.tensor[samples, head, row, column]

    def describe(self) -> str:
        return f"<{' × '.join(map(str, self.tensor.shape))}>"


@dataclass(frozen=True, eq=False)
class Alibi(ByPair):
    """`-slope · |query position - key position|`, one slope per head."""

    slopes: Tensor
    follows: bool
    """True if the slopes are those of the paper, which go to whatever device asks for them."""

    @property
    def numbers(self) -> Tensor | None:
        return self.slopes

    def check(
        self,
        batch: int,
        num_heads: int,
        query_len: int,
        kv_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if self.slopes.shape[0] != num_heads:
            raise ShapeError(
                "bias.heads",
                f"the bias {self.describe()} is for {self.slopes.shape[0]} heads; the query has "
                f"num_heads={num_heads}.",
            )
        if not self.follows and self.slopes.device != device:
            raise DeviceError(
                "bias.device",
                f"bias must be on the query's device; the slopes of alibi are on "
                f"{self.slopes.device}, the query on {device}.",
            )

    def at(self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int) -> Tensor:
        slopes = self.slopes.to(key_index.device).view(1, -1, 1, 1)
        # Distances are whole numbers, exact in float32 up to 16 million tokens.
        position = (query_index + (kv_len - query_len)).to(slopes.dtype)
        return -slopes * (position - key_index.to(slopes.dtype)).abs()

    @property
    def may_hide(self) -> bool:
        return False

    def describe(self) -> str:
        return f"alibi({self.slopes.shape[0]})"


@dataclass(frozen=True, eq=False)
class Relative(ByPair):
    """A number for each distance from query to key, one row per head."""

    values: Tensor

    @property
    def numbers(self) -> Tensor | None:
        return self.values

    def check(
        self,
        batch: int,
        num_heads: int,
        query_len: int,
        kv_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if self.values.shape[0] not in (1, num_heads):
            raise ShapeError(
                "bias.heads",
                f"the bias {self.describe()} is for {self.values.shape[0]} heads; the query has "
                f"num_heads={num_heads}.",
            )
        _check_beside(self.values, dtype, device)

    def at(self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int) -> Tensor:
        reach = self.values.shape[1] // 2
        ahead = key_index - (query_index + (kv_len - query_len))
        place = ahead.clamp(-reach, reach) + reach
        heads = torch.arange(len(self.values), device=place.device)
        return self.values[heads.view(1, -1, 1, 1), place]

    def describe(self) -> str:
        return f"relative({self.values.shape[0]} × {self.values.shape[1]})"


def relative(values: Tensor) -> Bias:
    """A bias that depends on how far a key lies from its query, for each head (Raffel et al., 2020,
    section 2.1, https://arxiv.org/abs/1910.10683).

    As everywhere, the last query sits on the last key. It costs O(heads · reach) memory.

    Args:
        values: floating, (num_heads or 1, 2 · reach + 1): what is added for a key that is reach
            tokens or more before its query, …, for the query's own token, …, for one that is reach
            tokens or more ahead.

    Raises:
        ArgumentTypeError: code `relative.type`, for values that are no tensor.
        ShapeError: code `relative.shape`.
        DtypeError: code `relative.dtype`, for values that are not floating.

    Example:
        >>> import torch, clearhead as ch
        >>> ch.relative(torch.tensor([[-1.0, 0.0, 5.0]])).to_dense(3, 3)
        tensor([[[[ 0.,  5.,  5.],
                  [-1.,  0.,  5.],
                  [-1., -1.,  0.]]]])
    """
    if not isinstance(values, Tensor):
        raise ArgumentTypeError(
            "relative.type", f"values must be a torch.Tensor; got {type(values).__name__}."
        )
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] % 2 == 0:
        raise ShapeError(
            "relative.shape",
            "values must have shape (num_heads or 1, 2 · reach + 1), a number for each distance "
            f"from −reach to reach; got {tuple(values.shape)}.",
        )
    if not values.is_floating_point():
        raise DtypeError("relative.dtype", f"values must be floating; got {values.dtype}.")
    return Relative(values)


def alibi(num_heads: int | None = None, *, slopes: Tensor | None = None) -> Bias:
    """Attention with linear biases (Press et al., 2022, https://arxiv.org/abs/2108.12409).

    Each score is lowered by `slope · distance`, with the distance in tokens. As everywhere, the
    last query sits on the last key. For n heads, n a power of two, the slopes are `2^(-8/n)`,
    `2^(-16/n)`, …; for another n those of the power of two below it, and then every second one of
    the power of two above it, as the paper's code has it.

    Args:
        num_heads: how many heads to make slopes for.
        slopes: float32 of shape (num_heads,), instead of the paper's.

    Raises:
        ArgumentError: code `alibi.heads`, unless exactly one of the two is given and has heads.
        ArgumentTypeError: code `alibi.type`, for num_heads that is not a whole number; code
            `slopes.type`, for slopes that are no tensor.

    Example:
        >>> import torch, clearhead as ch
        >>> query = key = value = torch.randn(1, 8, 5, 4)
        >>> ch.attend(query, key, value, bias=ch.alibi(8), mask=ch.causal()).shape
        torch.Size([1, 8, 5, 4])
    """
    heads = None if num_heads is None else as_int(num_heads)
    if num_heads is not None and heads is None:
        raise ArgumentTypeError(
            "alibi.type", f"num_heads must be a whole number; got {type(num_heads).__name__}."
        )
    if (heads is None) == (slopes is None) or (heads is not None and heads < 1):
        raise ArgumentError(
            "alibi.heads",
            "alibi takes num_heads, 1 or more, or slopes of shape (num_heads,); got "
            f"num_heads={num_heads}, slopes={'None' if slopes is None else 'a tensor'}.",
        )
    if heads is not None:
        return Alibi(torch.tensor(_slopes(heads), dtype=torch.float32), follows=True)
    check_tensor("slopes", slopes, "a tensor of shape (num_heads,)")
    assert slopes is not None
    if slopes.ndim != 1 or slopes.shape[0] == 0 or not slopes.is_floating_point():
        raise ArgumentError(
            "alibi.heads",
            "slopes must be floating, of shape (num_heads,), 1 or more; got "
            f"{slopes.dtype} of shape {tuple(slopes.shape)}.",
        )
    return Alibi(slopes.to(torch.float32), follows=False)


def _slopes(num_heads: int) -> list[float]:
    below = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / below) for head in range(below)]
    if below < num_heads:
        slopes += _slopes(2 * below)[0 : 2 * (num_heads - below) : 2]
    return slopes


def as_bias(bias: Tensor | Bias) -> Bias:
    """A bias object from what a user gave, or a refusal.

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
