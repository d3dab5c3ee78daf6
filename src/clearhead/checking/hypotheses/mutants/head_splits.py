"""Mutants of how heads are shared and merged."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants.mutant import Mutant
from clearhead.checking.hypotheses.recipe import Setting


def _view_merge(context: Tensor, at: Setting) -> Tensor:
    return context.reshape(at.batch, at.query_len, -1)


def _merged_wrong_split_right(context: Tensor, at: Setting) -> Tensor:
    return _view_merge(context, at).unflatten(-1, (at.num_heads, -1)).transpose(1, 2)


def _merged_right_split_wrong(context: Tensor, at: Setting) -> Tensor:
    return context.transpose(1, 2).reshape(context.shape)


def _transposed_merge(context: Tensor, at: Setting) -> Tensor:
    return context.mT.reshape(at.batch, at.query_len, -1)


def _same(*which: int) -> Callable[..., Any]:
    """Every head reads what the first reads, of query (0), key (1), value (2)."""

    def arrange(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
        return tuple(
            each[:, :1].expand_as(each) if index in which else each
            for index, each in enumerate((query, key, value))
        )

    return arrange


def _tiled(tensor: Tensor, at: Setting) -> Tensor:
    return tensor.repeat(1, at.num_heads // tensor.shape[1], 1, 1)


def _first_only(tensor: Tensor, at: Setting) -> Tensor:
    return tensor[:, :1].expand(-1, at.num_heads, -1, -1)


def _viewed(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
    return query, key.reshape(*key.shape[:2], key.shape[3], key.shape[2]).mT, value


def _heads_as_tokens(
    inner: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, at: Setting
) -> Tensor:
    turned = at._replace(
        num_heads=at.query_len,
        num_kv_heads=at.kv_len,
        query_len=at.num_heads,
        kv_len=at.num_kv_heads,
    )
    return inner(*(each.transpose(1, 2) for each in (query, key, value)), turned).transpose(1, 2)


def grouped(contract: Contract) -> bool:
    """True if fewer heads of keys than of queries are declared."""
    num_heads, num_kv_heads = contract.heads()
    return num_kv_heads is not None and num_kv_heads != num_heads


def _taking(*which: int) -> Callable[..., Any]:
    """Some of query, key and value in the places of all three."""

    def arrange(query: Tensor, key: Tensor, value: Tensor, at: Setting) -> Any:
        given = query, key, value
        return tuple(given[each] for each in which)

    return arrange


TAKEN = [
    Mutant("parameter.dead", "keys", {"arrange": _taking(0, 1, 1)}),
    Mutant("parameter.dead", "queries", {"arrange": _taking(0, 1, 0)}),
    Mutant("parameter.dead", "to-queries", {"arrange": _taking(0, 0, 2)}),
    Mutant("parameter.dead", "to-keys", {"arrange": _taking(1, 1, 2)}),
    Mutant("law.value", "swapped", {"arrange": _taking(0, 2, 1)}),
]

GROUPS = [
    Mutant("heads.gqa-tiled", "tiled", {"group": _tiled}, grouped),
    Mutant("heads.identical", "first-key", {"group": _first_only}, grouped),
    Mutant("law.pairs", "viewed", {"arrange": _viewed}),
]

HEADS = [
    *(
        Mutant("heads.identical", "same", {"arrange": _same(*which)}, values={"what": name})
        for name, which in [
            ("query, key and value", (0, 1, 2)),
            ("key and value", (1, 2)),
            ("query", (0,)),
            ("key", (1,)),
            ("value", (2,)),
            ("query and key", (0, 1)),
        ]
    ),
    Mutant(
        "heads.layout",
        "tokens",
        {"around": _heads_as_tokens},
        lambda contract: not grouped(contract),
    ),
]

MERGES = [
    Mutant(
        "heads.merge",
        "viewed",
        {"merge": _view_merge, "end": _merged_wrong_split_right},
    ),
    Mutant(
        "heads.merge",
        "transposed",
        {"merge": _transposed_merge, "end": _merged_right_split_wrong},
    ),
]
