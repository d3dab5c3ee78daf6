"""Mutants of rotary positions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants.mutant import Mutant
from clearhead.checking.hypotheses.recipe import Setting, right_rotate, rotate, rotated


def _start(first: Callable[[Setting], int]) -> Callable[..., Any]:
    return lambda query, key, at: rotate(query, key, at, first(at))


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


def _backwards(*which: int) -> Callable[..., Any]:
    """Query (0) or key (1) turned by the negative of its places."""

    def turned(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        rope = at.contract.rope or {}
        base, layout = float(rope.get("base", 10000.0)), str(rope.get("layout", "half"))

        def back(x: Tensor, start: int) -> Tensor:
            # From the last token on, places count down.
            return rotated(x.flip(-2), 1 - start - x.shape[-2], base, layout).flip(-2)

        other = right_rotate(query, key, at)
        return (
            back(query, at.offset) if 0 in which else other[0],
            back(key, 0) if 1 in which else other[1],
        )

    return turned


def _with_base(base: float) -> Callable[..., Any]:
    def turned(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        rope = {**(at.contract.rope or {}), "base": base}
        return right_rotate(query, key, at._replace(contract=replace(at.contract, rope=rope)))

    return turned


def _value_too(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    return query, key, rotate(value, value, at, 0)[1]


def _whole_width(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    """All heads side by side rotated as one."""

    def flat(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)[:, None]

    turned = right_rotate(flat(query), flat(key), at)
    return tuple(
        each[:, 0].unflatten(-1, (x.shape[1], -1)).transpose(1, 2)
        for each, x in zip(turned, (query, key), strict=True)
    )  # type: ignore[return-value]


def _declared(contract: Contract) -> bool:
    return contract.rope is not None


def _rope(code: str, way: str, turned: Callable[..., Any], **values: Any) -> Mutant:
    return Mutant(code, way, {"rotate": turned}, _declared, values)


ROPE = [
    _rope("rope.layout", "other", _other_layout),
    _rope("rope.offset", "zero", _start(lambda at: 0)),
    _rope("rope.offset", "one", _start(lambda at: at.offset + 1)),
    _rope("differs", "not-rotated", lambda query, key, at: (query, key)),
    *(
        _rope("rope.layout", "mixed", _mixed(turned, layout))
        for turned, layout in (
            (_turned_half, "interleaved"),
            (_turned_neighbours, "half"),
            (_neighbours_as_halves, "half"),
            (_neighbours_as_halves, "interleaved"),
        )
    ),
    *(
        _rope("differs", "one-rotated", _only(i), which=name)
        for i, name in enumerate(("query", "key"))
    ),
    *(
        _rope("differs", "backwards", _backwards(*which), which=name)
        for name, which in (
            ("query is", (0,)),
            ("key is", (1,)),
            ("query and the key are", (0, 1)),
        )
    ),
    Mutant("rope.values", "value", {"arrange": _value_too}, _declared),
    _rope("rope.before-split", "whole", _whole_width),
    *(
        Mutant(
            "differs",
            "base",
            {"rotate": _with_base(base)},
            lambda contract, base=base: (
                contract.rope is not None and contract.rope.get("base", 10000.0) != base
            ),
            {"base": f"{base:,.0f}"},
        )
        for base in (10000.0, 500000.0, 1000000.0, 1000.0, 100.0)
    ),
]
