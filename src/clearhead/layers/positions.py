"""Positions of tokens, and masks and biases that go by them.

A description such as `sliding_window(left=4)` counts columns. In a KV cache token 7 may be in column
3, and rows of different length have other columns for the same token: there it goes by position.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.attention.biases import Bias, as_bias
from clearhead.attention.distance_biases import Alibi, Relative
from clearhead.errors import UnsupportedError
from clearhead.masks.algebra import And, Not, Or
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal, Positioned
from clearhead.masks.full import Full
from clearhead.masks.prefix import Prefix
from clearhead.masks.spans import Extent


def positions_from_valid(valid: Tensor) -> Tensor:
    """Return the number of real tokens before each token of its row, int64, (batch, tokens)."""
    return valid.cumsum(-1) - valid.long()


def is_causal(mask: Mask | None) -> bool:
    """Return True for `causal()` without an offset, False for any other mask and None.

    It needs no positions in any cache: columns are in the order of tokens, or, in a ring, one query sees all.
    """
    return isinstance(mask, Causal) and mask.offset is None


class Positions(NamedTuple):
    """The positions of the queries and the keys of a call, in tokens.

    Attributes:
        query: int64, (query_len,) or (batch, query_len).
        key: int64, (kv_len,) or (batch, kv_len).
        placed: those that the parts go by instead of the counted ones; None if none were given.
    """

    query: Tensor
    key: Tensor
    placed: "Positions | None" = None

    def rows(self) -> int | None:
        """Return the number of rows if positions differ by row, 2 or more; None if one row is for all.

        This is no property, which Dynamo does not follow of a tuple in PyTorch 2.10.
        """
        rows = max(each.shape[0] if each.ndim == 2 else 1 for each in (self.query, self.key))
        return rows if rows > 1 else None

    def at(self, query_index: Tensor, key_index: Tensor, query_len: int) -> tuple[Tensor, Tensor]:
        """Return the positions of the queries and the keys of pairs, int64, in four dimensions.

        The indices are those of `Mask.visible`, (batch, num_heads, queries, keys), any of size 1. Of positions that
        differ by row, the first axis is the batch. The `query_len` queries are the last ones of `query`.
        """
        later = self.query.shape[-1] - query_len
        return _rows(self.query, query_index + later), _rows(self.key, key_index)


def _rows(positions: Tensor, index: Tensor) -> Tensor:
    """Return the positions at indices (batch or 1, 1 or heads, …), from positions (tokens,) or (batch, tokens)."""
    positions = torch.atleast_2d(positions)
    row = torch.arange(positions.shape[0], device=positions.device).view(-1, 1, 1, 1)
    return positions[row, index]


@dataclass(frozen=True, eq=False, repr=False)
class MaskByPosition(Mask):
    """A mask that gets the positions of queries and keys instead of their columns."""

    mask: Mask
    positions: Positions

    @property
    def batch(self) -> int | None:
        """The batch of the mask, or else the number of rows with different positions; None if one row is for all."""
        return self.positions.rows() if self.mask.batch is None else self.mask.batch

    @property
    def device(self) -> torch.device:
        """The device of the positions."""
        return self.positions.key.device

    def visible(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the entries of the mask at the positions of the queries and keys."""
        query, key = self.positions.at(query_index, key_index, extent.query_len)
        # Of equal lengths, so that the mask adds no offset of its own.
        return self.mask.visible(query, key, extent._replace(query_len=extent.kv_len))

    def describe(self) -> str:
        """Return the inner mask as text, followed by "by position"."""
        return f"{self.mask.describe()} by position"


@dataclass(frozen=True, eq=False)
class BiasByPosition(Bias):
    """A bias that gets the positions of queries and keys instead of their columns."""

    bias: Bias
    positions: Positions

    @property
    def numbers(self) -> Tensor | None:
        """The tensor that the bias is made of; None if it has none."""
        return self.bias.numbers

    @property
    def may_hide(self) -> bool:
        """True if the bias may contain −∞."""
        return self.bias.may_hide

    def check(self, extent: Extent) -> None:
        """Raise the error of the inner bias if it does not fit a call of these sizes."""
        self.bias.check(extent)

    def within(self, dtype: torch.dtype) -> Bias:
        """Return a copy with the inner bias in the precision used for scores of `dtype`."""
        return replace(self, bias=self.bias.within(dtype))

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        """Return the bias of pairs given by their indices in the call, as the inner bias has it for their positions."""
        query, key = self.positions.at(query_index, key_index, extent.query_len)
        return self.bias.at(query, key, extent._replace(query_len=extent.kv_len))

    def describe(self) -> str:
        """Return the inner bias as text, followed by "by position"."""
        return f"{self.bias.describe()} by position"


def mask_by_position(mask: Mask, positions: Positions, *, in_order: bool = False) -> Mask:
    """Return the mask by positions instead of columns; `full()` and `causal()` are returned as they are.

    With `in_order` columns are as far apart as tokens, and only a mask that counts from the first token changes. And,
    Or and Not are rebuilt of their changed operands.

    Raises:
        UnsupportedError: code `cache.mask`, for a mask that is made for columns.
    """
    if isinstance(mask, And | Or):
        left = mask_by_position(mask.left, positions, in_order=in_order)
        right = mask_by_position(mask.right, positions, in_order=in_order)
        return type(mask)(left, right)
    if isinstance(mask, Not):
        return Not(mask_by_position(mask.mask, positions, in_order=in_order))
    if isinstance(mask, Prefix):
        return MaskByPosition(mask, positions)
    # In a ring, where columns are not in order, there is one query, which sees all.
    if in_order or isinstance(mask, Full) or is_causal(mask):
        return mask
    if isinstance(mask, Positioned) and mask.offset is None:
        return MaskByPosition(mask, positions)
    raise UnsupportedError(
        "cache.mask",
        "where tokens and columns of a cache differ (rows of different length, or a ring), a mask "
        f"must speak of positions, such as sliding_window; {mask.describe()} speaks of columns.",
    )


def bias_by_position(bias: Bias | Tensor, positions: Positions) -> Bias:
    """Return a `BiasByPosition` of an ALiBi or relative bias.

    Raises:
        UnsupportedError: code `cache.bias`, for any other bias, which is made for columns.
    """
    bias = as_bias(bias)
    if isinstance(bias, Alibi | Relative):
        return BiasByPosition(bias, positions)
    raise UnsupportedError(
        "cache.bias",
        "where tokens and columns differ (rows of different length, a ring, or positions=), a bias "
        f"must speak of positions, such as alibi; {bias.describe()} speaks of columns.",
    )


def bias_of_positions(bias: Bias | Tensor, placed: Positions, *, has_cache: bool) -> Bias:
    """Return a bias by the positions that a call was given for its tokens.

    Raises:
        UnsupportedError: code `layer.positions-bias`, next to a cache, which counts its tokens; and
            `cache.bias`, for a bias that is made for columns.
    """
    if has_cache:
        raise UnsupportedError(
            "layer.positions-bias",
            "a cache counts its tokens, and keeps no positions that were given: with a cache, positions= "
            f"goes with parts that transform query and key, such as Rotary, and not with the bias "
            f"{as_bias(bias).describe()}.",
        )
    return bias_by_position(bias, placed)
