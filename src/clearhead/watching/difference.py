"""The difference of two runs of a model in numbers: how far the attention of each head is apart."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from clearhead._common.rows import MeasuredRows
from clearhead._common.text import shown
from clearhead.errors import ArgumentError, ArgumentTypeError, ShapeError
from clearhead.matrix.head_numbers import numbers_of_heads
from clearhead.matrix.matrix import AttentionMatrix

if TYPE_CHECKING:
    from clearhead.watching.kept_by_path import KeptByPath

PORTION = 1 << 22
"""The weights of a run that are in memory at a time."""


class HeadDifference(NamedTuple):
    """One head in two runs.

    Attributes:
        layer: the path of the module that attended.
        layer_number: its number in the record.
        head: which query head.
        queries: the number of queries, of all samples and calls, in the mean.
        total_variation: the share of a query's attention that is elsewhere in the other run, 0 to 1.
    """

    layer: str
    layer_number: int
    head: int
    queries: int
    total_variation: float


class RunDifference(MeasuredRows[HeadDifference]):
    """The rows of all heads of all layers in two runs.

    Example:
        >>> import torch, clearhead as ch
        >>> layer = ch.MultiHeadAttention(8, num_heads=2)
        >>> with torch.no_grad(), ch.watch(layer) as one, ch.watch(layer) as two:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> one.difference(two).top(1)[0].total_variation
        0.0
    """

    ROW = HeadDifference
    BY = "total_variation"
    DIGITS = 4
    UNPRINTED = frozenset({"queries"})


def difference_of(one: "KeptByPath[Any]", other: Any) -> RunDifference:
    """Return the difference of two records; what each of them must be is told by `Seen.difference`."""
    if not hasattr(other, "apart"):
        raise ArgumentTypeError(
            "difference.type",
            f"other must be what a watch has seen; got {type(other).__name__}.",
        )
    keeps = one._keep, other._keep
    if keeps != ("matrix", "matrix"):
        raise ArgumentError(
            "difference.keep",
            'difference needs the matrices of both runs, which keep="matrix" keeps; keep= was '
            f"{' and '.join(map(shown, keeps))}.",
        )
    if one.layers != other.layers:
        raise ShapeError(
            "difference.layers",
            f"both runs must have the same layers; got {shown(one.layers)} and {shown(other.layers)}.",
        )
    rows = []
    for path in one.layers:
        mine, theirs = one.apart([path]), other.apart([path])
        _check_alike(path, mine, theirs)
        for (name, some), (_, others) in zip(mine, theirs, strict=True):
            sums, queries = torch.zeros(some[0].num_heads, dtype=torch.float64), 0
            for a, b in zip(some, others, strict=True):
                found, count = _apart(a, b)
                sums, queries = sums + found, queries + count
            rows += [
                HeadDifference(name, one.number(path), head, queries, each / max(1, queries))
                for head, each in zip(numbers_of_heads(some[0]), sums.tolist(), strict=True)
            ]
    return RunDifference(rows)


def _check_alike(path: str, mine: list[Any], theirs: list[Any]) -> None:
    every = [[each for _, some in side for each in some] for side in (mine, theirs)]
    shapes = [[tuple(each.shape) for each in side] for side in every]
    heads = [numbers_of_heads(side[0]) for side in every]
    if heads[0] != heads[1]:
        raise ShapeError(
            "difference.heads",
            f"both runs must have the same heads of {shown(path)}; got {shown(heads[0])} and {shown(heads[1])}.",
        )
    if shapes[0] != shapes[1] or [len(some) for _, some in mine] != [len(s) for _, s in theirs]:
        raise ShapeError(
            "difference.shape",
            f"both runs must have as many samples, queries and keys in each call of {shown(path)}; got "
            f"{shown(shapes[0])} and {shown(shapes[1])}.",
        )


@torch.no_grad()
def _apart(one: AttentionMatrix, other: AttentionMatrix) -> tuple[Tensor, int]:
    """The sum over queries of what is elsewhere, (num_heads,), float64, and how many queries that is."""
    one.check_whole("difference")
    other.check_whole("difference")
    real = _real(one) | _real(other).to(one.device)
    total = torch.zeros(one.num_heads, dtype=torch.float64)
    some = max(1, PORTION // max(1, one.batch * one.num_heads * one.kv_len))
    for start in range(0, one.query_len, some):
        rows = slice(start, min(start + some, one.query_len))
        weights = one[:, :, rows, :].double()
        apart = (weights - other[:, :, rows, :].to(one.device)).abs().sum(dim=-1) / 2
        total += apart.where(real[:, None, rows], 0.0).sum(dim=(0, 2)).cpu()
    return total, int(real.sum())


def _real(matrix: AttentionMatrix) -> Tensor:
    """(batch, query_len), bool."""
    real = matrix.real
    if real is None:
        return torch.ones(matrix.batch, matrix.query_len, dtype=torch.bool, device=matrix.device)
    return real
