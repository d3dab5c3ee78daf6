"""Mutants of the softmax and of the scale."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.hypotheses.mutants.mutant import Mutant
from clearhead.checking.hypotheses.recipe import Setting


def _over(axis: int, *, safely: bool = False) -> Callable[..., Tensor]:
    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        hidden = masked == -torch.inf
        return torch.softmax(masked.masked_fill(hidden, -1e9) if safely else masked, axis)

    return share


def _flat(start: int, end: int) -> Callable[..., Tensor]:
    """The softmax over several axes as one."""

    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        assert start != 0 or at.num_heads > 1  # with one head that is another axis
        return torch.softmax(masked.flatten(start, end), start).view_as(masked)

    return share


def _raw(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return masked.masked_fill(masked == -torch.inf, 0.0)


def _by_sum(masked: Tensor, empty: str, at: Setting) -> Tensor:
    raw = _raw(masked, empty, at)
    return raw / raw.sum(-1, keepdim=True)


def _by_sum_over_queries(masked: Tensor, empty: str, at: Setting) -> Tensor:
    shares = torch.softmax(masked, -1)
    return shares / shares.sum(-2, keepdim=True)


def _twice(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return torch.softmax(stages.weights(masked), -1)


SOFTMAX = [
    *(
        Mutant("softmax.axis", "over", {"share": share}, values={"axis": name})
        for name, share in [
            ("queries", _over(-2)),
            ("heads", _over(1)),
            ("batch", _over(0)),
            ("samples and heads together", _flat(0, 1)),
            ("queries", _over(-2, safely=True)),
            ("heads", _over(1, safely=True)),
            ("batch", _over(0, safely=True)),
            ("queries and keys together", _flat(2, 3)),
            ("whole tensor", _flat(0, 3)),
        ]
    ),
    *(
        Mutant("softmax.missing", way, {"share": share})
        for way, share in [
            ("raw", _raw),
            ("by-sum", _by_sum),
            ("exp", lambda masked, empty, at: masked.exp()),
            ("sigmoid", lambda masked, empty, at: masked.sigmoid()),
            ("log", lambda masked, empty, at: _raw(torch.log_softmax(masked, -1), empty, at)),
        ]
    ),
    Mutant("softmax.axis", "sum", {"share": _by_sum_over_queries}),
    Mutant("softmax.twice", "twice", {"share": _twice}),
    Mutant("law.value", "transposed", {"after": lambda weights, seen, at: weights.mT}),
]

# The sizes that a scale is made of by mistake.
SIZES: list[tuple[str, Callable[[Setting], float]]] = [
    ("1/head_dim", lambda at: 1 / at.head_dim),
    ("1/√num_heads", lambda at: at.num_heads**-0.5),
    ("1/√num_kv_heads", lambda at: at.num_kv_heads**-0.5),
    (
        "1/√(num_heads · head_dim), the whole width,",
        lambda at: (at.num_heads * at.head_dim) ** -0.5,
    ),
    ("1/√query_len", lambda at: at.query_len**-0.5),
    ("1/√kv_len", lambda at: at.kv_len**-0.5),
    ("1/√batch", lambda at: at.batch**-0.5),
    ("1/√value_head_dim", lambda at: at.value_head_dim**-0.5),
    ("1/√d_in, the width of the input,", lambda at: (at.d_in or at.head_dim) ** -0.5),
    ("1/√√head_dim", lambda at: at.head_dim**-0.25),
    ("1/√(head_dim / 2)", lambda at: (at.head_dim / 2) ** -0.5),
    ("1/√(2 · head_dim)", lambda at: (at.head_dim * 2) ** -0.5),
    ("1/num_heads", lambda at: 1 / at.num_heads),
    (
        "1/(num_heads · head_dim), the whole width without its root,",
        lambda at: 1 / (at.num_heads * at.head_dim),
    ),
    ("√num_heads/√head_dim", lambda at: (at.num_heads / at.head_dim) ** 0.5),
    ("1/√head_dim times log 2", lambda at: math.log(2) * at.head_dim**-0.5),
    ("1/√head_dim times log₂ e", lambda at: math.log2(math.e) * at.head_dim**-0.5),
]

SCALES = [
    Mutant("scale.missing", "missing", {"scale": lambda at: 1.0}),
    Mutant("scale.inverse", "root", {"scale": lambda at: math.sqrt(at.head_dim)}),
    Mutant("scale.inverse", "whole", {"scale": lambda at: at.head_dim}),
    Mutant(
        "scale.wrong",
        "size",
        {"scale": lambda at: at.head_dim**-0.5},
        lambda contract: contract.scale is not None,
        {"size": "1/√head_dim"},
    ),
    *(
        Mutant("scale.wrong", "size", {"scale": scale}, values={"size": words})
        for words, scale in SIZES
    ),
    Mutant(
        "scale.missing",
        "late",
        {
            "scale": lambda at: 1.0,
            "after": lambda weights, seen, at: weights * at.head_dim**-0.5,
        },
    ),
]
