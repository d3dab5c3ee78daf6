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
    """The scores, or the weights, after one operation, in float64.

    Attributes:
        name: the operation; "" for the weights as the product with the value read them.
        values: (blocks, queries, keys); NaN at pairs that the operation did not write.
        other: the other operand, as in `ScoreStep`.
        axis: what a softmax normalises over, "keys", "queries", "blocks" or "all"; None if it is no softmax.
        place: the number of the operation; 0 if the stage is no recorded step.
    """

    name: str
    values: Tensor
    other: str = ""
    axis: str | None = None
    place: int = 0


@dataclass(frozen=True)
class ScoreLayout:
    """Where query, key, value and context are among the operands of the two products.

    Attributes:
        scores, context: the nodes of the two products; the same node for a fused kernel.
        sides: the operand of the scores that is the query, and that which is the key: (0, 1) or (1, 0).
        flip: True if the weights are the right operand of the context, so that the context is transposed.
        query, key: the block and the row in that operand of each query or key, two tensors (blocks, len).
        kept: the columns of the weights that belong to a key; the others, as of a sink, are dropped.
    """

    scores: Node
    context: Node
    sides: tuple[int, int]
    flip: bool
    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    kept: Tensor

    def operands(self, taken: Mapping[int, Sequence[Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, each (blocks, len, dim), from operands by the number of their product.

        The operands may be of another call with the same shapes. Raises IndexError or RuntimeError if the shapes do not
        fit, KeyError without the products. Heads of key and value are repeated for a grouped fused kernel.
        """
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
    """One attention of a call; a block is a sample and a head.

    Attributes:
        query, key, value, context: (blocks, len, dim), float64.
        scores: (blocks, queries, keys), query · keyᵀ, before any stage.
        stages: the scores after each operation, in order; the last stage holds the weights.
        gains: the factors that query and key were multiplied by earlier; None if one is learned or differs between
            numbers.
        layout: the places of all of these among the operands.
        tangled: True if a row of the weights is not of one query, or the weights are a product of several weights.
        has_sink: True if some weight belongs to no key, as that of a sink.
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
    has_sink: bool = False

    @property
    def gain(self) -> float | None:
        """The product of `gains`, by which the scores are scaled through query and key; None if `gains` is None."""
        return None if self.gains is None else self.gains[0] * self.gains[1]

    @property
    def weights(self) -> Tensor:
        """The weights that multiplied the value, (blocks, queries, keys); the plain scores without a stage."""
        return self.stages[-1].values if self.stages else self.scores


def attentions(recorded: Recorder) -> tuple[ObservedAttention, ...]:
    """Return every attention of a recorded call, in the order of their context products; () if there is none.

    A fused kernel is one. Otherwise it is a product with one operand that stands for numbers of an earlier product;
    weights multiplied by weights count as weights of the earlier product.
    """
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
    """Return the index of the product that at least half of an operand's tagged numbers stand for.

    None if there is none; AssertionError for tags of None.
    """
    assert tags is not None  # both sides of a product depend on the input
    nodes, counts = tags.node[tags.node != 0].unique(return_counts=True)
    shares = {int(node): int(count) for node, count in zip(nodes, counts, strict=True)}
    best = max((node for node in shares if node in products), key=shares.__getitem__, default=None)
    return best if best is not None and 2 * shares[best] >= counts.sum() else None


def blocks_of(tensor: Tensor) -> Tensor:
    """Return a tensor as (blocks, rows, columns): leading axes are flattened, a matrix is one block."""
    return (
        tensor[None] if tensor.ndim == 2 else tensor.flatten(0, -3) if tensor.ndim > 3 else tensor
    )


def _of_fused(node: Node) -> ObservedAttention:
    """Return the attention of a fused kernel call, with scores and weights recomputed in float64.

    Key and value heads are repeated for grouped queries. Scale, causal mask and attn_mask are stages; dropout is not
    applied. The context is the kernel's output.
    """
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
    """Return the attention of two recorded products, `scores` and `context`, whose operand `side` is the weights.

    `root` is the product that the weights stand for: another one than `scores` if weights were multiplied by weights,
    and then there are no stages but the last, no gains, and the attention is tangled.
    """
    tags, flip = context.tags[side], side == 1
    assert tags is not None
    element, node = (blocks_of(each) for each in (tags.element, tags.node))
    weights = blocks_of(context.operands[side])
    if flip:
        element, node, weights = element.mT, node.mT, weights.mT
    valid = (node == root.index) & (element > 0)
    kept = valid.any(0).any(0).nonzero().flatten()
    has_sink = len(kept) < valid.shape[-1]
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
        has_sink=has_sink,
    )


def _orientation(index: Sequence[Tensor], valid: Tensor) -> tuple[tuple[int, int], bool]:
    """Return the operands of the scores that are (query, key), and True if each row of the weights is of one query.

    `index`: for each weight the block, row and column of its score. (0, 1) and False if neither orientation fits.
    """
    block, row, column = index
    position = valid.int().argmax(-1, keepdim=True)

    def steady(each: Tensor) -> bool:
        """Return True if an index is the same at all valid entries of each row."""
        return bool(((each == each.gather(-1, position)) | ~valid).all())

    if steady(block) and steady(row):
        return (0, 1), True
    if steady(block) and steady(column):
        return (1, 0), True
    return (0, 1), False


def _first(block: Tensor, place: Tensor, valid: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return block and row at the first valid entry along `axis`, two tensors without that axis.

    Entry 0 if none is valid.
    """
    position = valid.int().argmax(axis, keepdim=True)
    return block.gather(axis, position).squeeze(axis), place.gather(axis, position).squeeze(axis)


def _gains(
    scores: Node, sides: tuple[int, int], query: Tensor, key: Tensor
) -> tuple[float, float] | None:
    """Return the factors by which query and key were multiplied before the scores; None if one is not a single number.

    It is none if it is learned, if it differs within the operand, or if the operand does not depend on the input. The
    factor is 1.0 where the norm of all rows is its absolute value, because it is then that of a normalisation.
    """
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
    """Yield a `Stage` for each recorded step from the product `root` to the weights of `context`, in order.

    `whole` is the index of each weight's score in the flattened product, and `valid` where the weight has one; NaN
    elsewhere.
    """
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
    """Return what a softmax step normalises over: "keys", "queries" or "blocks" if one axis varies inside a row of it.

    "all" if several vary or its scores are one vector; "keys" if none varies.
    """
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
