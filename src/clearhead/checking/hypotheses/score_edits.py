"""Edits of the scores: scale, softcap, bias and sinks."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.hypotheses.mask_edits import share
from clearhead.checking.hypotheses.recipe import (
    Recipe,
    Setting,
    declared_bias,
    right_prepare,
    right_scale,
)
from clearhead.checking.hypotheses.stage_edit import (
    Stage,
    StageEdit,
    biased,
    capped,
    sunk,
)

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


def _late(factor: Callable[[Setting], float]) -> Stage:
    """Return an `after` stage that multiplies the weights by `factor(at)`."""
    return lambda weights, seen, at: weights * factor(at)


SCALES = [
    StageEdit("scale.missing", "missing", {"scale": lambda at: 1.0}),
    StageEdit("scale.wrong", "size", {"scale": lambda at: math.sqrt(at.head_dim)},
         values={"size": "√head_dim"}),
    StageEdit("scale.wrong", "size", {"scale": lambda at: at.head_dim}, values={"size": "head_dim"}),
    StageEdit("scale.wrong", "size", {"scale": lambda at: at.head_dim**-0.5},
         lambda contract: contract.scale is not None, {"size": "1/√head_dim"}),
    *(StageEdit("scale.wrong", "size", {"scale": scale}, values={"size": name}) for name, scale in SIZES),
    StageEdit("scale.missing", "late", {"scale": lambda at: 1.0, "after": _late(right_scale)}),
]  # fmt: skip


# Cap, bias and sinks: raw scores, seen, scale, at, recipe → masked scores.


def _prepared(*order: str) -> Stage:
    """Return a `prepare` stage that applies steps to the scores in this order, by name, such as "scale" and "hide".

    A step of something undeclared, as "bias", is a no-op.
    """

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        """Return the raw scores after all steps."""
        bias, cap = declared_bias(at), at.contract.softcap or 1.0
        steps: dict[str, Callable[[Tensor], Tensor]] = {
            "scale": lambda x: x * scale,
            "cap": lambda x: stages.capped_scores(x, at.contract.softcap),
            "bend": lambda x: (x / cap).tanh(),
            "stretch": lambda x: x.tanh() * cap,
            "hide": lambda x: recipe.hide(x, seen, scale, recipe.empty),
            "hide-finite": lambda x: x.masked_fill(~seen, -1e9),
            "bias": lambda x: x if bias is None else x + bias,
            "unbias": lambda x: x if bias is None else x - bias,
        }
        for step in order:
            raw = steps[step](raw)
        return raw

    return prepare


def _repeated_bias(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
    """Return masked scores with a bias repeated as (heads, batch) and viewed as (batch, heads)."""
    bias = declared_bias(at)
    scores = stages.capped_scores(raw * scale, at.contract.softcap)
    if bias is not None:
        scores = scores + bias.repeat_interleave(at.batch, 0).view(at.batch, *bias.shape)
    return recipe.hide(scores, seen, scale, recipe.empty)


def _other_slopes(first: int) -> Stage:
    """Return a `prepare` stage with ALiBi slopes 2^(-8h / num_heads), h from `first` on, for any number of heads."""

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        """Return the masked scores with the other slopes."""
        heads = torch.arange(first, first + at.num_heads, dtype=torch.float64)
        contract = replace(at.contract, alibi_slopes=2 ** (-8 * heads / at.num_heads))
        return right_prepare(raw, seen, scale, at._replace(contract=contract), recipe)

    return prepare


def _bias_after(only_seen: bool) -> Stage:
    """Return an `after` stage that adds the bias to the weights; `only_seen` sets hidden ones to 0."""

    def after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
        """Return the weights plus the bias."""
        bias = declared_bias(at)
        total = weights if bias is None else weights + bias
        return total * seen if only_seen else total

    return after


def _first_column_dropped(masked: Tensor, empty: str, at: Setting) -> Tensor:
    """Return the weights with the column of the first key dropped instead of that of the sink.

    AssertionError if no sinks are declared; `empty` is ignored.
    """
    assert at.contract.sinks is not None
    shares = stages.weights(masked, at.contract.sinks.double())
    return torch.cat([shares[..., 1:], 1 - shares.sum(-1, keepdim=True)], -1)


ORDER = [
    StageEdit("bias.wrong", "scaled", {"prepare": _prepared("bias", "scale", "cap", "hide")}, biased),
    *(
        StageEdit("bias.wrong", "after",
             {"prepare": _prepared("scale", "cap", "hide"), "after": _bias_after(seen)}, biased)
        for seen in (False, True)
    ),
    StageEdit("differs", "no-bias", {"prepare": _prepared("scale", "cap", "hide")}, biased),
    StageEdit("bias.wrong", "sign", {"prepare": _prepared("scale", "cap", "unbias", "hide")}, biased),
    *(
        StageEdit("softcap.order", "mask", {"prepare": _prepared(*order)}, capped)
        for order in (
            ("scale", "hide", "cap"),
            ("scale", "bias", "hide", "cap"),
            ("scale", "hide-finite", "cap", "bias"),
        )
    ),
    StageEdit("softcap.order", "scale", {"prepare": _prepared("cap", "scale", "bias", "hide")}, capped),
    StageEdit("softcap.order", "bias", {"prepare": _prepared("scale", "bias", "cap", "hide")},
         lambda contract: capped(contract) and biased(contract)),
    StageEdit("differs", "no-softcap", {"prepare": _prepared("scale", "bias", "hide")}, capped),
    StageEdit("differs", "bent", {"prepare": _prepared("scale", "bend", "bias", "hide")}, capped),
    StageEdit("differs", "stretched", {"prepare": _prepared("scale", "stretch", "bias", "hide")}, capped),
    StageEdit("differs", "bias-repeated", {"prepare": _repeated_bias}, biased),
    *(
        StageEdit("differs", "slopes", {"prepare": _other_slopes(first)},
             lambda contract: contract.alibi_slopes is not None, {"first": first})
        for first in (1, 0)
    ),
    StageEdit("differs", "no-sinks", {"share": share(stages.weights)}, sunk),
    StageEdit("differs", "sink-kept", {"share": _first_column_dropped}, sunk),
]  # fmt: skip
