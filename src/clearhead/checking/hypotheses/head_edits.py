"""Edits of the heads, of query, key and value, and of the rotation."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.hypotheses.recipe import (
    Setting,
    Stage,
    StageEdit,
    declared,
    grouped,
    right_group,
    right_merge,
    right_rotate,
    rotate,
)

# Heads: query, key, value, at → the three; tensor, at → heads of keys; context, at → output.


def _taking(*which: int) -> Stage:
    """Return an `arrange` stage that replaces query, key and value by those at these three indices."""
    return lambda query, key, value, at: tuple((query, key, value)[each] for each in which)


def _of(change: Callable[[Tensor, Setting], Tensor], *which: int) -> Mapping[str, Stage]:
    """Return an `arrange` stage, by that name, that changes query (0), key (1) or value (2) by a function of it."""
    return {
        "arrange": lambda query, key, value, at: tuple(
            change(each, at) if index in which else each
            for index, each in enumerate((query, key, value))
        )
    }


def _first_head(x: Tensor, at: Setting) -> Tensor:
    """Return (batch, heads, len, dim) in which every head is the first one."""
    return x[:, :1].expand_as(x)


def _split_by_view(x: Tensor, at: Setting) -> Tensor:
    """Return (batch, heads, len, dim), viewed as heads first without the transpose."""
    return x.transpose(1, 2).reshape(x.shape)


def _tiled(x: Tensor, at: Setting) -> Tensor:
    """Return key or value heads, one per query head, tiled (0 1 0 1) instead of repeated one by one (0 0 1 1)."""
    return x.repeat(1, at.num_heads // x.shape[1], 1, 1)


def _other_columns(x: Tensor, at: Setting) -> Tensor:
    """Return (batch, heads, len, dim) where a head is every heads-th column of the merged x, not adjacent columns."""
    flat = x.transpose(1, 2).flatten(2)
    return flat.unflatten(-1, (x.shape[3], x.shape[1])).permute(0, 3, 1, 2)


def _heads_as_tokens(
    inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
) -> Tensor:
    """Return the context that `inner` computes with heads and tokens swapped: a token's heads attend to each other."""
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


GROUPS = [
    *(StageEdit("heads.gqa-tiled", "tiled", changes, grouped)
      for changes in ({"group": _tiled}, _of(_tiled, 1), _of(_tiled, 2))),
    StageEdit("heads.layout", "same",
         {"group": lambda x, at: x[:, :1].expand(-1, at.num_heads, -1, -1)}, grouped,
         {"what": "first key head"}),
    StageEdit("law.pairs", "viewed", _of(lambda x, at: x.flatten(2).unflatten(2, (x.shape[3], -1)).mT, 1)),
]  # fmt: skip

# Query (0), key (1) and value (2), and which of them a mistake is about.
SIDES = ("query", "key", "value")
WHICH = ((0, 1, 2), (1, 2), (0,), (1,), (2,), (0, 1), (0, 2))

HEADS = [
    *(
        StageEdit("heads.layout", "same", _of(_first_head, *which),
             values={"what": " and ".join(SIDES[each] for each in which)})
        for which in WHICH
    ),
    StageEdit("heads.layout", "tokens", {"around": _heads_as_tokens},
         lambda contract: not grouped(contract)),
    *(StageEdit("heads.layout", "view", _of(_split_by_view, *which)) for which in WHICH),
    StageEdit("heads.layout", "view", {
        **_of(_split_by_view, 0, 1, 2),
        "merge": _view_merge,
        "end": lambda x, at: x.reshape(at.batch, at.query_len, at.num_heads, -1).transpose(1, 2),
    }),
    StageEdit("law.pairs", "columns", _of(_other_columns, 2)),
]  # fmt: skip

TOKENS = [
    StageEdit("law.pairs", "elsewhere", _of(change, side))
    for change, sides in (
        (lambda x, at: x.roll(1, 2), (0, 1, 2)),
        (lambda x, at: x.roll(-1, 2), (0, 1, 2)),
        (lambda x, at: x.flip(2), (0,)),
        (lambda x, at: x[:, :, :1].expand_as(x), (0,)),
        (lambda x, at: x[:, :, -1:].expand_as(x), (0,)),
    )
    for side in sides
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
    StageEdit("law.value", "centred", _of(lambda x, at: x - x.mean(2, keepdim=True), 2)),
    StageEdit("law.value", "shares", _of(lambda x, at: x.softmax(-1), 2)),
    StageEdit("law.value", "shares", _of(lambda x, at: x.softmax(2), 2)),
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
    """Return query and key rotated in the other layout than the declared one; unchanged if no rotation is declared."""
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


def _value_too(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    """Return (query, key, value), the value rotated by its positions; unchanged if no rotation is declared."""
    return query, key, rotate(value, value, at, 0)[1]


def _whole_width(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    """Return query and key, all heads of each rotated as one vector; unchanged if no rotation is declared."""

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
        StageEdit(code, way, {"rotate": turned}, declared("rope"))
        for code, way, turned in (
            ("rope.layout", "other", _other_layout),
            ("rope.offset", "zero", lambda q, k, at: rotate(q, k, at, 0)),
            ("rope.offset", "one", lambda q, k, at: rotate(q, k, at, at.offset + 1)),
            ("rope.layout", "mixed", _mixed(_of_halves, "interleaved")),
            ("rope.layout", "mixed", _mixed(_of_neighbours, "half")),
            ("rope.layout", "mixed", _mixed(_neighbours_as_halves, "half")),
            ("rope.layout", "mixed", _mixed(_neighbours_as_halves, "interleaved")),
            ("rope.layout", "whole", _whole_width),
        )
    ),
    StageEdit("rope.layout", "value", {"arrange": _value_too}, declared("rope")),
]  # fmt: skip
