"""The numbers of the weights: of a part of the matrix, and refused arguments.

That each is what the definition says is held in test_reductions.py and test_summary.py.
"""

from typing import Any

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead import AttentionMatrix
from clearhead.matrix import parts
from tests.matrix.test_matrix import BATCH, HEADS, KEYS, close, inputs
from tests.refusals import refusals


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_zooms(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = (t[(0,) * (4 - dims)] for t in inputs())
    weights = AttentionMatrix(query, key, mask=ch.causal())
    expected = weights.dense()
    for portion in (1 << 21, 2 * BATCH * HEADS * KEYS):
        monkeypatch.setattr(parts, "PORTION", portion)
        zoom = weights.pool(2, 3, queries=slice(1, 5), keys=slice(None, None, 2))
        assert zoom.shape == (*weights.shape[:-2], 2, 3)
        # Four queries in two bins, and five keys in bins of two, two and one.
        part = expected[..., 1:5, ::2]
        rows = torch.stack([part[..., :2, :].sum(dim=-2), part[..., 2:, :].sum(dim=-2)], dim=-2)
        columns = [rows[..., :2], rows[..., 2:4], rows[..., 4:]]
        close(zoom, torch.stack([each.sum(dim=-1) for each in columns], dim=-1))
        close(weights.pool(6, 1, queries=slice(None)), expected.sum(dim=-1, keepdim=True))
        close(weights.pool(1, 9, keys=slice(None)), expected.sum(dim=-2, keepdim=True))
        reverse = slice(None, None, -1)
        close(weights.pool(6, 9, queries=reverse, keys=reverse), expected.flip(-1, -2))


def test_numbers_of_numpy() -> None:
    weights = AttentionMatrix(*inputs())
    two: Any = np.int64(2)
    assert torch.equal(weights.top_k(two).keys, weights.top_k(2).keys)
    assert torch.equal(weights.pool(two, two), weights.pool(2, 2))


SEGMENTS = torch.zeros(KEYS, dtype=torch.int64)


test_refused_statistics = refusals(
    lambda ask: ask(AttentionMatrix(*inputs())),
    *(
        (lambda a, k=k: a.top_k(k), "top-k.value", f"9 // {k!r}")
        for k in (0, 10, -1, 1.0, True, "a", None)
    ),
    *(
        (lambda a, rows=rows: a.pool(rows, 2), "pool.size", f"rows // queries // 6 // {rows!r}")
        for rows in (0, 7, -1, 2.0, True, None)
    ),
    (lambda a: a.pool(2, 10), "pool.size", "columns // keys // 9 // 10"),
    (lambda a: a.pool(3, 2, queries=slice(1, 3)), "pool.size", "rows // queries // 2 // 3"),
    (lambda a: a.pool(1, 1, keys=slice(3, 3)), "pool.size", "columns // keys // 0 // 1"),
    (lambda a: a.pool(1, 1, keys=3), "matrix.index", "3"),
    (
        lambda a: a.pool(1, 1, queries=slice("a", None)),
        "matrix.index",
        "slice('a', None, None)",
    ),
    (
        lambda a: a.mass([0] * KEYS),
        "segments.type",
        "segments // a tensor of bool or of ints // list",
    ),
    (lambda a: a.mass(SEGMENTS.double()), "segments.type", "torch.float64"),
    (lambda a: a.mass(SEGMENTS.to("meta")), "segments.meta", "segments // on the meta device"),
    (lambda a: a.mass(SEGMENTS[1:]), "segments.shape", "9 // (2, 9) // (8,)"),
    (lambda a: a.mass(SEGMENTS[None]), "segments.shape", "9 // (2, 9) // (1, 9)"),
    (lambda a: a.mass(SEGMENTS + 9), "segments.value", "9 // 9 // 9"),
    (lambda a: a.mass(SEGMENTS - 2), "segments.value", "9 // -2 // -2"),
)
