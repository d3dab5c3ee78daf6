"""Pairs of tensors with the same numbers, and the weight of a projection, wherever a library holds it."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._text import raised_words
from clearhead.layers.parts import Part


@dataclass(frozen=True)
class Row:
    """One line of the report: a tensor or a setting, in the module and in our layer.

    Attributes:
        theirs: the name of a tensor in the module, with a slice if it is a part of it, or of a
            setting; empty for what the module does not have.
        ours: the name of the tensor or the part of our layer; empty for what has no place in it.
        how: what happens to the numbers: "copied", "transposed", "plus 1", and so on.

    Example:
        >>> Row("c_attn.weight[:, 0:64]", "query_projection.weight", "transposed").how
        'transposed'
    """

    theirs: str
    ours: str
    how: str


@dataclass(frozen=True)
class TensorPair:
    """A tensor of theirs, and the tensor of ours with the same numbers.

    Attributes:
        theirs: its name, with a slice if it is a part of a parameter.
        tensor: a view of the parameter, in our shape; None if there is none.
        ours: the name of our parameter.
        rows: the first of its rows and the one behind the last; None is all.
        how: "copied", "transposed" or "plus 1"; "zeros", "ones" or "identity" if there is none of theirs.
    """

    theirs: str
    tensor: Tensor | None
    ours: str
    rows: tuple[int, int] | None = None
    how: str = "copied"

    def found_in(self, ours: Mapping[str, Tensor]) -> Tensor | None:
        """Return the tensor of the layer by its name, or the rows that are paired; None for a missing bias."""
        found = ours.get(self.ours)
        return found if found is None or self.rows is None else found[slice(*self.rows)]

    def read(self, target: Tensor) -> None:
        """Copy the module's tensor, or the constant for a missing one, into the layer's tensor `target`, in place."""
        if self.tensor is None:
            target.copy_(self._constant(target))
        else:
            target.copy_(self.tensor + 1 if self.how == "plus 1" else self.tensor)

    def write(self, source: Tensor | None) -> None:
        """Copy the layer's tensor into the module's, in place; zeros for None.

        No-op if the module has no such tensor.
        """
        if self.tensor is None:
            return
        if source is None:
            self.tensor.zero_()
        else:
            self.tensor.copy_(source - 1 if self.how == "plus 1" else source)

    def _constant(self, like: Tensor) -> Tensor:
        """Return the constant that replaces a missing tensor: identity, ones or zeros, shaped as `like`."""
        if self.how == "identity":
            return torch.eye(*like.shape, dtype=like.dtype, device=like.device)
        return torch.ones_like(like) if self.how == "ones" else torch.zeros_like(like)

    def row(self) -> Row:
        """Return the pair as a line of the report."""
        rows = "" if self.rows is None else f"[{self.rows[0]}:{self.rows[1]}]"
        return Row(self.theirs, self.ours + rows, self.how)


@dataclass(frozen=True)
class Projection:
    """A projection of theirs: its weight as (out, in), and its bias.

    Attributes:
        name: of the weight.
        weight: (out, in), a view.
        transposed: True if theirs is (in, out).
        bias_name: of the bias.
        bias: (out,), or None.
    """

    name: str
    weight: Tensor
    transposed: bool = False
    bias_name: str = ""
    bias: Tensor | None = None

    def part(self, start: int, stop: int) -> "Projection":
        """Return the projection restricted to the outputs from start to stop, excluded, as views."""
        where = f"{start}:{stop}"
        return replace(
            self,
            name=f"{self.name}[:, {where}]" if self.transposed else f"{self.name}[{where}]",
            weight=self.weight[start:stop],
            bias_name=f"{self.bias_name}[{where}]",
            bias=None if self.bias is None else self.bias[start:stop],
        )

    def split(self, widths: Sequence[int]) -> list["Projection"]:
        """Return the projection as parts with these numbers of outputs."""
        edges = [0, *accumulate(widths)]
        return [self.part(start, stop) for start, stop in pairwise(edges)]

    def pairs(self, ours: str, rows: tuple[int, int] | None = None) -> list[TensorPair]:
        """Return one pair for the weight and one for the bias, if any, with the layer's projection `ours`.

        `rows` are the first row of ours and the one after the last; None is all.
        """
        how = "transposed" if self.transposed else "copied"
        pairs = [TensorPair(self.name, self.weight, f"{ours}.weight", rows, how)]
        if self.bias is not None:
            pairs.append(TensorPair(self.bias_name, self.bias, f"{ours}.bias", rows))
        return pairs


def described(part: Part) -> str:
    """Return a part in one line of text.

    Example:
        >>> from clearhead.layers import Softcap
        >>> described(Softcap(50.0))
        'Softcap(50)'
    """
    return f"{type(part).__name__}({part.extra_repr()})"


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
