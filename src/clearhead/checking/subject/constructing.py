"""The arguments of a constructor, where they are not given: from sizes, names, or an instance."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from clearhead._common.foreign_names import DROPOUTS, size_of
from clearhead.checking.contract import Contract
from clearhead.checking.subject.signatures import PLAIN, needed, of_constructor
from clearhead.checking.thresholds import PARAMETERS
from clearhead.errors import ModelError

MISSING = object()
# Every size another, so that a mixed-up axis and the wrong size of a scale show.
HEADS, HEAD_DIM, VALUE_DIM, WIDTH, LENGTH, CONTEXT = 3, 10, 14, 22, 16, 26


def declared_arguments(cls: type, contract: Contract) -> dict[str, Any]:
    """Return the arguments of a class that the contract determines, by their names; {} for none.

    A dropout that needs a value is 0.0 unless declared.
    """
    heads, kv_heads = contract.heads()
    known: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads, **contract.sizes}
    found = {}
    for name, parameter in of_constructor(cls).items():
        value = known.get(size_of(name) or "")
        if DROPOUTS.search(name):
            needed = 0.0 if parameter.default is parameter.empty else None
            value = needed if contract.dropout is None else contract.dropout
        if value is not None:
            found[name] = value
    return found


def guessed_arguments(cls: type, known: Mapping[str, Any], contract: Contract) -> dict[str, Any]:
    """Return sizes for the required parameters of a constructor that are not given.

    Those that are no size are left out.

    Args:
        cls: the class.
        known: the arguments that are given.
        contract: its sizes are taken first.
    """
    mine = of_constructor(cls)
    wanted = [name for name in needed(mine) if name not in known]
    sizes = {size for name in (*wanted, *known) if (size := size_of(name))}
    # A number of heads that is a default in the signature is one of its own.
    own = [
        each.default
        for name, each in mine.items()
        if name not in known and size_of(name) == "num_heads" and type(each.default) is int
    ]
    fitting = sizes_for(sizes, contract, max(own[0], 1) if own else HEADS)
    return {name: fitting[size] for name in wanted if (size := size_of(name))}


def sizes_for(wanted: set[str], contract: Contract, num_heads: int = HEADS) -> dict[str, int]:
    """Return a number for every size; they fit each other, and `contract.sizes` come first.

    They differ where the contract and `wanted`, the sizes that a constructor takes, let them.
    """
    heads, kv_heads = contract.heads()
    heads = heads or (kv_heads * 3 if kv_heads else num_heads)
    dim = contract.sizes.get("head_dim", HEAD_DIM)
    whole = heads * dim
    several = bool(wanted & {"num_heads", "num_kv_heads"})
    d_out = whole if several or "d_out" not in wanted else dim + 2
    d_in = WIDTH if "d_out" in wanted or ("head_dim" in wanted and several) else whole
    found = {
        "num_heads": heads,
        "num_kv_heads": kv_heads or heads,
        "head_dim": dim,
        "value_head_dim": VALUE_DIM,
        "d_in": d_in,
        "d_out": d_out,
        "context_length": LENGTH,
        "d_context": CONTEXT,
    }
    return {**found, **contract.sizes}


def arguments_again(
    instance: nn.Module, contract: Contract, widths: Mapping[str, int]
) -> dict[str, Any] | None:
    """Return the arguments that an instance was made with; None if it does not show a required one.

    They are read from attributes of the same name, else from `widths` and the contract.

    Args:
        instance: a module.
        contract: the declarations.
        widths: d_in and d_out, as its layers show them.
    """
    found = declared_arguments(type(instance), contract)
    for name, parameter in of_constructor(type(instance)).items():
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


def check_size(found: Any, name: str) -> None:
    """Raise ModelError for a module with lazy parameters or too many to be copied; anything else passes.

    Raises:
        ModelError: codes `check.lazy` and `check.size`.
    """
    parameters = list(found.parameters()) if isinstance(found, nn.Module) else []
    if any(is_lazy(each) for each in parameters):
        raise ModelError(
            "check.lazy",
            f"{name} has parameters without a shape, of a lazy module; call it once, so that they get theirs, "
            "and check the instance.",
        )
    count = sum(each.numel() for each in parameters)
    if count > PARAMETERS:
        raise ModelError(
            "check.size",
            f"{name} has {count / 1e9:.1f} billion parameters, and a copy of it is run in float64; "
            "check a small one of the same class: args=dict(…).",
        )
