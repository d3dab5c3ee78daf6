"""The part of the whole attention matrix that one rank computes."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from clearhead.sharding.sharding import Sharding


class Rounds(Protocol):
    """The keys of a matrix that is split over ranks, a block each. Every rank calls each of these methods."""

    def each(self, use: Callable[[Any, Tensor], None]) -> None:
        """Call `use(problem, positions)` for each block of keys, but those that the spans hide from all queries here.

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
        heads: int64, (num_heads,): the index of each head in the whole matrix; None for all of them.
        sharding: of the queries, where statistics are summed over the ranks; else None.
        rounds: the ring by which the keys of the ranks come here, where no rank has them all; the key of the
            problem then has the right size and no data. Else None.
    """

    heads: Tensor | None = None
    sharding: Sharding | None = None
    rounds: "Rounds | None" = None

    def head_numbers(self, head: Tensor) -> Tensor:
        """Return heads, int64 indices into this part, as indices into the whole matrix; unchanged if it has all."""
        return head if self.heads is None else self.heads.to(head.device)[head]
