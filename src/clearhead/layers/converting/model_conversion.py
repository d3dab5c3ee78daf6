"""Convert every attention of a model, in place and back."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from clearhead._common.elements import Drawn
from clearhead._common.lazy import integration
from clearhead._common.torch_internals import set_grad_enabled
from clearhead._common.undoing import Undo, undo_all, undoing
from clearhead._text import readable
from clearhead.errors import ArgumentError, UnsupportedError
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.converting.adapters import (
    Adapter,
    PlainAdapter,
    adapter_for,
    other_arguments,
)
from clearhead.layers.converting.families import family_of, read_as
from clearhead.layers.converting.fitting import build
from clearhead.layers.converting.model_comparison import Place, compare, put
from clearhead.layers.converting.probing import Fits, read
from clearhead.layers.converting.reader import ModuleReader, model_type
from clearhead.layers.converting.tensor_pairs import Row
from clearhead.layers.converting.weights import hooks_of_transformers
from clearhead.layers.multi_head_attention import MultiHeadAttention

OWN = (AttentionLayer, Adapter)


class ModelConversion(Drawn):
    """The result of converting a model: the layers by path, and the modules left as they are, with reasons.

    Attributes:
        model: the model, which now runs on these layers.
        layers: by path, the layer that attends there: a `clearhead.MultiHeadAttention` or a
            `clearhead.layers.LatentAttention`.
        left: by path, why an attention was left as it is.
        rows: by path, each tensor and setting of a layer, as `Conversion.rows`.

    Example:
        >>> import torch, clearhead as ch
        >>> encoder = torch.nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
        >>> print(ch.convert(encoder))
        TransformerEncoderLayer: 0 attentions converted, 1 left
          self_attn  MultiheadAttention  left: PyTorch's layer gets its masks at each call; convert it by itself
    """

    def __init__(self, model: nn.Module, places: list[Place]) -> None:
        """Fill `layers`, `left` and `rows` from the places of a converted model."""
        self.model = model
        self._places = places
        self.layers: dict[str, AttentionLayer] = {}
        self.left: dict[str, str] = {}
        self.rows: dict[str, tuple[Row, ...]] = {}
        for place in places:
            if place.made is None or place.reader is None:
                self.left[place.path] = place.reason
            else:
                self.layers[place.path] = place.made.layer
                self.rows[place.path] = place.reader.rows

    def undo(self) -> None:
        """Put the model's own modules back, with the weights, forward hooks and training modes that the layers have.

        A weight that nobody changed comes back bit for bit. Interrupted, it can be called again.

        Raises:
            ArgumentError: code `convert.changed`, if another module has replaced one that
                was converted.
        """
        done = [place for place in self._places if place.made is not None]
        for place in done:
            for path in place.paths:
                # Its own module may be back, if an interrupt came between.
                if self.model.get_submodule(path) not in (place.made, place.module):
                    raise ArgumentError(
                        "convert.changed",
                        f"{path} must be the {type(place.made).__name__} that the conversion put "
                        f"there; it is {type(self.model.get_submodule(path)).__name__}.",
                    )
        for place in done:
            assert place.made is not None
            _write_back(place, place.made.layer)
            place.module._forward_hooks.update(place.made._forward_hooks)
            place.module.train(place.made.training)
            put(self.model, place.paths, place.module)
            place.made = None

    def __str__(self) -> str:
        """Return the result as text: a line of counts, and a line for each attention, converted or left."""
        rows = [(place.path, place.theirs, place.made, place.reason) for place in self._places]
        widths = [
            max(map(len, column)) for column in zip(*((a, b) for a, b, *_ in rows), strict=True)
        ]
        count = sum(made is not None for _, _, made, _ in rows)
        left = f", {len(rows) - count} left" if count < len(rows) else ""
        lines = [
            f"{type(self.model).__name__}: {count} {'attention' if count == 1 else 'attentions'} converted{left}",
            *(
                f"  {path:<{widths[0]}}  {theirs:<{widths[1]}}  "
                + (f"→  {_ours(made)}" if made is not None else f"left: {_one_line(reason)}")
                for path, theirs, made, reason in rows
            ),
        ]
        return readable("\n".join(lines))


def _write_back(place: Place, layer: AttentionLayer) -> None:
    """Copy the present weights of the layer into the module that it replaced, in place.

    The module is moved to their device and dtype; tensors that are already equal are not written to.
    """
    ours = dict(layer.named_parameters(remove_duplicate=False))
    like = next(iter(ours.values()))
    place.module.to(like.device, like.dtype)
    before = place.reader
    assert before is not None
    # Read again, because tensors read earlier may be on another device.
    with torch.no_grad():
        for pair in read_as(place.module, before.guess, before.related).pairs:
            found = pair.found_in(ours)
            if found is not None:
                pair.write(found)


def convert_model(model: nn.Module, inputs: Any) -> ModelConversion:
    """Convert every attention of a model in place, and return the result; if anything raises, the model is restored.

    Args:
        model: a module with attentions inside.
        inputs: those of a call of the model, one tensor, a tuple or a mapping; None for ones that are made, of a
            model of transformers.
    """
    places, fits = list(_places(model)), Fits()
    # An interrupt at the end of a block without gradients would leave them off.
    undo: Undo = [partial(set_grad_enabled, torch.is_grad_enabled())]
    try:
        for place in places:
            if not place.reason:
                _make(place, _related(place, places), inputs, fits)
        compare(model, inputs, places, undo)
        conversion = ModelConversion(model, places)
    except BaseException:
        with undoing() as last:
            last.append(partial(undo_all, undo))
        raise
    return conversion


def is_theirs(module: nn.Module) -> bool:
    """Return True for an attention layer of a known kind; False for other modules, our layers and adapters."""
    return family_of(module) is not None and not isinstance(module, OWN)


def _places(model: nn.Module) -> Iterator[Place]:
    """Yield a place for each attention of a model: of a known kind, or, with a reason, of a class named …Attention….

    Modules inside a known one, layers of ours, and modules around another attention are passed over.
    """
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if path:
            paths.setdefault(module, []).append(path)
    known = {module for module in paths if is_theirs(module)}
    attentions = known | {each for each in paths if "Attention" in type(each).__name__}
    inside = _descendants(known) | _descendants({each for each in paths if isinstance(each, OWN)})
    for module, found in paths.items():
        if module in inside or isinstance(module, OWN):
            continue
        if module in known:
            yield Place(found, module)
        elif module in attentions and not _descendants({module}) & attentions:
            reason = "of no known kind: it has no projections by known names"
            yield Place(found, module, reason=reason)


def _descendants(modules: set[nn.Module]) -> set[nn.Module]:
    """Return all modules inside the given modules, without these themselves unless they are nested."""
    return {each for module in modules for each in module.modules() if each is not module}


def _make(place: Place, related: Mapping[str, nn.Module], inputs: Any, fits: Fits) -> None:
    """Set `place.made` and `place.reader` to the replacement of a module, or `place.reason` to why there is none.

    The replacement shares the module's weights where they are equal; the module is not changed. `related` and `fits`
    are those of `read`, `inputs` those of `convert_model`.
    """
    module, kind = place.module, model_type(place.module)
    if isinstance(module, nn.MultiheadAttention):
        place.reason = "PyTorch's layer gets its masks at each call; convert it by itself"
        return
    try:
        reader = read(module, related, fits)
    except UnsupportedError as error:
        place.reason = error.message
        return
    place.reason = _reason_against_call(reader, inputs) if kind is None else reader.unshared
    if place.reason:
        return
    layer = build(reader, reader.kind, reader.mask)
    _share(reader, layer)
    adapter = (
        PlainAdapter if kind is None else integration("transformers_adapter").TransformersAdapter
    )
    place.reader, place.made = reader, adapter_for(adapter, reader, layer)
    place.made._forward_hooks.update(hooks_of_transformers(module))


def _related(place: Place, places: Sequence[Place]) -> Mapping[str, nn.Module]:
    """Return {"relative_bias": embedding} of the first T5 block of the same stack for a module that is passed its bias.

    {} if there is none, for modules of other kinds, for cross-attention, and for the first block itself.
    """
    module: Any = place.module
    own = "relative_attention_bias"
    if getattr(module, "has_relative_attention_bias", True) or own in module._modules:
        return {}
    if getattr(module, "is_decoder", False) and not getattr(module, "is_causal", False):
        return {}  # to a context
    side = place.path.partition(".block.")[0]
    for other in places:
        if own in other.module._modules and other.path.partition(".block.")[0] == side:
            return {"relative_bias": other.module.get_submodule(own)}
    return {}


def _reason_against_call(reader: ModuleReader, inputs: Any) -> str:
    """Return why calls of a user-defined class cannot be kept as they are; "" if they can.

    They cannot if it returns more than its output, or has further parameters and no inputs were given (timm's may).
    """
    assert reader.call is not None  # a copy of it was run
    count, returns = reader.call
    if returns < 0:
        return "it returns more than its output, which our layer does not"
    others = other_arguments(reader.module, count)
    if others and inputs is None and not type(reader.module).__module__.startswith("timm."):
        return (
            f"its forward takes {', '.join(others)} besides; give inputs= of the model, so that it "
            "is seen whether the model uses them"
        )
    return ""


def _share(reader: ModuleReader, layer: AttentionLayer) -> None:
    """Replace the layer's parameters by those of the module where the values are equal.

    An optimizer then continues to work, and no weight is stored twice. Frozen parameters stay frozen, and parameters
    that the module does not have are frozen; an output projection that it does not have becomes nn.Identity.
    """
    roots = {**reader.related, "": reader.module}
    for pair in reader.pairs:
        path, _, name = pair.ours.rpartition(".")
        owner = layer.get_submodule(path)
        if pair.tensor is None:
            owner.get_parameter(name).requires_grad_(False)
            continue
        found = pair.theirs.partition("[")[0]
        first, _, rest = found.partition(".")
        theirs = (
            roots[first].get_parameter(rest) if first in roots else roots[""].get_parameter(found)
        )
        if pair.how == "copied" and pair.rows is None and theirs.shape == pair.tensor.shape:
            owner.register_parameter(name, theirs)
        elif not theirs.requires_grad:
            owner.get_parameter(name).requires_grad_(False)
    if any(
        pair.ours == "output_projection.weight" and pair.tensor is None for pair in reader.pairs
    ):
        layer.register_module("output_projection", nn.Identity())


def _ours(made: Adapter) -> str:
    """Return the public name of the class of the layer in an adapter, as "clearhead.MultiHeadAttention"."""
    place = "" if isinstance(made.layer, MultiHeadAttention) else "layers."
    return f"clearhead.{place}{type(made.layer).__name__}"


def _one_line(reason: str) -> str:
    """Return the listed reasons of an error, joined by "; " to one line; its first line if it lists none."""
    first, *listed = (line.strip().removeprefix("- ") for line in reason.splitlines())
    return "; ".join(listed) or first
