"""The operations that a layer of heads is projected by and read by, and the tokens that its rows are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead._common.foreign_names import role
from clearhead._common.torch_internals import unravelled
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
    """The tokens that the rows of one group of heads come from.

    Attributes:
        split: the names of query, key and value that have rows of several tokens.
        across: each block is of one token, whose heads attend to each other.
        sliced: each head is projected from some columns of x only.
        merged: True if each row of the merged contexts is of one token, False if of several; None if it was not seen.
        changed: the names of operations without parameters between the contexts and their projection.
        num_heads: the number of heads; None if unknown.
    """

    split: tuple[str, ...]
    across: bool
    sliced: bool
    merged: bool | None
    changed: tuple[str, ...]
    num_heads: int | None


def splitting(recorded: Recorder, output: Tensor, layer: Group) -> Splitting:
    """Return which tokens the rows of one group of heads come from, and how its contexts are read."""
    group, found, arranged = layer.attentions, layer.sources, layer.arranged
    known = [each for each in found if each is not None]
    split = tuple(
        name
        for index, name in enumerate(NAMES)
        if any(bool(each.rows[index].split.any()) for each in known)
    )
    num_heads = None
    if arranged is not None:
        num_heads = arranged.per_sample * arranged.in_rows * len(layer.heads)
    reader = consumer(recorded, output, group)
    merged = None
    if reader is not None and reader.kind not in ("summed", "product") and len(known) == len(found):
        merged = _merged(reader.tags, group, found)
    linear = reader is not None and reader.kind == "linear"
    changed = _changed(recorded, group) if linear else ()
    sliced = len(group) > 1 and all(_sliced(recorded, each) for each in group)
    return Splitting(split, any(map(_across, known)), sliced, merged, changed, num_heads)


def _changed(recorded: Recorder, group: Sequence[ObservedAttention]) -> tuple[str, ...]:
    """Return the names of the steps on the contexts with no other tensor, without moves and the squares of a norm."""
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


def _sliced(recorded: Recorder, each: ObservedAttention) -> bool:
    """Return True if the query is projected from some columns of an input only."""
    node = root_node(recorded, each, 0)
    if node is None or node.kind != "linear":
        return False
    width = node.operands[1 - (node.constant or 0)].shape[-1]
    inputs = [other.output.shape[-1] for other in recorded.nodes if other.kind == "input"]
    return 1 < width < min(inputs)


def _across(found: Provenance) -> bool:
    """Return True if each block has the query and key rows of one token only, so its heads attend to each other."""
    blocks = found.blocks
    query, key = found.query.token[blocks], found.key.token[blocks]
    one = bool(((query >= 0) & (query == query[:, :1])).all() & (key == query[:, :1]).all())
    return one and bool(blocks.any()) and query.shape[1] > 1


def side_tags(each: ObservedAttention, which: int) -> Tags | None:
    """Return the tags of query (0), key (1) or value (2); None if they were not recorded."""
    if each.layout.scores is each.layout.context:
        return each.layout.scores.tags[which]
    if which == 2:
        return each.layout.context.tags[int(not each.layout.flip)]
    return each.layout.scores.tags[each.layout.sides[which]]


def _root(each: ObservedAttention, which: int) -> int | None:
    """Return the index of the node that query (0), key (1) or value (2) comes from; None if not exactly one."""
    tags = side_tags(each, which)
    nodes = tags.node[tags.node > 0].unique() if tags is not None else torch.zeros(0)
    return int(nodes[0]) if len(nodes) == 1 else None


def root_node(recorded: Recorder, each: ObservedAttention, which: int) -> Node | None:
    """Return the operation that made query (0), key (1) or value (2); None if not exactly one."""
    index = _root(each, which)
    return None if index is None else recorded.nodes[index - 1]


def is_query_first(recorded: Recorder, each: ObservedAttention) -> bool | None:
    """Return True if the query comes from a query projection, False if from that of the key; None if that is not known.

    It is known by the parameters' names, or, for one projection of both, by which columns come first.
    """
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
    """The first reader of the contexts of the heads: the node, the number of its operand, and their tags there.

    The node is None if the output of the call reads them.
    """

    tags: Tags
    node: Node | None = None
    operand: int = 0

    @property
    def kind(self) -> str:
        """Return the kind of that operation; "output" if there is none."""
        return "output" if self.node is None else self.node.kind


def consumer(
    recorded: Recorder, output: Tensor, group: Sequence[ObservedAttention]
) -> Consumer | None:
    """Return the first node after the contexts, or else the output, with an operand made of them only.

    None if none does. Norms and sums, which reduce them, are passed over; the output may hold other numbers too.
    """
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
    """Return True if a node reduces its operands, as a norm, a sum or a maximum does."""
    sizes = [tags.node.numel() for tags in node.tags if tags is not None]
    return node.kind in ("summed", "other") and node.output.numel() < max(sizes, default=0)


def _merged(
    tags: Tags, group: Sequence[ObservedAttention], found: Sequence[Provenance | None]
) -> bool | None:
    """Return True if each row of the merged contexts is of one token, False if one is not.

    None if no token is known. `found` must have no None.
    """
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
    lowest, highest = rows.masked_fill(rows < 0, 10**6).amin(-1), rows.amax(-1)
    seen = highest >= 0
    return bool((lowest[seen] == highest[seen]).all()) if seen.any() else None
