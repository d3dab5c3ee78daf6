"""Layers with one projection for query, key and value: GPT-2, Phi-3, GPT-NeoX, BLOOM, Falcon, MPT, timm.

Sources: Radford et al., 2019; Abdin et al., 2024, https://arxiv.org/abs/2404.14219; Black et al.,
2022, https://arxiv.org/abs/2204.06745; and the layers of transformers and nanoGPT.
"""

import math
from typing import Any

from torch import nn

from clearhead._common.foreign_names import GPT2, MPT, NEOX, PHI3, TIMM, ProjectionNames
from clearhead.attention.distance_biases import alibi
from clearhead.layers.converting.configuration import add_rotary, hide_by_configuration
from clearhead.layers.converting.norms import add_norms
from clearhead.layers.converting.reader import ModuleReader
from clearhead.layers.converting.separate import read_what_projections_share
from clearhead.layers.parts import ScoreBias
from clearhead.masks import causal

# Their models hand them ALiBi, so that they cannot be run alone; their layers were compared in them.
HANDED_ALIBI = ("bloom", "falcon", "mpt")


def read_gpt2(reader: ModuleReader) -> None:
    """GPT-2, nanoGPT: all queries, then all keys, then all values; to a context, queries alone."""
    is_cross = isinstance(getattr(reader.module, "q_attn", None), nn.Module)
    found = reader.projections(*GPT2.inputs, *GPT2.output, *(["q_attn"] if is_cross else []))
    if not found:
        return
    packed, output, *queries = found
    count = 3 - len(queries)
    width, rest = divmod(len(packed.weight), count)
    if rest:
        reader.reasons.append(
            f"c_attn must give {count} times one width; it gives {len(packed.weight)}"
        )
        return
    query, key, value = [*queries, *packed.split([width] * count)]
    if not reader.project(query, key, value, output, num_heads=reader.num_heads):
        return
    # Older versions keep their mask, and the number that they hide a score with.
    reader.read_triangles()
    if reader.has("masked_bias"):
        reader.tensor("masked_bias")
    if not is_cross and not reader.is_own:
        reader.hide(causal(), ", ".join(reader.triangles) or "is_causal")
    _read_scale_of_gpt2(reader)
    reader.drop("attn_dropout", "dropout")
    reader.leave("resid_dropout")


def _read_scale_of_gpt2(reader: ModuleReader) -> None:
    module, head_dim = reader.module, reader.sizes["head_dim"]
    if not hasattr(module, "scale_attn_weights"):
        return
    scale = 1 / math.sqrt(head_dim) if module.scale_attn_weights else 1.0
    names = [] if module.scale_attn_weights else ["scale_attn_weights=False"]
    if getattr(module, "scale_attn_by_inverse_layer_idx", False):
        index = getattr(module, "layer_idx", None)
        names.append(f"scale_attn_by_inverse_layer_idx=True, layer_idx={index}")
        if not isinstance(index, int):
            reader.reasons.append("scale_attn_by_inverse_layer_idx needs a layer_idx; it is None")
            return
        scale /= index + 1
    reader.add_scale(scale, ", ".join(names))


def read_phi3(reader: ModuleReader) -> None:
    """Phi-3: all queries, then all keys, then all values, of grouped heads."""
    found = reader.projections(*PHI3.inputs, *PHI3.output)
    if not found:
        return
    packed, output = found
    heads, dim = reader.num_heads, reader.size("head_dim")
    kv_heads = reader.size("num_kv_heads") or heads
    if not heads or not dim or not kv_heads or (heads + 2 * kv_heads) * dim != len(packed.weight):
        reader.reasons.append(
            f"qkv_proj gives width {len(packed.weight)}, which must be (num_heads + 2 × "
            f"num_key_value_heads) × head_dim; the module says {heads}, {kv_heads} and {dim}"
        )
        return
    query, key, value = packed.split([heads * dim, kv_heads * dim, kv_heads * dim])
    if reader.project(query, key, value, output, num_heads=heads):
        read_what_projections_share(reader)


def read_mpt(reader: ModuleReader) -> None:
    """MPT: all queries, then all keys, then all values; ALiBi."""
    reader.is_probed = reader.model_type not in HANDED_ALIBI
    clip = getattr(reader.module, "clip_qkv", None)
    if clip:
        reader.reasons.append(f"clip_qkv={clip}: our layer does not clip queries, keys and values")
    if _read_thirds(reader, MPT):
        scale = getattr(reader.module, "softmax_scale", None)
        if scale is not None:
            reader.add_scale(scale, "softmax_scale")
        if not reader.is_own:
            reader.add_part(ScoreBias(alibi(reader.sizes["num_heads"])), "position_bias")
        hide_by_configuration(reader)
        reader.drop("attn_dropout_p")


def read_timm(reader: ModuleReader) -> None:
    """The vision transformers of timm: all queries, then all keys, then all values."""
    if _read_thirds(reader, TIMM):
        add_norms(reader)
        reader.read_scale()
        reader.drop("attn_drop")
        reader.leave("proj_drop")


def _read_thirds(reader: ModuleReader, names: ProjectionNames) -> bool:
    """Take one projection as those of all queries, all keys and all values; False with reasons, if it is
    none."""
    found = reader.projections(*names.inputs, *names.output)
    if not found:
        return False
    packed, output = found
    width, rest = divmod(len(packed.weight), 3)
    if rest:
        reader.reasons.append(
            f"{names.inputs[0]} must give 3 times one width; it gives {len(packed.weight)}"
        )
        return False
    query, key, value = packed.split([width] * 3)
    return reader.project(query, key, value, output, num_heads=reader.num_heads)


def read_neox(reader: ModuleReader) -> None:
    """GPT-NeoX, BLOOM: query, key and value of the first head, then of the second, and so on; Falcon: the
    queries of the first group of heads, their key and their value, then those of the second."""
    reader.is_probed = reader.model_type not in HANDED_ALIBI
    found = reader.projections(*NEOX.inputs, *NEOX.output)
    if not found:
        return
    packed, output = found
    heads, width = reader.num_heads or 0, len(packed.weight)
    kv_heads = reader.size("num_kv_heads") or heads
    dim, rest = divmod(width, heads + 2 * kv_heads) if heads else (0, 1)
    if rest or heads % kv_heads:
        reader.reasons.append(
            f"query_key_value gives width {width}, which must be (num_heads + 2 × num_kv_heads) × "
            f"head_dim; the module says num_heads={heads or None}, num_kv_heads={kv_heads or None}"
        )
        return
    parts = packed.split([heads // kv_heads * dim, dim, dim] * kv_heads)
    groups = [parts[first : first + 3] for first in range(0, len(parts), 3)]
    reader.project_heads(groups, output, heads)
    if reader.model_type == "bloom":
        _read_bloom(reader)
    elif reader.model_type == "falcon":
        _read_falcon(reader)
    else:
        read_what_projections_share(reader)


def _read_bloom(reader: ModuleReader) -> None:
    module: Any = reader.module
    if module.slow_but_exact and module.pretraining_tp > 1:
        reader.reasons.append("slow_but_exact=True leaves out the bias of the output")
    reader.add_part(ScoreBias(alibi(reader.sizes["num_heads"])), "alibi")
    hide_by_configuration(reader)
    reader.drop("attention_dropout")
    reader.leave("hidden_dropout")


def _read_falcon(reader: ModuleReader) -> None:
    if not reader.config.alibi:
        add_rotary(reader, "half")
        hide_by_configuration(reader)
        return  # it drops no weights then
    reader.alone.append("alibi=True: its model rounds the bias to bfloat16, position by position")
    slopes = alibi(reader.sizes["num_heads"]).numbers
    assert slopes is not None
    scale = math.sqrt(reader.sizes["head_dim"])
    reader.add_part(ScoreBias(alibi(slopes=slopes.bfloat16().float() / scale)), "alibi")
    hide_by_configuration(reader)
    reader.drop("attention_dropout")
