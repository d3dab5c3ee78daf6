"""Exact numbers of heads, computed from query and key when the page in a notebook asks its kernel for them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead._common.memory import bytes_of
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.pairs import stages_of_pair
from clearhead.matrix.tiles import cells_of, exact_tile, is_exact

LINKS = 12
"""The strongest links of a token."""

Answer = tuple[dict[str, Any] | None, bytes]
UNKNOWN: Answer = None, b""


def answer(
    matrices: Sequence[AttentionMatrix | None], sample: int, request: Mapping[str, Any]
) -> Answer:
    """Return the answer to a request of the page, and its numbers as bytes; (None, b"") if it cannot be answered.

    Args:
        matrices: the matrix of each layer; None for a layer without query and key.
        sample: which sample of the batch.
        request: what (`tile`, `token` or `pair`), layer, head, and what each of them takes.

    Example:
        >>> query = key = torch.randn(1, 2, 7, 4)
        >>> request = {"what": "tile", "layer": 0, "head": 1, "rows": [0, 7], "columns": [2, 6], "cells": [4, 4]}
        >>> answer([ch.AttentionMatrix(query, key)], 0, request)[0]
        {'rows': [0, 8, 4], 'columns': [2, 6, 4]}
    """
    matrix = matrices[request["layer"]]
    return UNKNOWN if matrix is None else ANSWERS[request["what"]](matrix, sample, request)


def _tile(matrix: AttentionMatrix, sample: int, request: Mapping[str, Any]) -> Answer:
    """Return the ends and the number of rows and columns, and float32 values as bytes, −1 where everything is hidden.

    (None, b"") for a part too large to be computed exactly.
    """
    sides = request["rows"], request["columns"]
    if not is_exact(matrix.problem, *(stop - first for first, stop in sides)):
        return UNKNOWN  # the page has a map that is fine enough for so large a part
    rows, columns = (
        cells_of(first, stop, most)
        for (first, stop), most in zip(sides, request["cells"], strict=True)
    )
    head = request["head"]
    tile = exact_tile(matrix.problem, _totals(matrix)[sample, head], sample, head, rows, columns)
    ends = {
        name: [cells.start, cells.start + len(cells) * cells.step, len(cells)]
        for name, cells in (("rows", rows), ("columns", columns))
    }
    return ends, bytes_of(tile.values.masked_fill(tile.hidden, -1.0))


def _token(matrix: AttentionMatrix, sample: int, request: Mapping[str, Any]) -> Answer:
    """Return {"links": [[place, weight]]}, a token's largest weights as a query or key, and no bytes.

    These are at most LINKS weights, without zeros. A weight that is not finite is None.
    """
    head, token, as_key = request["head"], request["token"], request["side"] == "key"
    rows, columns = range(token, token + 1), range(matrix.kv_len)
    if as_key:
        rows, columns = range(matrix.query_len), rows
    tile = exact_tile(matrix.problem, _totals(matrix)[sample, head], sample, head, rows, columns)
    weights = tile.values.flatten().double()
    best = weights.topk(min(LINKS, len(weights)))
    links = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {"links": [[place, _finite(weight)] for place, weight in links if weight != 0]}, b""


def _pair(matrix: AttentionMatrix, sample: int, request: Mapping[str, Any]) -> Answer:
    """Return the stages of a pair of a query and a key by name, those that are not None; and b""."""
    places = request["head"], request["query"], request["key"]
    stages = stages_of_pair(matrix.problem, sample, *places)._asdict()
    return {
        name: [_finite(number) for number in value] if isinstance(value, tuple) else _finite(value)
        for name, value in stages.items()
        if value is not None
    }, b""


ANSWERS: Mapping[str, Callable[[AttentionMatrix, int, Mapping[str, Any]], Answer]] = {
    "tile": _tile,
    "token": _token,
    "pair": _pair,
}


def _totals(matrix: AttentionMatrix) -> Tensor:
    """Return the logsumexp of each query, (batch, num_heads, query_len)."""
    problem = matrix.problem
    with torch.no_grad():
        return matrix.logsumexp.reshape(problem.batch, problem.num_heads, problem.query_len)


def _finite(value: float) -> float | None:
    """Return a number as JSON has it; None for NaN and infinity."""
    return value if math.isfinite(value) else None
