"""Documents of unequal length: those of like length are one fused call, padded to the longest of them."""

from typing import Any

import torch
from torch import Tensor

from clearhead.attention.kernels._fused_calls import call_with_sinks
from clearhead.attention.kernels._lowering import Piece
from clearhead.attention.problem import Problem
from clearhead.masks.tiles import length

MOST_PAIRS = 1.2
"""How many times the pairs of its documents a call computes at most."""

Rows = tuple[Tensor, Tensor | None]
"""Which row of a tensor goes to each place, int64, and bool: the places that get zeros, None for none."""


class _Gather(torch.autograd.Function):
    """Rows of a tensor in other places. Each row that is used is used once, so that its gradient is gathered too:
    a sum of gradients by index takes many times as long."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rows: Rows, back: Rows) -> Tensor:
        ctx.back = back
        return _gathered(tensor, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _gathered(grads[0], ctx.back), None, None


def _gathered(tensor: Tensor, rows: Rows) -> Tensor:
    index, zero = rows
    result = tensor.index_select(0, index)
    return result if zero is None else result.masked_fill_(zero[:, None, None], 0.0)


def are_documents(pieces: list[Piece]) -> bool:
    """Return True if each piece has as many keys as queries, or none, and no key is in two of them."""
    ends: dict[int, int] = {}
    for piece in sorted(pieces, key=lambda piece: piece.keys.start):
        seen = length(piece.keys)
        if piece.masked or piece.tiles > 1 or seen not in (0, length(piece.queries)):
            return False
        if seen and piece.keys.start < ends.get(piece.rows.start, 0):
            return False
        ends[piece.rows.start] = piece.keys.stop
    return True


def classes(pieces: list[Piece]) -> list[list[Piece]]:
    """Group documents of like length, all causal or none, the longest first; those without keys are left out."""
    groups: list[list[Piece]] = []
    pairs = 0
    for piece in sorted(pieces, key=lambda piece: (piece.causal, length(piece.keys)), reverse=True):
        size = length(piece.keys)
        if not size:
            continue
        pairs += size**2
        group = groups[-1] if groups else []
        fits = group and group[0].causal == piece.causal
        if fits and (len(group) + 1) * length(group[0].keys) ** 2 <= MOST_PAIRS * pairs:
            group.append(piece)
        else:
            groups.append([piece])
            pairs = size**2
    return groups


def run_documents(problem: Problem, pieces: list[Piece]) -> Tensor:
    """The context of pieces that are documents, by one call for each class."""
    batch, query_len, kv_len = problem.batch, problem.query_len, problem.kv_len
    if length(pieces[0].rows) > 1:
        every = range(batch)
        pieces = [each._replace(rows=slice(row, row + 1)) for row in every for each in pieces]
    groups = classes(pieces)
    sizes = [length(group[0].keys) for group in groups]
    places = [_places(group, query_len, kv_len) for group in groups]
    queries, keys, padded = (
        torch.cat([each.flatten() for each in some]) for some in zip(*places, strict=True)
    )
    to_queries = _inverse(queries, padded, batch * query_len)
    to_keys = _inverse(keys, padded, batch * kv_len)
    counts = [len(group) * size for group, size in zip(groups, sizes, strict=True)]
    # Padding may be any finite token: a query of a document does not see it, and it sends no gradient.
    query = _tokens(problem.query, queries, to_queries).split(counts)
    key, value = (
        _tokens(each, keys, to_keys).split(counts) for each in (problem.key, problem.value)
    )
    contexts = []
    for place, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        tiles = [
            each[place].unflatten(0, (len(group), size)).transpose(1, 2)
            for each in (query, key, value)
        ]
        causal, hidden = group[0].causal, places[place][2][:, None, None]
        shown = None
        if not causal and bool(hidden.any()):
            shown = ~hidden.expand(-1, 1, size, -1)
        context = call_with_sinks(problem, tiles[0], tiles[1], tiles[2], shown, causal)
        contexts.append(context.transpose(1, 2).flatten(0, 1))
    together = contexts[0] if len(contexts) == 1 else torch.cat(contexts)
    back = queries, padded if bool(padded.any()) else None
    context = _Gather.apply(together, to_queries, back)
    return context.unflatten(0, (batch, query_len)).transpose(1, 2)


def _places(group: list[Piece], query_len: int, kv_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which query and which key of all samples goes to each place of a class, and which places are padding, each
    (documents, longest)."""
    numbers = [(p.rows.start, p.queries.start, p.keys.start, length(p.keys)) for p in group]
    row, query, key, size = torch.tensor(numbers)[:, None].unbind(-1)
    count = torch.arange(length(group[0].keys))
    padded = count >= size
    count = count.masked_fill(padded, 0)
    return row * query_len + query + count, row * kv_len + key + count, padded


def _inverse(index: Tensor, padded: Tensor, count: int) -> Rows:
    """The place that each of `count` rows went to; those that went nowhere get zeros."""
    places = torch.full((count,), -1)
    real = (~padded).nonzero()[:, 0]
    places[index[real]] = real
    nowhere = places < 0
    return places.clamp(min=0), nowhere if bool(nowhere.any()) else None


def _tokens(tensor: Tensor, index: Tensor, back: Rows) -> Tensor:
    """Tokens of (batch, heads, tokens, width) in other places, (places, heads, width)."""
    result = _Gather.apply(tensor.transpose(1, 2).flatten(0, 1), (index, None), back)
    assert isinstance(result, Tensor)
    return result
