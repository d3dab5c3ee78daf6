"""Mutants of bias, softcap and sinks: what is done to the scores, and in which order."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead import stages
from clearhead.checking.contract import Contract
from clearhead.checking.recipes import Recipe, Setting, declared_bias, right_prepare
from clearhead.checking.references.base import Mutant


def _prepared(*order: str) -> Callable[..., Tensor]:
    """Scores prepared in another order of scale, cap, bias and hide."""

    def prepare(raw: Tensor, seen: Tensor, scale: float, at: Setting, recipe: Recipe) -> Tensor:
        bias = declared_bias(at)
        for step in order:
            if step == "scale":
                raw = raw * scale
            elif step == "cap":
                raw = stages.capped_scores(raw, at.contract.softcap)
            elif step == "bend":
                raw = (raw / (at.contract.softcap or 1.0)).tanh()
            elif step == "stretch":
                raw = raw.tanh() * (at.contract.softcap or 1.0)
            elif step == "hide":
                raw = recipe.hide(raw, seen, scale, recipe.empty)
            elif step == "hide-finite":
                raw = raw.masked_fill(~seen, -1e9)
            elif bias is not None:
                raw = raw + (bias if step == "bias" else -bias)
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


def _bias_after(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    bias = declared_bias(at)
    return weights if bias is None else weights + bias


def _bias_after_seen(weights: Tensor, seen: Tensor, at: Setting) -> Tensor:
    bias = declared_bias(at)
    return weights if bias is None else (weights + bias) * seen


def _has_bias(contract: Contract) -> bool:
    return contract.bias is not None or contract.alibi_slopes is not None


def _has_cap(contract: Contract) -> bool:
    return contract.softcap is not None


ORDER = [
    Mutant(
        "bias.scaled",
        "the bias is scaled together with the scores",
        "scale first, then add: scores * scale + bias",
        {"prepare": _prepared("bias", "scale", "cap", "hide")},
        _has_bias,
    ),
    *(
        Mutant(
            "bias.after-softmax",
            "the bias is added to the weights, after the softmax",
            "torch.softmax(scores * scale + bias, dim=-1)",
            {"prepare": _prepared("scale", "cap", "hide"), "after": after},
            _has_bias,
        )
        for after in (_bias_after, _bias_after_seen)
    ),
    Mutant(
        "differs",
        "the declared bias is not added",
        "scores * scale + bias",
        {"prepare": _prepared("scale", "cap", "hide")},
        _has_bias,
    ),
    Mutant(
        "differs",
        "the bias is subtracted",
        "scores * scale + bias",
        {"prepare": _prepared("scale", "cap", "unbias", "hide")},
        _has_bias,
    ),
    *(
        Mutant(
            "softcap.order",
            "the cap is applied after the mask, so that hidden keys keep some weight",
            "cap first, hide then: masked_fill after softcap * tanh(scores / softcap)",
            {"prepare": _prepared(*order)},
            _has_cap,
        )
        for order in (
            ("scale", "hide", "cap"),
            ("scale", "bias", "hide", "cap"),
            ("scale", "hide-finite", "cap", "bias"),
        )
    ),
    Mutant(
        "softcap.order",
        "the cap is applied before the scale",
        "scale first: softcap * tanh(scores * scale / softcap)",
        {"prepare": _prepared("cap", "scale", "bias", "hide")},
        _has_cap,
    ),
    Mutant(
        "softcap.order",
        "the cap is applied after the bias",
        "cap the scaled scores, then add the bias",
        {"prepare": _prepared("scale", "bias", "cap", "hide")},
        lambda contract: _has_cap(contract) and _has_bias(contract),
    ),
    Mutant(
        "differs",
        "the declared softcap is not applied",
        "scores = softcap * torch.tanh(scores / softcap)",
        {"prepare": _prepared("scale", "bias", "hide")},
        _has_cap,
    ),
    Mutant(
        "differs",
        "what was bent is not multiplied by the softcap again",
        "scores = softcap * torch.tanh(scores / softcap)",
        {"prepare": _prepared("scale", "bend", "bias", "hide")},
        _has_cap,
    ),
    Mutant(
        "differs",
        "the scores are not divided by the softcap before they are bent",
        "scores = softcap * torch.tanh(scores / softcap)",
        {"prepare": _prepared("scale", "stretch", "bias", "hide")},
        _has_cap,
    ),
    Mutant(
        "differs",
        "with heads and samples in one axis, the bias is repeated where it must be tiled",
        "bias.repeat(batch, 1, 1) beside scores.view(batch · heads, …); repeat_interleave gives a "
        "head the bias of another",
        {"prepare": _repeated_bias},
        _has_bias,
    ),
    *(
        Mutant(
            "differs",
            f"the slopes are 2^(−8·head/heads), counted from {first}, and others are declared",
            "with a number of heads that is no power of two the slopes are those of the power "
            "below, and every other one of the power above",
            {"prepare": _other_slopes(first)},
            lambda contract: contract.alibi_slopes is not None,
        )
        for first in (1, 0)
    ),
]


def _no_sinks(masked: Tensor, empty: str, at: Setting) -> Tensor:
    return stages.weights(masked)


SINKS = [
    Mutant(
        "differs",
        "the declared sinks take no share",
        "softmax over the scores and the sink, and drop its column",
        {"share": _no_sinks},
        lambda contract: contract.sinks is not None,
    )
]
