"""PyTorch's nn.MultiheadAttention, with one matrix for query, key and value or a matrix each."""

from dataclasses import replace

from torch import nn

from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.converting.tensor_pairs import Projection

INPUTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def recognises(module: nn.Module) -> bool:
    """Return True for PyTorch's layer, or a subclass."""
    return isinstance(module, nn.MultiheadAttention)


def read(reader: ModuleReader) -> None:
    """Read PyTorch's layer into the reader: sizes, pairs and dropout; a subclass with its own forward is to be probed.

    Adds reasons instead for added keys, two widths of keys and values, and parameters that are computed.
    """
    module = reader.module
    assert isinstance(module, nn.MultiheadAttention)
    # A subclass may do something else with the weights.
    reader.is_probed = type(module).forward is not nn.MultiheadAttention.forward
    if module.bias_k is not None or module.bias_v is not None:
        reader.reasons.append("add_bias_kv=True: a learned key and value that every query sees")
    if module.add_zero_attn:
        reader.reasons.append("add_zero_attn=True: a key and value of zeros that every query sees")
    if module.kdim != module.vdim:
        reader.reasons.append(f"kdim={module.kdim} and vdim={module.vdim}: not one width")
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
