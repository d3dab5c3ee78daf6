"""Multi-head latent attention: DeepSeek V2 and V3.

Source: DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434, and the layers of transformers.
"""

from typing import Any

from torch import nn

from clearhead.layers.converting.configuration import add_rotary, hide_by_configuration
from clearhead.layers.converting.norm_reading import read_norm
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.converting.tensor_pairs import Projection
from clearhead.layers.latent_attention import LatentAttention

# By our names.
SIZES = {
    "head_dim": "qk_nope_head_dim",
    "rotary_dim": "qk_rope_head_dim",
    "latent_dim": "kv_lora_rank",
    "value_head_dim": "v_head_dim",
}


def read(reader: ModuleReader) -> None:
    """Read DeepSeek V2 and V3 into the reader: a latent for keys and values, and one for queries or none.

    Sets kind, sizes, options and pairs, and adds rotary positions, scale, mask and dropout. No-op if there are reasons;
    adds one for a class that is not of transformers, and for sizes, projections or norms that cannot be read.
    """
    if reader.is_own:
        reader.reasons.append(
            "it has the names of DeepSeek's latent attention, and is no class of transformers: what its "
            "forward does is not known"
        )
    if reader.reasons:
        return
    heads = reader.num_heads
    sizes: dict[str, Any] = {
        ours: getattr(reader.module, theirs, None) for ours, theirs in SIZES.items()
    }
    if not heads or not all(isinstance(each, int) for each in sizes.values()):
        said = ", ".join(f"{name}={size}" for name, size in sizes.items())
        reader.reasons.append(f"the module must say its sizes; it says num_heads={heads}, {said}")
        return
    has_latent = isinstance(getattr(reader.module, "q_a_proj", None), nn.Module)
    found = reader.projections(
        "kv_a_proj_with_mqa",
        "kv_b_proj",
        "o_proj",
        *(("q_b_proj", "q_a_proj") if has_latent else ("q_proj",)),
    )
    names = ("kv_a_layernorm", "q_a_layernorm")[: 1 + has_latent]
    norms = [norm for name in names if (norm := read_norm(reader, name)) is not None]
    if not found or len(norms) < len(names):
        return
    down, up, output, query, *query_down = found
    if len({eps for _, eps in norms}) > 1:
        reader.reasons.append("kv_a_layernorm and q_a_layernorm must add one eps")
        return
    reader.kind = LatentAttention
    reader.sizes = {
        "embed_dim": down.weight.shape[1],
        "num_heads": heads,
        **sizes,
        "output_dim": len(output.weight),
    }
    named = [
        (query, "query_projection"),
        (down, "latent_projection"),
        (output, "output_projection"),
    ]
    if has_latent:
        reader.sizes["query_latent_dim"] = len(query_down[0].weight)
        named.append((query_down[0], "query_latent_projection"))
    reader.options = {"bias": down.bias is not None, "eps": norms[0][1]}
    for projection, ours in named:
        reader.pairs += projection.pairs(ours)
    _pair_heads(reader, up)
    for theirs, ours, norm in zip(names, ("latent_norm", "query_norm"), norms, strict=False):
        reader.copy(f"{theirs}.weight", norm[0], f"{ours}.weight", reader.guess.norms)
    add_rotary(reader, reader.guess.layout)
    reader.read_scale()
    hide_by_configuration(reader)
    reader.drop("attention_dropout")


def _pair_heads(reader: ModuleReader, up: Projection) -> None:
    """Add the pairs of the projection `up` of the latent to the reader, split into the key and value of each head."""
    heads, dims = (
        reader.sizes["num_heads"],
        [reader.sizes[n] for n in ("head_dim", "value_head_dim")],
    )
    parts = up.split(dims * heads)
    for index, part in enumerate(parts):
        head, side = divmod(index, 2)
        rows = (head * dims[side], (head + 1) * dims[side])
        reader.pairs += part.pairs(("key_projection", "value_projection")[side], rows)
