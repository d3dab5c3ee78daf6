"""Edits of a part of attention: its definition with one mistake, on plain (len, dim)."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages


class PartEdit(NamedTuple):
    """A part with a mistake: `wrong` takes its inputs, and returns or raises as code with the mistake does."""

    code: str
    way: str
    wrong: Callable[..., Tensor]
    values: Mapping[str, str] = {}


CELLS: Mapping[str, Callable[[Tensor, Tensor, torch.Size], Tensor]] = {
    "last-column": lambda row, column, size: column == size[1] - 1,
    "first-column": lambda row, column, size: column == 0,
    "last-row": lambda row, column, size: row == size[0] - 1,
    "first-row": lambda row, column, size: row == 0,
    "itself": lambda row, column, size: row == column,
    "later": lambda row, column, size: column > row,
    "own-and-later": lambda row, column, size: column >= row,
    "earlier": lambda row, column, size: column < row,
    "own-and-earlier": lambda row, column, size: column <= row,
}


def _left_out(right: Callable[..., Tensor], values: Mapping[str, str]) -> Iterator[PartEdit]:
    """Yield edits of a part that leave some cells of its result at 0, or at NaN, as they were allocated."""

    def without(result: Tensor, cells: Callable[..., Tensor], unfilled: float) -> Tensor:
        """Return the result with `unfilled` in the cells."""
        row, column = torch.arange(result.shape[0])[:, None], torch.arange(result.shape[1])[None]
        return result.masked_fill(cells(row, column, result.shape), unfilled)

    for way, cells in CELLS.items():
        for number in (0.0, torch.nan):
            wrong = lambda *a, c=cells, n=number: without(right(*a), c, n)  # noqa: E731
            yield PartEdit("sum.wrong", way, wrong, values)


def _sums(products: Callable[..., Tensor], values: Mapping[str, str]) -> Iterator[PartEdit]:
    """Yield the mistakes of any sum of products; `products` returns (rows, columns, terms)."""

    def total(*inputs: Tensor) -> Tensor:
        """Return the right sums, (rows, columns)."""
        return products(*inputs).sum(-1)

    def running(found: Tensor) -> Tensor:
        """Return the running sum over all numbers, row by row, in the same shape."""
        return found.flatten().cumsum(0).view_as(found)

    for way, carried in (
        ("never", running),
        ("never", lambda found: running(found.mT).mT),
        ("row", lambda found: found.cumsum(-1)),
        ("column", lambda found: found.cumsum(-2)),
    ):
        yield PartEdit("sum.wrong", way, lambda *a, c=carried: c(total(*a)), values)
    yield PartEdit("sum.wrong", "last", lambda *a: products(*a)[..., -1], values)
    for way, cut in (("last", slice(0, -1)), ("first", slice(1, None))):
        for name, wrong in (
            ("term", lambda *a, c=cut: products(*a)[..., c].sum(-1)),
            ("column", lambda *a, c=cut: total(*a)[:, c]),
            ("row", lambda *a, c=cut: total(*a)[c]),
        ):
            yield PartEdit("sum.wrong", f"{way}-{name}", wrong, values)
    yield from _left_out(total, values)
    yield PartEdit("law.pairs", "turned", lambda *a: total(*a).mT, values)
    for axis in (0, (0,), (0, 1)):
        one = lambda *a, x=axis: total(*a).sum(x, keepdim=x == (0,))  # noqa: E731
        yield PartEdit("law.pairs", "one-sum", one, values)


OF_ROWS = {"rows": "query", "columns": "key", "terms": "key", "result": "weight"}
# What is subtracted before exp: nothing, the largest of the row, the largest of all.
POWERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda s: s.exp(),
    lambda s: (s - s.amax(-1, keepdim=True)).exp(),
    lambda s: (s - s.amax()).exp(),
)


def _divided() -> Iterator[PartEdit]:
    """Yield edits of the softmax: powers that are divided by another number than the sum of their row."""
    for code, way, by in (
        ("softmax.axis", "sum", lambda p: p.sum(-1)),
        ("softmax.axis", "sum", lambda p: p.sum(-2, keepdim=True)),
        ("softmax.axis", "whole", lambda p: p.sum()),
        ("law.pairs", "one-sum", lambda p: p[0].sum()),
        ("law.pairs", "one-sum", lambda p: p[-1].sum()),
        ("sum.wrong", "row", lambda p: p.sum(-1, keepdim=True).cumsum(0)),
        ("sum.wrong", "last", lambda p: p[:, -1:]),
        ("sum.wrong", "last-term", lambda p: p[:, :-1].sum(-1, keepdim=True)),
        ("sum.wrong", "first-term", lambda p: p[:, 1:].sum(-1, keepdim=True)),
    ):
        for powers in POWERS:
            wrong = lambda s, p=powers, d=by: p(s) / d(p(s))  # noqa: E731
            yield PartEdit(code, way, wrong, OF_ROWS)


OF_WEIGHTS = [
    *_divided(),
    *_left_out(stages.weights, OF_ROWS),
    PartEdit("softmax.axis", "largest", lambda s: (s - s.amax(-1)).softmax(-1)),
    PartEdit("softmax.axis", "both", lambda s: (p := (s - s.amax(-1)).exp()) / p.sum(-1)),
    PartEdit("softmax.axis", "largest", lambda s: (s - s.amax(0)).softmax(-1)),
    PartEdit("softmax.twice", "twice", lambda s: s.softmax(-1).softmax(-1)),
    *(PartEdit("softmax.twice", "exp", lambda s, p=powers: p(s).softmax(-1)) for powers in POWERS),
    PartEdit("softmax.missing", "by-sum", lambda s: s / s.sum(-1, keepdim=True)),
    PartEdit("softmax.missing", "by-sum", lambda s: s.abs() / s.abs().sum(-1, keepdim=True)),
    PartEdit(
        "softmax.missing",
        "smallest",
        lambda s: (p := s - s.amin(-1, keepdim=True)) / p.sum(-1, keepdim=True),
    ),
    PartEdit("law.value", "count", lambda s: s.softmax(-1) / s.shape[-1]),
    PartEdit("law.value", "count", lambda s: s.softmax(-1) * s.shape[-1]),
    PartEdit("law.pairs", "turned", lambda s: s.softmax(-1).mT, OF_ROWS),
]

PART_EDITS: Mapping[str, list[PartEdit]] = {
    "query,key": [
        *_sums(
            lambda query, key: query[:, None] * key[None],
            {"rows": "query", "columns": "key", "terms": "number", "result": "score"},
        ),
        PartEdit("law.scores", "weights", lambda q, k: (q @ k.mT).softmax(-1)),
        PartEdit("law.pairs", "zip", lambda q, k: (q[: len(k)] * k[: len(q)]).sum(-1)),
    ],
    "scores": OF_WEIGHTS,
    "weights,value": [
        *_sums(
            lambda weights, value: weights[:, None, :] * value.mT[None],
            {"rows": "query", "columns": "dimension", "terms": "key", "result": "context"},
        ),
        *(
            PartEdit("law.value", "count", lambda w, v, by=factor: w @ v * by(w, v))
            for factor in (
                lambda w, v: 1 / w.shape[1],
                lambda w, v: 1 / w.shape[0],
                lambda w, v: 1 / v.shape[1],
                lambda w, v: w.shape[1],
            )
        ),
        PartEdit("law.value", "transposed", lambda w, v: w.mT @ v),
        PartEdit("law.value", "even", lambda w, v: v.mean(0).expand(len(w), -1)),
        PartEdit("law.value", "largest", lambda w, v: v[w.argmax(-1)]),
        PartEdit("softmax.twice", "again", lambda w, v: w.softmax(-1) @ v),
    ],
}
