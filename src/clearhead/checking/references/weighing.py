"""Mutants of the softmax and of the scale."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from clearhead.checking.recipes import Setting
from clearhead.checking.references.base import Mutant


def _over(axis: int) -> Callable[..., Tensor]:
    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        return torch.softmax(masked, axis)

    return share


def _safely_over(axis: int) -> Callable[..., Tensor]:
    def share(masked: Tensor, empty: str, at: Setting) -> Tensor:
        hidden = masked == -torch.inf
        return torch.softmax(masked.masked_fill(hidden, -1e9), axis)

    return share


def _over_rows(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return torch.softmax(masked.flatten(0, 1), 0).view_as(masked)


def _raw(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return masked.masked_fill(masked == -torch.inf, 0.0)


def _by_sum(masked: Tensor, empty: str, at: Setting) -> Tensor:
    raw = _raw(masked, empty, at)
    return raw / raw.sum(-1, keepdim=True)


def _exponential(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return masked.exp()


def _sigmoid(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return masked.sigmoid()


def _logarithm(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return _raw(torch.log_softmax(masked, -1), empty, at)


def _over_all(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return torch.softmax(masked.flatten(-2), -1).view_as(masked)


def _exp_over_all(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return torch.softmax(masked.flatten(), 0).view_as(masked)


SOFTMAX = [
    *(
        Mutant(
            "softmax.axis",
            f"the weights sum to one over the {name}, not over the keys",
            "softmax over the last axis: torch.softmax(scores, dim=-1)",
            {"share": share},
        )
        for name, share in [
            ("queries", _over(-2)),
            ("heads", _over(1)),
            ("batch", _over(0)),
            ("samples and heads together", _over_rows),
            ("queries", _safely_over(-2)),
            ("heads", _safely_over(1)),
            ("batch", _safely_over(0)),
            ("queries and keys together", _over_all),
            ("whole tensor", _exp_over_all),
        ]
    ),
    *(
        Mutant(
            "softmax.missing", detail, "weights = torch.softmax(scores, dim=-1)", {"share": share}
        )
        for detail, share in [
            ("the scores themselves are the weights", _raw),
            ("the scores are divided by their sum, without exp", _by_sum),
            ("exp is taken, and not divided by the sum", _exponential),
            ("a sigmoid stands in place of the softmax", _sigmoid),
            ("the logarithms of the weights stand in their place: log_softmax", _logarithm),
        ]
    ),
]


def _wrong_scales() -> Iterator[tuple[str, str, str, Callable[[Setting], float]]]:
    right = "scores / math.sqrt(query.shape[-1])"
    yield "scale.missing", "the scores are not scaled", right, lambda at: 1.0
    yield (
        "scale.inverse",
        "the scores are multiplied by √head_dim, not divided",
        right,
        lambda at: math.sqrt(at.head_dim),
    )
    yield "scale.inverse", "the scores are multiplied by head_dim", right, lambda at: at.head_dim
    sizes: list[tuple[str, Callable[[Setting], float]]] = [
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
        ("1/√head_dim twice, on query and on key,", lambda at: 1 / at.head_dim),
        ("1/√√head_dim", lambda at: at.head_dim**-0.25),
        ("1/√(head_dim / 2)", lambda at: (at.head_dim / 2) ** -0.5),
        ("1/√(2 · head_dim)", lambda at: (at.head_dim * 2) ** -0.5),
        ("1/num_heads", lambda at: 1 / at.num_heads),
        (
            "1/(num_heads · head_dim), the whole width without its root,",
            lambda at: 1 / (at.num_heads * at.head_dim),
        ),
        ("√num_heads/√head_dim", lambda at: (at.num_heads / at.head_dim) ** 0.5),
        ("the right one times log 2", lambda at: math.log(2) * at.head_dim**-0.5),
        ("the right one times log₂ e", lambda at: math.log2(math.e) * at.head_dim**-0.5),
    ]
    for words, scale in sizes:
        yield (
            "scale.wrong",
            f"the scores are scaled by {words} instead of 1/√head_dim",
            right,
            scale,
        )


def _scaled_after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    return weights * at.head_dim**-0.5


SCALES = [
    *(
        Mutant(code, detail, likely, {"scale": scale})
        for code, detail, likely, scale in _wrong_scales()
    ),
    Mutant(
        "scale.missing",
        "the weights are scaled, after the softmax, and the scores are not",
        "scale before the softmax: torch.softmax(scores / math.sqrt(head_dim), dim=-1)",
        {"scale": lambda at: 1.0, "after": _scaled_after},
    ),
]
