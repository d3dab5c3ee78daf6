"""The part of the whole attention matrix that one rank computes."""

from typing import NamedTuple

from torch import Tensor

from clearhead.masks.selected import places_in_whole
from clearhead.sharding.sharding import Sharding


class MatrixPart(NamedTuple):
    """The place of a problem in the whole matrix.

    Attributes:
        rows: int64, (query_len,): which query each is in all; None for all of them.
        columns: the same for the keys.
        heads: the same for the heads.
        seed: of dropout, which draws by place.
        sharding: of the queries, where statistics are summed over the ranks; else None.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None
    heads: Tensor | None = None
    seed: int | None = None
    sharding: Sharding | None = None

    def head_numbers(self, head: Tensor) -> Tensor:
        """The number in the whole matrix of some heads."""
        return head if self.heads is None else self.heads.to(head.device)[head]

    def places(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The place in the whole matrix of some queries and keys."""
        return places_in_whole(self.rows, self.columns, query, key)
