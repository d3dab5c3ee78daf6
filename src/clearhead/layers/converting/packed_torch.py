"""PyTorch's nn.MultiheadAttention, with one matrix for query, key and value or a matrix each."""

from torch import nn

from clearhead.layers.converting.places import Matrix
from clearhead.layers.converting.reading import Reading

INPUTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def recognises(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


def read(reading: Reading) -> None:
    module = reading.module
    assert isinstance(module, nn.MultiheadAttention)
    reading.reasons += reasons_against(module)
    # Pruned or parametrized, they are made of other parameters at each call.
    reading.reasons += [
        f"{name} must be a parameter of its own; it is made of others"
        for name in (*INPUTS, "in_proj_bias")
        if getattr(module, name) is not None and not reading.has(name)
    ]
    if reading.reasons:
        return
    # A class of one's own may do something else with the weights.
    reading.is_probed = type(module).forward is not nn.MultiheadAttention.forward
    width = module.embed_dim
    bias = reading.tensor("in_proj_bias") if module.in_proj_bias is not None else None
    if module.in_proj_weight is not None:
        packed = Matrix(
            "in_proj_weight",
            reading.tensor("in_proj_weight"),
            bias_name="in_proj_bias",
            bias=bias,
        )
        inputs = [packed.part(place * width, (place + 1) * width) for place in range(3)]
    else:
        inputs = []
        for place, name in enumerate(INPUTS[1:]):
            rows = slice(place * width, (place + 1) * width)
            inputs.append(
                Matrix(
                    name,
                    reading.tensor(name),
                    bias_name=f"in_proj_bias[{rows.start}:{rows.stop}]",
                    bias=None if bias is None else bias[rows],
                )
            )
    query, key, value = inputs
    output = reading.matrix("out_proj")
    reading.project(query, key, value, output, num_heads=module.num_heads)
    reading.drop("dropout")


def reasons_against(module: nn.MultiheadAttention) -> list[str]:
    """What a layer of ours has no place for."""
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
