"""The arguments of a constructor, where they are not given: from the sizes, or from an instance."""

import inspect
import types
from collections.abc import Mapping
from typing import Any

from torch import nn

from clearhead._common.foreign_names import SIZE_NAMES
from clearhead.checking.contract import Contract

DROPPED = ("dropout", "drop", "p", "attn_dropout", "dropout_p", "attn_drop", "attention_dropout")
MISSING = object()
PLAIN = (int, float, bool, str, type(None))


def size_of(name: str) -> str | None:
    """Which size a parameter of this name is; None for any other."""
    return next((size for size, names in SIZE_NAMES.items() if name in names), None)


def declared_arguments(cls: type, contract: Contract) -> dict[str, Any]:
    """What the contract says of the parameters of a class, by their names."""
    heads, kv_heads = contract.heads()
    known: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads, **contract.sizes}
    found = {}
    for name, parameter in parameters(cls).items():
        value = known.get(size_of(name) or "")
        if name in DROPPED:
            needed = 0.0 if parameter.default is parameter.empty else None
            value = needed if contract.dropout is None else contract.dropout
        if value is not None:
            found[name] = value
    return found


def arguments_again(
    instance: nn.Module, contract: Contract, widths: Mapping[str, int]
) -> dict[str, Any] | None:
    """The arguments that an instance was made with; None where it does not show them.

    Args:
        instance: somebody's module.
        contract: what is declared of it.
        widths: d_in and d_out, as its layers show them.
    """
    found = declared_arguments(type(instance), contract)
    for name, parameter in parameters(type(instance)).items():
        shown = getattr(instance, name, getattr(instance, f"_{name}", MISSING))
        if isinstance(shown, nn.Dropout):
            shown = shown.p
        if isinstance(shown, PLAIN):
            found[name] = shown
        elif name not in found and size_of(name) in widths:
            found[name] = widths[size_of(name) or ""]
        elif name not in found and parameter.default is parameter.empty:
            return None
    return found


def parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor that have names, those of the parent's for **others too."""
    found: dict[str, inspect.Parameter] = {}
    for kind in cls.__mro__:
        own = kind.__dict__.get("__init__")
        if not isinstance(own, types.FunctionType):
            continue
        _, *mine = inspect.signature(own).parameters.values()
        for each in mine:
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                found.setdefault(each.name, each)
        if not any(each.kind is each.VAR_KEYWORD for each in mine):
            break
    return found
