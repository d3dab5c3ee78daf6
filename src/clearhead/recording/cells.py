"""The attention of a call as (batch, heads, queries, keys), whatever loops and layouts made it.

Code may compute its heads, its samples or its queries one after the other: what is recorded then are many small
attentions. Each number of query and key says by its tags which projection it is of, and which row of it, so that
each pair has its place: sample, head, query and key. What a loop leaves out is a pair that nobody computed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.recording.observed import ObservedAttention, Stage
from clearhead.recording.recorder import Node, Recorder, Tags
from clearhead.recording.weighing import EXPONENTIALS

# What changes no number, and has another shape in a loop than outside of it.
SHAPES = ("squeeze_", "unsqueeze_", "clone", "contiguous", "copy_", "_to_copy", "stack", "cat")


class PlacedAttention(NamedTuple):
    """One layer of attention, put together.

    Attributes:
        whole: all heads of all samples; its blocks are (batch · heads).
        batch, heads: how many there are.
        computed: (blocks, queries, keys), the pairs whose score was computed.
        elements: of each pair, its place in what the product of its part gave; of a loop None.
        nodes: the operations that query, key and value are numbers of, as far as they are known.
        columns: of query, key and value, the first column of each head in its projection; empty where that is
            not known.
        parts: the recorded attentions that it is made of.
        others: recorded attentions that belong to other layers.
    """

    whole: ObservedAttention
    batch: int
    heads: int
    computed: Tensor
    elements: Tensor | None
    nodes: tuple[Node | None, Node | None, Node | None]
    columns: tuple[tuple[int, ...], ...]
    parts: tuple[ObservedAttention, ...]
    others: int


class _Rows(NamedTuple):
    """The origin of the rows of one side: sample and token, (blocks, rows); head, (blocks,)."""

    sample: Tensor
    token: Tensor
    column: Tensor
    node: Node


class _Part(NamedTuple):
    observed: ObservedAttention
    query: _Rows
    key: _Rows
    value: _Rows | None
    stages: tuple[Stage, ...]


def cells_of(
    recorder: Recorder,
    attentions: Sequence[ObservedAttention],
    batch: int,
    lengths: tuple[int, int],
) -> PlacedAttention | None:
    """Put the first layer of attention together; None where its rows are not those of tokens.

    Args:
        recorder: the call.
        attentions: what was recorded of it.
        batch: the number of samples.
        lengths: the number of queries and of keys of a sample.
    """
    found = [_part(recorder, each, batch, lengths) for each in attentions]
    first = next((each for each in found if each is not None), None)
    if first is None:
        return _in_order(recorder, attentions, batch, lengths)
    parts = [each for each in found if each is not None and _belongs(recorder, each, first)]
    # Samples that are attended to at once are one long text.
    if any(_several(each.key.sample) for each in parts):
        parts = [_as_one_text(each, lengths) for each in parts]
        batch, lengths = 1, (batch * lengths[0], batch * lengths[1])
    return _joined(parts, batch, lengths, len(attentions))


def _part(
    recorder: Recorder, observed: ObservedAttention, batch: int, lengths: tuple[int, int]
) -> _Part | None:
    """Return query, key and weights of one attention by sample and token, or None if their tokens are unknown."""
    tags = observed.layout.scores.tags
    if any(each is None for each in tags):
        return None
    layout = observed.layout
    sides = []
    for which, length in enumerate((*lengths, lengths[1])):
        read = []
        for channel in (0, 1):
            taken = {
                node.place: [_channel(each, channel) for each in node.tags]
                for node in (layout.scores, layout.context)
            }
            read.append(layout.operands(taken)[which])
        sides.append(_rows(recorder, read[0], read[1], batch, length))
    query, key, value = sides
    if query is None or key is None or (_several(query.sample) and not _several(key.sample)):
        return None
    return _Part(observed, query, key, value, _stages(observed))


def _channel(tags: Tags | None, which: int) -> Tensor:
    """Return the samples (0) or the tokens (1) of tags; one zero without tags."""
    return torch.zeros(1, 1, dtype=torch.int64) if tags is None else tags[which]


def _rows(
    recorder: Recorder, element: Tensor, node: Tensor, batch: int, tokens: int
) -> _Rows | None:
    """The origin of rows; None where they are not those of tokens."""
    if (
        not element.numel()
        or not bool((node == node.flatten()[0]).all())
        or bool((element <= 0).any())
    ):
        return None
    made = recorder.nodes[int(node.flatten()[0]) - 1]
    width = made.output.shape[-1] if made.output.ndim else 1
    place = element - made.base
    row, column = place // width, place % width
    if made.output.numel() != batch * tokens * width and made.output.shape[-2:] == (
        made.output.numel() // tokens,
        tokens,
    ):
        row, column = column, row  # made as W @ x.T
    elif made.output.numel() != batch * tokens * width:
        return None
    # Rows of one token each, and the same columns in all rows of a block.
    if bool((row != row[..., :1]).any()) or bool((column != column[:, :1]).any()):
        return None
    row = _of_input(recorder, made, batch * tokens)[row[..., 0]]
    return _Rows(row // tokens, row % tokens, column[:, 0, 0], made)


def _of_input(recorder: Recorder, made: Node, rows: int) -> Tensor:
    """Of each row of a projection, the row of the input that it was made of, where that is seen."""
    own = torch.arange(rows)
    side = None if made.constant is None else made.tags[1 - made.constant]
    if made.kind != "linear" or made.constant != 1 or side is None:
        return own
    element, node = side.element.reshape(rows, -1)[:, 0], side.node.reshape(rows, -1)[:, 0]
    source = recorder.nodes[int(node[0]) - 1]
    if bool((node != node[0]).any()) or source.kind != "input" or bool((element <= 0).any()):
        return own
    return (element - source.base) // source.output.shape[-1]


def _several(sample: Tensor) -> bool:
    """True if rows of one block are of several samples."""
    return bool((sample != sample[:, :1]).any())


def _source(recorder: Recorder, made: Node) -> tuple[int, ...]:
    """The input of a projection: the same for all heads of a layer."""
    side = None if made.constant is None else made.tags[1 - made.constant]
    if made.kind != "linear" or side is None:
        return (made.index,)
    return tuple(int(each) for each in side.node.unique() if each > 0)


def _belongs(recorder: Recorder, each: _Part, first: _Part) -> bool:
    """True if a part is of the same layer: it reads the same, and does the same to its scores."""
    one, other = (
        [
            [_source(recorder, side.node) for side in (part.query, part.key)],
            part.observed.query.shape[-1],
            part.observed.value.shape[-1],
            [(stage.name, stage.axis) for stage in part.stages],
        ]
        for part in (each, first)
    )
    return one == other


def _stages(observed: ObservedAttention) -> tuple[Stage, ...]:
    """The stages, in which the softmax of one row alone goes over its keys."""
    found = []
    for each in observed.stages:
        if each.name in SHAPES:
            continue
        alone = each.axis == "all" and each.values.shape[:-1].numel() == 1
        found.append(each._replace(axis="keys") if alone else each)
    return tuple(found)


def _as_one_text(part: _Part, lengths: tuple[int, int]) -> _Part:
    """Return the part with all samples joined into one text."""
    query, key = (
        side._replace(sample=torch.zeros_like(side.sample), token=side.sample * length + side.token)
        for side, length in zip((part.query, part.key), lengths, strict=True)
    )
    return part._replace(query=query, key=key)


def _joined(
    parts: Sequence[_Part], batch: int, lengths: tuple[int, int], count: int
) -> PlacedAttention | None:
    """Every pair at its place; None where two want the same."""
    names = sorted(
        {(part.query.node.index, int(column)) for part in parts for column in part.query.column}
    )
    one, (queries, keys) = parts[0].observed, lengths
    shape = (batch, len(names))
    table = (*shape, queries, keys)
    start = next(
        (
            place
            for place, each in enumerate(parts[0].stages)
            if each.axis is not None or each.name in EXPONENTIALS
        ),
        len(parts[0].stages),
    )
    lacking = [-torch.inf if place < start else 0.0 for place in range(len(parts[0].stages))]
    stages = [torch.full(table, each, dtype=torch.float64) for each in lacking]
    scores = torch.full(table, -torch.inf, dtype=torch.float64)
    computed = torch.zeros(table, dtype=torch.bool)
    elements = torch.zeros(table, dtype=torch.int64)
    query = torch.zeros(*shape, queries, one.query.shape[-1], dtype=torch.float64)
    key = torch.zeros(*shape, keys, one.key.shape[-1], dtype=torch.float64)
    value = torch.zeros(*shape, keys, one.value.shape[-1], dtype=torch.float64)
    used = torch.zeros(*shape, keys, dtype=torch.bool)
    context = torch.zeros(*shape, queries, one.value.shape[-1], dtype=torch.float64)
    places = torch.full((3, len(names)), -1)
    others = count
    for part in parts:
        each = part.observed
        for block in range(len(each.query)):
            sample = int(part.query.sample[block, 0])
            head = names.index((part.query.node.index, int(part.query.column[block])))
            rows, columns = part.query.token[block], part.key.token[block]
            pairs = (sample, head, rows[:, None], columns[None])
            if bool(computed[pairs].any()) or len(columns.unique()) < len(columns):
                break
            computed[pairs] = True
            for side, made in enumerate((part.query, part.key, part.value)):
                if made is not None:
                    places[side, head] = made.column[block]
            scores[pairs] = each.scores[block]
            if each.elements is not None:
                elements[pairs] = each.elements[block]
            for whole, stage in zip(stages, part.stages, strict=True):
                whole[pairs] = stage.values[block]
            query[sample, head, rows] = each.query[block]
            key[sample, head, columns] = each.key[block]
            value[sample, head, columns] = each.value[block]
            used[sample, head, columns] = True
            context[sample, head, rows] = each.context[block]
        else:
            others -= 1
    if others == count:
        return None
    columns = tuple(tuple(each) if min(each) >= 0 else () for each in places.tolist())
    _fill(query, parts[0].query, columns[0], ~computed.any(-1))
    _fill(key, parts[0].key, columns[1], ~used)
    _fill(value, parts[0].value, columns[2], ~used)
    whole = ObservedAttention(
        query.flatten(0, 1),
        key.flatten(0, 1),
        value.flatten(0, 1),
        context.flatten(0, 1),
        scores.flatten(0, 1),
        tuple(
            stage._replace(values=values.flatten(0, 1))
            for stage, values in zip(parts[0].stages, stages, strict=True)
        ),
        one.gains,
        one.layout,
        any(part.observed.tangled for part in parts),
        any(part.observed.beside for part in parts),
    )
    alone = len(parts) == 1 and one.elements is not None
    return PlacedAttention(
        whole,
        batch,
        len(names),
        computed.flatten(0, 1),
        elements.flatten(0, 1) if alone else None,
        (parts[0].query.node, parts[0].key.node, parts[0].value and parts[0].value.node),
        columns,
        tuple(part.observed for part in parts),
        others,
    )


def _fill(rows: Tensor, of: _Rows | None, columns: Sequence[int], lacking: Tensor) -> None:
    """Put rows of a projection that no product took, as those which a loop leaves out, where they belong."""
    if of is None or not columns or not bool(lacking.any()):
        return
    output, (batch, _, tokens, width) = of.node.output.double(), rows.shape
    if output.numel() != batch * tokens * output.shape[-1]:
        return
    plain = output.reshape(batch, tokens, -1)
    whole = torch.stack([plain[..., column : column + width] for column in columns], 1)
    rows[lacking] = whole[lacking]


def _in_order(
    recorder: Recorder,
    attentions: Sequence[ObservedAttention],
    batch: int,
    lengths: tuple[int, int],
) -> PlacedAttention | None:
    """The first attention alone, its blocks in the order of samples and heads, where there are as many."""
    one = next(iter(attentions), None)
    if one is None or len(one.query) % batch or one.scores.shape[-2:] != lengths:
        return None
    computed = torch.ones_like(one.scores, dtype=torch.bool)
    made: list[Node | None] = []
    for side in one.layout.sides:
        tags = one.layout.scores.tags[side]
        known = [] if tags is None else [int(each) for each in tags.node.unique() if each > 0]
        made.append(recorder.nodes[known[0] - 1] if len(known) == 1 else None)
    return PlacedAttention(
        one,
        batch,
        len(one.query) // batch,
        computed,
        one.elements,
        (made[0], made[1], None),
        ((),) * 3,
        (one,),
        len(attentions) - 1,
    )
