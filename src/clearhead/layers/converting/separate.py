"""Layers with a matrix each for query, key and value: Llama and its kin, BART, BERT, DistilBERT, T5,
diffusion.

What their forwards do beside it is known of the model types that are listed here; each was compared
with the layer that is made of it. Of a class without a model type a copy is run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead._common.checks import is_number
from clearhead.errors import ArgumentError
from clearhead.layers.converting.positions import add_rotary, hide_by_configuration
from clearhead.layers.converting.reading import Reading, as_refusal, model_type
from clearhead.layers.parts import QueryKeyNorm, Sinks, Softcap
from clearhead.layers.relative import RelativeBias
from clearhead.layers.rotary import Layout

# The layout of rotary positions of each model type; None for those without.
PROJ: dict[str, Layout | None] = {
    "arcee": "half",
    "bart": None,
    "biogpt": None,
    "blenderbot": None,
    "clip_vision_model": None,
    "cohere": "interleaved",
    "deit": None,
    "gemma": "half",
    "gemma2": "half",
    "gemma3_text": "half",
    "gpt_oss": "half",
    "granite": "half",
    "helium": "interleaved",
    "llama": "half",
    "m2m_100": None,
    "marian": None,
    "mbart": None,
    "ministral": "half",
    "mistral": "half",
    "mixtral": "half",
    "olmo": "half",
    "opt": None,
    "pegasus": None,
    "phi": "half",
    "phimoe": "half",
    "plbart": None,
    "qwen2": "half",
    "qwen2_moe": "half",
    "qwen3": "half",
    "qwen3_moe": "half",
    "siglip_vision_model": None,
    "stablelm": "half",
    "starcoder2": "half",
    "vit": None,
    "whisper": None,
}
# Others hold the bound in their configuration and do nothing with it.
WITH_SOFTCAP = ("gemma2",)
BERT = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
DISTILBERT = ("distilbert",)
T5 = ("mt5", "t5")

# What the attention of diffusion models may do beside, and what it is when it does not.
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
# A norm is tried on vectors of both sizes; the small one tells what is added to the mean square.
LARGE, SMALL = 1.0, 1e-3


class Names(NamedTuple):
    """What the matrices of a kind of layers are called."""

    query: str
    key: str
    value: str
    output: tuple[str, ...]


LLAMA = Names("q_proj", "k_proj", "v_proj", ("o_proj", "out_proj", "dense"))
BERTS = Names("query", "key", "value", ())
DISTILBERTS = Names("q_lin", "k_lin", "v_lin", ("out_lin",))
T5S = Names("q", "k", "v", ("o",))
DIFFUSION = Names("to_q", "to_k", "to_v", ("to_out.0", "to_out"))


def recogniser(names: Names) -> Callable[[nn.Module], bool]:
    """What tells whether a module has matrices of these names."""

    def recognises(module: nn.Module) -> bool:
        found = (getattr(module, name, None) for name in names[:3])
        return all(isinstance(each, nn.Module) for each in found)

    return recognises


def recognises_bert(module: nn.Module) -> bool:
    """Whether it is one of transformers; those of one's own are read as the tutorials' are."""
    return recogniser(BERTS)(module) and model_type(module) is not None


def read_proj(reading: Reading) -> None:
    """Llama, Mistral, Qwen, Gemma, Phi, OLMo, gpt-oss; BART, Whisper, OPT, CLIP, ViT."""
    reading.check_model_type(PROJ)
    clip = getattr(reading.config, "clip_qkv", None)
    if reading.model_type in PROJ and clip is not None:
        reading.reasons.append(f"clip_qkv={clip}: our layer does not clip queries, keys and values")
    if _project(reading, LLAMA):
        read_what_projections_share(reading, PROJ.get(reading.model_type or ""))


def read_what_projections_share(reading: Reading, layout: Layout | None) -> None:
    """What models of transformers with projections of whatever form do beside them."""
    _add_norm(reading, "q_norm", "k_norm")
    if layout is not None:
        add_rotary(reading, layout)
    reading.read_scale()
    softcap: Any = getattr(reading.module, "attn_logit_softcapping", None)
    is_capped = reading.is_probed or reading.model_type in WITH_SOFTCAP
    if is_capped and is_number(softcap) and 0 < softcap:
        reading.add_part(Softcap(softcap), f"attn_logit_softcapping={softcap:g}")
    if reading.has("sinks"):
        _add_sinks(reading)
    hide_by_configuration(reading)
    reading.drop("attention_dropout", "attn_dropout", "dropout")
    reading.leave("residual_dropout", "resid_dropout")


def read_bert(reading: Reading) -> None:
    """BERT and its kin; the projection of the output stands elsewhere."""
    _read_encoder(reading, BERT, BERTS)


def read_distilbert(reading: Reading) -> None:
    """DistilBERT, which has BERT's attention under other names."""
    _read_encoder(reading, DISTILBERT, DISTILBERTS)


def _read_encoder(reading: Reading, known: tuple[str, ...], names: Names) -> None:
    reading.check_model_type(known)
    if not _project(reading, names):
        return
    reading.read_scale()
    hide_by_configuration(reading)
    reading.drop("dropout")


def read_t5(reading: Reading) -> None:
    """T5, whose scores are not scaled and get a trained number for each distance."""
    module = reading.module
    reading.check_model_type(T5)
    if not _project(reading, T5S):
        return
    reading.drop("dropout")
    if reading.is_probed:
        reading.read_scale()
        return
    reading.add_scale(1.0, "scaling")
    own, given = "relative_attention_bias", "relative_bias"
    # What is causal, or no decoder, attends to its own text, and has a relative bias.
    is_own_text = getattr(module, "is_causal", None) or not getattr(module, "is_decoder", False)
    if own in module._modules:
        _add_relative_bias(reading, own)
    elif is_own_text and given in reading.beside:
        _add_relative_bias(reading, given)
    elif is_own_text and reading.model_type in T5:
        reading.reasons.append(
            "this block is handed the relative bias of the first one; give that too, as "
            "relative_bias=first.relative_attention_bias"
        )
    hide_by_configuration(reading)


def read_diffusion(reading: Reading) -> None:
    """The attention of diffusers and of the models before it, to a text or to the picture."""
    reading.is_probed = True
    for name, usual in DIFFUSION_EXTRAS.items():
        found = getattr(reading.module, name, usual)
        if found is not None and found != usual:
            reading.reasons.append(
                f"{name}={type(found).__name__ if isinstance(found, nn.Module) else found}: our "
                "layer has no place for it"
            )
    if not _project(reading, DIFFUSION):
        return
    _add_norm(reading, "norm_q", "norm_k")
    reading.read_scale()
    reading.leave("to_out.1")


def _project(reading: Reading, names: Names) -> bool:
    """Take the projections of these names; False if one of them is none."""
    query, key, value = (reading.matrix(name) for name in names[:3])
    output, is_whole = None, True
    path = "output" if "output" in reading.beside else _output_of(reading.module, names)
    if path is not None:
        output = reading.matrix(path)
        is_whole = output is not None
    if query is None or key is None or value is None or not is_whole:
        return False
    reading.project(
        query,
        key,
        value,
        output,
        num_heads=reading.num_heads,
        head_dim=reading.head_dim,
    )
    return bool(reading.sizes)


def _output_of(module: nn.Module, names: Names) -> str | None:
    for path in names.output:
        try:
            found = module.get_submodule(path)
        except AttributeError:
            continue
        return None if isinstance(found, nn.Identity) else path
    return None


def _add_sinks(reading: Reading) -> None:
    sinks, heads = reading.tensor("sinks"), reading.sizes["num_heads"]
    if tuple(sinks.shape) != (heads,):
        reading.reasons.append(
            f"sinks {tuple(sinks.shape)} must be one number for each of {heads} heads"
        )
        return
    name = reading.add_part(Sinks(heads), "sinks")
    reading.copy("sinks", sinks, f"{name}.scores")


def _add_relative_bias(reading: Reading, path: str) -> None:
    module, heads = reading.module, reading.sizes["num_heads"]
    table = reading.tensor(f"{path}.weight") if reading.has(f"{path}.weight") else None
    if table is None or table.ndim != 2 or table.shape[1] != heads:
        reading.reasons.append(
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
        reading.reasons.append(f"{path}: {as_refusal(error)}")
        return
    name = reading.add_part(part, path)
    reading.copy(f"{path}.weight", table, f"{name}.table")


def _add_norm(reading: Reading, query: str, key: str) -> None:
    """Hand the norms of query and key to the layer, if both are root mean square norms."""
    module = reading.module
    if getattr(module, query, None) is None and getattr(module, key, None) is None:
        return
    first, second = _norm(reading, query), _norm(reading, key)
    if first is None or second is None:
        return
    eps, other_eps = first[2], second[2]
    if eps != other_eps:
        reading.reasons.append(f"{query} adds {eps:g}, {key} {other_eps:g}: not one eps")
        return
    part = reading.add_part(QueryKeyNorm(reading.sizes["head_dim"], eps=eps), f"{query}, {key}")
    reading.copy(f"{query}.weight", first[0], f"{part}.query_norm.weight", first[1])
    reading.copy(f"{key}.weight", second[0], f"{part}.key_norm.weight", second[1])


def _norm(reading: Reading, name: str) -> tuple[Tensor, str, float] | None:
    """Weight, use of it and eps of a root mean square norm; None with a reason for another."""
    norm, dim = getattr(reading.module, name, None), reading.sizes["head_dim"]
    eps, has_weight = _eps(norm), reading.has(f"{name}.weight")
    weight = reading.tensor(f"{name}.weight") if has_weight else None
    if not isinstance(norm, nn.Module) or weight is None or eps is None:
        reading.reasons.append(
            f"{name} must be a root mean square norm with a weight and an eps; it is "
            f"{type(norm).__name__}"
        )
    elif tuple(weight.shape) != (dim,):
        reading.reasons.append(
            f"{name}.weight {tuple(weight.shape)} must be one number for each of the {dim} of a head"
        )
    else:
        how = _how_it_norms(norm, weight, eps)
        if how is not None:
            return weight, how, eps
        reading.reasons.append(
            f"{name} must be a root mean square norm times its weight, or times 1 + its weight; "
            f"{type(norm).__name__} is neither"
        )
    return None


def _eps(norm: object) -> float | None:
    for name in ("eps", "variance_epsilon"):
        found: Any = getattr(norm, name, None)
        if is_number(found) and 0 <= found < 1:
            return found
    return None


def _how_it_norms(norm: nn.Module, weight: Tensor, eps: float) -> str | None:
    """Whether a norm multiplies by its weight or by 1 + its weight, as it is seen to do."""
    if weight.is_meta or not weight.is_floating_point():
        return "copied"  # which is refused for what it is
    dim = len(weight)
    # Most norms work in float32 whatever comes in.
    close = 8 * max(torch.finfo(dtype).eps for dtype in (weight.dtype, torch.float32))
    probe = torch.linspace(-1, 2, dim, dtype=torch.float64, device=weight.device) + 0.01
    wanted: dict[str, bool] = {"copied": True, "plus 1": True}
    for size in (LARGE, SMALL):
        vector = (probe * size).to(weight.dtype)
        with torch.no_grad():
            theirs = norm.forward(vector).double()  # without hooks
        exact = vector.double()
        normed = exact / (exact.square().mean() + eps).sqrt()
        for how, shift in (("copied", 0), ("plus 1", 1)):
            ours = normed * (weight.double() + shift)
            error = (ours - theirs).abs().max()
            wanted[how] &= bool(error <= close * ours.abs().max().clamp(min=1e-3))
    return next((how for how, fits in wanted.items() if fits), None)
