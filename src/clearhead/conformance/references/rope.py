"""Mutants of rotary positions."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from clearhead.conformance.contract import Contract
from clearhead.conformance.recipes import Setting, rotate
from clearhead.conformance.references.base import Mutant


def _start(first: Callable[[Setting], int], layout: str | None = None) -> Callable[..., Any]:
    def turned(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
        return rotate(query, key, at, first(at), layout)

    return turned


def _other_layout(query: Tensor, key: Tensor, at: Setting) -> tuple[Tensor, Tensor]:
    assert at.contract.rope is not None
    other = "half" if at.contract.rope.get("layout", "half") == "interleaved" else "interleaved"
    return rotate(query, key, at, at.offset, other)


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
]
