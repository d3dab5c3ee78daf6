"""Biases that depend on the distance from query to key, which cost O(heads): alibi and relative."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead._common.checks import as_int, check_tensor
from clearhead._common.hints import with_hints
from clearhead._common.torch_internals import is_concrete
from clearhead._text import shown
from clearhead.attention.biases import Bias, check_bias_tensor
from clearhead.errors import ArgumentError, ArgumentTypeError, DeviceError, DtypeError, ShapeError
from clearhead.masks.spans import Extent

MOST_HEADS = 1 << 16


@dataclass(frozen=True, eq=False)
class Alibi(Bias, kind="alibi"):
    """`-slope · |query position - key position|`, one slope per head; the last query has the position of the last key.

    `slopes` is (num_heads,), float32 or float64.
    """

    slopes: Tensor
    follows: bool
    """True if the slopes are those of the paper, which go to whatever device asks for them."""

    @property
    def numbers(self) -> Tensor | None:
        """The slopes, (num_heads,), which may require grad."""
        return self.slopes

    @property
    def by_distance(self) -> bool:
        """True: each head's bias depends on the distance from query to key alone."""
        return True

    def check(self, extent: Extent) -> None:
        """Raise ShapeError unless there are num_heads slopes, DeviceError if given slopes are on another device."""
        _check_heads(self, len(self.slopes), (extent.num_heads,))
        if not self.follows and self.slopes.device != extent.device:
            raise DeviceError(
                "bias.device",
                f"bias must be on the query's device; the slopes of alibi are on "
                f"{self.slopes.device}, the query on {extent.device}.",
            )

    def within(self, dtype: torch.dtype) -> Bias:
        """Return the bias with float64 slopes for float64, float32 slopes otherwise; itself if it has these.

        The slopes of the paper, if those of all heads are here, are computed again for float64, so that they are exact.
        """
        wanted = torch.float64 if dtype == torch.float64 else torch.float32
        if self.slopes.dtype == wanted:
            return self
        # Recomputed, because float32 has rounded them, unless these are slopes of some heads only.
        if self.follows and wanted == torch.float64:
            slopes = torch.tensor(_slopes(len(self.slopes)), dtype=wanted, device="cpu")
            if not is_concrete(slopes) or torch.equal(slopes.float(), self.slopes.cpu()):
                return replace(self, slopes=slopes)
        return replace(self, slopes=self.slopes.to(wanted))

    def on(self, device: torch.device) -> Bias:
        """Return the bias with its tensors on `device`."""
        return replace(self, slopes=self.slopes.to(device))

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return −slope · |distance| of each pair, (batch or 1, num_heads, queries, keys), on `key_index`'s device."""
        slopes = self.slopes.to(key_index.device).view(1, -1, 1, 1)
        # Distances are whole numbers, exact in float32 up to 16 million tokens.
        position = (query_index + (extent.kv_len - extent.query_len)).to(slopes.dtype)
        return -slopes * (position - key_index.to(slopes.dtype)).abs()

    @property
    def may_hide(self) -> bool:
        """False: ALiBi never contains −∞."""
        return False

    def of_heads(self, heads: Tensor) -> Bias:
        """Return the bias with the slopes of the given heads, int64 indices; those of the paper in float64."""
        # The slopes are taken from the paper's, not recomputed for fewer heads, so no digit is lost.
        exact = self.within(torch.float64) if self.follows else self
        assert isinstance(exact, Alibi)
        return replace(exact, slopes=exact.slopes[heads.to(exact.slopes.device)])

    def describe(self) -> str:
        """Return the bias as text, such as `alibi(8)` for eight heads."""
        return f"alibi({self.slopes.shape[0]})"


@dataclass(frozen=True, eq=False)
class Relative(Bias, kind="relative"):
    """A number for each distance from query to key, one row per head; the last query has the position of the last key.

    `values` is floating, (num_heads or 1, 2 · reach + 1).
    """

    values: Tensor

    @property
    def numbers(self) -> Tensor | None:
        """The values, (num_heads or 1, 2 · reach + 1), which may require grad."""
        return self.values

    @property
    def by_distance(self) -> bool:
        """True: each head's bias depends on the distance from query to key alone."""
        return True

    def check(self, extent: Extent) -> None:
        """Raise ShapeError unless values has 1 or num_heads rows.

        DtypeError or DeviceError if it does not fit the query.
        """
        _check_heads(self, len(self.values), (1, extent.num_heads))
        check_bias_tensor(self.values, extent)

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the value for the distance of each pair, clipped to ±reach: (…, num_heads or 1, queries, keys)."""
        reach = self.values.shape[1] // 2
        ahead = key_index - (query_index + (extent.kv_len - extent.query_len))
        place = ahead.clamp(-reach, reach) + reach
        heads = torch.arange(len(self.values), device=place.device)
        return self.values[heads.view(1, -1, 1, 1), place]

    def of_heads(self, heads: Tensor) -> Bias:
        """Return the bias of the given heads, int64 indices; itself if it has one row for all heads."""
        if len(self.values) == 1:
            return self
        return Relative(self.values[heads.to(self.values.device)])

    def describe(self) -> str:
        """Return the bias as text, such as `relative(8 × 65)` for eight heads and 65 distances."""
        return f"relative({self.values.shape[0]} × {self.values.shape[1]})"


def _check_heads(bias: Bias, heads: int, allowed: tuple[int, ...]) -> None:
    """Raise ShapeError, code `bias.heads`, unless the bias has an allowed number of `heads`.

    The last number in `allowed` is that of the query heads, which the message names.
    """
    if heads not in allowed:
        raise ShapeError(
            "bias.heads",
            f"the bias {bias.describe()} is for {heads} heads; the query has "
            f"num_heads={allowed[-1]}.",
        )


@with_hints
def relative(values: Tensor) -> Bias:
    """Return a bias that depends on the distance from query to key, for each head.

    As everywhere, the last query has the position of the last key. It costs O(heads · reach) memory (Raffel et al.,
    2020, section 2.1, https://arxiv.org/abs/1910.10683).

    Args:
        values: floating, (num_heads or 1, 2 · reach + 1): the bias for keys that are `reach` or more tokens
            before the query, …, for the query's own token, …, for keys that are `reach` or more after it.

    Raises:
        ArgumentTypeError: code `relative.type`, if values is not a tensor.
        ShapeError: code `relative.shape`.
        DtypeError: code `relative.dtype`, if values is not floating.

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


@with_hints
def alibi(num_heads: int | None = None, *, slopes: Tensor | None = None) -> Bias:
    """Return the bias of attention with linear biases (Press et al., 2022, https://arxiv.org/abs/2108.12409).

    Each score is lowered by `slope · distance`, with the distance in tokens. As everywhere, the
    last query has the position of the last key. For n heads, n a power of two, the slopes are `2^(-8/n)`,
    `2^(-16/n)`, …; for another n those of the power of two below it, and then every second one of
    the power of two above it, as in the paper's code.

    Args:
        num_heads: how many heads to make slopes for.
        slopes: floating, of shape (num_heads,), instead of the paper's; 16-bit slopes become float32.

    Raises:
        ArgumentError: code `alibi.heads`, unless exactly one of the two is given, with 1 to 65536 heads, or with
            slopes that are floating, not empty and of one dimension.
        ArgumentTypeError: code `alibi.type`, for num_heads that is not a whole number; code
            `slopes.type`, for slopes that are not a tensor.

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
    if (heads is None) == (slopes is None) or (heads is not None and not 1 <= heads <= MOST_HEADS):
        raise ArgumentError(
            "alibi.heads",
            f"alibi takes num_heads, 1 to {MOST_HEADS}, or slopes of shape (num_heads,); got "
            f"num_heads={shown(num_heads)}, slopes={'None' if slopes is None else 'a tensor'}.",
        )
    if heads is not None:
        # On the CPU whatever the default device is: they go to the device of the query.
        slopes = torch.tensor(_slopes(heads), dtype=torch.float32, device="cpu")
        return Alibi(slopes, follows=True)
    check_tensor("slopes", slopes, "a tensor of shape (num_heads,)")
    assert slopes is not None
    if slopes.ndim != 1 or slopes.shape[0] == 0 or not slopes.is_floating_point():
        raise ArgumentError(
            "alibi.heads",
            "slopes must be floating, of shape (num_heads,), 1 or more; got "
            f"{slopes.dtype} of shape {tuple(slopes.shape)}.",
        )
    wide = slopes.dtype == torch.float64
    return Alibi(slopes if wide else slopes.to(torch.float32), follows=False)


def _slopes(num_heads: int) -> list[float]:
    """Return the `num_heads` slopes of the ALiBi paper, in the order of the heads, as `alibi` describes them."""
    below = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / below) for head in range(below)]
    if below < num_heads:
        slopes += _slopes(2 * below)[0 : 2 * (num_heads - below) : 2]
    return slopes
