"""Layers with separate projections of query, key and value: Llama, BART, BERT, DistilBERT, T5,
diffusion models.

What their forwards do besides is what a copy that is run shows.
"""

from typing import Any

from torch import nn

from clearhead._common.checks import is_number
from clearhead._common.foreign_names import BERT, DIFFUSION, DISTILBERT, LLAMA, T5, ProjectionNames
from clearhead.errors import ArgumentError
from clearhead.layers.converting.configuration import add_rotary, hide_by_configuration
from clearhead.layers.converting.norms import add_norms
from clearhead.layers.converting.reader import (
    ModuleReader,
    as_refusal,
    has_projections,
    model_type,
)
from clearhead.layers.parts import Sinks, Softcap
from clearhead.layers.relative import RelativeBias
from clearhead.layers.temperature import Temperature

# What the attention of diffusion models may do besides, and its value when it does not.
DIFFUSION_EXTRAS = {
    "group_norm": None,
    "spatial_norm": None,
    "norm_cross": None,
    "add_k_proj": None,
    "add_q_proj": None,
    "add_v_proj": None,
    "residual_connection": False,
    "rescale_output_factor": 1.0,
    "fused_projections": False,
}


def recognises_bert(module: nn.Module) -> bool:
    """True for a module of transformers; other classes are read as the tutorials' are."""
    return has_projections(BERT, module) and model_type(module) is not None


def read_llama(reader: ModuleReader) -> None:
    """Llama, Mistral, Qwen, Gemma, Phi, OLMo, gpt-oss; BART, Whisper, OPT, CLIP, ViT."""
    clip = getattr(reader.config, "clip_qkv", None)
    if not reader.is_own and clip is not None:
        reader.reasons.append(f"clip_qkv={clip}: our layer does not clip queries, keys and values")
    if reader.project_by_name(LLAMA):
        read_what_projections_share(reader)


def read_what_projections_share(reader: ModuleReader) -> None:
    """Read what models of transformers have besides their projections."""
    add_norms(reader)
    add_rotary(reader, reader.guess.layout)
    _add_temperature(reader)
    reader.read_scale()
    softcap: Any = getattr(reader.module, "attn_logit_softcapping", None)
    if reader.guess.capped and is_number(softcap) and 0 < softcap:
        reader.add_part(Softcap(softcap), f"attn_logit_softcapping={softcap:g}")
    if reader.has("sinks"):
        _add_sinks(reader)
    hide_by_configuration(reader)
    reader.drop("attention_dropout", "attn_dropout", "dropout")
    reader.leave("residual_dropout", "resid_dropout")


def read_bert(reader: ModuleReader) -> None:
    """BERT, RoBERTa, ELECTRA; the projection of the output stands elsewhere."""
    _read_encoder(reader, BERT)


def read_distilbert(reader: ModuleReader) -> None:
    """DistilBERT, which has BERT's attention under other names."""
    _read_encoder(reader, DISTILBERT)


def _read_encoder(reader: ModuleReader, names: ProjectionNames) -> None:
    if reader.project_by_name(names):
        reader.read_scale()
        hide_by_configuration(reader)
        reader.drop("dropout")


def read_t5(reader: ModuleReader) -> None:
    """T5, whose scores are not scaled and get a trained number for each distance."""
    module = reader.module
    if not reader.project_by_name(T5):
        return
    reader.drop("dropout")
    if reader.is_own or not hasattr(module, "has_relative_attention_bias"):
        reader.read_scale()
        hide_by_configuration(reader)
        return
    reader.add_scale(1.0, "scaling")
    own, given = "relative_attention_bias", "relative_bias"
    # What is causal, or no decoder, attends to its own text, and has a relative bias.
    is_own_text = getattr(module, "is_causal", None) or not getattr(module, "is_decoder", False)
    if own in module._modules:
        _add_relative_bias(reader, own)
    elif is_own_text and given in reader.beside:
        _add_relative_bias(reader, given)
    elif is_own_text:
        reader.reasons.append(
            "this block is handed the relative bias of the first one; give that too, as "
            "relative_bias=first.relative_attention_bias"
        )
    hide_by_configuration(reader)


def read_diffusion(reader: ModuleReader) -> None:
    """The attention of diffusers and of the models before it, to a text or to the picture."""
    for name, usual in DIFFUSION_EXTRAS.items():
        found = getattr(reader.module, name, usual)
        if found is not None and found != usual:
            reader.reasons.append(
                f"{name}={type(found).__name__ if isinstance(found, nn.Module) else found}: our "
                "layer has no place for it"
            )
    if reader.project_by_name(DIFFUSION):
        add_norms(reader)
        reader.read_scale()
        reader.leave("to_out.1")


def _add_temperature(reader: ModuleReader) -> None:
    """Hand the growth of the queries of Llama 4 to the layer, on layers that do not rotate."""
    module: Any = reader.module
    if (
        reader.model_type == "llama4_text"
        and module.attn_temperature_tuning
        and not module.use_rope
    ):
        part = Temperature(module.attn_scale, every=int(module.floor_scale))
        reader.add_part(part, "attn_temperature_tuning")


def _add_sinks(reader: ModuleReader) -> None:
    sinks, heads = reader.tensor("sinks"), reader.sizes["num_heads"]
    if tuple(sinks.shape) != (heads,):
        reader.reasons.append(
            f"sinks {tuple(sinks.shape)} must be one number for each of {heads} heads"
        )
        return
    name = reader.add_part(Sinks(heads), "sinks")
    reader.copy("sinks", sinks, f"{name}.scores")


def _add_relative_bias(reader: ModuleReader, path: str) -> None:
    module, heads = reader.module, reader.sizes["num_heads"]
    table = reader.tensor(f"{path}.weight") if reader.has(f"{path}.weight") else None
    if table is None or table.ndim != 2 or table.shape[1] != heads:
        reader.reasons.append(
            f"{path}.weight must have a column for each of {heads} heads; "
            f"{'it is missing' if table is None else f'its shape is {tuple(table.shape)}'}"
        )
        return
    try:
        part = RelativeBias(
            heads,
            num_buckets=len(table),
            max_distance=getattr(module, "relative_attention_max_distance", 128),
            bidirectional=not getattr(module, "is_decoder", False),
        )
    except ArgumentError as error:
        reader.reasons.append(f"{path}: {as_refusal(error)}")
        return
    name = reader.add_part(part, path)
    reader.copy(f"{path}.weight", table, f"{name}.table")
