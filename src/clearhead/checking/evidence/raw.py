"""Query and key before they are rotated, by the position that a rotation leaves alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.evidence.arranging import Arrangement, trial
from clearhead.checking.evidence.splitting import head_columns, root_node
from clearhead.checking.hypotheses.matching import Trial
from clearhead.checking.hypotheses.recipe import rotated
from clearhead.recording.observed import ObservedAttention
from clearhead.recording.recorder import Recorder


@dataclass(frozen=True)
class Projected:
    """Query, key and value as they were projected, (batch, heads, len, dim), and as they were
    multiplied; None of what is not found."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    now: Trial

    @property
    def known(self) -> bool:
        return self.query is not None and self.key is not None

    @property
    def turned(self) -> bool:
        """True if the query is another after the projection."""
        return self.query is not None and not torch.allclose(self.query, self.now.query)

    def value_turned(self, base: float, layout: str) -> bool:
        """True if the value is rotated as well."""
        if self.value is None or torch.allclose(self.value, self.now.value):
            return False
        return torch.allclose(rotated(self.value, 0, base, layout), self.now.value)

    def trial(self, contract: Contract) -> Trial:
        """The weights of plain scores as a trial: what becomes of query and key before them."""
        assert self.query is not None
        assert self.key is not None
        key = self.key
        identity = torch.eye(key.shape[2], dtype=torch.float64).expand(*key.shape[:2], -1, -1)
        weights = (self.now.query @ self.now.key.mT).softmax(-1)
        plain = Contract(rope=contract.rope, scale=1.0, causal=False)
        setting = self.now.setting._replace(contract=plain, value_head_dim=key.shape[2])
        return replace(
            self.now, query=self.query, key=key, value=identity, target=weights, setting=setting
        )

    def fitted(self) -> tuple[str, float] | None:
        """The layout and the base of a rotation, by the angles of the second token."""
        if self.query is None or not self.turned or self.query.shape[-1] % 2:
            return None
        dim = self.query.shape[-1]
        for layout in ("half", "interleaved"):
            before, after = (_pairs(each[0, 0], layout) for each in (self.query, self.now.query))
            if not torch.allclose(before.abs(), after.abs(), rtol=1e-4, atol=1e-9):
                continue
            angles = torch.angle(after[1] / before[1]).abs()
            if dim < 4 or float(angles[1]) <= 0:
                return None
            return layout, math.exp(-math.log(float(angles[1])) * dim / 2)
        return None


def _pairs(x: Tensor, layout: str) -> Tensor:
    half = x.shape[-1] // 2
    parts = (x[..., :half], x[..., half:]) if layout == "half" else (x[..., ::2], x[..., 1::2])
    return torch.complex(*(each.contiguous() for each in parts))


def projected(
    recorder: Recorder,
    group: Sequence[ObservedAttention],
    arranged: Arrangement | None,
    contract: Contract,
) -> Projected | None:
    """Query, key and value as they were projected, of a group of one attention; None where heads are not known."""
    if arranged is None or len(group) > 1:
        return None
    each = group[0]
    now = trial([each], arranged, contract, 0)
    found: list[Tensor | None] = []
    for which, mine in ((0, now.query), (1, now.key), (2, now.value)):
        node = root_node(recorder, each, which)
        found.append(None if node is None else _columns(node.output, mine))
    query, key, value = found
    return Projected(query, key, value, now)


def _columns(flat: Tensor, mine: Tensor) -> Tensor | None:
    """A projection in the heads of what it became: at position 0 both are the same."""
    batch, heads, tokens, dim = mine.shape
    if flat.numel() % (batch * tokens):
        return None
    rows = flat.double().reshape(batch, tokens, -1)
    columns, nearest = rows[0, 0], head_columns(flat, mine)
    if nearest is None:
        # Not the same there: those of other sides next to them differ in length, which a rotation keeps.
        alike = _of_one_length(columns, mine[0, :, 0])
        if alike is not None:
            return rows[..., alike].unflatten(-1, (heads, dim)).transpose(1, 2)
        # Else heads in their order, each of a key for as many as share it.
        if columns.shape[0] % dim or heads % max(columns.shape[0] // dim, 1):
            return None
        apart = torch.arange(columns.shape[0]).view(-1, dim)
        nearest = apart.repeat_interleave(heads // len(apart), 0)
        sizes = columns[nearest].norm(dim=-1), mine[0, :, 0].norm(dim=-1)
        if len(apart) < heads and not torch.allclose(*sizes):
            return None  # a rotation keeps lengths, and this is more than one
    # A head that is turned by other pairs of columns has them in another order; its product has not.
    nearest = nearest.sort(-1).values.flatten()
    return rows[..., nearest].unflatten(-1, (heads, dim)).transpose(1, 2)


def _of_one_length(columns: Tensor, heads: Tensor) -> Tensor | None:
    """The columns of each head (heads, dim), where more is projected and one part alone is as long."""
    count, dim = heads.shape
    if columns.shape[0] % dim or columns.shape[0] <= count * dim:
        return None
    apart = torch.arange(columns.shape[0]).view(-1, dim)
    sizes = columns[apart].norm(dim=-1)
    same = (heads.norm(dim=-1)[:, None] - sizes[None]).abs() <= 1e-6 * sizes.max()
    return apart[same.int().argmax(-1)].flatten() if bool((same.sum(-1) == 1).all()) else None
