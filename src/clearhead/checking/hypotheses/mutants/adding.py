"""Mutants of bias, softcap and sinks: what is done to the scores, and in which order."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.contract import Contract
from clearhead.checking.hypotheses.mutants.mutant import Mutant
from clearhead.checking.hypotheses.recipe import Recipe, Setting, declared_bias, right_prepare


def _prepared(*order: str) -> Callable[..., Tensor]:
    """Scores prepared in another order of scale, cap, bias and hide."""

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
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
    bias = declared_bias(at)
    scores = stages.capped_scores(raw * scale, at.contract.softcap)
    if bias is not None:
        scores = scores + bias.repeat_interleave(at.batch, 0).view(at.batch, *bias.shape)
    return recipe.hide(scores, seen, scale, recipe.empty)


def _other_slopes(first: int) -> Callable[..., Tensor]:
    """ALiBi's formula for powers of two, used for any number of heads."""

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        heads = torch.arange(first, first + at.num_heads, dtype=torch.float64)
        slopes = 2 ** (-8 * heads / at.num_heads)
        contract = replace(at.contract, alibi_slopes=slopes)
        return right_prepare(raw, seen, scale, at._replace(contract=contract), recipe)

    return prepare


def _bias_after(only_seen: bool) -> Callable[..., Tensor]:
    def after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
        bias = declared_bias(at)
        total = weights if bias is None else weights + bias
        return total * seen if only_seen else total

    return after


def _biased(contract: Contract) -> bool:
    return contract.bias is not None or contract.alibi_slopes is not None


def _capped(contract: Contract) -> bool:
    return contract.softcap is not None


ORDER = [
    Mutant(
        "bias.scaled", "scaled", {"prepare": _prepared("bias", "scale", "cap", "hide")}, _biased
    ),
    *(
        Mutant(
            "bias.after-softmax",
            "after",
            {"prepare": _prepared("scale", "cap", "hide"), "after": _bias_after(only_seen)},
            _biased,
        )
        for only_seen in (False, True)
    ),
    Mutant("differs", "no-bias", {"prepare": _prepared("scale", "cap", "hide")}, _biased),
    Mutant("bias.sign", "sign", {"prepare": _prepared("scale", "cap", "unbias", "hide")}, _biased),
    *(
        Mutant("softcap.order", "mask", {"prepare": _prepared(*order)}, _capped)
        for order in (
            ("scale", "hide", "cap"),
            ("scale", "bias", "hide", "cap"),
            ("scale", "hide-finite", "cap", "bias"),
        )
    ),
    Mutant(
        "softcap.order", "scale", {"prepare": _prepared("cap", "scale", "bias", "hide")}, _capped
    ),
    Mutant(
        "softcap.order",
        "bias",
        {"prepare": _prepared("scale", "bias", "cap", "hide")},
        lambda contract: _capped(contract) and _biased(contract),
    ),
    Mutant("differs", "no-softcap", {"prepare": _prepared("scale", "bias", "hide")}, _capped),
    Mutant("differs", "bent", {"prepare": _prepared("scale", "bend", "bias", "hide")}, _capped),
    Mutant(
        "differs", "stretched", {"prepare": _prepared("scale", "stretch", "bias", "hide")}, _capped
    ),
    Mutant("differs", "bias-repeated", {"prepare": _repeated_bias}, _biased),
    *(
        Mutant(
            "differs",
            "slopes",
            {"prepare": _other_slopes(first)},
            lambda contract: contract.alibi_slopes is not None,
            {"first": first},
        )
        for first in (1, 0)
    ),
]


def _first_column_dropped(masked: Tensor, empty: str, at: Setting) -> Tensor:
    """The sink stands behind the scores, and not its column is dropped but that of the first key."""
    assert at.contract.sinks is not None
    sinks = at.contract.sinks.double()
    shares = stages.weights(masked, sinks)
    return torch.cat([shares[..., 1:], 1 - shares.sum(-1, keepdim=True)], -1)


SINKS = [
    Mutant(
        "differs",
        "no-sinks",
        {"share": lambda masked, empty, at: stages.weights(masked)},
        lambda contract: contract.sinks is not None,
    ),
    Mutant(
        "differs",
        "sink-kept",
        {"share": _first_column_dropped},
        lambda contract: contract.sinks is not None,
    ),
]
