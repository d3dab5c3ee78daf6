"""Edits of a part of attention: its definition with one mistake, on plain (len, dim)."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead import stages

Wrong = Callable[..., Tensor]


class PartEdit(NamedTuple):
    """A part with a mistake: `wrong` takes its inputs, and returns or raises as code with the mistake does."""

    code: str
    wrong: Wrong
    way: str = "part"


# The cells that a loop leaves out: row, column, shape of the result → True for each of them.
CELLS: tuple[Callable[[Tensor, Tensor, torch.Size], Tensor], ...] = (
    lambda row, column, size: column == size[1] - 1,
    lambda row, column, size: column == 0,
    lambda row, column, size: row == size[0] - 1,
    lambda row, column, size: row == 0,
    lambda row, column, size: row == column,
    lambda row, column, size: column > row,
    lambda row, column, size: column >= row,
    lambda row, column, size: column < row,
    lambda row, column, size: column <= row,
)
# The mistakes of any sum of products: products (rows, columns, terms) → result.
SUMS: tuple[tuple[str, Wrong], ...] = (
    ("sum.wrong", lambda p: p.sum(-1).flatten().cumsum(0).view(p.shape[:2])),
    ("sum.wrong", lambda p: p.sum(-1).mT.flatten().cumsum(0).view(p.shape[1], -1).mT),
    ("sum.wrong", lambda p: p.sum(-1).cumsum(-1)),
    ("sum.wrong", lambda p: p.sum(-1).cumsum(-2)),
    ("sum.wrong", lambda p: p[..., -1]),
    ("sum.wrong", lambda p: p[..., :-1].sum(-1)),
    ("sum.wrong", lambda p: p[..., 1:].sum(-1)),
    ("sum.wrong", lambda p: p[:, :-1].sum(-1)),
    ("sum.wrong", lambda p: p[:, 1:].sum(-1)),
    ("sum.wrong", lambda p: p[:-1].sum(-1)),
    ("sum.wrong", lambda p: p[1:].sum(-1)),
    ("law.pairs", lambda p: p.sum(-1).mT),
    ("law.pairs", lambda p: p.sum((0, -1))),
    ("law.pairs", lambda p: p.sum((0, -1))[None]),
    ("law.pairs", lambda p: p.sum()),
)
# What is subtracted before exp: nothing, the largest of the row, the largest of all.
POWERS: tuple[Wrong, ...] = (
    lambda s: s.exp(),
    lambda s: (s - s.amax(-1, keepdim=True)).exp(),
    lambda s: (s - s.amax()).exp(),
)
# What the powers of a softmax are divided by instead of the sum of their row.
DIVISORS: tuple[tuple[str, Wrong], ...] = (
    ("softmax.axis", lambda p: p.sum(-1)),
    ("softmax.axis", lambda p: p.sum(-2, keepdim=True)),
    ("softmax.axis", lambda p: p.sum()),
    ("law.pairs", lambda p: p[0].sum()),
    ("sum.wrong", lambda p: p.sum(-1, keepdim=True).cumsum(0)),
    ("sum.wrong", lambda p: p[:, -1:]),
    ("sum.wrong", lambda p: p[:, :-1].sum(-1, keepdim=True)),
    ("sum.wrong", lambda p: p[:, 1:].sum(-1, keepdim=True)),
)


def _left_out(right: Wrong) -> Iterator[PartEdit]:
    """Yield edits of a part that leave some cells of its result at 0, or at NaN, as they were allocated."""

    def without(cells: Callable[..., Tensor], unfilled: float, *inputs: Tensor) -> Tensor:
        """Return the result with `unfilled` in the cells."""
        found = right(*inputs)
        row, column = torch.arange(found.shape[0])[:, None], torch.arange(found.shape[1])
        return found.masked_fill(cells(row, column, found.shape), unfilled)

    for cells in CELLS:
        for unfilled in (0.0, torch.nan):
            yield PartEdit("sum.wrong", partial(without, cells, unfilled))


def _sums(products: Wrong) -> Iterator[PartEdit]:
    """Yield the mistakes of any sum of products; `products` returns (rows, columns, terms)."""
    for code, edited in SUMS:
        yield PartEdit(code, lambda *inputs, edited=edited: edited(products(*inputs)))
    yield from _left_out(lambda *inputs: products(*inputs).sum(-1))


PART_EDITS: Mapping[str, list[PartEdit]] = {
    "query,key": [
        *_sums(lambda query, key: query[:, None] * key[None]),
        PartEdit("law.scores", lambda q, k: (q @ k.mT).softmax(-1)),
        PartEdit("law.pairs", lambda q, k: (q[: len(k)] * k[: len(q)]).sum(-1)),
    ],
    "scores": [
        *(
            PartEdit(code, lambda s, powers=powers, by=by: powers(s) / by(powers(s)))
            for code, by in DIVISORS
            for powers in POWERS
        ),
        *_left_out(stages.weights),
        PartEdit("softmax.axis", lambda s: (s - s.amax(-1)).softmax(-1)),
        PartEdit("softmax.axis", lambda s: (p := (s - s.amax(-1)).exp()) / p.sum(-1)),
        PartEdit("softmax.axis", lambda s: (s - s.amax(0)).softmax(-1)),
        PartEdit("softmax.twice", lambda s: s.softmax(-1).softmax(-1)),
        *(PartEdit("softmax.twice", lambda s, p=powers: p(s).softmax(-1)) for powers in POWERS),
        PartEdit("softmax.missing", lambda s: s / s.sum(-1, keepdim=True)),
        PartEdit("softmax.missing", lambda s: (p := s - s.amin(-1, keepdim=True)) / p.sum(-1, keepdim=True)),
        PartEdit("law.pairs", lambda s: s.softmax(-1).mT),
    ],
    "weights,value": [
        *_sums(lambda weights, value: weights[:, None, :] * value.mT[None]),
        PartEdit("law.value", lambda w, v: w.mT @ v, "transposed"),
        PartEdit("law.value", lambda w, v: v.mean(0).expand(len(w), -1)),
        PartEdit("law.value", lambda w, v: v[w.argmax(-1)]),
        PartEdit("softmax.twice", lambda w, v: w.softmax(-1) @ v),
    ],
}  # fmt: skip
