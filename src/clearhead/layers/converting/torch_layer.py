"""PyTorch's nn.MultiheadAttention, with one matrix for query, key and value or a matrix each."""

from dataclasses import replace

from torch import nn

from clearhead.errors import ArgumentTypeError
from clearhead.layers.converting.fitting import (
    Layer,
    build,
    refuse,
    replaced_projections,
    write,
)
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.converting.tensor_pairs import Projection
from clearhead.layers.drop_in import MultiheadAttention
from clearhead.layers.multi_head_attention import MultiHeadAttention
from clearhead.masks.base import Mask

KNOWN = (nn.MultiheadAttention.forward, MultiheadAttention.forward)
INPUTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def recognises(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


def read(reader: ModuleReader) -> None:
    module = reader.module
    assert isinstance(module, nn.MultiheadAttention)
    # A subclass may do something else with the weights.
    reader.is_probed = type(module).forward not in KNOWN
    reader.reasons += reasons_against(module)
    # Pruned or parametrized, they are made of other parameters at each call.
    reader.reasons += [
        f"{name} must be a parameter of its own; it is made of others"
        for name in (*INPUTS, "in_proj_bias")
        if getattr(module, name) is not None and not reader.has(name)
    ]
    if reader.reasons:
        return
    widths = [module.embed_dim] * 3
    inputs = [Projection(name, reader.tensor(name)) for name in INPUTS if reader.has(name)]
    inputs = inputs if len(inputs) == 3 else inputs[0].split(widths)
    if module.in_proj_bias is not None:
        biases = Projection("in_proj_bias", reader.tensor("in_proj_bias")).split(widths)
        inputs = [
            replace(each, bias_name=bias.name, bias=bias.weight)
            for each, bias in zip(inputs, biases, strict=True)
        ]
    query, key, value = inputs
    output = reader.projection("out_proj")
    reader.project(query, key, value, output, num_heads=module.num_heads)
    reader.drop("dropout")


def reasons_against(module: nn.MultiheadAttention) -> list[str]:
    """The settings that a layer of ours has no place for."""
    reasons = []
    if module.bias_k is not None or module.bias_v is not None:
        reasons.append("add_bias_kv=True: a learned key and value that every query sees")
    if module.add_zero_attn:
        reasons.append("add_zero_attn=True: a key and value of zeros that every query sees")
    if module.kdim != module.vdim:
        reasons.append(
            f"kdim={module.kdim} and vdim={module.vdim}: keys and values of other "
            "widths than each other"
        )
    return reasons


def from_torch(module: nn.MultiheadAttention, kind: type[Layer], mask: Mask | None) -> Layer:
    """`MultiHeadAttention.from_torch`, for a class of layers."""
    if not isinstance(module, nn.MultiheadAttention):
        raise ArgumentTypeError(
            "convert.type",
            f"module must be a torch.nn.MultiheadAttention; got {type(module).__name__}.",
        )
    reader = ModuleReader(module)
    reader.check_forward()
    read(reader)
    if reader.is_probed:
        reader.reasons.append(
            f"the forward of {type(module).__name__} is its own; clearhead.convert runs a copy "
            "of it to see what it does"
        )
    refuse("from_torch", "convert this layer", reader.reasons)
    return build(reader, kind, mask)


def to_torch(layer: MultiHeadAttention, *, without_mask: bool) -> nn.MultiheadAttention:
    """`MultiHeadAttention.to_torch`."""
    reasons = []
    if layer.num_kv_heads != layer.num_heads:
        reasons.append(f"num_kv_heads={layer.num_kv_heads} for num_heads={layer.num_heads}")
    if not layer.embed_dim == layer.num_heads * layer.head_dim == layer.output_dim:
        reasons.append(
            f"embed_dim={layer.embed_dim}, num_heads × head_dim="
            f"{layer.num_heads * layer.head_dim}, output_dim={layer.output_dim}: not one width"
        )
    if layer.value_head_dim != layer.head_dim:
        reasons.append(f"value_head_dim={layer.value_head_dim} for head_dim={layer.head_dim}")
    if layer.mask is not None and not without_mask:
        reasons.append(
            f"mask={layer.mask.describe()}: it takes a mask at each call only; "
            "to_torch(without_mask=True) leaves it to you"
        )
    if layer.parts:
        names = ", ".join(type(part).__name__ for part in layer.parts)
        reasons.append(f"parts: {names}")
    reasons += replaced_projections(layer)
    refuse("to_torch", "convert this layer", reasons)
    like = layer.output_projection.weight
    module = nn.MultiheadAttention(
        layer.embed_dim,
        layer.num_heads,
        dropout=layer.dropout or 0.0,
        bias=any(name.endswith("projection.bias") for name, _ in layer.named_parameters()),
        kdim=layer.context_dim,
        vdim=layer.context_dim,
        batch_first=True,
        device=like.device,
        dtype=like.dtype,
    )
    reader = ModuleReader(module)
    read(reader)
    write(reader, layer)
    return module.train(layer.training)
