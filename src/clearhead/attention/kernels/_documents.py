"""Documents of unequal length: those of like length are one fused call, padded to the longest of them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.attention.kernels._fused_calls import call_with_sinks, run_piece
from clearhead.attention.kernels._lowering import Piece, assemble
from clearhead.attention.problem import Problem
from clearhead.masks.tiles import length

MOST_PAIRS = 1.2
"""How many times the pairs of its documents a causal call computes at most; others have documents of one length."""


def are_documents(pieces: list[Piece]) -> bool:
    """Return True if each piece has as many keys as queries, or none, and the keys of a sample are in order."""
    ends: dict[int, int] = {}
    for piece in pieces:
        row, seen = piece.rows.start, length(piece.keys)
        if piece.masked or piece.tiles > 1 or seen not in (0, length(piece.queries)):
            return False
        if seen and piece.keys.start < ends.get(row, 0):
            return False
        ends[row] = max(ends.get(row, 0), piece.keys.stop)
    return True


def classes(pieces: list[Piece]) -> list[list[int]]:
    """Group documents of like length, all causal or none, the longest first, by their places among the pieces; those
    without keys are left out."""
    sizes = [length(piece.keys) for piece in pieces]
    order = sorted(range(len(pieces)), key=lambda place: (pieces[place].causal, -sizes[place]))
    groups: list[list[int]] = []
    pairs = 0
    for place in order:
        pairs += sizes[place] ** 2
        first = groups[-1][0] if groups else place
        computed = (len(groups[-1]) + 1) * sizes[first] ** 2 if groups else 0
        causal = pieces[place].causal
        alike = pieces[first].causal == causal
        if groups and alike and computed <= (MOST_PAIRS if causal else 1) * pairs:
            groups[-1].append(place)
        elif sizes[place]:
            groups.append([place])
            pairs = sizes[place] ** 2
    return groups


def run_documents(problem: Problem, pieces: list[Piece]) -> Tensor:
    """The context of pieces that are documents, by one call for each class."""
    if length(pieces[0].rows) > 1:
        rows = [slice(row, row + 1) for row in range(problem.batch)]
        pieces = [piece._replace(rows=row) for row in rows for piece in pieces]
    inputs = [
        _cut(problem.query, pieces, [piece.queries for piece in pieces]),
        _cut(problem.key, pieces, [piece.keys for piece in pieces]),
        _cut(problem.value, pieces, [piece.keys for piece in pieces]),
    ]
    contexts: dict[int, Tensor] = {}
    for group in classes(pieces):
        sizes = [length(pieces[place].keys) for place in group]
        query, key, value = (
            torch.stack(
                [F.pad(each[place], (0, 0, 0, sizes[0] - each[place].shape[1])) for place in group]
            )
            for each in inputs
        )
        context = call_with_sinks(problem, query, key, value, None, pieces[group[0]].causal)
        for place, size, tile in zip(group, sizes, context.unbind(0), strict=True):
            contexts[place] = tile[None, :, :size]
    parts = [
        contexts[place] if place in contexts else run_piece(problem, piece)
        for place, piece in enumerate(pieces)
    ]
    return assemble(parts, pieces)


def _cut(tensor: Tensor, pieces: list[Piece], runs: list[slice]) -> list[Tensor]:
    """The tokens of each piece, (heads, tokens, width), by one split of each sample: slices would each send a gradient
    of the size of the tensor."""
    sizes: list[list[int]] = [[] for _ in range(tensor.shape[0])]
    for piece, run in zip(pieces, runs, strict=True):
        row = sizes[piece.rows.start]
        gap = run.start - sum(row) if length(run) else 0
        row += [gap, length(run)]
    for row in sizes:
        row.append(tensor.shape[2] - sum(row))
    return [
        part
        for sample, row in zip(tensor, sizes, strict=True)
        for part in sample.split(row, dim=1)[1::2]
    ]
