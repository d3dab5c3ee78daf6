"""The name that `check` has for what is wrong in a case."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead.checking import check
from clearhead.testing.posing import contract_of, options_of

if TYPE_CHECKING:
    from clearhead.testing.cases import ConformanceCase

# What a contract can say; of a case with anything else `check` would see another attention.
SAYABLE = {
    "mask",
    "causal",
    "window",
    "grouped",
    "value_width",
    "scale",
    "softcap",
    "bias",
    "sinks",
}


def name_of_mistake(case: "ConformanceCase") -> str:
    """The mistake by name, with what it does and where it is explained; "" if none is known."""
    asked = frozenset(case.features) - {"gradients", "bias_gradients", "sinks_gradients"}
    if not asked <= SAYABLE:
        return ""
    heads = (case.sizes.num_heads, case.sizes.num_kv_heads)
    widths = (case.sizes.head_dim, case.sizes.value_head_dim)
    # Many cases fail of one mistake, which is looked for once.
    known = (asked, heads, widths)
    if known not in case.mistakes:
        case.mistakes[known] = _looked_up(case, asked)
    return case.mistakes[known]


def _looked_up(case: "ConformanceCase", asked: frozenset[str]) -> str:
    generator = torch.Generator().manual_seed(case.seed)
    heads = case.sizes.num_heads
    sinks = torch.randn(heads, generator=generator) if "sinks" in asked else None
    bias = (lambda n, m: _bias(heads, n, m)) if "bias" in asked else None
    contract = replace(contract_of(asked, case.sizes), bias=bias, sinks=sinks)
    options = options_of(contract)

    def subject(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        given = dict(options)
        if mask is not None:
            given["mask"] = mask.to(case.device)
        if "bias" in asked:
            bias = _bias(heads, query.shape[2], key.shape[2]).expand(query.shape[0], -1, -1, -1)
            given["bias"] = bias.to(case.device, query.dtype)
        if sinks is not None:
            given["sinks"] = sinks.to(case.device, query.dtype)
        moved = (each.to(case.device) for each in (query, key, value))
        return case.fn(*moved, **given).cpu()

    try:
        report = check(
            subject,
            takes="qkv,mask" if "mask" in asked else "qkv",
            contract=contract,
            seed=case.seed,
        )
    except Exception:  # it may not run with the sizes, or the precision, of a check
        return ""
    for finding in report.findings:
        if finding.code != "differs":
            names = " or ".join((finding.code, *finding.also))
            return f"{names}, {finding.sentence} ({finding.see})"
    return ""


def _bias(heads: int, query_len: int, kv_len: int) -> Tensor:
    """Numbers without a pattern, the same for the same sizes."""
    places = torch.arange(heads * query_len * kv_len, dtype=torch.float64)
    return (places * 12.9898).sin().mul(2).view(heads, query_len, kv_len)
