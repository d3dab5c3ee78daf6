"""Layers of other libraries become ours, with equal outputs, or are refused with the reasons."""

import copy
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils import prune
from transformers import AutoConfig, AutoModel

import clearhead as ch
from clearhead.errors import UnsupportedError
from clearhead.layers import (
    LatentAttention,
    QueryKeyNorm,
    RelativeBias,
    Rotary,
    Scale,
    ScoreBias,
    Sinks,
    Softcap,
    Temperature,
)
from clearhead.layers.converting import probing
from clearhead.layers.converting.families import FAMILIES, family_of
from clearhead.layers.converting.tensor_pairs import Row
from tests.integrations.models import SIZES, VOCABULARY
from tests.refusals import assert_refused, refusals, run, wrong
from tests.tensors import assert_close, drawn

BATCH, TOKENS, SOURCE_TOKENS = 2, 7, 11


class Call(NamedTuple):
    """A recorded call of an attention layer of a model."""

    name: str
    module: nn.Module
    x: Tensor
    context: Tensor | None
    output: Tensor


TWO_SIDES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 31,
    "decoder_ffn_dim": 31, "encoder_attention_heads": 4, "decoder_attention_heads": 3, "dropout": 0.0,
    "attention_dropout": 0.3, "decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "max_position_embeddings": 64, "max_source_positions": SOURCE_TOKENS, "max_target_positions": 64,
    "num_mel_bins": 5,
}  # fmt: skip
T5_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 24, "d_kv": 6, "d_ff": 31, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 5, "dropout_rate": 0.2,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
PICTURES: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 31,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 13, "kv_lora_rank": 12, "v_head_dim": 5, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "head_dim": 4, "n_routed_experts": 3, "n_shared_experts": 1, "moe_intermediate_size": 13,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
PARTLY = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 2 / 3}
}
CAPPED = LAYERS | {"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 5}
WINDOW = {"sliding_window": 3}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("gpt_oss", "cohere2", "exaone4", "olmo3"), LAYERS),
    **dict.fromkeys(("gemma2", "gemma3_text"), CAPPED),
    **dict.fromkeys(("mistral", "mixtral", "ministral", "starcoder2"), WINDOW),
    **dict.fromkeys(("glm", "glm4", "nemotron", "phi", "stablelm"), PARTLY),
    **dict.fromkeys(("qwen2", "qwen3"), LAYERS | {"use_sliding_window": True}),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), LATENT),
    "gpt2": {"scale_attn_by_inverse_layer_idx": True, "attn_pdrop": 0.25},
    "granite": {"attention_multiplier": 0.3},
    "llama": {"attention_bias": True},
    "distilbert": {"dim": 24, "hidden_dim": 31, "n_heads": 4, "n_layers": 2},
    "clip_text_model": {"eos_token_id": 2},
    "bloom": {"n_layer": 2, "n_head": 3, "attention_dropout": 0.25},
    "falcon": {"num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True},
    "llama4_text": {
        "intermediate_size_mlp": 31, "no_rope_layers": [1, 0], "layer_types": ["full_attention"] * 2,
        "floor_scale": 3, "attn_scale": 0.4,
    },
    "mpt": {"d_model": 24, "n_layers": 2, "n_heads": 3, "max_seq_len": 64},
    "smollm3": {"no_rope_layers": [1, 0], "use_sliding_window": True} | LAYERS,
    "gpt_neox": PARTLY | {"attention_bias": True},
    "phi3": PARTLY | WINDOW | {"pad_token_id": 0},
    "opt": {"ffn_dim": 31, "word_embed_proj_dim": 24, "dropout": 0.0},
    "xglm": {"ffn_dim": 31, "dropout": 0.0},
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 13,
    "shared_expert_intermediate_size": 13,
}  # fmt: skip
SEES = (
    "clip_vision_model", "deit", "dinov2", "dinov2_with_registers", "ijepa", "siglip_vision_model", "vit",
)  # fmt: skip
READS_TWICE = ("bart", "blenderbot", "m2m_100", "marian", "mbart", "pegasus", "plbart", "whisper")
BERT_TYPES = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
T5_TYPES = ("mt5", "t5")
LATENT_TYPES = ("deepseek_v2", "deepseek_v3")
MODEL_TYPES = (
    "apertus", "arcee", "bart", *BERT_TYPES, "biogpt", "blenderbot", "bloom", "clip_text_model",
    "clip_vision_model", "cohere", "cohere2", *LATENT_TYPES, "deit", "dinov2", "dinov2_with_registers",
    "distilbert", "ernie4_5", "exaone4", "falcon", "flex_olmo", "gemma", "gemma2", "gemma3_text", "glm", "glm4",
    "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe", "helium", "ijepa", "llama", "llama4_text", "m2m_100",
    "marian", "mbart", "ministral", "mistral", "mixtral", "mpt", "nemotron", "olmo", "olmo2", "olmo3", "olmoe",
    "opt", "pegasus", "phi", "phi3", "phimoe", "plbart", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss",
    "siglip_vision_model", "smollm3", "stablelm", "starcoder2", *T5_TYPES, "vit", "whisper",
)  # fmt: skip


def config_of(kind: str, **sizes: Any) -> Any:
    """The configuration of a small model of transformers."""
    given: dict[str, Any] = SIZES | EXPERTS | OWN.get(kind, {})
    if kind in T5_TYPES:
        given = T5_SIZES
    elif kind in SEES:
        given = PICTURES
    elif kind in READS_TWICE:
        given = TWO_SIDES
    elif kind in BERT_TYPES:
        given = {name: size for name, size in SIZES.items() if name != "head_dim"}
        given |= {"embedding_size": 24}
    elif kind == "falcon":  # its width of a head is that of all, divided
        given = {name: size for name, size in given.items() if name != "head_dim"}
    config = AutoConfig.for_model(kind, **(given | sizes))
    config._experts_implementation = "eager"
    return config


def model_of(kind: str, **sizes: Any) -> Any:
    """A small model of transformers in float64 and eval mode, in which no number is 0 or 1."""
    config = config_of(kind, **sizes)
    model = AutoModel.from_config(config, attn_implementation="eager").double().eval()
    for parameter in model.parameters():
        mean, std = (round(parameter.mean().item()), 0.1) if parameter.ndim == 1 else (0, 0.5)
        nn.init.normal_(parameter, mean=mean, std=std)
    return model


def calls(kind: str, model: Any) -> list[Call]:
    """The calls of each attention layer of a model, for a text or a picture."""
    found: list[Call] = []

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, given: Any, output: Any) -> None:
            x = args[0] if args else given["hidden_states"]
            context = given.get("key_value_states", given.get("encoder_hidden_states"))
            # BLOOM adds what goes past the attention.
            output = output[0] - args[1] if kind == "bloom" else output[0]
            found.append(Call(name, module, x, context, output))

        return hook

    hooks = [
        module.register_forward_hook(keep(name), with_kwargs=True)
        for name, module in model.named_modules()
        # SigLIP pools with a layer of PyTorch's, which other tests are about.
        if family_of(module) and not isinstance(module, nn.MultiheadAttention)
    ]
    ids = torch.randint(2, VOCABULARY, (BATCH, TOKENS))
    source = torch.randint(2, VOCABULARY, (BATCH, SOURCE_TOKENS))
    with torch.no_grad():
        if kind == "whisper":
            sound = torch.randn(BATCH, 5, 2 * SOURCE_TOKENS, dtype=torch.float64)
            model(input_features=sound, decoder_input_ids=ids)
        elif kind in SEES:
            model(pixel_values=torch.randn(BATCH, 3, 8, 8, dtype=torch.float64))
        elif kind in (*READS_TWICE, *T5_TYPES):
            model(input_ids=source, decoder_input_ids=ids)
        else:
            model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def beside(call: Call, model: Any) -> dict[str, Any]:
    """The modules beside a layer that belong to it: the table of T5's first block."""
    side, _, place = call.name.partition(".block.")
    if not place or place.startswith("0") or "EncDec" in place:
        return {}
    first = model.get_submodule(f"{side}.block.0.layer.0.SelfAttention")
    return {"relative_bias": first.relative_attention_bias}


def close(actual: Tensor, expected: Tensor, *, single: bool = False) -> None:
    """Equal but for rounding: to that of float32, where theirs works in it whatever comes in."""
    assert_close(actual, expected, terms=64, dtype=torch.float32 if single else torch.float64)


def read_whole(module: nn.Module, **given: Any) -> Any:
    """The layer of a module, after everything that holds for every conversion was checked."""
    before = copy.deepcopy(module.state_dict())
    conversion = ch.convert(module, **given)
    layer = conversion.layer
    for parameter in layer.parameters():
        with torch.no_grad():
            parameter.zero_()
    assert list(module.state_dict()) == list(before)
    for name, tensor in module.state_dict().items():
        close(tensor, before[name])
    named = {row.theirs.partition("[")[0] for row in conversion.rows}
    for name, _ in [*module.named_parameters(), *module.named_buffers()]:
        assert any(name in each.split(", ") for each in named), name
    ours = {row.ours.partition("[")[0] for row in conversion.rows}
    assert {name for name, _ in layer.named_parameters()} <= ours
    return ch.convert(module, **given).layer


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_models_of_transformers(kind: str) -> None:
    model = model_of(kind)
    found = calls(kind, model)
    assert found
    for call in found:
        layer = read_whole(call.module, **beside(call, model))
        single = kind not in (*BERT_TYPES, "distilbert", *T5_TYPES, *READS_TWICE, "gpt2")
        context = () if call.context is None else (call.context,)
        close(layer(call.x, *context), call.output, single=single)


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 5, "beta_fast": 3.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 40,
    },
    "longrope": {
        "factor": 4.0, "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.0, 3.0],
        "original_max_position_embeddings": 5,
    },
}  # fmt: skip


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rotary_positions_that_are_stretched(rope: str) -> None:
    # Longer than a dynamic one was trained on, which the others do not ask.
    longest = 5 if rope == "dynamic" else 40
    parameters = ROPES[rope] | {"rope_type": rope, "rope_theta": 100.0}
    model = model_of("llama", rope_parameters=parameters, max_position_embeddings=longest)
    for call in calls("llama", model):
        close(read_whole(call.module)(call.x), call.output, single=True)


PARTS: dict[str, list[list[type]]] = {
    "gemma3_text": [[QueryKeyNorm, Rotary, Scale]] * 2,
    "gemma2": [[Rotary, Scale, Softcap]] * 2,
    "gpt_oss": [[Rotary, Sinks]] * 2,
    "llama4_text": [[QueryKeyNorm, Rotary], [Temperature]],
    "bloom": [[ScoreBias]] * 2,
}


@pytest.mark.parametrize("kind", PARTS)
def test_the_parts_of_a_layer(kind: str) -> None:
    layers = [ch.convert(call.module).layer for call in calls(kind, model_of(kind))]
    assert [[type(part) for part in layer.parts] for layer in layers] == PARTS[kind]
    if kind == "gemma3_text":
        masks = ["causal() & sliding_window(left=2, right=None)", "causal()"]
        assert [layer.mask.describe() for layer in layers] == masks
        assert [layer.parts[1].base for layer in layers] == [10_000.0, 1_000_000.0]


def test_the_parts_of_t5() -> None:
    layer = ch.convert(attention_of("t5")).layer
    assert [type(part) for part in layer.parts] == [Scale, RelativeBias]
    assert layer.dropout == 0.2


STRETCHED_LATENT = {
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 8.0, "beta_fast": 3.0,
        "original_max_position_embeddings": 5, "mscale": 1.0, "mscale_all_dim": 0.7,
    },
}  # fmt: skip
OTHER_SIZES: dict[str, list[dict[str, Any]]] = {
    "falcon": [
        {"multi_query": True, "new_decoder_architecture": False},
        {"multi_query": False, "new_decoder_architecture": False, "bias": True, "num_kv_heads": 6},
        {"num_kv_heads": 6},
    ],
    "deepseek_v2": [{"q_lora_rank": None, "attention_bias": True}, STRETCHED_LATENT],
    "deepseek_v3": [
        {"q_lora_rank": None, "attention_bias": True},
        STRETCHED_LATENT,
        {"rope_interleave": False},
    ],
}


@pytest.mark.parametrize(
    ("kind", "sizes"), [(kind, sizes) for kind, every in OTHER_SIZES.items() for sizes in every]
)
def test_other_sizes_of_a_model(kind: str, sizes: dict[str, Any]) -> None:
    """Every order in which Falcon packs its heads, and latent attention with and without its parts."""
    for call in calls(kind, model_of(kind, **sizes)):
        layer = read_whole(call.module)
        assert isinstance(layer, LatentAttention) == (kind in LATENT_TYPES)
        close(layer(call.x), call.output, single=True)


def test_a_mask_that_a_model_alone_knows() -> None:
    """A class without a mask whose model hides the future of texts, and is not known for it."""
    call = calls("clip_text_model", model_of("clip_text_model"))[0]
    module: Any = call.module
    module.config.model_type = "another_text_model"
    reason = "is_causal=False: whether it sees what is ahead is its model's to say; give mask="
    with pytest.raises(UnsupportedError, match=re.escape(reason)):
        ch.convert(module)
    layer = read_whole(module, mask=ch.causal())
    close(layer(call.x), call.output, single=True)
    sees_all = ch.convert(module, mask=ch.full()).layer
    assert sees_all.mask is None
    every = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    close(sees_all(call.x), ch.convert(module, mask=every).layer(call.x), single=True)


def test_the_scale_of_mpt() -> None:
    module = changed(attention_of("mpt"), softmax_scale=0.3)
    assert ch.convert(module).layer.parts[0].scale == 0.3


def test_bert_with_the_projection_of_its_output() -> None:
    model = model_of("bert")
    call = calls("bert", model)[0]
    dense = model.encoder.layer[0].attention.output.dense
    conversion = ch.convert(call.module, output=dense)
    close(conversion.layer(call.x), dense(call.output))
    assert ("output.weight", "output_projection.weight", "copied") in [
        (row.theirs, row.ours, row.how) for row in conversion.rows
    ]


def test_a_class_of_ones_own_with_the_projection_of_its_output() -> None:
    module: Any = randomised(lecture_head())
    dense: Any = randomised(nn.Linear(5, 11))
    x = drawn(BATCH, TOKENS, 13)
    close(read_whole(module, output=dense)(x), dense(module(x)))


def test_gpt2_as_older_versions_keep_it() -> None:
    """With a mask as a buffer."""
    call = calls("gpt2", model_of("gpt2"))[0]
    shape = (1, 1, TOKENS, TOKENS)
    call.module.register_buffer("bias", torch.ones(shape, dtype=torch.bool).tril())
    conversion = ch.convert(call.module)
    close(conversion.layer(call.x), call.output)
    assert Row("bias", "mask", "causal()") in conversion.rows
    call.module.register_buffer("bias", torch.ones(shape))
    with pytest.raises(UnsupportedError, match=r"left over: bias \(1, 1, 7, 7\)"):
        ch.convert(call.module)


def test_gpt2_attends_to_a_context() -> None:
    config = transformers.GPT2Config(n_embd=15, n_head=3, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "eager"
    attention = transformers.models.gpt2.modeling_gpt2.GPT2Attention
    module = attention(config, is_cross_attention=True, layer_idx=0).double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x, context = drawn(BATCH, TOKENS, 15), drawn(BATCH, SOURCE_TOKENS, 15)
    layer = read_whole(module)
    assert layer.mask is None
    close(layer(x, context), module(x, encoder_hidden_states=context)[0])


class Own(nn.Module):
    """A class of one's own: attention by the book over projections of any names.

    Args:
        names: of one projection for all three, or one each; and of the output, if there is one.
        bare: the names of those without a bias.
        norms: the names of the norms of query and key.
        by: the factor of the scores.
        change: what is done to the scores, as `change(module, scores)`.
        others: attributes and buffers.
    """

    def __init__(
        self,
        names: str,
        width: int = 15,
        count: int = 3,
        groups: int | None = None,
        *,
        value_width: int = 5,
        context: int | None = None,
        out: int | None = None,
        bare: str = "",
        norms: str = "",
        by: float = 5**-0.5,
        change: Callable[[Any, Tensor], Tensor] | None = None,
        is_tuple: bool = False,
        **others: Any,
    ) -> None:
        super().__init__()
        groups, source = groups or count, context or width
        sizes = [5 * count, 5 * groups, value_width * groups]
        self.names, self.norms = names.split(), norms.split()
        shapes = list(zip((width, source, source), sizes, strict=True))
        shapes = [(width, sum(sizes))] if len(self.names) < 3 else shapes
        shapes.append((value_width * count, out or width))
        for name, shape in zip(self.names, shapes, strict=False):
            setattr(self, name, nn.Linear(*shape, bias=name not in bare.split()))
        for name, other in others.items():
            put = self.register_buffer if isinstance(other, Tensor) else self.__setattr__
            put(name, other)
        self.book = sizes, count, groups, by, change, is_tuple

    def forward(self, x: Tensor, context: Tensor | None = None) -> Any:
        sizes, count, groups, by, change, is_tuple = self.book
        source = x if context is None else context
        layers: list[Any] = [getattr(self, name) for name in self.names]
        if len(layers) < 3:
            sides = layers.pop(0)(x).split(sizes, dim=-1)
        else:
            sides = [layers.pop(0)(given) for given in (x, source, source)]
        query, key, value = (
            side.unflatten(-1, (heads, -1)).transpose(-3, -2)
            for side, heads in zip(sides, (count, groups, groups), strict=True)
        )
        if self.norms:
            query, key = (
                getattr(self, name)(side)
                for name, side in zip(self.norms, (query, key), strict=True)
            )
        scores = by * query @ key.repeat_interleave(count // groups, dim=-3).mT
        scores = scores if change is None else change(self, scores)
        weighed = scores.softmax(dim=-1) @ value.repeat_interleave(count // groups, dim=-3)
        joined = weighed.transpose(-3, -2).flatten(-2)
        for layer in layers[0] if layers and isinstance(layers[0], nn.ModuleList) else layers:
            joined = layer(joined)
        return (joined, None) if is_tuple else joined


TRIANGLE = torch.ones(TOKENS, TOKENS).triu(1)


def causally(module: Any, scores: Tensor) -> Tensor:
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf)


def by_its_mask(module: Any, scores: Tensor) -> Tensor:
    tokens = scores.shape[-1]
    return scores.masked_fill(module.mask.bool()[:tokens, :tokens], -torch.inf)


def by_its_triangle(module: Any, scores: Tensor) -> Tensor:
    tokens = scores.shape[-1]
    return scores.masked_fill(module.tril[:tokens, :tokens] == 0, -torch.inf)


def nano(**options: Any) -> Own:
    """As in nanoGPT: a matrix for all three, heads side by side."""
    dropouts = {"attn_dropout": nn.Dropout(0.3), "resid_dropout": nn.Dropout(0.2), "dropout": 0.3}
    given: dict[str, Any] = {"n_head": 3, "change": causally, **dropouts}
    return Own("c_attn c_proj", **(given | options))


def tutorial(count: int | None = None, **options: Any) -> Own:
    """As in the tutorials, with a saved mask: one head, or several with a projection."""
    names, given = "W_query W_key W_value", {"mask": TRIANGLE, "dropout": nn.Dropout(0.5)}
    if count:
        names, given = f"{names} out_proj", given | {"num_heads": count}
    return Own(names, 13, count or 1, change=by_its_mask, **(given | options))


def lecture_head(**options: Any) -> Own:
    """As in the lecture on nanoGPT."""
    names = "query key value"
    return Own(
        names, 13, 1, bare=names, change=by_its_triangle, tril=1 - TRIANGLE,
        dropout=nn.Dropout(0.2), **options,
    )  # fmt: skip


def diffusion(**options: Any) -> Own:
    """As in diffusers: heads and a scale, and a list of a projection and its dropout."""
    output = nn.ModuleList([nn.Linear(15, 13), nn.Dropout(0.1)])
    given: dict[str, Any] = {"heads": 3, "scale": 5**-0.5, "to_out": output, "group_norm": None}
    return Own("to_q to_k to_v to_out", 13, bare="to_q to_k to_v", **(given | options))


def normed(kind: Callable[..., nn.Module] = nn.RMSNorm) -> Own:
    return diffusion(norms="norm_q norm_k", norm_q=kind(5, eps=1e-5), norm_k=kind(5, eps=1e-5))


def grouped(**options: Any) -> Own:
    given: dict[str, Any] = {"head_dim": 5, "bare": "o_proj", "out": 17, "is_tuple": True}
    return Own("q_proj k_proj v_proj o_proj", 13, 6, 2, value_width=7, **(given | options))


def short(**options: Any) -> Own:
    """With the names of T5, and a scale that is said."""
    return Own("q k v o", 13, bare="k", by=0.7, **({"scale": 0.7, "n_heads": 3} | options))


class SelfAttention(nn.Module):
    """As in the tutorials: bare matrices; the one for cross-attention takes two texts."""

    def __init__(self, *, cross: bool = False) -> None:
        super().__init__()
        self.W_query, self.W_key = (nn.Parameter(torch.rand(13, 5)) for _ in range(2))
        self.W_value, self.cross = nn.Parameter(torch.rand(13, 7)), cross

    def forward(self, x_1: Tensor, *texts: Tensor) -> Tensor:
        (x_2,) = texts if self.cross else (x_1,)
        query, key = x_1 @ self.W_query, x_2 @ self.W_key
        weights = torch.softmax(query @ key.T / key.shape[-1] ** 0.5, dim=-1)
        return weights @ (x_2 @ self.W_value)


class Wrapper(nn.Module):
    """As in the tutorials: modules of one head, side by side."""

    def __init__(self, heads: list[nn.Module], proj: nn.Module | None = None) -> None:
        super().__init__()
        self.heads, self.proj = nn.ModuleList(heads), proj
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        context = torch.cat([head(x) for head in self.heads], dim=-1)
        return context if self.proj is None else self.dropout(self.proj(context))


def three(make: Callable[[], nn.Module]) -> list[nn.Module]:
    return [make() for _ in range(3)]


W = "W_query W_key W_value"
OWN_CLASSES: dict[str, Callable[[], nn.Module]] = {
    "nanoGPT": lambda: nano(bare="c_attn"),
    "nanoGPT, open, with bias": lambda: nano(change=None),
    "nanoGPT, before flash": lambda: nano(bias=(1 - TRIANGLE)[None, None]),
    "one causal head": lambda: tutorial(bare=W, value_width=7),
    "one causal head with bias": tutorial,
    "split heads": lambda: tutorial(3, bare=W),
    "split heads with bias": lambda: tutorial(5),
    "a list of heads": lambda: Wrapper(three(tutorial)),
    "a list of heads with a projection": lambda: Wrapper(three(tutorial), nn.Linear(15, 11)),
    "the lecture's heads": lambda: Wrapper(three(lecture_head), nn.Linear(15, 13)),
    "diffusion, to itself": diffusion,
    "diffusion, with norms": normed,
    "diffusion, with a scale": lambda: diffusion(scale=0.7, by=0.7),
    "diffusion, a projection alone": lambda: diffusion(to_out=nn.Linear(15, 13)),
    "diffusion, no projection": lambda: diffusion(to_out=nn.Identity()),
    "the names of T5": short,
    "the names of MPT": lambda: Own("Wqkv out_proj", num_heads=3),
    "a norm that is none": lambda: short(qk_norm=nn.Identity()),
    "a norm that is said to be none": lambda: short(qk_norm=False),
    "heads under another name": lambda: short(n_heads=None, h=3),
    "grouped": grouped,
    "grouped, keys without bias": lambda: grouped(bare="o_proj k_proj"),
    "grouped, with norms": lambda: grouped(
        norms="query_norm key_norm",
        query_norm=nn.RMSNorm(5, eps=1e-5),
        key_norm=nn.RMSNorm(5, eps=1e-5),
    ),
    "width of a head under another name": lambda: grouped(head_dim=None, d_k=5),
}


def randomised(module: nn.Module) -> nn.Module:
    module = module.double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("name", OWN_CLASSES)
def test_classes_of_ones_own(name: str) -> None:
    module = randomised(OWN_CLASSES[name]())
    layer = read_whole(module)
    x = drawn(BATCH, TOKENS, layer.embed_dim)
    expected = module(x)
    close(layer(x), expected[0] if isinstance(expected, tuple) else expected)


@pytest.mark.parametrize("cross", [False, True])
def test_bare_matrices(cross: bool) -> None:
    module = randomised(SelfAttention(cross=cross))
    x, context = drawn(TOKENS, 13), drawn(SOURCE_TOKENS, 13)
    layer = read_whole(module)
    assert (layer.head_dim, layer.value_head_dim, layer.output_dim) == (5, 7, 7)
    if cross:
        close(layer(x, context), module(x, context))
    else:
        close(layer(x), module(x))


def test_attention_to_a_text() -> None:
    module = randomised(diffusion(context=11))
    x, context = drawn(BATCH, TOKENS, 13), drawn(BATCH, SOURCE_TOKENS, 11)
    close(read_whole(module)(x, context), module(x, context))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("context_dim", [15, 11])
def test_pytorchs_layer(bias: bool, context_dim: int) -> None:
    module = nn.MultiheadAttention(
        15, 3, kdim=context_dim, vdim=context_dim, bias=bias, batch_first=True, dropout=0.25
    )
    randomised(module)
    layer = read_whole(module)
    x, context = drawn(BATCH, TOKENS, 15), drawn(BATCH, SOURCE_TOKENS, context_dim)
    expected, weights = module(x, context, context, average_attn_weights=False)
    close(layer(x, context), expected)
    close(layer.weights(x, context)[:], weights)
    assert layer.dropout == 0.25


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_else_is_carried_over(dtype: torch.dtype, training: bool) -> None:
    module = nano().to(dtype).train(training)
    state = torch.random.get_rng_state()
    layer = ch.convert(module).layer
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert module.training == layer.training == training
    assert layer.dropout == 0.3


def test_hooks_are_refused_and_not_called() -> None:
    module, heard = nano(), []
    hooks = [
        module.register_forward_hook(lambda *given: heard.append(1)),
        module.get_submodule("c_attn").register_forward_pre_hook(lambda *given: heard.append(2)),
    ]
    assert_refused(
        lambda: ch.convert(module),
        "convert.refused",
        "read this Own",
        "  - the module has a hook, which may change what it gives; remove it before\n"
        "  - c_attn has a hook, which may change what it gives; remove it before\n",
    )
    assert heard == []
    for hook in hooks:
        hook.remove()
    ch.convert(module)


def test_what_a_configuration_says_and_the_forward_ignores() -> None:
    call = calls("llama", model_of("llama", **PARTLY))[0]
    layer = ch.convert(call.module).layer
    close(layer(call.x), call.output, single=True)
    assert layer.parts[0].rotated_dim == layer.head_dim


class Local(nn.Module):
    """A class of one's own with a window, and, for a while, an output of its own."""

    def __init__(self, window: int, *, calls: int = 0) -> None:
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(13, 13) for _ in range(3))
        self.tokens, self.calls = window, calls

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.arange(x.shape[-2])
        ahead = tokens - tokens[:, None]
        scores = self.W_query(x) @ self.W_key(x).mT / 13**0.5
        hidden = (ahead > 0) | (ahead <= -self.tokens)
        self.calls -= 1
        context = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ self.W_value(x)
        return 2 * context if self.calls == 0 else context


def test_a_window_that_is_longer_than_a_short_text() -> None:
    for window, calls in ((6, 0), (30, 0), (256, 0), (1000, 3)):
        with pytest.raises(UnsupportedError, match="a copy that was run on 5 and 257 tokens"):
            ch.convert(Local(window, calls=calls))


def test_the_report() -> None:
    model = model_of("gpt2", attn_pdrop=0.1, hidden_size=16, num_attention_heads=2)
    module = model.h[0].attn
    conversion = ch.convert(module)
    assert (
        str(conversion)
        == """GPT2Attention → MultiHeadAttention
  c_attn.weight[:, 0:16]   →  query_projection.weight   transposed
  c_attn.bias[0:16]        →  query_projection.bias     copied
  c_attn.weight[:, 16:32]  →  key_projection.weight     transposed
  c_attn.bias[16:32]       →  key_projection.bias       copied
  c_attn.weight[:, 32:48]  →  value_projection.weight   transposed
  c_attn.bias[32:48]       →  value_projection.bias     copied
  c_proj.weight            →  output_projection.weight  transposed
  c_proj.bias              →  output_projection.bias    copied
  is_causal                →  mask                      causal()
  attn_dropout             →  dropout                   0.1
  resid_dropout            →  -                         left to you: dropout 0.1 of the output while training"""
    )
    gemma = model_of("gemma3_text").layers[0].self_attn
    conversion = ch.convert(gemma)
    assert [row.how for row in conversion.rows[4:6]] == ["plus 1", "plus 1"]


def attention_of(kind: str, **sizes: Any) -> Any:
    return calls(kind, model_of(kind, **sizes))[0].module


def changed(module: nn.Module, **attributes: Any) -> nn.Module:
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def in_whole_numbers(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(torch.int8)
    return module


def hooked(module: nn.Module, name: str = "") -> nn.Module:
    module.get_submodule(name).register_forward_hook(lambda *given: None)
    return module


def failing(module: Any, scores: Tensor) -> Tensor:
    raise ValueError("out of order")


class Summed(Own):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Any:
        return super().forward(x).sum(dim=1)


class Named(Own):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Any:
        return {"output": super().forward(x)}


class Locked(Own):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("one is enough")


def of_deepseek() -> nn.Module:
    return Own("kv_a_proj_with_mqa kv_b_proj o_proj", 5, 1)


def second_of_t5() -> nn.Module:
    return model_of("t5").encoder.block[1].layer[0].SelfAttention


def cross_of_t5() -> nn.Module:
    return model_of("t5").decoder.block[0].layer[1].EncDecAttention


def with_ropes(**parameters: Any) -> nn.Module:
    module = attention_of("llama")
    module.config.rope_parameters = parameters
    return module


EPS = nn.RMSNorm(5, eps=1e-6), nn.RMSNorm(6, eps=1e-6)
MEAN = nn.LayerNorm(6, elementwise_affine=False)
CHUNKED = {"layer_types": ["chunked_attention"] * 2}
REFUSED: list[tuple[str, Callable[[], nn.Module]]] = [
    ("add_zero_attn=True: a key and", lambda: nn.MultiheadAttention(15, 3, add_zero_attn=True)),
    ("add_bias_kv=True: a learned key", lambda: nn.MultiheadAttention(15, 3, add_bias_kv=True)),
    ("kdim=11 and vdim=15: not one width", lambda: nn.MultiheadAttention(15, 3, kdim=11)),
    (
        "in_proj_weight must be a parameter of its own; it is made of others",
        lambda: prune.l1_unstructured(nn.MultiheadAttention(15, 3), "in_proj_weight", 0.5),
    ),
    ("the module has a hook", lambda: hooked(nn.MultiheadAttention(8, 2))),
    ("q_proj has a hook", lambda: hooked(attention_of("llama"), "q_proj")),
    ("the module has a forward of its own instead", lambda: changed(nano(), forward=print)),
    (
        "q_norm.weight (5,) and k_norm.weight (6,) must have one number for each of the 6 of a",
        lambda: changed(attention_of("qwen3"), q_norm=EPS[0], k_norm=EPS[1]),
    ),
    (
        "could not be run on x of shape (2, 5, 24), to find what its weights do not tell: TypeError: its model",
        lambda: model_of("mpnet").encoder.layer[0].attention.attn,
    ),
    ("clip_qkv=2.0: our layer does not clip", lambda: attention_of("olmo", clip_qkv=2.0)),
    ("clip_qkv=3.0: our layer", lambda: changed(attention_of("mpt"), clip_qkv=3.0)),
    (
        "slow_but_exact=True leaves out the bias of the output",
        lambda: changed(attention_of("bloom"), slow_but_exact=True, pretraining_tp=2),
    ),
    (
        "qkv_proj gives width 47, which must be (num_heads + 2 × num_kv_heads) × head_dim",
        lambda: changed(attention_of("phi3"), qkv_proj=nn.Linear(24, 47)),
    ),
    (
        "query_key_value gives width 70",
        lambda: changed(attention_of("gpt_neox"), query_key_value=nn.Linear(24, 70)),
    ),
    (
        "keys of width 18 and values of width 18 are no heads for 4 heads of width 6",
        lambda: changed(
            attention_of("phi3"), num_key_value_heads=3, qkv_proj=nn.Linear(24, 60).double()
        ),
    ),
    ("Wqkv gives width 71", lambda: changed(attention_of("mpt"), Wqkv=nn.Linear(24, 71).double())),
    (
        "kv_a_layernorm and q_a_layernorm must add one eps",
        lambda: changed(attention_of("deepseek_v3"), q_a_layernorm=nn.RMSNorm(13, 1e-3).double()),
    ),
    (
        "rotary_dim=None, latent_dim=12, value_head_dim=5",
        lambda: changed(attention_of("deepseek_v3"), qk_rope_head_dim=None),
    ),
    ("it has the names of DeepSeek's latent attention", of_deepseek),
    ("tokens is off by 0.59", lambda: changed(attention_of("llama4_text"), qk_norm=MEAN)),
    ("eps; it is Tanh", lambda: changed(attention_of("llama4_text"), qk_norm=nn.Tanh())),
    (
        "k_norm must be a root mean square norm with a weight of one dimension and an eps; it is Cohere",
        lambda: attention_of("cohere", use_qk_norm=True),
    ),
    ("heads must have matrices of the same shapes", lambda: Wrapper([tutorial(), tutorial(value_width=7)])),
    ("c_attn gives width 45", lambda: nano(n_head=4)),
    ("c_attn gives width 44", lambda: changed(nano(), c_attn=nn.Linear(15, 44))),
    ("queries of width 15 must be num_heads × head_dim", lambda: nano(n_head=None)),
    ("keys of width 9 and values", lambda: changed(grouped(), k_proj=nn.Linear(13, 9))),
    ("keys are made of width 11", lambda: changed(grouped(), k_proj=nn.Linear(11, 10))),
    ("o_proj.weight takes width 41; the", lambda: changed(grouped(), o_proj=nn.Linear(41, 3))),
    ("W_key must be a plain", lambda: changed(SelfAttention(), W_key=nn.Parameter(torch.ones(3)))),
    ("one dtype on one device", lambda: changed(grouped(), k_proj=nn.Linear(13, 10).double())),
    ("weights must be floating; they are", lambda: in_whole_numbers(grouped())),
    ("to_q has its weight on the meta device", lambda: normed().to("meta")),
    ("attn_dropout must be a probability", lambda: nano(attn_dropout=nn.Dropout(1.0))),
    ("layer_idx needs a layer_idx", lambda: changed(attention_of("gpt2"), layer_idx=None)),
    ("and an eps; it is NoneType", lambda: changed(normed(), norm_q=None)),
    ("and an eps; it is RMSNorm", lambda: changed(normed(), norm_k=nn.RMSNorm(5))),
    ("norm_q adds 1e-05, norm_k 0.001", lambda: changed(normed(), norm_k=nn.RMSNorm(5, 1e-3))),
    (
        "sinks (3,) must be one number for each of 4 heads",
        lambda: changed(attention_of("gpt_oss"), sinks=nn.Parameter(torch.zeros(3).double())),
    ),
    (
        "relative_attention_bias: num_buckets must be even",
        lambda: changed(attention_of("t5"), relative_attention_max_distance=1),
    ),
    ("this block is handed the relative bias of the first one; give that too", second_of_t5),
    ("sliding_window=3 of a layer that", lambda: changed(attention_of("qwen2"), is_causal=False)),
    ("attention_chunk_size=8192: the mask", lambda: attention_of("llama4_text", **CHUNKED)),
    ("alibi=True: its model rounds", lambda: attention_of("falcon", alibi=True)),
    ("known: no 'rope_theta'", lambda: with_ropes(rope_type="default")),
    ("known: no 'other'", lambda: with_ropes(rope_type="other", rope_theta=100.0)),
    ("known: no 'factor'", lambda: with_ropes(rope_type="linear", rope_theta=100.0)),
    (
        "known: factor must be a number, 1 or more; got 0.5",
        lambda: with_ropes(rope_type="linear", rope_theta=100.0, factor=0.5),
    ),
    ("5 and 257 tokens is off by", lambda: grouped(change=lambda module, scores: scores.tanh())),
    ("not tell: ValueError: out of order", lambda: grouped(change=failing)),
    # The lecture's first version divides by the width of the input.
    ("is not that of its weights", lambda: Wrapper([lecture_head(by=13**-0.5)])),
    # A tutorial's mask is 1 where it hides; one that is 1 where it shows hides the past.
    ("is not that of its weights", lambda: tutorial(mask=1 - TRIANGLE)),
    ("window_size=257: a window does not show on the 257", lambda: nano(window_size=257)),
    ("shape (2, 15); by its weights it would be (2, 5, 15)", lambda: Summed("c_attn c_proj", n_head=3)),
    ("not tell: TypeError: its output is a dict", lambda: Named("c_attn c_proj", n_head=3)),
    ("could not be made to be run: one is enough", lambda: Locked("c_attn c_proj", n_head=3)),
    ("left over: steps (7, 2)", lambda: grouped(steps=torch.zeros(7, 2))),
    ("left over: gate.weight (3, 13), gate.bias", lambda: grouped(gate=nn.Linear(13, 3))),
    ("left over: norm_q.bias (5,), norm_k.bias (5,)", lambda: normed(nn.LayerNorm)),
    ("left over: group_norm.weight (13,)", lambda: diffusion(group_norm=nn.GroupNorm(1, 13))),
    *(
        (f"{name} must be a plain torch.nn.Linear, whose weight is a parameter; it is a torch.nn.modules", make)
        for name, make in (
            ("c_proj", lambda: changed(nano(), c_proj=nn.Tanh())),
            ("key", lambda: changed(attention_of("bert"), key=nn.Tanh())),
            ("o", lambda: changed(attention_of("t5"), o=nn.Tanh())),
            ("qkv_proj", lambda: changed(attention_of("phi3"), qkv_proj=nn.Tanh())),
            ("kv_b_proj", lambda: changed(attention_of("deepseek_v3"), kv_b_proj=nn.Tanh())),
            ("to_k", lambda: changed(diffusion(), to_k=nn.Tanh())),
            ("out_proj", lambda: changed(tutorial(3), out_proj=nn.Tanh())),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "make"), REFUSED)
def test_what_is_refused(reason: str, make: Callable[[], nn.Module]) -> None:
    module = make()
    with pytest.raises(UnsupportedError, match=re.escape(reason)) as refused:
        ch.convert(module)
    assert refused.value.code == "convert.refused"


def test_a_window_that_shows() -> None:
    for size in (256, None):
        ch.convert(nano(window_size=size))


@pytest.mark.parametrize(
    ("reason", "make", "given"),
    [
        ("must have a column for each of 4 heads; its shape", second_of_t5, nn.Embedding(8, 3)),
        ("must have a column for each of 4 heads; it is missing", second_of_t5, nn.Identity()),
        ("left over: relative_bias.weight", cross_of_t5, nn.Embedding(8, 4).double()),
    ],
)
def test_a_bias_that_does_not_fit(reason: str, make: Any, given: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        ch.convert(make(), relative_bias=given)


@pytest.mark.parametrize("tokens", [1, 7])
def test_a_forward_of_transformers_that_does_something_else(tokens: int) -> None:
    """From the first token on, or on a longer text only."""
    module = attention_of("llama")
    original = type(module).forward

    def forward(
        self: Any, hidden_states: Tensor, position_embeddings: Any = None, **rest: Any
    ) -> Any:
        output, weights = original(self, hidden_states, position_embeddings, **rest)
        return output * (2 if hidden_states.shape[1] > tokens else 1), weights

    forward.__module__ = original.__module__
    module.__class__ = type("Other", (type(module),), {"forward": forward})
    with pytest.raises(UnsupportedError, match=r"was run on 5 and 17 tokens is off by \d"):
        ch.convert(module)


def test_layers_that_are_alike_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = probing._run

    def counted(twin: nn.Module, inputs: Any) -> Any:
        ran.append(type(twin).__name__)
        return run(twin, inputs)

    monkeypatch.setattr(probing, "_run", counted)
    assert len(ch.convert(model_of("llama", num_hidden_layers=4)).layers) == 4
    assert ran == ["LlamaAttention"] * 2  # on a short and on a longer text
    ran.clear()
    # One that rotates and one that does not.
    ch.convert(model_of("smollm3", num_hidden_layers=2))
    assert ran == ["SmolLM3Attention"] * 4


class OfItself(nn.MultiheadAttention):
    """PyTorch's layer, called in another way; how often its queries count is not in its weights."""

    times, hidden = 1.0, False

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        future = torch.ones(TOKENS, TOKENS).triu(1).bool()[: x.shape[-2], : x.shape[-2]]
        attn_mask = future if self.hidden else None
        return super().forward(self.times * x, x, x, attn_mask=attn_mask)[0]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_subclass_of_pytorchs_layer_is_run(hidden: bool) -> None:
    module = changed(OfItself(15, 3, batch_first=True), hidden=hidden)
    x = torch.randn(BATCH, TOKENS, 15)
    torch.testing.assert_close(ch.convert(module).layer(x), module(x))
    with pytest.raises(UnsupportedError, match="its output is not that of its weights"):
        ch.convert(changed(module, times=2.0))


def test_a_subclass_of_ones_own_is_not_known_by_its_configuration() -> None:
    model = model_of("llama")

    class Mine(type(model.layers[0].self_attn)):
        def forward(self, x: Tensor) -> Tensor:
            return x

    module = model.layers[0].self_attn
    module.__class__ = Mine
    with pytest.raises(UnsupportedError, match="its output is not that of its weights"):
        ch.convert(module)


def test_what_is_not_known() -> None:
    known = "".join(f"  - {family.words}\n" for family in FAMILIES if family.words)
    assert_refused(lambda: ch.convert(nn.Linear(2, 2)), "convert.unknown", "Linear", known)
    with pytest.raises(UnsupportedError, match=r"left over: o_proj\.weight \(17, 42\)"):
        ch.convert(grouped(), output=nn.Linear(42, 3))
    # A part of a model has attentions inside, and no inputs are known for it.
    left = ch.convert(model_of("bert").encoder.layer[0].attention).left
    assert "the model could not be run to compare it" in left["self"]


LAYER = ch.MultiHeadAttention(15, num_heads=3)
test_what_is_no_module_to_convert = refusals(
    run,
    (lambda: ch.convert(wrong("a layer")), "convert.type", "module // str"),
    (lambda: ch.convert(wrong(None)), "convert.type", "module // NoneType"),
    (lambda: ch.convert(LAYER), "convert.type", "module // MultiHeadAttention"),
    (lambda: ch.convert(nn.Linear(2, 2), output=wrong("a")), "convert.type", "output // str"),
)
