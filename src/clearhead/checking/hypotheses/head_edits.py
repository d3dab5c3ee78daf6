"""Edits of the heads, of query, key and value, and of the rotation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.hypotheses.recipe import (
    Setting,
    right_group,
    right_merge,
    right_rotate,
    rotate,
    rotated,
)
from clearhead.checking.hypotheses.stage_edit import (
    Stage,
    StageEdit,
    grouped,
    rotary,
)

# Heads: query, key, value, at → the three; tensor, at → heads of keys; context, at → output.


def _taking(*which: int) -> Stage:
    """Return an `arrange` stage that replaces query, key and value by those at these three indices."""
    return lambda query, key, value, at: tuple((query, key, value)[each] for each in which)


def _same(*which: int) -> Stage:
    """Return a stage in which every head has the first head's query (0), key (1) or value (2)."""
    return lambda query, key, value, at: tuple(
        each[:, :1].expand_as(each) if index in which else each
        for index, each in enumerate((query, key, value))
    )


def _split_by_view(*which: int) -> Stage:
    """Return a stage that views query (0), key (1) or value (2) as heads first, without the transpose."""
    return lambda query, key, value, at: tuple(
        each.transpose(1, 2).reshape(each.shape) if index in which else each
        for index, each in enumerate((query, key, value))
    )


def _at(*rows: Callable[[Tensor], Tensor] | None) -> Stage:
    """Return a stage that applies a function to each of query, key and value; None leaves one unchanged."""
    return lambda query, key, value, at: tuple(
        each if row is None else row(each).expand_as(each)
        for row, each in zip(rows, (query, key, value), strict=True)
    )


def _rolled(by: int) -> Callable[[Tensor], Tensor]:
    """Return a function that rolls (batch, heads, len, dim) along the tokens."""
    return lambda x: x.roll(by, 2)


def _other_columns(x: Tensor) -> Tensor:
    """Return (batch, heads, len, dim) whose heads are every num_heads-th column instead of adjacent ones."""
    flat = x.transpose(1, 2).flatten(2)
    return flat.unflatten(-1, (x.shape[3], x.shape[1])).permute(0, 3, 1, 2)


def _viewed(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    """Return query, the key whose transpose is its reshape to (dim, len), and value."""
    return query, key.reshape(*key.shape[:2], key.shape[3], key.shape[2]).mT, value


def _heads_as_tokens(
    inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
) -> Tensor:
    """Return the context if heads and tokens are swapped, so that the heads of each token attend to each other."""
    other = at._replace(
        num_heads=at.query_len,
        num_kv_heads=at.kv_len,
        query_len=at.num_heads,
        kv_len=at.num_kv_heads,
    )
    return inner(*(each.transpose(1, 2) for each in (query, key, value)), other).transpose(1, 2)


def _view_merge(context: Tensor, at: Setting) -> Tensor:
    """Return the context reshaped to (batch, query_len, heads · dim) without the transpose."""
    return context.reshape(at.batch, at.query_len, -1)


def _tiled(side: int) -> Stage:
    """Return a stage that tiles the heads of key (1) or value (2); the other one is repeated as usual."""
    return lambda *given: tuple(
        each.repeat(1, given[3].num_heads // each.shape[1], 1, 1) if index == side else each
        for index, each in enumerate(given[:3])
    )


GROUPS = [
    StageEdit("heads.gqa-tiled", "tiled",
         {"group": lambda x, at: x.repeat(1, at.num_heads // x.shape[1], 1, 1)}, grouped),
    *(
        StageEdit("heads.gqa-tiled", "tiled", {"arrange": _tiled(side)}, grouped) for side in (1, 2)
    ),
    StageEdit("heads.layout", "same",
         {"group": lambda x, at: x[:, :1].expand(-1, at.num_heads, -1, -1)}, grouped,
         {"what": "first key head"}),
    StageEdit("law.pairs", "viewed", {"arrange": _viewed}),
]  # fmt: skip

HEADS = [
    *(
        StageEdit("heads.layout", "same", {"arrange": _same(*which)}, values={"what": name})
        for name, which in (
            ("query, key and value", (0, 1, 2)),
            ("key and value", (1, 2)),
            ("query", (0,)),
            ("key", (1,)),
            ("value", (2,)),
            ("query and key", (0, 1)),
        )
    ),
    StageEdit("heads.layout", "tokens", {"around": _heads_as_tokens},
         lambda contract: not grouped(contract)),
    *(
        StageEdit("heads.layout", "view", {"arrange": _split_by_view(*which)})
        for which in ((0, 1, 2), (0, 1), (0,), (1,), (2,), (1, 2), (0, 2))
    ),
    StageEdit("heads.layout", "view", {
        "arrange": _split_by_view(0, 1, 2),
        "merge": lambda x, at: _view_merge(x, at),
        "end": lambda x, at: x.reshape(at.batch, at.query_len, at.num_heads, -1).transpose(1, 2),
    }),
    StageEdit("law.pairs", "columns", {"arrange": lambda q, k, v, at: (q, k, _other_columns(v))}),
]  # fmt: skip

TOKENS = [
    StageEdit("law.pairs", "elsewhere", {"arrange": _at(*rows)})
    for rows in (
        *(tuple(_rolled(by) if i == side else None for i in range(3)) for by in (1, -1) for side in range(3)),
        (lambda x: x.flip(2), None, None),
        (lambda x: x[:, :, :1], None, None),
        (lambda x: x[:, :, -1:], None, None),
    )
] + [
    StageEdit("law.pairs", "elsewhere", {"around": lambda inner, *sides: inner(*sides).cumsum(2)}),
    StageEdit("law.pairs", "alone", {"around": lambda inner, q, k, v, at: right_group(v, at)}),
]  # fmt: skip

MERGES = [
    StageEdit("heads.layout", "summed", {"merge": lambda x, at: x.sum(1)}),
    *(
        StageEdit("heads.layout", "summed",
             {"merge": lambda x, at, by=by: right_merge(by(x, 1, True).expand_as(x), at)})
        for by in (torch.mean, torch.sum)
    ),
    StageEdit("heads.layout", "viewed", {
        "merge": _view_merge,
        "end": lambda x, at: _view_merge(x, at).unflatten(-1, (at.num_heads, -1)).transpose(1, 2),
    }),
    StageEdit("heads.layout", "transposed", {
        "merge": lambda x, at: x.mT.reshape(at.batch, at.query_len, -1),
        "end": lambda x, at: x.transpose(1, 2).reshape(x.shape),
    }),
]  # fmt: skip


VALUES = [
    StageEdit(
        "law.value", "centred", {"arrange": lambda q, k, v, at: (q, k, v - v.mean(2, keepdim=True))}
    ),
    *(
        StageEdit("law.value", "shares", {"arrange": lambda q, k, v, at, axis=axis: (q, k, v.softmax(axis))})
        for axis in (-1, 2)
    ),
]  # fmt: skip

TAKEN = [
    *VALUES,
    StageEdit("parameter.dead", "keys", {"arrange": _taking(0, 1, 1)}),
    StageEdit("parameter.dead", "queries", {"arrange": _taking(0, 1, 0)}),
    StageEdit("parameter.dead", "to-queries", {"arrange": _taking(0, 0, 2)}),
    StageEdit("parameter.dead", "to-keys", {"arrange": _taking(1, 1, 2)}),
    StageEdit("law.value", "swapped", {"arrange": _taking(0, 2, 1)}),
]


# Rotation: query, key, at → both.


def _rope(at: Setting) -> tuple[float, str]:
    """Return the base and the layout of the declared rotation; 10000.0 and "half" by default."""
    rope = at.contract.rope or {}
    return float(rope.get("base", 10000.0)), str(rope.get("layout", "half"))


def _other_layout(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    """Return query and key rotated in the layout that is not declared, "half" or "interleaved"."""
    layout = "half" if _rope(at)[1] == "interleaved" else "interleaved"
    return rotate(query, key, at, at.offset, layout)


def _mixed(pairs: Callable[[Tensor], Tensor], layout: str) -> Stage:
    """Return a `rotate` stage with angles in `layout`, and `pairs` as the function that rotates pairs by 90°."""

    def one(x: Tensor, start: int, base: float) -> Tensor:
        """Return x rotated, positions from `start` on."""
        rates = base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
        places = torch.arange(start, start + x.shape[-2], dtype=torch.float64)
        angles = places[:, None] * rates
        angles = angles.repeat(1, 2) if layout == "half" else angles.repeat_interleave(2, -1)
        return x * angles.cos() + pairs(x) * angles.sin()

    return lambda query, key, at: (one(query, at.offset, _rope(at)[0]), one(key, 0, _rope(at)[0]))


def _of_halves(x: Tensor) -> Tensor:
    """Return the pairs of the "half" layout rotated by 90°: the negated second half, then the first."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _of_neighbours(x: Tensor) -> Tensor:
    """Return the pairs of the "interleaved" layout rotated by 90°: (a, b) becomes (-b, a)."""
    return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)


def _neighbours_as_halves(x: Tensor) -> Tensor:
    """Return interleaved pairs rotated by 90° but stored as halves: negated odd columns, then the even ones."""
    return torch.cat([-x[..., 1::2], x[..., 0::2]], -1)


def _backwards(*which: int) -> Stage:
    """Return a stage that rotates query (0) or key (1) by the negative of its positions."""

    def back(x: Tensor, start: int, at: Setting) -> Tensor:
        """Return x rotated by the negative of its positions, which begin at `start`."""
        # From the last token on, places count down.
        return rotated(x.flip(-2), 1 - start - x.shape[-2], *_rope(at)).flip(-2)

    def both(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        """Return query and key, those in `which` rotated backwards, the other as usual."""
        other = right_rotate(query, key, at)
        query = back(query, at.offset, at) if 0 in which else other[0]
        return query, back(key, 0, at) if 1 in which else other[1]

    return both


def _with_base(base: float) -> Stage:
    """Return a stage that rotates query and key with this base."""

    def both(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        """Return query and key rotated with the base."""
        contract = replace(at.contract, rope={**(at.contract.rope or {}), "base": base})
        return right_rotate(query, key, at._replace(contract=contract))

    return both


def _value_too(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    """Return query and key unchanged and the value rotated by its positions."""
    return query, key, rotate(value, value, at, 0)[1]


def _whole_width(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    """Return query and key, all heads of each rotated as one vector."""

    def flat(x: Tensor) -> Tensor:
        """Return (batch, heads, len, dim) as (batch, 1, len, heads · dim)."""
        return x.transpose(1, 2).flatten(2)[:, None]

    def apart(x: Tensor, like: Tensor) -> Tensor:
        """Return (batch, 1, len, heads · dim) with the heads of `like`."""
        return x[:, 0].unflatten(-1, (like.shape[1], -1)).transpose(1, 2)

    one, other = right_rotate(flat(query), flat(key), at)
    return apart(one, query), apart(other, key)


ROPE = [
    *(
        StageEdit(code, way, {"rotate": turned}, rotary, values)
        for code, way, turned, values in (
            ("rope.layout", "other", _other_layout, {}),
            ("rope.offset", "zero", lambda q, k, at: rotate(q, k, at, 0), {}),
            ("rope.offset", "one", lambda q, k, at: rotate(q, k, at, at.offset + 1), {}),
            ("differs", "not-rotated", lambda q, k, at: (q, k), {}),
            ("rope.layout", "mixed", _mixed(_of_halves, "interleaved"), {}),
            ("rope.layout", "mixed", _mixed(_of_neighbours, "half"), {}),
            ("rope.layout", "mixed", _mixed(_neighbours_as_halves, "half"), {}),
            ("rope.layout", "mixed", _mixed(_neighbours_as_halves, "interleaved"), {}),
            ("differs", "one-rotated", lambda q, k, at: (right_rotate(q, k, at)[0], k),
             {"which": "query"}),
            ("differs", "one-rotated", lambda q, k, at: (q, right_rotate(q, k, at)[1]),
             {"which": "key"}),
            ("differs", "backwards", _backwards(0), {"which": "query is"}),
            ("differs", "backwards", _backwards(1), {"which": "key is"}),
            ("differs", "backwards", _backwards(0, 1), {"which": "query and the key are"}),
            ("rope.layout", "whole", _whole_width, {}),
        )
    ),
    StageEdit("rope.layout", "value", {"arrange": _value_too}, rotary),
    *(
        StageEdit("differs", "base", {"rotate": _with_base(base)},
             lambda contract, base=base: (
                 contract.rope is not None and contract.rope.get("base", 10000.0) != base),
             {"base": f"{base:,.0f}"})
        for base in (10000.0, 500000.0, 1000000.0, 1000.0, 100.0)
    ),
]  # fmt: skip
