"""Build the layer of a module that was read."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from clearhead.errors import UnsupportedError
from clearhead.layers.attention_layer import AttentionLayer
from clearhead.layers.converting.reader import ModuleReader
from clearhead.masks.base import Mask

Layer = TypeVar("Layer", bound=AttentionLayer)


def refuse(aim: str, reasons: Sequence[str]) -> None:
    """Raise UnsupportedError, code `convert.refused`, that lists the reasons; no-op if there are none.

    `aim` says in words what clearhead.convert cannot do.
    """
    if reasons:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        raise UnsupportedError("convert.refused", f"clearhead.convert cannot {aim}.\n{listed}")


def build(reader: ModuleReader, kind: type[Layer], mask: Mask | None) -> Layer:
    """Return a new layer of class `kind` with the settings and copies of the tensors that were read from a module.

    Its mask is `mask`, not the reader's; None shows all. It has the module's dtype, device and training mode, and the
    reader's parts themselves, not copies. The state of PyTorch's generator on the CPU is not changed.
    """
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
