"""GPT-2 and its kin: query, key and value of one matrix, which lies the other way round.

Source: Radford et al., 2019, and the layers of transformers and nanoGPT.
"""

import math

from torch import nn

from clearhead.layers.converting.reading import Reading
from clearhead.masks import causal

MODEL_TYPES = ("gpt2",)


def recognises(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Module) for name in ("c_attn", "c_proj"))


def read(reading: Reading) -> None:
    module = reading.module
    is_cross = isinstance(getattr(module, "q_attn", None), nn.Module)
    reading.check_model_type(MODEL_TYPES)
    packed, output = reading.matrix("c_attn"), reading.matrix("c_proj")
    alone = reading.matrix("q_attn") if is_cross else None
    if packed is None or output is None or (is_cross and alone is None):
        return
    count = 2 if is_cross else 3
    width, rest = divmod(len(packed.weight), count)
    if rest:
        reading.reasons.append(
            f"c_attn must give {count} times one width; it gives {len(packed.weight)}"
        )
        return
    inputs = [packed.part(place * width, (place + 1) * width) for place in range(count)]
    query, key, value = inputs if alone is None else (alone, *inputs)
    reading.project(query, key, value, output, num_heads=reading.num_heads)
    if not reading.sizes:
        return
    # Older versions keep their mask, and the number that they hide a score with.
    reading.read_triangles()
    if reading.has("masked_bias"):
        reading.tensor("masked_bias")
    if not is_cross and not reading.is_probed:
        reading.hide(causal(), ", ".join(reading.triangles) or "is_causal")
    _read_scale(reading)
    reading.drop("attn_dropout", "dropout")
    reading.leave("resid_dropout")


def _read_scale(reading: Reading) -> None:
    module, head_dim = reading.module, reading.sizes["head_dim"]
    if not hasattr(module, "scale_attn_weights"):
        return
    scale = 1 / math.sqrt(head_dim) if module.scale_attn_weights else 1.0
    names = [] if module.scale_attn_weights else ["scale_attn_weights=False"]
    if getattr(module, "scale_attn_by_inverse_layer_idx", False):
        index = getattr(module, "layer_idx", None)
        names.append(f"scale_attn_by_inverse_layer_idx=True, layer_idx={index}")
        if not isinstance(index, int):
            reading.reasons.append("scale_attn_by_inverse_layer_idx needs a layer_idx; it is None")
            return
        scale /= index + 1
    reading.add_scale(scale, ", ".join(names))
