"""The part of the whole attention matrix that one rank computes."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from clearhead.masks.selected import places_in_whole
from clearhead.sharding.sharding import Sharding


class Rounds(Protocol):
    """The keys of a matrix that is split over ranks, a block each. Every rank calls each of these methods."""

    def each(self, use: Callable[[Any, Tensor], None]) -> None:
        """Call `use(problem, positions)` for each block of keys.

        The problem has this rank's queries and the block's keys; the positions are those of the keys.
        """
        ...

    def logsumexp(self) -> Tensor:
        """Return the logsumexp of this rank's queries over all keys, (batch, num_heads, query_len); cached."""
        ...

    def gather(self) -> Tensor:
        """Return the keys of all ranks on every rank, with gradients."""
        ...


class MatrixPart(NamedTuple):
    """The place of a problem in the whole matrix.

    Attributes:
        rows: int64, (query_len,): which query each is in all; None for all of them.
        columns: the same for the keys.
        heads: the same for the heads.
        seed: of dropout, which draws by place.
        sharding: of the queries, where statistics are summed over the ranks; else None.
        rounds: by which the keys of the ranks come here, where no rank has them all; the key of the
            problem then has the right size and no numbers. Else None.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None
    heads: Tensor | None = None
    seed: int | None = None
    sharding: Sharding | None = None
    rounds: "Rounds | None" = None

    def head_numbers(self, head: Tensor) -> Tensor:
        """Return the indices in the whole matrix of heads of this part."""
        return head if self.heads is None else self.heads.to(head.device)[head]

    def places(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices in the whole matrix of queries and keys of this part."""
        return places_in_whole(self.rows, self.columns, query, key)
