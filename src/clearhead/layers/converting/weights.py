"""The weight of a projection, wherever a library holds it, and the hooks that change nothing."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._text import raised_words

QUANTISED = 2**-6
"""The share by which a product of 8-bit activations may be off; what is not linear is off by more."""


def hooks_of_transformers(module: nn.Module) -> dict[int, Any]:
    """Return the forward hooks of a module that are defined in transformers, by id; {} if none is."""
    return {
        key: hook
        for key, hook in module._forward_hooks.items()
        if getattr(hook, "__module__", "").startswith("transformers.")
    }


def without_accelerate(module: nn.Module) -> nn.Module:
    """Return a copy without the hooks of accelerate, with the weights that they offload.

    A module without such hooks is returned itself.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> without_accelerate(layer) is layer
        True
    """
    hooks = [each._hf_hook for each in module.modules() if "_hf_hook" in vars(each)]
    if not hooks:
        return module
    # The hooks themselves are not copied: they hold the weights of the whole model.
    twin = copy.deepcopy(module, {id(each): each for each in hooks})
    for each in twin.modules():
        own: dict[str, Any] = vars(each)
        if "_hf_hook" in own:
            del own["forward"], own["_old_forward"]
            own.pop("_hf_hook").detach_hook(each)
    return twin


@torch.no_grad()
def weights_of(projection: Any) -> tuple[Tensor, Tensor | None] | str:
    """Return the weight of a projection, (out, in), and its bias or None, detached.

    A str that says why if they cannot be read. Weights that accelerate offloads are read where they are. What is no
    plain nn.Linear, such as one with LoRA or of dynamic int8, is run on the identity, and refused if it is not linear.

    Example:
        >>> layer = nn.Linear(3, 2, bias=False)
        >>> weight, bias = weights_of(layer)
        >>> weight.equal(layer.weight), bias
        (True, None)
        >>> weights_of(nn.Sequential(nn.Linear(3, 2)))
        'must be a plain torch.nn.Linear, whose weight is a parameter; it is a torch.nn.modules.container.Sequential'
    """
    kind, width = type(projection), getattr(projection, "in_features", None)
    name = f"{kind.__module__}.{kind.__name__}"
    refusal = f"must be a plain torch.nn.Linear, whose weight is a parameter; it is a {name}"
    if not isinstance(projection, nn.Module):
        return refusal
    is_away = any(each.is_meta for each in projection.parameters())
    module: Any = without_accelerate(projection) if is_away else projection
    own = vars(module)
    is_conv = kind.__name__ == "Conv1D" and hasattr(module, "nf")
    # FalconLinear writes the same product another way.
    is_product = kind.forward is nn.Linear.forward or kind.__name__ == "FalconLinear"
    is_kept = "weight" in module._parameters and ("forward" not in own or "_hf_hook" in own)
    if is_kept and (is_conv or is_product):
        weight, bias = module.weight.detach(), module.bias
        if weight.is_meta:
            return "has its weight on the meta device, without numbers"
        return weight.mT if is_conv else weight, None if bias is None else bias.detach()
    if not isinstance(width, int):
        return refusal
    held = [*module.parameters(), torch.empty(0)]
    dtype = next(each.dtype for each in held if each.is_floating_point())
    kept: dict[str, Any] = {"device": held[0].device, "dtype": dtype}
    x = torch.randn(1, width, generator=torch.Generator().manual_seed(0)).to(**kept)
    try:
        bias, made = module(torch.zeros_like(x))[0], module(x)[0]
        weight = (module(torch.eye(width, **kept)) - bias).mT
    # Whatever code of a library raises says that it is called in another way.
    except Exception as error:
        return f"{refusal}, which could not be run on the identity: {raised_words(error)}"
    off = (made - bias - x[0] @ weight.mT).norm() / (made - bias).norm()
    if not off <= QUANTISED:
        return f"{refusal}, which is not linear: a product is off by {float(off):.2g}"
    return weight, bias if bool(bias.any()) else None
