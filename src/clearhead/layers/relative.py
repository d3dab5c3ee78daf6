"""Relative position bias: a trained number for the distance of a key from its query."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.checks import check_bool, check_sizes
from clearhead._common.hints import with_hints
from clearhead.attention.distance_biases import relative
from clearhead.errors import ArgumentError
from clearhead.layers.parts import Part


@with_hints
class RelativeBias(Part):
    """A trained bias for each bucket of distances and each head, as a part of a layer.

    Near distances have a bucket each; farther ones share buckets that grow with the logarithm of
    the distance; from max_distance on there is one. Attention gets a number for each distance up to
    max_distance; tokens × tokens is never materialised.

    Source: Raffel et al., 2020, section 2.1, https://arxiv.org/abs/1910.10683.

    Args:
        num_heads: number of query heads.
        num_buckets: number of buckets, even; half of them for later keys if it is bidirectional.
        max_distance: the distance, in tokens, at which the last bucket begins.
        bidirectional: whether later keys have buckets of their own. If not, they have the bucket of
            the query itself, and a causal mask hides them.

    Attributes:
        table: (num_buckets, num_heads), trained.

    Raises:
        ArgumentError, ArgumentTypeError: codes `argument.size`, `argument.type`,
            `bidirectional.type`, `relative.buckets`.

    Example:
        >>> import torch, clearhead as ch
        >>> part = ch.layers.RelativeBias(2, num_buckets=8, max_distance=16)
        >>> layer = ch.MultiHeadAttention(8, num_heads=2, parts=[part])
        >>> layer(torch.randn(1, 5, 8)).shape
        torch.Size([1, 5, 8])
        >>> part.buckets()[16:].tolist()  # of the query's own token, and of later ones
        [0, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads, num_buckets=num_buckets, max_distance=max_distance)
        check_bool("bidirectional", bidirectional)
        one_side = num_buckets // 2 if bidirectional else num_buckets
        if num_buckets % 2 or one_side < 2 or max_distance <= one_side // 2:
            raise ArgumentError(
                "relative.buckets",
                "num_buckets must be even, 2 or more on a side, and max_distance more than those "
                f"that have a bucket each; got num_buckets={num_buckets}, "
                f"max_distance={max_distance}.",
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.randn(num_buckets, num_heads) / math.sqrt(num_heads))

    def buckets(self) -> Tensor:
        """Return the bucket of each distance from −max_distance to max_distance, int64, (2 · max_distance + 1,).

        The first is that of a key max_distance tokens before its query.
        """
        ahead = torch.arange(-self.max_distance, self.max_distance + 1, device=self.table.device)
        if self.bidirectional:
            count = self.num_buckets // 2
            first, distance = (ahead > 0) * count, ahead.abs()
        else:
            count = self.num_buckets
            first, distance = torch.zeros_like(ahead), (-ahead).clamp(min=0)
        exact = count // 2
        # In float32, as the models were trained: at a bucket's edge other precisions round otherwise.
        steps = (distance.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (steps * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> Mapping[str, Any]:
        """Return {"bias": a relative bias by distance, made of the trained table}; the arguments are not used."""
        return {"bias": relative(self.table[self.buckets()].T)}

    def extra_repr(self) -> str:
        """Return the arguments, for `repr`."""
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )
