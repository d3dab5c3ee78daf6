"""Check the parameters of a module: that PyTorch knows them, their names, sizes, biases and first values."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._common.foreign_names import role
from clearhead._common.lessons import LessonRow
from clearhead.checking.source_edits.definition import SIDES, Layers, Mistake
from clearhead.checking.subject.signatures import of_constructor

# The lesson of the mask that is kept and not saved.
MASKS = 9


def asked_parameters(module: nn.Module, row: LessonRow) -> Iterator[Mistake | None]:
    """Yield a mistake for each matrix that is no parameter of its own, does not learn, or begins with equal numbers.

    Shared parameters, layers in plain lists, and a mask among the parameters in lesson 9 are mistakes too.
    """
    own, every = (dict(module.named_parameters(remove_duplicate=each)) for each in (True, False))
    for name in every:
        if name not in own:
            yield Mistake("parameter.missing", name=name)
    known = {id(each) for each in module.modules()}
    held = {**vars(module), **dict(module.named_buffers(recurse=False))}
    for name, each in held.items():
        several = each.values() if isinstance(each, dict) and not name.startswith("_") else each
        several = several if isinstance(several, list | tuple) or several is not each else ()
        layers = any(isinstance(one, nn.Module) and id(one) not in known for one in several)
        if layers or (role(name) in SIDES and isinstance(each, Tensor)):
            yield Mistake("parameter.missing", name=name)
    for name, each in own.items():
        side = role(name)
        if not each.requires_grad and (side is not None or row.number != MASKS):
            yield Mistake("parameter.missing", name=name)
        is_several = each.ndim > 1 and each.numel() > 1
        if side is not None and is_several and bool((each == each[0, 0]).all()):
            yield Mistake("parameter.dead", name=name)
        if side is None and row.number == MASKS and each.ndim > 1 and _is_mask(each):
            yield Mistake("state.mask", name=name)


def _is_mask(table: Tensor) -> bool:
    """Return True if a matrix is 0 above its diagonal, or on it and below it, as a causal mask is."""
    return torch.equal(table, table.triu(1)) or torch.equal(table, table.tril())


def asked_layers(
    module: nn.Module, row: LessonRow, args: Mapping[str, Any] | None, layers: Layers
) -> Iterator[Mistake | None]:
    """Yield a mistake for each name, bias or size that is not that of the lesson.

    Names are compared only if the parameters are those of three plain layers.
    """
    own = dict(module.named_parameters())
    plain = all(name.endswith((".weight", ".bias")) and name.count(".") == 1 for name in own)
    for name in row.parameters if plain and len(layers) == 3 and len(own) > 2 else ():
        if name not in own:
            yield Mistake("differs", f"there is no {name}", name)
    biased = [side for side, each in layers.items() if side != "o" and each.bias is not None]
    if 0 < len(biased) < 3 or (biased and row.parameters and plain):
        names = [name for name in own if name.endswith("bias") and role(name) in biased]
        yield Mistake("differs", f"{', '.join(names)} is too much", (names or [""])[0])
    if row.has_out and ("o" not in layers or layers["o"].bias is None):
        what = "no out_proj" if "o" not in layers else "no bias of out_proj"
        yield Mistake("differs", f"there is {what}", "out_proj")
    out = dict(args or {}).get("d_out")
    if out is not None and layers["v"].matrix.shape[1] != out:
        sizes = f"{layers['v'].matrix.shape[1]} numbers, expected d_out = {out}"
        yield Mistake("", f"a value has {sizes}")


def asked_biases(cls: type, args: Mapping[str, Any] | None) -> Iterator[Mistake | None]:
    """Yield a mistake for each boolean argument of a constructor with "bias" in its name that adds no parameter.

    The class is made with True and with False.
    """
    for name, each in of_constructor(cls).items():
        if "bias" in name and isinstance(each.default, bool):
            made = [cls(**{**(args or {}), name: value}) for value in (True, False)]
            if len({len(list(one.parameters())) for one in made}) < 2:
                yield Mistake("parameter.missing", f"{name} makes no difference", name)
