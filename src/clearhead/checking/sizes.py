"""The sizes of a module: declared, or in its attributes, or those of its first linear layer."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from clearhead._common.foreign_names import SIZE_NAMES
from clearhead.checking.contract import Contract
from clearhead.checking.subject import Subject

MASK = re.compile(r"mask|tril|triu|causal|visible|hidden$")


def found(name: str, subject: Subject, contract: Contract) -> int | None:
    """A size by its name: declared, in the arguments of the class, or in attributes."""
    declared = contract.sizes.get(name)
    if declared is None and name in ("num_heads", "num_kv_heads"):
        declared = contract.heads()[name == "num_kv_heads"]
    if declared is not None:
        return declared
    for place in _places(subject):
        for other in SIZE_NAMES[name]:
            value = place.get(other)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _places(subject: Subject) -> Iterator[Mapping[str, Any]]:
    yield subject.args or {}
    if subject.module is None:
        yield getattr(subject.run, "__dict__", {})
    for part in subject.parts():
        yield vars(part)
        config = getattr(part, "config", None)
        if config is not None:
            yield vars(config)


def width_in(subject: Subject, contract: Contract) -> int | None:
    """d_in: declared, or what the first layer takes, or an attribute."""
    declared = contract.sizes.get("d_in") or (subject.args or {}).get("d_in")
    if isinstance(declared, int):
        return declared
    for part in subject.parts():
        if isinstance(part, nn.Linear):
            return part.in_features
        if isinstance(part, nn.MultiheadAttention):
            return part.embed_dim
        if isinstance(part, nn.LayerNorm):
            return part.normalized_shape[-1]
        if isinstance(part, nn.GroupNorm):
            return part.num_channels
        if isinstance(part, nn.Conv1d | nn.Conv2d):
            return part.in_channels
    by_name = found("d_in", subject, contract)
    if by_name is not None:
        return by_name
    for part in subject.parts():
        for parameter in part.parameters():
            if parameter.ndim >= 2:
                return parameter.shape[-2]
    return None


def longest(subject: Subject, contract: Contract) -> int | None:
    """The most tokens that it takes: declared, or the size of a square mask that it keeps."""
    by_name = found("context_length", subject, contract)
    if by_name is not None or subject.module is None:
        return by_name
    for mask in kept_masks(subject.module).values():
        return mask.shape[-1]
    return None


def promised_length(subject: Subject, contract: Contract) -> int | None:
    """The length that it says it takes, in so many words."""
    return found("context_length", subject, contract)


def kept_masks(module: nn.Module) -> dict[str, Tensor]:
    """The square buffers that hold two values only, and parameters like that named as masks."""
    named = list(module.named_buffers())
    named += [(name, each) for name, each in module.named_parameters() if MASK.search(name)]
    return {
        name: each
        for name, each in named
        if each.ndim >= 2
        and each.shape[-1] == each.shape[-2]
        and each.shape[-1] > 1
        and each.detach().unique().numel() == 2
    }
