"""The place of each token: its rank, its number there, and its number among the tokens of all ranks in a
row."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from clearhead._common.layouts import layout_of
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.recipe import band


@dataclass(frozen=True, eq=False)
class Placement:
    """The layout of some tokens.

    Attributes:
        order: the tokens of rank 0, then those of rank 1, …
        counts: how many each rank has.
    """

    order: Tensor
    counts: tuple[int, ...]

    @property
    def world(self) -> int:
        return len(self.counts)

    @cached_property
    def positions(self) -> tuple[Tensor, ...]:
        """The tokens of each rank."""
        return self.order.split(self.counts)

    @cached_property
    def row(self) -> Tensor:
        """The place of each token in the order of the ranks."""
        return self.order.argsort()

    @cached_property
    def owner(self) -> Tensor:
        """The rank of each token."""
        return torch.arange(self.world).repeat_interleave(torch.tensor(self.counts))[self.row]

    @cached_property
    def first(self) -> Tensor:
        """The place, in the order of the ranks, of the first token of each token's rank."""
        return torch.tensor([0, *self.counts[:-1]]).cumsum(0)[self.owner]

    @cached_property
    def local(self) -> Tensor:
        """The number of each token on its rank."""
        return self.row - self.first


@lru_cache(maxsize=64)
def placed(
    tokens: int, world: int, layout: str, seen: tuple[bool, int | None, int | None]
) -> Placement:
    """The layout of a number of tokens, as `clearhead.across` makes it; `seen` are causal and the
    window, by whose pairs "balanced" counts."""
    is_causal, left, right = seen
    ahead = min(([0] if is_causal else []) + ([] if right is None else [right]), default=None)
    pairs = band(tokens, tokens, 0, left, ahead).sum(-1).double()
    return Placement(*layout_of(layout, tokens, world, lambda: pairs))


def placement(tokens: int, contract: Contract) -> Placement:
    """The layout of a number of tokens under a contract."""
    assert contract.world is not None
    seen = bool(contract.causal), *(contract.window or (None, None))
    return placed(tokens, contract.world, contract.layout or "contiguous", seen)
