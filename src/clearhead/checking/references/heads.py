"""Mutants of how heads are split, shared and merged."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from clearhead.checking.contract import Contract
from clearhead.checking.recipes import Setting
from clearhead.checking.references.base import Mutant


def _view_split(flat: Tensor, num_heads: int) -> Tensor:
    return flat.reshape(flat.shape[0], num_heads, flat.shape[1], -1)


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


def _grouped(contract: Contract) -> bool:
    num_heads, num_kv_heads = contract.heads()
    return num_kv_heads is not None and num_kv_heads != num_heads


HEADS = [
    *(
        Mutant(
            "heads.identical",
            f"every head reads the same {name}",
            "index the head's own slice: x[:, head], or view(batch, len, num_heads, head_dim)",
            {"arrange": _same(*which)},
        )
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
        "heads.gqa-tiled",
        "query head h reads key head h % num_kv_heads instead of h // groups",
        "repeat each key head for its group: key.repeat_interleave(groups, dim=1), not "
        "key.repeat(1, groups, 1, 1)",
        {"group": _tiled},
        _grouped,
    ),
    Mutant(
        "heads.identical",
        "every query head reads the first key head",
        "key.repeat_interleave(groups, dim=1)",
        {"group": _first_only},
        _grouped,
    ),
    Mutant(
        "heads.layout",
        "heads are mixed and tokens are not: the axes of heads and tokens are taken for each other",
        "bring the tensors to (batch, heads, len, dim) first: transpose(1, 2). What takes (batch, len, "
        "heads, dim) on purpose is checked by a function that turns query, key and value first",
        {"around": _heads_as_tokens},
        lambda contract: not _grouped(contract),
    ),
]


SPLITS = [
    Mutant(
        "heads.split",
        "a head is made of other tokens' numbers: split without a transpose",
        "x.view(batch, len, num_heads, head_dim).transpose(1, 2), not "
        "x.view(batch, num_heads, len, head_dim)",
        {"split": _view_split},
    ),
    Mutant(
        "heads.split",
        "a head is made of other tokens' numbers, and merged the same way",
        "x.view(batch, len, num_heads, head_dim).transpose(1, 2), not "
        "x.view(batch, num_heads, len, head_dim)",
        {"split": _view_split, "merge": _view_merge},
    ),
]

MERGES = [
    Mutant(
        "heads.merge",
        "heads are merged without a transpose, so that output i holds other tokens' context",
        "context.transpose(1, 2).reshape(batch, len, -1), not context.reshape(batch, len, -1)",
        {"merge": _view_merge, "end": _merged_wrong_split_right},
    ),
    Mutant(
        "heads.merge",
        "heads are merged with the wrong transpose",
        "context.transpose(1, 2).reshape(batch, len, -1)",
        {"merge": _transposed_merge, "end": _merged_right_split_wrong},
    ),
]
