"""The arrangement of heads: the columns and the tokens that each head reads, and where its context goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.foreign_names import role
from clearhead._common.torch_internals import unravelled
from clearhead.checking.contract import Contract
from clearhead.checking.evidence.arranging import Arrangement, trial
from clearhead.checking.evidence.grouping import Group
from clearhead.recording.observed import ObservedAttention, blocks_of
from clearhead.recording.provenance import Provenance
from clearhead.recording.recorder import Node, Recorder, Tags

NAMES = ("query", "key", "value")
PLAIN = {
    "clone", "contiguous", "_to_copy", "cat", "stack", "copy_", "permute", "constant_pad_nd", "flip",
    "roll",
}  # fmt: skip


class Columns(NamedTuple):
    """The columns (dim,) of a projection that one head reads; `weight` is the storage of its matrix."""

    weight: int
    width: int
    columns: Tensor

    @property
    def key(self) -> tuple[int, ...]:
        return (self.weight, *self.columns.tolist())


@dataclass(frozen=True)
class Splitting:
    """The arrangement of one group of heads.

    Attributes:
        split: which of query, key and value have rows of several tokens.
        across: each block is of one token, whose heads attend to each other.
        alike: which of query, key and value read the same columns in all heads, though more is projected.
        shared: the order of the key heads that several query heads read, "tiled" or "grouped"; "" for neither.
        kv_heads: the number of key heads; 0 where none is shared.
        sliced: a head reads some columns of x only.
        merged: True if each row of the merged contexts is of one token, False if of several; None if it
            was not seen.
        in_order: the tokens of these rows are in order.
        summed: the contexts of the heads are summed.
        other_order: the value heads read other columns than the query heads.
        changed: operations without parameters between the contexts and their projection.
        num_heads: the number of heads, where that is known.
    """

    split: tuple[str, ...]
    across: bool
    alike: tuple[str, ...]
    shared: str
    kv_heads: int
    sliced: bool
    merged: bool | None
    in_order: bool
    summed: bool
    other_order: bool
    changed: tuple[str, ...]
    num_heads: int | None


def splitting(recorded: Recorder, output: Tensor, layer: Group) -> Splitting:
    """Return the arrangement of one group of heads."""
    group, found, arranged = layer.attentions, layer.sources, layer.arranged
    known = [each for each in found if each is not None]
    split = tuple(
        name
        for index, name in enumerate(NAMES)
        if any(bool(each.rows[index].split.any()) for each in known)
    )
    num_heads, read = None, [list[Columns | None]()] * 3
    if arranged is not None:
        num_heads = arranged.per_sample * arranged.in_rows * len(layer.heads)
        read = [
            [x for each in layer.heads for x in _columns(recorded, each, which, arranged)]
            for which in range(3)
        ]
    reader = consumer(recorded, output, group)
    merged, in_order = None, True
    if reader is not None and reader.kind not in ("summed", "product") and len(known) == len(found):
        merged, in_order = _merged(reader.tags, group, found)
    return Splitting(
        split,
        any(map(_across, known)),
        _alike(read),
        *_shared(read),
        (num_heads or 0) > 1 and all(_sliced(recorded, each) for each in group),
        merged,
        in_order,
        _summed(recorded, group, num_heads),
        _other_order(read),
        _changed(recorded, group) if reader is not None and reader.kind == "linear" else (),
        num_heads,
    )


def _changed(recorded: Recorder, group: Sequence[ObservedAttention]) -> tuple[str, ...]:
    """Return the operations on the contexts; the squares that a norm sums are not projected, and not among them."""
    taken = {place for node in recorded.nodes if _takes_together(node) for place in node.storages}
    aside = taken - {step.source for step in recorded.steps}
    contexts = torch.tensor([each.layout.context.index for each in group])
    return tuple(
        step.name
        for step in recorded.steps
        if step.other in ("", "number")
        and step.name not in PLAIN
        and step.result not in aside
        and bool(torch.isin(step.tags.node, contexts).any())
    )


def _across(found: Provenance) -> bool:
    blocks = found.blocks
    query, key = found.query.token[blocks], found.key.token[blocks]
    one = bool(((query >= 0) & (query == query[:, :1])).all() & (key == query[:, :1]).all())
    return one and bool(blocks.any()) and query.shape[1] > 1


def head_columns(flat: Tensor, heads: Tensor) -> Tensor | None:
    """Return the columns (heads, dim) of a projection that heads (batch, heads, tokens, dim) read.

    They are compared at position 0 of the first sample, which a rotation leaves alone. None where one is not found.
    """
    batch, count, tokens, dim = heads.shape
    if not flat.numel() or flat.numel() % (batch * tokens):
        return None
    first, columns = heads[0, :, 0].flatten(), flat.double().reshape(batch, tokens, -1)[0, 0]
    gap, nearest = (first[:, None] - columns[None]).abs().min(-1)
    known = bool((gap <= 1e-6 * columns.abs().max()).all())
    return nearest.view(count, dim) if known else None


def _columns(
    recorded: Recorder, each: ObservedAttention, which: int, arranged: Arrangement
) -> list[Columns | None]:
    """Return the columns of each head of query (0), key (1) or value (2); None where they are not known."""
    now = trial([each], arranged, Contract(), 0)
    heads, node = (now.query, now.key, now.value)[which], root_node(recorded, each, which)
    found = None if node is None else head_columns(node.output, heads)
    if node is None or found is None or node.kind != "linear" or not heads.any():
        return [None] * heads.shape[1]
    weight = node.storages[node.constant or 0]
    return [Columns(weight, node.output.shape[-1], columns) for columns in found]


def _alike(read: Sequence[Sequence[Columns | None]]) -> tuple[str, ...]:
    """Return the operands that all heads share; a key or value of one head is multi-query attention."""
    used = {
        (x.weight, c) for side in read for x in side if x is not None for c in x.columns.tolist()
    }

    def is_wrong(name: str, side: Sequence[Columns | None]) -> bool:
        first = side[0] if side else None
        if first is None or len(side) < 2 or {x and x.key for x in side} != {first.key}:
            return False
        return name == "query" or sum(w == first.weight for w, _ in used) < first.width

    return tuple(name for name, side in zip(NAMES, read, strict=True) if is_wrong(name, side))


def _shared(read: Sequence[Sequence[Columns | None]]) -> tuple[str, int]:
    """Return the order and the number of the key heads that several query heads read."""
    pairs = [(q, k) for q, k in zip(*read[:2], strict=True) if q is not None and k is not None]
    if not pairs or len(pairs) < len(read[0]) or len({q.weight for q, _ in pairs}) > 1:
        return "", 0
    pairs.sort(key=lambda each: int(each[0].columns.min()))
    keys = [k.key for _, k in pairs]
    order = sorted(set(keys), key=lambda each: (each[0], min(each[1:])))
    if len(order) in (1, len(keys)) or len(keys) % len(order):
        return "", 0
    groups, places = len(keys) // len(order), [order.index(key) for key in keys]
    for name, expected in (
        ("grouped", [head // groups for head in range(len(keys))]),
        ("tiled", [head % len(order) for head in range(len(keys))]),
    ):
        if places == expected:
            return name, len(order)
    return "", 0


def _other_order(read: Sequence[Sequence[Columns | None]]) -> bool:
    """Return True if the value heads read columns that are not next to each other, and the query heads do."""
    pairs = [
        (q, v) for q, v in zip(read[0], read[2], strict=True) if q is not None and v is not None
    ]
    if len(pairs) < 2 or any(
        q.width != v.width or len(q.columns) != len(v.columns) for q, v in pairs
    ):
        return False
    query, value = (
        torch.stack([each[side].columns for each in pairs]).diff(dim=1) for side in (0, 1)
    )
    return bool((query == 1).all()) and not bool((value == 1).all())


def _sliced(recorded: Recorder, each: ObservedAttention) -> bool:
    """Return True if the query is projected from some columns of the input only."""
    node = root_node(recorded, each, 0)
    tags = None if node is None or node.kind != "linear" else node.tags[1 - (node.constant or 0)]
    if tags is None or bool((tags.element <= 0).any()) or len(tags.node.unique()) > 1:
        return False
    source = recorded.nodes[int(tags.node.flatten()[0]) - 1]
    width = source.output.shape[-1]
    columns = ((tags.element - source.base) % width).unique()
    return source.kind == "input" and 1 < len(columns) < width


def _summed(recorded: Recorder, group: Sequence[ObservedAttention], num_heads: int | None) -> bool:
    """Return True if the contexts of several heads, and nothing else, are added to each other."""
    contexts = torch.tensor([each.layout.context.index for each in group])
    added = len(group) > 1 and any(
        step.name in ("add", "add_")
        and step.other == "input"
        and bool((step.tags.node == -1).all())
        for step in recorded.steps
    )
    # A sum over the columns of one head, as in a norm, leaves fewer of them.
    dim = group[0].value.shape[-1]
    return added or any(
        node.kind == "summed"
        and node.tags[0] is not None
        and bool(torch.isin(node.tags[0].node, contexts).all())
        and node.output.shape[-1] == dim
        and node.tags[0].node.numel() == node.output.numel() * (num_heads or 0)
        for node in recorded.nodes
    )


def side_tags(each: ObservedAttention, which: int) -> Tags | None:
    """The tags of query (0), key (1) or value (2)."""
    if each.layout.scores is each.layout.context:
        return each.layout.scores.tags[which]
    if which == 2:
        return each.layout.context.tags[int(not each.layout.flip)]
    return each.layout.scores.tags[each.layout.sides[which]]


def _root(each: ObservedAttention, which: int) -> int | None:
    """The node that query (0), key (1) or value (2) is made of."""
    tags = side_tags(each, which)
    nodes = tags.node[tags.node > 0].unique() if tags is not None else torch.zeros(0)
    return int(nodes[0]) if len(nodes) == 1 else None


def root_node(recorded: Recorder, each: ObservedAttention, which: int) -> Node | None:
    """The operation that query (0), key (1) or value (2) is made by."""
    index = _root(each, which)
    return None if index is None else recorded.nodes[index - 1]


def asks(recorded: Recorder, each: ObservedAttention) -> bool | None:
    """True if the query is what names, or the order of columns, call so; None where neither does."""
    query, key = (root_node(recorded, each, which) for which in (0, 1))
    if query is None or key is None or query.kind != "linear" or key.kind != "linear":
        return None
    if query is not key:
        named = [recorded.parameters.get(x.storages[x.constant or 0], "") for x in (query, key)]
        roles = role(named[0]), role(named[1])
        return roles == ("q", "k") if set(roles) == {"q", "k"} else None
    tags = [side_tags(each, which) for which in (0, 1)]
    one, other = (
        ((x.element - query.base) % query.output.shape[-1]).min() for x in tags if x is not None
    )
    return bool(one < other)


class Consumer(NamedTuple):
    """First reader of the contexts of the heads: their tags there, and the operand of which node;
    None for the output of the call."""

    tags: Tags
    node: Node | None = None
    operand: int = 0

    @property
    def kind(self) -> str:
        """The kind of that operation."""
        return "output" if self.node is None else self.node.kind


def consumer(
    recorded: Recorder, output: Tensor, group: Sequence[ObservedAttention]
) -> Consumer | None:
    """Find what reads the contexts of the heads first; None where nothing does."""
    contexts = torch.tensor([each.layout.context.index for each in group])
    last = max(each.layout.context.place for each in group)
    for node in recorded.nodes:
        if node.place <= last or _takes_together(node):
            continue
        for operand, tags in enumerate(node.tags):
            if tags is not None and bool(torch.isin(tags.node, contexts).all()):
                return Consumer(tags, node, operand)
    tags = recorded.tags(output)
    if tags is not None and bool(torch.isin(tags.node, contexts).any()):
        return Consumer(tags)
    return None


def _takes_together(node: Node) -> bool:
    """True of a norm, a sum or a maximum: fewer numbers come out than went in."""
    sizes = [tags.node.numel() for tags in node.tags if tags is not None]
    return node.kind in ("summed", "other") and node.output.numel() < max(sizes, default=0)


def _merged(
    tags: Tags, group: Sequence[ObservedAttention], found: Sequence[Provenance | None]
) -> tuple[bool | None, bool]:
    """True if every row is of one token; and True if the tokens are in their order: all of them, or those of
    each block where heads are projected apart."""
    token = torch.full(tags.element.shape, -1)
    for each, known in zip(group, found, strict=True):
        node = each.layout.context
        place = (tags.element - node.base).clamp(0, node.output.numel() - 1)
        block, row, column = unravelled(place, blocks_of(node.output).shape)
        row = column if each.layout.flip else row
        assert known is not None
        mine = (tags.node == node.index) & (tags.element > 0)
        token = torch.where(mine, known.query.token[block, row], token)
    rows = token.flatten(0, -2)
    lowest = rows.masked_fill(rows < 0, 10**6).amin(-1)
    seen = rows.amax(-1) >= 0
    if not seen.any():
        return None, True
    if not (lowest[seen] == rows.amax(-1)[seen]).all():
        return False, True
    order = lowest[seen]
    if token.ndim < 3:
        return True, bool((order.diff() > 0).all())
    block = torch.arange(len(rows)) // token.shape[-2]
    return True, bool(((order.diff() > 0) | (block[seen].diff() > 0)).all())
