"""The split, sharing and merge of heads, by the places of their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.foreign_names import role
from clearhead._common.torch_internals import unravelled
from clearhead.checking.evidence.arranging import Arrangement
from clearhead.checking.evidence.grouping import Group
from clearhead.recording.observed import ObservedAttention, blocks_of
from clearhead.recording.provenance import Provenance
from clearhead.recording.recorder import Node, Recorder, Tags

NAMES = ("query", "key", "value")
PLAIN = {
    "clone", "contiguous", "_to_copy", "cat", "stack", "copy_", "permute", "constant_pad_nd", "flip",
    "roll",
}  # fmt: skip


@dataclass(frozen=True)
class Splitting:
    """The split and the merge of one group of heads.

    Attributes:
        split: which of query, key and value are made of other tokens' numbers.
        across: each block is of one token, whose heads attend to each other.
        alike: which of query, key and value are the same in all heads, though more is projected.
        shared: heads of keys that several query heads read, in a tiled order or not: "tiled",
            "grouped" or "".
        kv_heads: how many these are; 0 where none is shared.
        sliced: a head sees a part of x only.
        merged: True if each row behind the heads is of one token, False if of several; None if it
            was not seen.
        in_order: the tokens of these rows are in their order.
        summed: the contexts of the heads are summed.
        other_order: the value's heads are made of other columns than those of the query.
        changed: what is done to the context before it is projected, without parameters.
        num_heads: how many there are, where that is known.
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
    """Read the numbers of one group of heads."""
    group, found, arranged, whole = layer.attentions, layer.sources, layer.arranged, layer.heads
    known = [each for each in found if each is not None]
    split = tuple(
        name
        for index, name in enumerate(NAMES)
        if any(bool(each.rows[index].split.any()) for each in known)
    )
    heads = None
    if arranged is not None:
        heads = arranged.per_sample * arranged.in_rows * len(whole)
    alike = _alike(recorded, whole, arranged)
    reader = consumer(recorded, output, group)
    taken = {place for node in recorded.nodes if _takes_together(node) for place in node.storages}
    # What is made of the context for a norm alone, such as its squares, is not projected.
    aside = taken - {step.source for step in recorded.steps}
    changed = [
        step.name
        for step in recorded.steps
        if step.other in ("", "number")
        and step.name not in PLAIN
        and step.result not in aside
        and any(bool((step.tags.node == each.layout.context.index).any()) for each in group)
    ]
    merged, in_order = None, True
    if reader is not None and reader.kind not in ("summed", "product") and len(known) == len(found):
        merged, in_order = _merged(reader.tags, group, found)
    behind = changed if reader is not None and reader.kind == "linear" else []
    return Splitting(
        split,
        any(map(_across, known)),
        alike,
        *_shared(recorded, whole, arranged),
        heads is not None and heads > 1 and _sliced(recorded, group),
        merged,
        in_order,
        _summed(recorded, group),
        _other_order(recorded, whole, arranged),
        tuple(behind),
        heads,
    )


def _across(found: Provenance) -> bool:
    blocks = found.blocks
    query, key = found.query.token[blocks], found.key.token[blocks]
    one = bool(((query >= 0) & (query == query[:, :1])).all() & (key == query[:, :1]).all())
    return one and bool(blocks.any()) and query.shape[1] > 1


def _alike(
    recorded: Recorder, group: Sequence[ObservedAttention], arranged: Arrangement | None
) -> tuple[str, ...]:
    """The operands that all heads share, of those that are projected for several."""
    if arranged is None or arranged.per_sample * len(group) == 1:
        return ()
    found = []
    nodes = {node.index: node for node in recorded.nodes}
    roots = [{_root(each, which) for each in group} for which in range(3)]
    heads = [
        torch.cat([arranged.heads(getattr(each, name), keys=name != "query") for each in group], 1)
        for name in NAMES
    ]
    for index, name in enumerate(NAMES):
        mine = heads[index]
        # Where all are 0, as of parameters that were never filled, nothing shows.
        if not torch.allclose(mine, mine[:, :1].expand_as(mine)) or not mine.any():
            continue
        wide = [nodes[root] for root in roots[index] if root is not None]
        # One projection of one head for all is multi-query attention; the others may be made by it too.
        whole = {node.storage: node.output.shape[-1] for node in wide}
        others = sum(
            _different(heads[which]) * heads[which].shape[-1]
            for which in range(3)
            if which != index and roots[which] == roots[index]
        )
        if (
            len(roots[index]) > 1
            or sum(whole.values()) - others > mine.shape[-1]
            or name == "query"
        ):
            found.append(name)
    return tuple(found)


def _different(heads: Tensor) -> int:
    """The number of heads, each counted once."""
    return len(heads.transpose(0, 1).flatten(1).unique(dim=0))


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


def _shared(
    recorded: Recorder, group: Sequence[ObservedAttention], arranged: Arrangement | None
) -> tuple[str, int]:
    if arranged is None:
        return "", 0
    if arranged.in_rows > 1:
        one = len(group) == 1 and arranged.per_sample > 1
        return (_order_in_rows(recorded, group[0], arranged) if one else ""), arranged.per_sample
    keys = torch.cat([arranged.heads(each.key, keys=True) for each in group], 1)
    heads = keys.shape[1]
    same = torch.tensor(
        [[torch.equal(keys[:, i], keys[:, j]) for j in range(heads)] for i in range(heads)]
    )
    count = int(same[0].sum())
    if count in (1, heads) or heads % count:
        return "", 0
    grouped = torch.arange(heads) // count
    tiled = torch.arange(heads) % (heads // count)
    for name, order in (("grouped", grouped), ("tiled", tiled)):
        if torch.equal(same, order[:, None] == order):
            return name, heads // count
    return "", 0


def _order_in_rows(recorded: Recorder, each: ObservedAttention, arranged: Arrangement) -> str:
    """The order of query heads that are rows of one block of keys, by the columns they are projected to."""
    query, key = (_first_columns(recorded, each, which, arranged) for which in (0, 1))
    if query is None or key is None:
        return ""
    if torch.equal(query // arranged.in_rows, key):
        return "grouped"
    return "tiled" if torch.equal(query % arranged.per_sample, key) else ""


def _first_columns(
    recorded: Recorder, each: ObservedAttention, which: int, arranged: Arrangement
) -> Tensor | None:
    """The number of the columns of each head of queries (0) or keys (1), in the order of their projection."""
    node, tags = root_node(recorded, each, which), side_tags(each, which)
    if node is None or node.kind != "linear" or tags is None or bool((tags.element <= 0).any()):
        return None
    if each.layout.scores is each.layout.context:
        return None
    columns = blocks_of((tags.element - node.base) % node.output.shape[-1])
    columns = columns.mT if each.layout.sides[which] == 1 else columns
    rows = columns[(each.layout.query, each.layout.key)[which]]
    first = arranged.heads(rows, keys=which == 1)[-1].amin((-2, -1))
    return first.unique(return_inverse=True)[1]


def _sliced(recorded: Recorder, group: Sequence[ObservedAttention]) -> bool:
    """True if every query is projected from a part of the input's columns."""
    inputs = [node for node in recorded.nodes if node.kind == "input"]
    for each in group:
        node = root_node(recorded, each, 0)
        if node is None or node.kind != "linear":
            return False
        tags = node.tags[1 - (node.constant or 0)]
        if tags is None:
            return False
        source = next((x for x in inputs if bool((tags.node == x.index).all())), None)
        if source is None or bool((tags.element <= 0).any()):
            return False
        width = source.output.shape[-1]
        columns = (tags.element - source.base) % width
        if columns.shape[-1] == width or columns.shape[-1] < 2:
            return False
    return True


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


def _summed(recorded: Recorder, group: Sequence[ObservedAttention]) -> bool:
    """True if the contexts of several heads, and nothing else, are added to each other."""
    contexts = {each.layout.context.index for each in group}
    for step in recorded.steps:
        mixed = step.name in ("add", "add_") and bool((step.tags.node == -1).all())
        if mixed and len(group) > 1 and step.other == "input":
            return True
    return any(
        node.kind == "summed"
        and node.tags[0] is not None
        and bool(torch.isin(node.tags[0].node, torch.tensor(sorted(contexts))).all())
        and not _within_rows(node, node.tags[0], group)
        for node in recorded.nodes
    )


def _within_rows(node: Node, tags: Tags, group: Sequence[ObservedAttention]) -> bool:
    """True if each sum is over columns of one row of a context, as that of a norm is."""
    dims = node.options["dim"]
    rows = torch.zeros_like(tags.element)
    for each in group:
        context = each.layout.context
        shape = blocks_of(context.output).shape
        place = (tags.element - context.base).clamp(0, context.output.numel() - 1)
        block, row, column = unravelled(place, shape)
        row = block * max(shape) + (column if each.layout.flip else row)
        rows = torch.where(tags.node == context.index, context.base + row, rows)
    return dims is not None and torch.equal(rows.amax(dims), rows.amin(dims))


def _other_order(
    recorded: Recorder, group: Sequence[ObservedAttention], arranged: Arrangement | None
) -> bool:
    """True if the heads of the value are made of other columns than those of the query."""
    if arranged is None or len(group) > 1 or arranged.in_rows > 1:
        return False
    each = group[0]
    columns = []
    for which in (0, 2):
        node, tags = root_node(recorded, each, which), side_tags(each, which)
        if node is None or node.kind != "linear" or tags is None or bool((tags.element <= 0).any()):
            return False
        if (
            each.layout.scores is not each.layout.context
            and which == 0
            and each.layout.sides[0] == 1
        ):
            return False
        width = node.output.shape[-1]
        blocks = blocks_of(tags.element - node.base)
        found = blocks[-arranged.per_sample :, 0] % width
        columns.append((found, width))
    (query, one), (value, other) = columns
    if one != other or query.shape != value.shape or query.shape[0] == 1:
        return False
    return bool((query.diff(dim=1) == 1).all()) and not bool((value.diff(dim=1) == 1).all())
