"""The kinds of attention layers that are read, as a table: the names of projections, and how they are packed.

What a layer has besides its projections is read by the same functions for all kinds; each adds nothing where the module
does not have what it reads. What names do not tell, the run of a copy shows.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from clearhead._common.checks import is_number
from clearhead._common.foreign_names import (
    BERT,
    DIFFUSION,
    DISTILBERT,
    GPT2,
    LATENT,
    LLAMA,
    MPT,
    NEOX,
    PHI3,
    T5,
    TIMM,
    TUTORIALS,
    ProjectionNames,
)
from clearhead.attention.distance_biases import alibi
from clearhead.errors import ArgumentError
from clearhead.layers.converting import latent, torch_layer
from clearhead.layers.converting.configuration import add_rotary, hide_by_configuration
from clearhead.layers.converting.norm_reading import add_norms
from clearhead.layers.converting.reader import Fitted, ModuleReader, has_projections, model_type
from clearhead.layers.parts import ScoreBias, Sinks, Softcap
from clearhead.layers.score_parts import RelativeBias, Temperature
from clearhead.masks import causal

WEIGHT_DROPOUT = ("attention_dropout", "attn_dropout", "attn_dropout_p", "attn_drop", "dropout")
OUTPUT_DROPOUT = ("residual_dropout", "resid_dropout", "hidden_dropout", "proj_drop", "to_out.1")
# Models that pass ALiBi to their attentions, which cannot be run alone for that reason, and its name.
ALIBI = {"bloom": "alibi", "falcon": "alibi", "mpt": "position_bias"}


class Family(NamedTuple):
    """A kind of attention layers.

    Attributes:
        words: its usual name, and the names that it is known by; empty for a row that belongs to the one above it.
        recognises: True for a module of this kind, by the names of its attributes.
        read: reads a module of this kind into its reader: sizes, parts, mask, pairs of tensors, reasons.
    """

    words: str
    recognises: Callable[[nn.Module], bool]
    read: Callable[[ModuleReader], None]


def family_of(module: nn.Module) -> Family | None:
    """Return the first family that recognises a module; None if none does."""
    return next((family for family in FAMILIES if family.recognises(module)), None)


def read_as(
    module: nn.Module, guess: Fitted, related: Mapping[str, nn.Module] | None = None
) -> ModuleReader:
    """Return a reader of a module of a known kind, read as one that behaves as guessed; `related` as for a reader."""
    family = family_of(module)
    assert family is not None
    reader = ModuleReader(module, related, guess)
    family.read(reader)
    return reader


def _family(
    names: ProjectionNames,
    project: Callable[[ModuleReader, ProjectionNames], bool],
    *,
    words: str | None = None,
    of_library: bool = False,
) -> Family:
    """Return the family of modules with projections by these names.

    Args:
        names: of the projections.
        project: called as `project(reader, names)`; reads the projections into the reader; False, with a reason, if it
            cannot.
        words: as in `Family`; None for those of the names.
        of_library: True to recognise only modules of transformers.
    """

    def recognises(module: nn.Module) -> bool:
        """Return True if a module has projections by these names, and is of transformers if `of_library`."""
        return has_projections(names, module) and not (of_library and model_type(module) is None)

    def read(reader: ModuleReader) -> None:
        """Read the projections into the reader, and the settings if all projections could be read."""
        reader.is_probed = reader.model_type not in ALIBI
        if project(reader, names):
            _read_settings(reader, names)

    return Family(names.describe() if words is None else words, recognises, read)


def _separate(reader: ModuleReader, names: ProjectionNames) -> bool:
    """Read one projection each for query, key and value, and the output's, into the reader; return True.

    Return False, with a reason, if one is not plain or the widths are no heads.
    """
    found = reader.projections(*names.inputs, *reader.output_of(names))
    heads = reader.num_heads or (1 if names in TUTORIALS else None)
    return bool(found) and reader.project(*found, num_heads=heads)


def _packed(reader: ModuleReader, names: ProjectionNames) -> bool:
    """Read a packed projection of query, key and value, or of key and value next to `q_attn`, into the reader.

    It has all queries, then all keys, then all values; in GPT-NeoX the query, key and value of the first group of heads
    come first, then those of the second. Return True; False, with a reason, if it is not plain or its width does not
    fit.
    """
    is_cross = isinstance(getattr(reader.module, "q_attn", None), nn.Module)
    found = reader.projections(*names.inputs, *names.output, *["q_attn"] * is_cross)
    if not found:
        return False
    packed, output, *queries = found
    heads, width = reader.num_heads, len(packed.weight)
    kv_heads = reader.size("num_kv_heads") or heads
    shares = [heads or 1, kv_heads or 1, kv_heads or 1]
    groups = shares[1] if names == NEOX else 1
    dim, rest = divmod(width, sum(shares[is_cross:]))
    if rest or shares[0] % groups or (heads and reader.size("head_dim") not in (None, dim)):
        reader.reasons.append(
            f"{names.inputs[0]} gives width {width}, which must be (num_heads + 2 × num_kv_heads) × head_dim; the "
            f"module says num_heads={heads}, num_kv_heads={reader.size('num_kv_heads')}, "
            f"head_dim={reader.size('head_dim')}"
        )
        return False
    parts = packed.split([dim * share // groups for share in shares[is_cross:]] * groups)
    if groups == 1:
        query, key, value = [*queries, *parts]
        return reader.project(query, key, value, output, num_heads=heads)
    every = [parts[first : first + 3] for first in range(0, len(parts), 3)]
    return reader.project_heads(every, output, heads)


def _heads_of(module: nn.Module) -> list[nn.Module]:
    """Return the modules in `module.heads`, one per head; [] if that is no ModuleList."""
    heads = getattr(module, "heads", None)
    return list(heads) if isinstance(heads, nn.ModuleList) else []


def _names_of_heads(module: nn.Module) -> list[ProjectionNames]:
    """Return the projection names of each module in `module.heads`; [] if there is none or one has no known names."""
    found = [
        next((names for names in TUTORIALS if has_projections(names, head)), None)
        for head in _heads_of(module)
    ]
    return [names for names in found if names is not None] if None not in found else []


def _read_heads(reader: ModuleReader) -> None:
    """Read a list of modules of one head each into the reader: sizes, pairs and dropout.

    The output projection is that next to the list, if there is one. Adds a reason instead if a projection is not plain
    or heads differ in shape.
    """
    prefixes = [f"heads.{index}." for index in range(len(_heads_of(reader.module)))]
    named = zip(prefixes, _names_of_heads(reader.module), strict=True)
    found = [reader.projections(*(prefix + name for name in each.inputs)) for prefix, each in named]
    output = reader.projections(*reader.output_of(TUTORIALS[0]))
    if reader.reasons:
        return
    if len({tuple(each.weight.shape for each in head) for head in found}) > 1:
        reader.reasons.append("heads must have matrices of the same shapes as each other")
        return
    reader.project_heads(found, output[0] if output else None)
    reader.drop(*(f"{prefix}dropout" for prefix in prefixes))
    reader.leave("dropout")


FAMILIES = (
    Family("torch.nn.MultiheadAttention", torch_layer.recognises, torch_layer.read),
    _family(GPT2, _packed),
    _family(LLAMA, _separate),
    _family(PHI3, _packed),
    _family(NEOX, _packed),
    _family(MPT, _packed),
    Family(LATENT.describe(), lambda module: has_projections(LATENT, module), latent.read),
    _family(TIMM, _packed),
    _family(DISTILBERT, _separate),
    _family(
        BERT,
        _separate,
        words=f"{BERT.describe()}, and the projection of the output as output=",
        of_library=True,
    ),
    Family(
        f"{TUTORIALS[0].describe()}, or a list of heads",
        lambda module: bool(_names_of_heads(module)),
        _read_heads,
    ),
    *(_family(names, _separate, words="") for names in TUTORIALS),
    _family(T5, _separate),
    _family(DIFFUSION, _separate),
)
"""Every kind; the first that recognises a module reads it."""


def _read_settings(reader: ModuleReader, names: ProjectionNames) -> None:
    """Read parts, scale, mask and dropout of a module whose projections were read.

    Adds reasons for what has no equal.
    """
    module: Any = reader.module
    has_alibi = reader.model_type in ALIBI and getattr(reader.config, "alibi", True)
    # A bound on queries, keys and values shows on large numbers only.
    clip = getattr(module, "clip_qkv", None) or getattr(reader.config, "clip_qkv", None)
    if clip is not None:
        reader.reasons.append(f"clip_qkv={clip}: our layer does not clip queries, keys and values")
    add_norms(reader)
    if not has_alibi:
        add_rotary(reader, reader.guess.layout)
    _add_temperature(reader)
    _read_scale(reader)
    softcap: Any = getattr(module, "attn_logit_softcapping", None)
    if reader.guess.capped and is_number(softcap) and 0 < softcap:
        reader.add_part(Softcap(softcap), f"attn_logit_softcapping={softcap:g}")
    _add_sinks(reader)
    if has_alibi:
        _add_alibi(reader)
    if _has_relative_bias(reader):
        _read_relative_bias(reader)
    if names == GPT2:
        _read_mask_of_gpt2(reader)
    else:
        hide_by_configuration(reader)
    # Falcon drops weights in its ALiBi branch alone; a diffusion model's dropout= is that of its output.
    if names != DIFFUSION and (has_alibi or reader.model_type != "falcon"):
        reader.drop(*WEIGHT_DROPOUT)
    reader.leave(*OUTPUT_DROPOUT)


def _add_alibi(reader: ModuleReader) -> None:
    """Add the ALiBi that the model passes to the module to the reader as a part.

    Also adds, for Falcon, why it cannot be converted alone; for Bloom, a reason if it leaves out the output bias.
    """
    module: Any = reader.module
    kind = str(reader.model_type)
    if kind == "bloom" and module.slow_but_exact and module.pretraining_tp > 1:
        reader.reasons.append("slow_but_exact=True leaves out the bias of the output")
    bias = alibi(reader.sizes["num_heads"])
    if kind == "falcon":
        reader.alone.append(
            "alibi=True: its model rounds the bias to bfloat16, position by position"
        )
        assert bias.numbers is not None
        scale = math.sqrt(reader.sizes["head_dim"])
        bias = alibi(slopes=bias.numbers.bfloat16().float() / scale)
    reader.add_part(ScoreBias(bias), ALIBI[kind])


def _read_scale(reader: ModuleReader) -> None:
    """Add the scale of the scores to the reader, unless it is 1/√head_dim.

    It is 1 for T5, that of its settings for GPT-2, else the number that the module holds, if any. Adds a reason if
    GPT-2 divides by a layer index that it does not have.
    """
    module: Any = reader.module
    if _has_relative_bias(reader):
        reader.add_scale(1.0, "scaling")
    elif not hasattr(module, "scale_attn_weights"):
        reader.read_scale()
    else:
        scale = 1 / math.sqrt(reader.sizes["head_dim"]) if module.scale_attn_weights else 1.0
        settings = [] if module.scale_attn_weights else ["scale_attn_weights=False"]
        if getattr(module, "scale_attn_by_inverse_layer_idx", False):
            index = getattr(module, "layer_idx", None)
            settings.append(f"scale_attn_by_inverse_layer_idx=True, layer_idx={index}")
            if not isinstance(index, int):
                reader.reasons.append(
                    "scale_attn_by_inverse_layer_idx needs a layer_idx; it is None"
                )
                return
            scale /= index + 1
        reader.add_scale(scale, ", ".join(settings))


def _read_mask_of_gpt2(reader: ModuleReader) -> None:
    """Mark as read the mask buffer of GPT-2, in old versions.

    Adds the causal mask to the reader unless the module is a cross-attention or a class of the user's.
    """
    reader.read_triangles()
    if not hasattr(reader.module, "q_attn") and not reader.is_own:
        reader.hide(causal(), ", ".join(reader.triangles) or "is_causal")


def _add_temperature(reader: ModuleReader) -> None:
    """Add the temperature of Llama 4 to the reader, in layers without rotary positions; no-op if it is switched off."""
    module: Any = reader.module
    is_llama4 = reader.model_type == "llama4_text"
    if is_llama4 and module.attn_temperature_tuning and not module.use_rope:
        part = Temperature(module.attn_scale, every=int(module.floor_scale))
        reader.add_part(part, "attn_temperature_tuning")


def _add_sinks(reader: ModuleReader) -> None:
    """Add the sinks of the module to the reader; no-op without sinks; a reason instead if there is not one per head."""
    if not reader.has("sinks"):
        return
    sinks, heads = reader.tensor("sinks"), reader.sizes["num_heads"]
    if tuple(sinks.shape) != (heads,):
        reader.reasons.append(
            f"sinks {tuple(sinks.shape)} must be one number for each of {heads} heads"
        )
        return
    name = reader.add_part(Sinks(heads), "sinks")
    reader.copy("sinks", sinks, f"{name}.scores")


def _has_relative_bias(reader: ModuleReader) -> bool:
    """Return True for any attention of T5 in transformers, whose scores are not scaled."""
    return not reader.is_own and hasattr(reader.module, "has_relative_attention_bias")


def _read_relative_bias(reader: ModuleReader) -> None:
    """Read the relative bias of T5 from the module, or from `reader.related`; cross-attention has none.

    Adds a reason if the module gets its bias from the first block and that is not given.
    """
    module = reader.module
    # What is causal, or no decoder, attends to its own text, and has a relative bias.
    is_own_text = getattr(module, "is_causal", None) or not getattr(module, "is_decoder", False)
    if "relative_attention_bias" in module._modules:
        _add_relative_bias(reader, "relative_attention_bias")
    elif is_own_text and "relative_bias" in reader.related:
        _add_relative_bias(reader, "relative_bias")
    elif is_own_text:
        reader.reasons.append(
            "this block is handed the relative bias of the first one; give that too, as "
            "relative_bias=first.relative_attention_bias"
        )


def _add_relative_bias(reader: ModuleReader, path: str) -> None:
    """Add the relative bias whose table, (buckets, heads), is the weight of the embedding at `path`, to the reader.

    A reason instead if it is missing or does not fit.
    """
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
        reader.reasons.append(f"{path}: {error.message.rstrip('.')}")
        return
    name = reader.add_part(part, path)
    reader.copy(f"{path}.weight", table, f"{name}.table")
