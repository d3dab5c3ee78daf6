"""Mutants of rotary positions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.recipes import Setting, right_rotate, rotate
from clearhead.checking.references.base import Mutant


def _start(first: Callable[[Setting], int], layout: str | None = None) -> Callable[..., Any]:
    def turned(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        return rotate(query, key, at, first(at), layout)

    return turned


def _other_layout(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    assert at.contract.rope is not None
    other = "half" if at.contract.rope.get("layout", "half") == "interleaved" else "interleaved"
    return rotate(query, key, at, at.offset, other)


def _turned_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _turned_neighbours(x: Tensor) -> Tensor:
    return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)


def _neighbours_as_halves(x: Tensor) -> Tensor:
    return torch.cat([-x[..., 1::2], x[..., 0::2]], -1)


def _mixed(turned: Callable[[Tensor], Tensor], layout: str) -> Callable[..., Any]:
    """Pairs of one layout with the angles of the other."""

    def one(x: Tensor, start: int, base: float) -> Tensor:
        rates = base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
        places = torch.arange(start, start + x.shape[-2], dtype=torch.float64)
        angles = places[:, None] * rates
        angles = angles.repeat(1, 2) if layout == "half" else angles.repeat_interleave(2, -1)
        return x * angles.cos() + turned(x) * angles.sin()

    def both(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        base = float((at.contract.rope or {}).get("base", 10000.0))
        return one(query, at.offset, base), one(key, 0, base)

    return both


def _only(which: int) -> Callable[..., Any]:
    def turned(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        other = right_rotate(query, key, at)
        return (other[0], key) if which == 0 else (query, other[1])

    return turned


def _with_base(base: float) -> Callable[..., Any]:
    def turned(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        rope = {**(at.contract.rope or {}), "base": base}
        return right_rotate(query, key, at._replace(contract=replace(at.contract, rope=rope)))

    return turned


def _value_too(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    return query, key, rotate(value, value, at, 0)[1]


def _has_rope(contract: Contract) -> bool:
    return contract.rope is not None


ROPE = [
    Mutant(
        "rope.layout",
        "the pairs that are rotated lie in the other layout",
        "one layout rotates x[:d/2] with x[d/2:], the other x[0::2] with x[1::2]; weights made for "
        "one do not fit the other",
        {"rotate": _other_layout},
        _has_rope,
    ),
    Mutant(
        "rope.offset",
        "the positions of the queries start at 0, though earlier keys are there",
        "rotate the query at its own position: kv_len - query_len + i",
        {"rotate": _start(lambda at: 0)},
        _has_rope,
    ),
    Mutant(
        "rope.offset",
        "the positions of the queries are one off those of the keys",
        "give query and key of one token the same position",
        {"rotate": _start(lambda at: at.offset + 1)},
        _has_rope,
    ),
    Mutant(
        "differs",
        "query and key are not rotated, though rope is declared",
        "rotate query and key before their product",
        {"rotate": lambda query, key, at: (query, key)},
        _has_rope,
    ),
    *(
        Mutant(
            "rope.layout",
            "the pairs that are rotated lie in one layout and their angles in the other",
            "x[:d/2] with x[d/2:] goes with torch.cat([angles, angles], -1), x[0::2] with x[1::2] goes "
            "with angles.repeat_interleave(2, -1)",
            {"rotate": _mixed(turned, layout)},
            _has_rope,
        )
        for turned, layout in (
            (_turned_half, "interleaved"),
            (_turned_neighbours, "half"),
            (_neighbours_as_halves, "half"),
            (_neighbours_as_halves, "interleaved"),
        )
    ),
    *(
        Mutant(
            "differs",
            f"only the {name} is rotated",
            "rotate query and key, both, before their product",
            {"rotate": _only(which)},
            _has_rope,
        )
        for which, name in enumerate(("query", "key"))
    ),
    Mutant(
        "differs",
        "the value is rotated too",
        "rotate query and key only",
        {"arrange": _value_too},
        _has_rope,
    ),
    *(
        Mutant(
            "differs",
            f"the base of the rotation is {base:,.0f}, another than is declared",
            "hand the base on to where the angles are made",
            {"rotate": _with_base(base)},
            lambda contract, base=base: (
                contract.rope is not None and contract.rope.get("base", 10000.0) != base
            ),
        )
        for base in (10000.0, 500000.0, 1000000.0, 1000.0, 100.0)
    ),
]
