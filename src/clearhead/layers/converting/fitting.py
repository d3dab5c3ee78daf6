"""Build the layer of a module that was read, or write a layer into it."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from clearhead.attention.biases import Bias
from clearhead.errors import UnsupportedError
from clearhead.layers.base import AttentionLayer
from clearhead.layers.converting.pairs import TensorPair, described
from clearhead.layers.converting.reader import INPUTS, ModuleReader
from clearhead.layers.inputs import is_plain_linear
from clearhead.layers.parts import Part
from clearhead.masks.base import Mask

Layer = TypeVar("Layer", bound=AttentionLayer)


def refuse(function: str, aim: str, reasons: Sequence[str]) -> None:
    """Refuse a conversion with all of the reasons, if there is one.

    Raises:
        UnsupportedError: code `convert.refused`.
    """
    if reasons:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        raise UnsupportedError("convert.refused", f"{function} cannot {aim}.\n{listed}")


def build(reader: ModuleReader, kind: type[Layer], mask: Mask | None) -> Layer:
    """Build the layer that equals a module, with copies of its numbers."""
    biases = {pair.ours for pair in reader.pairs if pair.ours.endswith("projection.bias")}
    given: dict[str, Any] = reader.options or {
        "bias": "query_projection.bias" in biases,
        "output_bias": "output_projection.bias" in biases,
    }
    given = reader.sizes | given
    # What is drawn here is overwritten at once, so PyTorch's generator is put back.
    with torch.random.fork_rng(devices=[]):
        layer = kind(
            given.pop("embed_dim"), mask=mask, dropout=reader.dropout, parts=reader.parts, **given
        )
    layer = layer.to(reader.like.device, reader.like.dtype)
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        for pair in reader.pairs:
            target = pair.found_in(parameters)
            assert target is not None
            pair.read(target)
    return layer.train(reader.module.training)


def write(reader: ModuleReader, layer: AttentionLayer) -> None:
    """Write a layer that fits into the module that was read."""
    ours = _parameters(layer)
    with torch.no_grad():
        for pair in reader.pairs:
            pair.write(pair.found_in(ours))


def _parameters(layer: AttentionLayer) -> dict[str, Tensor]:
    """All of them by name; one that two projections share has the names of both."""
    return dict(layer.named_parameters(remove_duplicate=False))


def replaced_projections(layer: AttentionLayer) -> list[str]:
    """A reason for each projection of ours that another module was put in place of."""
    return [
        f"{name} must be a plain torch.nn.Linear, whose weight is a parameter; it is a "
        f"{type(each).__module__}.{type(each).__name__}"
        for name, each in layer.named_children()
        if name in (*INPUTS, "output_projection") and not is_plain_linear(each)
    ]


def misfits(reader: ModuleReader, layer: AttentionLayer, mask: Mask | None) -> list[str]:
    """Every reason why a layer does not fit into the module that was read."""
    if not isinstance(layer, reader.kind):
        return [f"the layer is a {type(layer).__name__}; the module is a {reader.kind.__name__}"]
    eps = {name: each for name, each in reader.options.items() if name == "eps"}
    reasons = [
        f"{name}={getattr(layer, name)}, and {size} in the module"
        for name, size in (reader.sizes | eps).items()
        if getattr(layer, name) != size
    ]
    given, wanted = ("None" if each is None else each.describe() for each in (layer.mask, mask))
    if given != wanted:
        reasons.append(f"mask={given}, and {wanted} in the module")
    if (layer.dropout or 0) != (reader.dropout or 0):
        reasons.append(f"dropout={layer.dropout}, and {reader.dropout} in the module")
    if [_traits(part) for part in layer.parts] != [_traits(part) for part in reader.parts]:
        given, wanted = (
            ", ".join(described(part) for part in parts) or "none"
            for parts in (layer.parts, reader.parts)
        )
        reasons.append(f"parts: {given}, and in the module: {wanted}")
    reasons += replaced_projections(layer)
    if reasons:
        return reasons
    ours, like = _parameters(layer), reader.like
    kinds = {f"{each.dtype} on {each.device}" for each in ours.values()}
    if kinds != {f"{like.dtype} on {like.device}"}:
        return [
            f"weights of {', '.join(sorted(kinds))}, and {like.dtype} on {like.device} in the module"
        ]
    paired = {pair.ours for pair in reader.pairs}
    alone = [name for name in ours if name not in paired]
    biases = [name for name in alone if name.endswith("projection.bias")]
    for pair in [*reader.pairs, *(TensorPair("", None, name, how="zeros") for name in biases)]:
        if not pair.can_hold(pair.found_in(ours)):
            kind = {"identity": "the identity", "ones": "one"}.get(pair.how, "zero")
            reasons.append(f"{pair.ours} must be {kind}: the module has none")
    reasons += [f"{name} has no place in the module" for name in alone if name not in biases]
    return reasons + _shared(reader)


def _shared(reader: ModuleReader) -> list[str]:
    """Tensors of theirs that are one and the same: two of ours cannot go into one."""
    seen: dict[tuple[int, torch.Size], str] = {}
    reasons = []
    for pair in reader.pairs:
        if pair.tensor is not None:
            memory = pair.tensor.data_ptr(), pair.tensor.shape
            if memory in seen:
                reasons.append(f"{seen[memory]} and {pair.theirs} are one tensor in the module")
            seen[memory] = pair.theirs
    return reasons


def _traits(part: Part) -> tuple[type[Part], list[tuple[str, object]], list[object]]:
    """The kind, the settings and the shapes of a part: all but its trained numbers."""
    plain = [
        (f"{path}.{name}", _plain(value))
        for path, module in part.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training"
    ]
    return type(part), plain, [tuple(each.shape) for each in part.parameters()]


def _plain(value: object) -> object:
    """A setting of a part; a bias by its kind and its numbers."""
    if not isinstance(value, Bias):
        return value
    return value.describe(), None if value.numbers is None else value.numbers.tolist()
