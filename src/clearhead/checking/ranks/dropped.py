"""The weights that fall by dropout, on each rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.checking.ranks.placement import Placement

ENOUGH = 40
"""As many weights as tell two patterns apart: 2⁻⁴⁰ is no chance."""


@dataclass(frozen=True)
class Dropped:
    """The weights after dropout, those before, (batch, heads, tokens, tokens), and the layout."""

    after: Tensor
    before: Tensor
    here: Placement

    @property
    def visible(self) -> Tensor:
        """True where there is a weight that could fall."""
        return self.before > 1e-9

    @property
    def gone(self) -> Tensor:
        """True where a weight has fallen."""
        return (self.after.abs() < 1e-12) & self.visible

    @property
    def kept(self) -> float:
        """The factor of the survivors."""
        stays = self.visible & ~self.gone
        return float((self.after[stays] / self.before[stays]).median()) if stays.any() else 0.0

    def alike(self) -> bool:
        """True if the same weights fall on every rank: by keys in the order of the text, by blocks in
        the order of a ring, whichever way round, or by heads. One rank alone is like none."""
        if self.here.world == 1:
            return False
        others = range(1, self.here.world)
        heads = self.gone.shape[1] // self.here.world
        return any(
            all(_same(self._rows(0, ring), self._rows(rank, ring)) for rank in others)
            for ring in (False, True)
        ) or all(_same(self._heads(0, heads), self._heads(rank, heads)) for rank in others)

    def _rows(self, rank: int, ring: bool) -> tuple[Tensor, Tensor]:
        """Return what falls of a rank's queries, and what could; round a ring the rank's own keys come first."""
        here, size = self.here, min(self.here.counts)
        blocks = [here.positions[(rank + step) % here.world][:size] for step in range(here.world)]
        columns = torch.cat(blocks) if ring else torch.arange(self.gone.shape[-1])
        rows = here.positions[rank][:size]
        return self.gone[..., rows, :][..., columns], self.visible[..., rows, :][..., columns]

    def _heads(self, rank: int, heads: int) -> tuple[Tensor, Tensor]:
        mine = slice(rank * heads, (rank + 1) * heads)
        return self.gone[:, mine], self.visible[:, mine]


def _same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    both = one[1] & other[1]
    fallen = one[0][both]
    return len(fallen) >= ENOUGH and bool(fallen.any()) and torch.equal(fallen, other[0][both])
