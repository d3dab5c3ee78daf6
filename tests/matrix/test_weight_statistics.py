"""The numbers of the weights: of a part of the matrix, and refused arguments.

That each is what the definition says is held in test_reductions.py and test_summary.py.
"""

from typing import Any

import numpy as np
import torch

from clearhead import AttentionMatrix
from tests.matrix.test_matrix import KEYS, inputs
from tests.refusals import refusals


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
