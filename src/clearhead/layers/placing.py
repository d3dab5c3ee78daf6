"""Masks and biases by position, where the keys of a cache are not in order or have padding between.

A description such as `sliding_window(left=4)` counts columns. In a cache, token 7 may be in column 3,
and rows of different length have other columns for the same token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.attention.biases import Alibi, Bias, ByPair, Relative, as_bias
from clearhead.errors import UnsupportedError
from clearhead.masks.algebra import And, Not, Or
from clearhead.masks.base import Mask
from clearhead.masks.causal import Causal, Positioned
from clearhead.masks.full import Full
from clearhead.masks.prefix import Prefix
from clearhead.masks.spans import Spans


class Places:
    """Where the queries and the keys of a call stand, in tokens.

    Args:
        query: int64, (query_len,) or (batch, query_len).
        key: int64, (kv_len,) or (batch, kv_len).
    """

    def __init__(self, query: Tensor, key: Tensor) -> None:
        self.query, self.key = torch.atleast_2d(query), torch.atleast_2d(key)

    @property
    def batch(self) -> int | None:
        rows = max(self.query.shape[0], self.key.shape[0])
        return rows if rows > 1 else None

    def at(self, query_index: Tensor, key_index: Tensor, query_len: int) -> tuple[Tensor, Tensor]:
        """The positions of pairs; of fewer queries than there are, those are the last ones."""
        later = self.query.shape[1] - query_len
        return _rows(self.query, query_index + later), _rows(self.key, key_index)


def _rows(positions: Tensor, index: Tensor) -> Tensor:
    row = torch.arange(positions.shape[0], device=positions.device).view(-1, 1, 1, 1)
    return positions[row, index]


@dataclass(frozen=True, eq=False, repr=False)
class PlacedMask(Mask):
    """A mask that asks for positions, and gets them instead of columns."""

    mask: Mask
    places: Places

    @property
    def batch(self) -> int | None:
        return self.places.batch if self.mask.batch is None else self.mask.batch

    @property
    def device(self) -> torch.device | None:
        return self.places.key.device

    def visible(
        self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int
    ) -> Tensor:
        query, key = self.places.at(query_index, key_index, query_len)
        # Of equal lengths, so that the mask adds no offset of its own.
        return self.mask.visible(query, key, kv_len, kv_len)

    def spans(self, query_len: int, kv_len: int, device: torch.device) -> Spans | None:
        return None

    def describe(self) -> str:
        return f"{self.mask.describe()} by position"


@dataclass(frozen=True, eq=False)
class PlacedBias(ByPair):
    """A bias that asks for positions, and gets them instead of columns."""

    bias: Bias
    places: Places

    @property
    def numbers(self) -> Tensor | None:
        return self.bias.numbers

    @property
    def may_hide(self) -> bool:
        return self.bias.may_hide

    def check(
        self,
        batch: int,
        num_heads: int,
        query_len: int,
        kv_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.bias.check(batch, num_heads, query_len, kv_len, dtype, device)

    def at(self, query_index: Tensor, key_index: Tensor, query_len: int, kv_len: int) -> Tensor:
        query, key = self.places.at(query_index, key_index, query_len)
        return self.bias.at(query, key, kv_len, kv_len)

    def describe(self) -> str:
        return f"{self.bias.describe()} by position"


def placed_mask(mask: Mask, places: Places, *, in_order: bool = False) -> Mask:
    """The mask, with positions in the place of columns.

    In order, columns are as far apart as tokens, and only what counts from the first is changed.

    Raises:
        UnsupportedError: code `cache.mask`, for a mask that is made for columns.
    """
    if isinstance(mask, And | Or):
        left = placed_mask(mask.left, places, in_order=in_order)
        return type(mask)(left, placed_mask(mask.right, places, in_order=in_order))
    if isinstance(mask, Not):
        return Not(placed_mask(mask.mask, places, in_order=in_order))
    if in_order and not isinstance(mask, Prefix):
        return mask
    # What comes later has a later column, and in a ring there is one query, which sees all.
    if isinstance(mask, Full) or (isinstance(mask, Causal) and mask.offset is None):
        return mask
    if isinstance(mask, Prefix) or (isinstance(mask, Positioned) and mask.offset is None):
        return PlacedMask(mask, places)
    raise UnsupportedError(
        "cache.mask",
        "where tokens and columns of a cache differ (rows of different length, or a ring), a mask "
        f"must speak of positions, such as sliding_window; {mask.describe()} speaks of columns.",
    )


def placed_bias(bias: Bias | Tensor, places: Places) -> Bias:
    """The bias, with positions in the place of columns.

    Raises:
        UnsupportedError: code `cache.bias`, for a bias that is made for columns.
    """
    bias = as_bias(bias)
    if isinstance(bias, Alibi | Relative):
        return PlacedBias(bias, places)
    raise UnsupportedError(
        "cache.bias",
        "where tokens and columns of a cache differ (rows of different length, or a ring), a bias "
        f"must speak of positions, such as alibi; {bias.describe()} speaks of columns.",
    )
