"""The time that a live page waits for what one zooms to, in a text of 50 000 tokens.

Held against the plain ways of `AttentionMatrix` to the same numbers.
"""

from functools import lru_cache

import torch
from torch import Tensor

import clearhead as ch
from benchmarks.harness import Sides, case
from clearhead.matrix.tiles import MapTile, exact_tile, make_level, tile_of_level

LENGTH = 50_000
WORK = "one head of 50,000 tokens, width 64, causal: "
NEAR = range(20_000, 26_300, 25)
"""6300 × 6300 tokens in 252 × 252 cells: the largest tile that is made from query and key."""

WHOLE = range(0, LENGTH, 200)
PLACE = 20_011
PORTION = 512


@lru_cache(maxsize=1)
def _matrix() -> ch.AttentionMatrix:
    query, key = torch.randn(
        2, 1, 1, LENGTH, 64, generator=torch.Generator().manual_seed(0)
    ).unbind()
    matrix = ch.AttentionMatrix(query, key, mask=ch.causal())
    assert matrix.logsumexp.isfinite().all()  # worked out once, before anybody zooms
    return matrix


def _exact(rows: range, columns: range) -> MapTile:
    matrix = _matrix()
    return exact_tile(matrix.problem, matrix.logsumexp[0, 0], 0, 0, rows, columns)


def _near(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def _rectangle(rows: range, columns: range) -> Tensor:
    """The weights some rows at a time, in cells as a tile has them."""
    parts = []
    for first in range(rows.start, rows.stop, rows.step * (PORTION // rows.step)):
        stop = min(first + rows.step * (PORTION // rows.step), rows.stop)
        part = _matrix()[0, 0, first:stop, columns.start : columns.stop]
        cells = part.unflatten(1, (-1, columns.step)).sum(dim=2)
        parts.append(cells.unflatten(0, (-1, rows.step)).mean(dim=1))
    return torch.cat(parts)


def _against_the_rectangle(columns: range) -> Sides:
    _matrix()
    return {
        "exact_tile": lambda: _exact(NEAR, columns).values,
        "matrix[rows, columns], pooled": lambda: _rectangle(NEAR, columns),
    }


@case(
    "serve-tile-50000",
    reach=("<= 300ms", "<= 0.6x"),
    work=WORK + "the largest exact tile, 6300 × 6300 tokens in 252 × 252 cells, on the diagonal",
    compare=_near,
    rounds=3,
)
def tile() -> Sides:
    return _against_the_rectangle(NEAR)


@case(
    "serve-tile-below-50000",
    reach=("<= 300ms", "<= 0.6x"),
    work=WORK + "the largest exact tile, far below the diagonal, where nothing is hidden",
    compare=_near,
    rounds=3,
)
def below() -> Sides:
    return _against_the_rectangle(range(1000, 7300, 25))


@case(
    "serve-overview-50000",
    reach="<= 300ms",
    work=WORK + "the whole map in 250 × 250 cells, from its level of 2000 × 2000",
    compare=_near,
    memory=False,
    rounds=1,
)
def overview() -> Sides:
    level = make_level(_matrix().problem)
    return {
        "tile_of_level": lambda: tile_of_level(level, 0, WHOLE, WHOLE).values,
        "matrix.pool(250, 250)": lambda: _matrix().pool(250, 250)[0, 0] / WHOLE.step,
    }


@case(
    "serve-token-50000",
    reach="<= 50ms",
    work=WORK + "who looks at a token: its column",
    compare=_near,
    rounds=3,
)
def token() -> Sides:
    _matrix()
    return {
        "exact_tile": lambda: _exact(range(LENGTH), range(PLACE, PLACE + 1)).values[:, 0],
        "matrix[…, key]": lambda: _matrix()[0, 0, :, PLACE],
    }
