"""From what was read to a layer, and from a layer into what was read."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clearhead.errors import UnsupportedError
from clearhead.layers.converting.places import Place
from clearhead.layers.converting.reading import INPUTS, Reading, described
from clearhead.layers.inputs import is_plain_linear
from clearhead.layers.parts import Part
from clearhead.masks.base import Mask

Layer = TypeVar("Layer", bound=nn.Module)

PROJECTIONS = (*INPUTS, "output_projection")
SIZES = ("num_kv_heads", "head_dim", "value_head_dim", "context_dim", "output_dim")


def refuse(who: str, deed: str, reasons: Sequence[str]) -> None:
    """Refuse what somebody asked for with all of the reasons, if there is one.

    Raises:
        UnsupportedError: code `convert.refused`.
    """
    if reasons:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        raise UnsupportedError("convert.refused", f"{who} cannot {deed}.\n{listed}")


def build(reading: Reading, kind: type[Layer], mask: Mask | None) -> Layer:
    """The layer that a module without reasons against it is, with copies of its numbers."""
    biases = {place.ours for place in reading.places if place.ours.endswith("projection.bias")}
    like = next(place.tensor for place in reading.places if place.tensor is not None)
    make: Any = kind
    # What is drawn here is replaced at once, so PyTorch's generator is put back.
    with torch.random.fork_rng(devices=[]):
        layer = make(
            reading.sizes["embed_dim"],
            num_heads=reading.sizes["num_heads"],
            **{name: reading.sizes[name] for name in SIZES},
            bias="query_projection.bias" in biases,
            output_bias="output_projection.bias" in biases,
            mask=mask,
            dropout=reading.dropout,
            parts=reading.parts,
        )
    layer = layer.to(like.device, like.dtype)
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        for place in reading.places:
            target = place.found_in(parameters)
            assert target is not None
            place.read(target)
    return layer.train(reading.module.training)


def write(reading: Reading, layer: nn.Module) -> None:
    """Write a layer that fits into the module that was read."""
    ours = _parameters(layer)
    with torch.no_grad():
        for place in reading.places:
            place.write(place.found_in(ours))


def _parameters(layer: nn.Module) -> dict[str, Tensor]:
    """All of them by name; one that two projections share has the names of both."""
    return dict(layer.named_parameters(remove_duplicate=False))


def replaced_projections(layer: Any) -> list[str]:
    """A reason for each projection of ours in whose place something else was put."""
    return [
        f"{name} must be a plain torch.nn.Linear, whose weight is a parameter; it is a "
        f"{type(each).__module__}.{type(each).__name__}"
        for name, each in layer.named_children()
        if name in PROJECTIONS and not is_plain_linear(each)
    ]


def misfits(reading: Reading, layer: Any, mask: Mask | None) -> list[str]:
    """Every reason why a layer does not fit into the module that was read."""
    reasons = [
        f"{name}={getattr(layer, name)}, and {size} in the module"
        for name, size in reading.sizes.items()
        if getattr(layer, name) != size
    ]
    if words(layer.mask) != words(mask):
        reasons.append(f"mask={words(layer.mask)}, and {words(mask)} in the module")
    if (layer.dropout or 0) != (reading.dropout or 0):
        reasons.append(f"dropout={layer.dropout}, and {reading.dropout} in the module")
    if [_traits(part) for part in layer.parts] != [_traits(part) for part in reading.parts]:
        given, wanted = (
            ", ".join(described(part) for part in parts) or "none"
            for parts in (layer.parts, reading.parts)
        )
        reasons.append(f"parts: {given}, and in the module: {wanted}")
    reasons += replaced_projections(layer)
    if reasons:
        return reasons
    ours = _parameters(layer)
    like = next(place.tensor for place in reading.places if place.tensor is not None)
    kinds = {f"{each.dtype} on {each.device}" for each in ours.values()}
    if kinds != {f"{like.dtype} on {like.device}"}:
        reasons.append(
            f"weights of {', '.join(sorted(kinds))}, and {like.dtype} on {like.device} in the module"
        )
        return reasons
    placed = {place.ours for place in reading.places}
    nowhere = [
        Place("", None, name, how="zeros")
        for name in ours
        if name not in placed and name.endswith("projection.bias")
    ]
    for place in [*reading.places, *nowhere]:
        if not place.holds(place.found_in(ours)):
            kind = "the identity" if place.how == "identity" else "zero"
            reasons.append(f"{place.ours} must be {kind}: the module has none")
    unknown = [name for name in ours if name not in placed and not name.endswith("projection.bias")]
    reasons += [f"{name} has no place in the module" for name in unknown]
    return reasons + _shared(reading)


def _shared(reading: Reading) -> list[str]:
    """Tensors of theirs that are one and the same: two of ours cannot go into one."""
    seen: dict[tuple[int, tuple[int, ...]], str] = {}
    reasons = []
    for place in reading.places:
        if place.tensor is None:
            continue
        where = place.tensor.data_ptr(), tuple(place.tensor.shape)
        if where in seen:
            reasons.append(f"{seen[where]} and {place.theirs} are one tensor in the module")
        seen[where] = place.theirs
    return reasons


def words(mask: Mask | None) -> str:
    """A mask as an expression, or None."""
    return "None" if mask is None else mask.describe()


def _traits(part: Part) -> tuple[type[Part], list[tuple[str, object]], list[object]]:
    """What makes a part what it is, beside the numbers that are trained."""
    plain = [
        (f"{path}.{name}", value)
        for path, module in part.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training"
    ]
    return type(part), plain, [tuple(each.shape) for each in part.parameters()]
