"""The attention inside a call: query, key, scores, weights, value and context, as they were computed.

Two products make an attention: the scores, whose two sides depend on the input, and the context, of
which one side is made of the scores. What happened between them is followed number by number. All of
it is in blocks, of a sample and a head each, in whatever layout the code has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages
from clearhead._common.torch_internals import unravelled
from clearhead.recording.operations import SOFTMAXES
from clearhead.recording.recorder import Node, Recorder, ScoreStep, Tags


class Stage(NamedTuple):
    """The scores, or the weights, as one operation left them: (blocks, queries, keys).

    `axis` of a softmax is "keys", "queries", "blocks" or "all"; `other` and `place` are as of a
    `ScoreStep`, and `place` is 0 where the stage is no operation of its own.
    """

    name: str
    values: Tensor
    other: str = ""
    axis: str | None = None
    place: int = 0


@dataclass(frozen=True)
class ScoreLayout:
    """The places of query, key, value and context among the operands of the two products.

    `query`, `key`: (blocks, len) pairs of block and row of an operand of the scores; `sides` says
    which operand each is; `flip` is true where the weights are the right side of the context.
    """

    scores: Node
    context: Node
    sides: tuple[int, int]
    flip: bool
    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    kept: Tensor

    def operands(self, taken: Mapping[int, Sequence[Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, from the operands of a call of the same shapes."""
        if self.scores is self.context:
            query, key, value = (blocks_of(each) for each in taken[self.scores.place][:3])
            groups = query.shape[0] // key.shape[0]
            key, value = (each.repeat_interleave(groups, 0) for each in (key, value))
            return query, key, value
        left, right = (blocks_of(each) for each in taken[self.scores.place])
        rows = left, right.mT
        query = rows[self.sides[0]][self.query]
        key = rows[self.sides[1]][self.key]
        one, other = (blocks_of(each) for each in taken[self.context.place])
        value = one.mT if self.flip else other
        return query, key, value[:, self.kept]


@dataclass(frozen=True)
class ObservedAttention:
    """One attention of a call.

    Attributes:
        query, key, value, context, scores: (blocks, len, …); scores are query·key, plain.
        stages: what became of the scores, in order; the last are the weights.
        gains: what query and key were multiplied by before, where that is one number each that is not learned.
        layout: where it stands.
        tangled: the weights cannot be traced back to pairs of a query and a key.
        beside: some weight goes to no token, for example to a sink.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    context: Tensor
    scores: Tensor
    stages: tuple[Stage, ...]
    gains: tuple[float, float] | None
    layout: ScoreLayout
    tangled: bool = False
    beside: bool = False

    @property
    def gain(self) -> float | None:
        """The factor of the scores before they were made."""
        return None if self.gains is None else self.gains[0] * self.gains[1]

    @property
    def weights(self) -> Tensor:
        """The weights: what multiplied the value."""
        return self.stages[-1].values if self.stages else self.scores


def attentions(recorded: Recorder) -> tuple[ObservedAttention, ...]:
    """Every attention of a call, in the order of their contexts."""
    products = {node.index: node for node in recorded.nodes if node.kind == "product"}
    through: dict[int, int] = {}
    found: list[ObservedAttention] = []
    for node in recorded.nodes:
        if node.kind == "fused":
            found.append(_of_fused(node))
        if node.kind != "product":
            continue
        roots = [_root(tags, products) for tags in node.tags]
        if roots[0] is not None and roots[1] is not None:
            # Weights that multiply weights are weights still.
            through[node.index] = through.get(roots[0], roots[0])
            continue
        side = next((i for i, root in enumerate(roots) if root is not None), None)
        if side is None:
            continue
        root = roots[side]
        assert root is not None
        source = products[through.get(root, root)]
        found.append(_of_products(recorded, source, products[root], node, side))
    return tuple(found)


def _root(tags: Tags | None, products: Mapping[int, Node]) -> int | None:
    """The product that most numbers of an operand stand for."""
    assert tags is not None  # both sides of a product depend on the input
    nodes, counts = tags.node[tags.node != 0].unique(return_counts=True)
    shares = {int(node): int(count) for node, count in zip(nodes, counts, strict=True)}
    best = max((node for node in shares if node in products), key=shares.__getitem__, default=None)
    return best if best is not None and 2 * shares[best] >= counts.sum() else None


def blocks_of(tensor: Tensor) -> Tensor:
    """(blocks, rows, columns)."""
    return (
        tensor[None] if tensor.ndim == 2 else tensor.flatten(0, -3) if tensor.ndim > 3 else tensor
    )


def _of_fused(node: Node) -> ObservedAttention:
    """Return the attention of a fused kernel call, recomputed from its query, key and value."""
    query, key, value = (blocks_of(each).double() for each in node.operands[:3])
    groups = query.shape[0] // key.shape[0]
    key, value = (each.repeat_interleave(groups, 0) for each in (key, value))
    scores = query @ key.mT
    scale = node.options.get("scale") or query.shape[-1] ** -0.5
    found = [Stage("mul", scores * scale, "number")]
    mask = node.options.get("attn_mask")
    if node.options.get("is_causal"):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        found.append(
            Stage("masked_fill", found[-1].values.masked_fill(hidden, -torch.inf), "constant")
        )
    if mask is not None:
        whole = mask.expand(*node.operands[0].shape[:-1], key.shape[-2]).double()
        found.append(Stage("add", found[-1].values + blocks_of(whole), "constant"))
    found.append(Stage("_safe_softmax", stages.weights(found[-1].values), "", "keys"))
    rows = torch.arange(query.shape[0])[:, None]
    places = [(rows, torch.arange(each.shape[1])[None]) for each in (query, key)]
    kept = torch.arange(key.shape[1])
    layout = ScoreLayout(node, node, (0, 1), False, places[0], places[1], kept)
    context = blocks_of(node.output).double()
    gains = _gains(node, (0, 1), query, key)
    return ObservedAttention(query, key, value, context, scores, tuple(found), gains, layout)


def _of_products(
    recorded: Recorder, scores: Node, root: Node, context: Node, side: int
) -> ObservedAttention:
    """Return the attention between two recorded products: the scores and the context."""
    tags, flip = context.tags[side], side == 1
    assert tags is not None
    element, node = (blocks_of(each) for each in (tags.element, tags.node))
    weights = blocks_of(context.operands[side])
    if flip:
        element, node, weights = element.mT, node.mT, weights.mT
    valid = (node == root.index) & (element > 0)
    kept = valid.any(0).any(0).nonzero().flatten()
    beside = len(kept) < valid.shape[-1]
    element, valid, weights = (each[..., kept] for each in (element, valid, weights))
    shape = blocks_of(scores.output).shape
    whole = (element - root.base).clamp(0, shape.numel() - 1)
    index = unravelled(whole, shape)
    sides, clean = _orientation(index, valid)
    layout = ScoreLayout(
        scores,
        context,
        sides,
        flip,
        _first(index[0], index[1 + sides[0]], valid, -1),
        _first(index[0], index[1 + sides[1]], valid, -2),
        kept,
    )
    taken = {scores.place: scores.operands, context.place: context.operands}
    query, key, value = (each.double() for each in layout.operands(taken))
    through = root is not scores
    found = list(_stages(recorded, root, context, side, whole, valid)) if not through else []
    found.append(Stage("", weights.double(), ""))
    output = blocks_of(context.output).double()
    return ObservedAttention(
        query,
        key,
        value,
        output.mT if flip else output,
        blocks_of(scores.output).double().flatten()[whole],
        tuple(found),
        None if through else _gains(scores, sides, query, key),
        layout,
        tangled=not clean or through,
        beside=beside,
    )


def _orientation(index: Sequence[Tensor], valid: Tensor) -> tuple[tuple[int, int], bool]:
    """The side of the scores that is the query, and True if every row of the weights is of one query."""
    block, row, column = index
    position = valid.int().argmax(-1, keepdim=True)

    def steady(each: Tensor) -> bool:
        return bool(((each == each.gather(-1, position)) | ~valid).all())

    if steady(block) and steady(row):
        return (0, 1), True
    if steady(block) and steady(column):
        return (1, 0), True
    return (0, 1), False


def _first(block: Tensor, place: Tensor, valid: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Block and row of the first valid number along an axis."""
    position = valid.int().argmax(axis, keepdim=True)
    return block.gather(axis, position).squeeze(axis), place.gather(axis, position).squeeze(axis)


def _gains(
    scores: Node, sides: tuple[int, int], query: Tensor, key: Tensor
) -> tuple[float, float] | None:
    """What query and key were multiplied by; the length that a norm gives its rows is part of the norm."""
    found = []
    for side, rows in zip(sides, (query, key), strict=True):
        tags = scores.tags[side]
        if tags is None:
            return None
        gains = tags.gain[tags.node != 0].unique()
        if len(gains) > 1 or bool(gains.isnan().any()):
            return None
        gain = gains.item() if len(gains) else 1.0
        lengths = rows.norm(dim=-1)
        normed = rows.shape[-1] > 1 and torch.allclose(lengths, lengths.new_tensor(abs(gain)))
        found.append(1.0 if normed else gain)
    return found[0], found[1]


def _stages(
    recorded: Recorder, root: Node, context: Node, side: int, whole: Tensor, valid: Tensor
) -> Iterator[Stage]:
    """The scores on their way to the context, each number at its pair."""
    chain: list[ScoreStep] = []
    storage, place = context.storages[side], context.place
    for step in reversed(recorded.steps):
        if step.result == storage and step.place < place:
            chain.append(step)
            storage, place = step.source, step.place
    for step in reversed(chain):
        mine = step.tags.node == root.index
        flat = torch.full((root.output.numel(),), torch.nan, dtype=torch.float64)
        flat[(step.tags.element - root.base)[mine]] = step.value.double().expand(mine.shape)[mine]
        values = flat[whole].masked_fill(~valid, torch.nan)
        axis = _axis(step, root, whole, valid) if step.name in SOFTMAXES else None
        yield Stage(step.name, values, step.other, axis, step.place)


def _axis(step: ScoreStep, root: Node, whole: Tensor, valid: Tensor) -> str:
    """Over what a softmax goes, in the order of the weights."""
    assert step.dim is not None
    if step.value.ndim < 2:
        return "all"
    order = torch.full((root.output.numel(),), -1)
    places = torch.arange(whole.numel()).view(whole.shape)
    order[whole[valid]] = places[valid]
    element = step.tags.element.movedim(step.dim, -1)
    inside = (element >= root.base) & (element < root.base + root.output.numel())
    where = order[(element - root.base).clamp(0, root.output.numel() - 1)]
    inside &= where >= 0
    index = unravelled(where.clamp_min(0), whole.shape)
    names = [
        name
        for name, each in zip(("blocks", "queries", "keys"), index, strict=True)
        if bool(((each != each.gather(-1, inside.int().argmax(-1, keepdim=True))) & inside).any())
    ]
    return names[0] if len(names) == 1 else "all" if names else "keys"
