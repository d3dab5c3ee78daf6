"""Layers of other libraries become ours, and ours theirs, with equal outputs."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.nn.utils import prune
from transformers import AutoConfig, AutoModel

import clearhead as ch
from clearhead._text import shown
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
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    output: Tensor


TWO_SIDES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 31,
    "decoder_ffn_dim": 31,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.3,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_mel_bins": 5,
    "max_source_positions": SOURCE_TOKENS,
    "max_target_positions": 64,
}
T5_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 31,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 5,
    "dropout_rate": 0.2,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
PICTURES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 31,
    "image_size": 8,
    "patch_size": 4,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 13,
    "kv_lora_rank": 12,
    "v_head_dim": 5,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "head_dim": 4,
    "n_routed_experts": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 13,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
PARTLY = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 2 / 3}
}
OWN: dict[str, dict[str, Any]] = {
    "gemma2": LAYERS | {"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 5},
    "gemma3_text": LAYERS | {"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 5},
    "gpt_oss": LAYERS,
    "gpt2": {"scale_attn_by_inverse_layer_idx": True, "attn_pdrop": 0.25},
    "granite": {"attention_multiplier": 0.3},
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 3},
    "mixtral": {"sliding_window": 3},
    "ministral": {"sliding_window": 3},
    "starcoder2": {"sliding_window": 3},
    "distilbert": {"dim": 24, "hidden_dim": 31, "n_heads": 4, "n_layers": 2},
    "clip_text_model": {"eos_token_id": 2},
    "bloom": {"n_layer": 2, "n_head": 3, "attention_dropout": 0.25},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "falcon": {"num_attention_heads": 6, "num_kv_heads": 2, "new_decoder_architecture": True},
    "llama4_text": {
        "intermediate_size_mlp": 31,
        "no_rope_layers": [1, 0],
        "layer_types": ["full_attention"] * 2,
        "floor_scale": 3,
        "attn_scale": 0.4,
    },
    "mpt": {"d_model": 24, "n_layers": 2, "n_heads": 3, "max_seq_len": 64},
    "cohere2": LAYERS,
    "exaone4": LAYERS,
    "glm": PARTLY,
    "glm4": PARTLY,
    "nemotron": PARTLY,
    "olmo3": LAYERS,
    "smollm3": {"no_rope_layers": [1, 0], "use_sliding_window": True} | LAYERS,
    "gpt_neox": PARTLY | {"attention_bias": True},
    "phi": PARTLY,
    "phi3": PARTLY | {"sliding_window": 3, "pad_token_id": 0},
    "stablelm": PARTLY,
    "opt": {"ffn_dim": 31, "word_embed_proj_dim": 24, "dropout": 0.0},
    "xglm": {"ffn_dim": 31, "dropout": 0.0},
    "qwen2": LAYERS | {"use_sliding_window": True},
    "qwen3": LAYERS | {"use_sliding_window": True},
}
EXPERTS: dict[str, Any] = {
    "num_local_experts": 3,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 13,
    "shared_expert_intermediate_size": 13,
}
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
            found.append(Call(name, module, x, context, (args, given), output))

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


def parts_of(layer: ch.MultiHeadAttention) -> list[Any]:
    return list(layer.parts)


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
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 40,
    },
    "longrope": {
        "factor": 4.0,
        "short_factor": [1.0, 1.1, 1.3],
        "long_factor": [1.0, 2.0, 3.0],
        "original_max_position_embeddings": 5,
    },
}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rotary_positions_that_are_stretched(rope: str) -> None:
    # Longer than a dynamic one was trained on, which the others do not ask.
    longest = 5 if rope == "dynamic" else 40
    parameters = ROPES[rope] | {"rope_type": rope, "rope_theta": 100.0}
    model = model_of("llama", rope_parameters=parameters, max_position_embeddings=longest)
    for call in calls("llama", model):
        close(read_whole(call.module)(call.x), call.output, single=True)


def test_the_parts_of_a_layer() -> None:
    model = model_of("gemma3_text")
    near, far = (ch.convert(call.module).layer for call in calls("gemma3_text", model))
    assert [type(part) for part in near.parts] == [QueryKeyNorm, Rotary, Scale]
    assert str(near.mask).splitlines()[0] == "causal() & sliding_window(left=2, right=None)"
    assert str(far.mask).splitlines()[0] == "causal()"
    assert [parts_of(layer)[1].base for layer in (near, far)] == [10_000.0, 1_000_000.0]
    first = calls("gemma2", model_of("gemma2"))[0].module
    assert [type(part) for part in ch.convert(first).layer.parts] == [Rotary, Scale, Softcap]
    first = calls("gpt_oss", model_of("gpt_oss"))[0].module
    assert [type(part) for part in ch.convert(first).layer.parts] == [Rotary, Sinks]
    first = calls("t5", model_of("t5"))[0].module
    assert [type(part) for part in ch.convert(first).layer.parts] == [Scale, RelativeBias]
    assert ch.convert(first).layer.dropout == 0.2
    turned, grown = (each.module for each in calls("llama4_text", model_of("llama4_text")))
    assert [type(part) for part in ch.convert(turned).layer.parts] == [QueryKeyNorm, Rotary]
    assert [type(part) for part in ch.convert(grown).layer.parts] == [Temperature]
    first = calls("bloom", model_of("bloom"))[0].module
    assert [type(part) for part in ch.convert(first).layer.parts] == [ScoreBias]


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


def test_what_latent_attention_refuses() -> None:
    module = calls("deepseek_v3", model_of("deepseek_v3"))[0].module
    setattr(module, "qk_rope_head_dim", None)  # noqa: B010
    cannot_read(
        module,
        "the module must say its sizes; it says num_heads=4, head_dim=8, rotary_dim=None, "
        "latent_dim=12, value_head_dim=5",
    )

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kv_a_proj_with_mqa, self.kv_b_proj = nn.Linear(4, 4), nn.Linear(4, 4)
            self.o_proj = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x

    cannot_read(
        Mine(),
        "it has the names of DeepSeek's latent attention, and is no class of transformers: what its "
        "forward does is not known",
    )


def test_what_a_model_alone_knows() -> None:
    """In a model the adapter has it from the model."""
    call = calls("llama4_text", model_of("llama4_text", layer_types=["chunked_attention"] * 2))[0]
    reason = "attention_chunk_size=8192: the mask of chunks is its model's"
    cannot_read(call.module, reason, by_itself=True)
    call = calls("falcon", model_of("falcon", alibi=True))[0]
    reason = "alibi=True: its model rounds the bias to bfloat16, position by position"
    cannot_read(call.module, reason, by_itself=True)


def test_a_mask_that_a_model_alone_knows() -> None:
    """A class without a mask whose model hides the future of texts, and is not known for it."""
    call = calls("clip_text_model", model_of("clip_text_model"))[0]
    module: Any = call.module
    module.config.model_type = "another_text_model"
    reason = (
        "is_causal=False: whether it sees what is ahead is its model's to say; give "
        "mask=clearhead.causal() or mask=clearhead.full(), or convert the model"
    )
    cannot_read(module, reason, by_itself=True)
    layer = read_whole(module, mask=ch.causal())
    close(layer(call.x), call.output, single=True)
    sees_all = ch.convert(module, mask=ch.full()).layer
    assert sees_all.mask is None
    every = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    close(sees_all(call.x), ch.convert(module, mask=every).layer(call.x), single=True)


def test_what_bloom_and_mpt_may_do_besides() -> None:
    module: Any = calls("bloom", model_of("bloom"))[0].module
    module.slow_but_exact, module.pretraining_tp = True, 2
    cannot_read(module, "slow_but_exact=True leaves out the bias of the output")
    module = calls("mpt", model_of("mpt"))[0].module
    module.clip_qkv = 3.0
    cannot_read(module, "clip_qkv=3.0: our layer does not clip queries, keys and values")
    module.clip_qkv, module.softmax_scale = None, 0.3
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
    module: Any = randomised(Head(13, 5))
    dense: Any = randomised(nn.Linear(5, 11))
    x = drawn(BATCH, TOKENS, 13)
    close(read_whole(module, output=dense)(x), dense(module(x)))


def test_gpt2_as_older_versions_keep_it() -> None:
    """With a mask and the number that hides a score, as buffers."""
    call = calls("gpt2", model_of("gpt2"))[0]
    shape = (1, 1, TOKENS, TOKENS)
    call.module.register_buffer("bias", torch.ones(shape, dtype=torch.bool).tril())
    call.module.register_buffer("masked_bias", torch.tensor(-1e4))
    conversion = ch.convert(call.module)
    close(conversion.layer(call.x), call.output)
    assert Row("bias", "mask", "causal()") in conversion.rows
    call.module.register_buffer("bias", torch.ones(shape))
    left_over = "GPT2Attention // bias (1, 1, 7, 7)"
    assert_refused(lambda: ch.convert(call.module), "convert.left-over", left_over)


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


class NanoGPT(nn.Module):
    """As in nanoGPT: a matrix for all three, heads side by side."""

    def __init__(self, width: int = 15, heads: int = 3, *, bias: bool, causal: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.3), nn.Dropout(0.2)
        self.n_head, self.n_embd, self.dropout = heads, width, 0.3
        self.is_causal = causal

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for each in self.c_attn(x).split(self.n_embd, dim=2)
        )
        context = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        return self.resid_dropout(self.c_proj(context.transpose(1, 2).flatten(2)))


class SelfAttention(nn.Module):
    """As in the tutorials: bare matrices; the one for cross-attention takes two texts."""

    def __init__(self, width: int, key_width: int, value_width: int, *, cross: bool) -> None:
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(width, key_width))
        self.W_key = nn.Parameter(torch.rand(width, key_width))
        self.W_value = nn.Parameter(torch.rand(width, value_width))
        self.cross = cross

    def forward(self, x_1: Tensor, *texts: Tensor) -> Tensor:
        (x_2,) = texts if self.cross else (x_1,)
        query, key = x_1 @ self.W_query, x_2 @ self.W_key
        weights = torch.softmax(query @ key.T / key.shape[-1] ** 0.5, dim=-1)
        return weights @ (x_2 @ self.W_value)


class CausalAttention(nn.Module):
    """As in the tutorials: one head, or several with a projection."""

    def __init__(
        self, width: int, out: int, *, bias: bool, heads: int | None = None, mask: str = "triu"
    ) -> None:
        super().__init__()
        self.W_query = nn.Linear(width, out, bias=bias)
        self.W_key = nn.Linear(width, out, bias=bias)
        self.W_value = nn.Linear(width, out, bias=bias)
        self.dropout = nn.Dropout(0.5)
        ones = torch.ones(TOKENS, TOKENS)
        future = ones.triu(1) if mask == "triu" else ones.tril()
        self.register_buffer("mask", future)
        self.split = heads
        if heads is not None:
            self.num_heads = heads
            self.out_proj = nn.Linear(out, out)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.split or 1, -1)).transpose(1, 2)
            for layer in (self.W_query, self.W_key, self.W_value)
        )
        scores = query @ key.mT
        mask: Any = self.mask
        hidden = mask.bool()[: x.shape[1], : x.shape[1]]
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = self.dropout(torch.softmax(scores / key.shape[-1] ** 0.5, dim=-1))
        context = (weights @ value).transpose(1, 2).flatten(2)
        return context if self.split is None else self.out_proj(context)


class Wrapper(nn.Module):
    """As in the tutorials: modules of one head, side by side."""

    def __init__(self, heads: list[nn.Module], proj: nn.Module | None = None) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.proj = proj
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        context = torch.cat([head(x) for head in self.heads], dim=-1)
        return context if self.proj is None else self.dropout(self.proj(context))


class Head(nn.Module):
    """As in the lecture on nanoGPT, where scores are scaled by the width of a head."""

    def __init__(self, width: int, size: int, *, by: int | None = None) -> None:
        super().__init__()
        self.key = nn.Linear(width, size, bias=False)
        self.query = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)
        self.register_buffer("tril", torch.ones(TOKENS, TOKENS).tril())
        self.dropout = nn.Dropout(0.2)
        self.by = by or size

    def forward(self, x: Tensor) -> Tensor:
        tokens, tril = x.shape[1], torch.ones(TOKENS, TOKENS).tril()
        scores = self.query(x) @ self.key(x).mT * self.by**-0.5
        scores = scores.masked_fill(tril[:tokens, :tokens] == 0, -torch.inf)
        return self.dropout(torch.softmax(scores, dim=-1)) @ self.value(x)


class Diffusion(nn.Module):
    """As in diffusers: heads and a scale, and a list of a projection and its dropout."""

    def __init__(
        self, context: int | None = None, *, norm: str | None = None, **extra: Any
    ) -> None:
        super().__init__()
        self.heads, self.scale = 3, extra.pop("scale", 5**-0.5)
        self.to_q = nn.Linear(13, 15, bias=False)
        self.to_k = nn.Linear(context or 13, 15, bias=False)
        self.to_v = nn.Linear(context or 13, 15, bias=False)
        self.to_out: nn.Module = nn.ModuleList([nn.Linear(15, 13), nn.Dropout(0.1)])
        kinds: dict[str, Any] = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}
        self.norm_q, self.norm_k = (
            None if norm is None else kinds[norm](5, eps=1e-5) for _ in range(2)
        )
        self.residual_connection, self.rescale_output_factor = False, 1.0
        self.group_norm: nn.Module | None = None
        for name, value in extra.items():
            setattr(self, name, value)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        x = hidden_states
        source = x if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            layer(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, given in ((self.to_q, x), (self.to_k, source), (self.to_v, source))
        )
        if self.norm_q is not None and self.norm_k is not None:
            query, key = self.norm_q(query), self.norm_k(key)
        context = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        context = context.transpose(1, 2).flatten(2)
        for layer in self.to_out if isinstance(self.to_out, nn.ModuleList) else [self.to_out]:
            context = layer(context)
        return context


class Grouped(nn.Module):
    """A class of one's own: grouped heads, and whatever `extra` does to the scores."""

    def __init__(
        self,
        *,
        key_bias: bool,
        extra: Callable[[Tensor], Tensor] | None = None,
        norms: bool = False,
    ) -> None:
        super().__init__()
        self.query_norm, self.key_norm = (
            nn.RMSNorm(5, eps=1e-5) if norms else nn.Identity() for _ in range(2)
        )
        self.head_dim = 5
        self.q_proj = nn.Linear(13, 6 * 5)
        self.k_proj = nn.Linear(13, 2 * 5, bias=key_bias)
        self.v_proj = nn.Linear(13, 2 * 7)
        self.o_proj = nn.Linear(6 * 7, 17, bias=False)
        self.extra = extra

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        query, key, value = (
            layer(x).unflatten(-1, (heads, -1)).transpose(1, 2)
            for layer, heads in ((self.q_proj, 6), (self.k_proj, 2), (self.v_proj, 2))
        )
        query, key = self.query_norm(query), self.key_norm(key)
        scores = query @ key.repeat_interleave(3, dim=1).mT / 5**0.5
        weights = torch.softmax(scores if self.extra is None else self.extra(scores), dim=-1)
        context = weights @ value.repeat_interleave(3, dim=1)
        return self.o_proj(context.transpose(1, 2).flatten(2)), None


class Short(nn.Module):
    """A class of one's own with the names of T5 and a scale that is said."""

    def __init__(self, *, heads: str = "n_heads") -> None:
        super().__init__()
        self.q, self.k = nn.Linear(13, 15), nn.Linear(13, 15, bias=False)
        self.v, self.o = nn.Linear(13, 15), nn.Linear(15, 13)
        self.scale, self.dropout = 0.7, 0.1
        setattr(self, heads, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (3, 5)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        weights = torch.softmax(self.scale * query @ key.mT, dim=-1)
        return self.o((weights @ value).transpose(1, 2).flatten(2))


class Thirds(nn.Module):
    """A class of one's own with the names of MPT, and without its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.Wqkv, self.out_proj, self.num_heads = nn.Linear(15, 45), nn.Linear(15, 15), 3

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (3, -1)).transpose(1, 2) for each in self.Wqkv(x).chunk(3, dim=-1)
        )
        context = F.scaled_dot_product_attention(query, key, value)
        return self.out_proj(context.transpose(1, 2).flatten(2))


def heads(count: int = 3, **options: Any) -> list[nn.Module]:
    return [CausalAttention(13, 5, bias=True, **options) for _ in range(count)]


OWN_CLASSES: dict[str, Callable[[], nn.Module]] = {
    "nanoGPT": lambda: NanoGPT(bias=False, causal=True),
    "nanoGPT, open, with bias": lambda: NanoGPT(bias=True, causal=False),
    "nanoGPT, before flash": lambda: with_triangle(NanoGPT(bias=True, causal=True)),
    "one causal head": lambda: CausalAttention(13, 7, bias=False),
    "one causal head with bias": lambda: CausalAttention(13, 7, bias=True),
    "split heads": lambda: CausalAttention(13, 15, bias=False, heads=3),
    "split heads with bias": lambda: CausalAttention(13, 15, bias=True, heads=5),
    "a list of heads": lambda: Wrapper(heads()),
    "a list of heads with a projection": lambda: Wrapper(heads(), nn.Linear(15, 11)),
    "the lecture's heads": lambda: Wrapper([Head(13, 5) for _ in range(3)], nn.Linear(15, 13)),
    "diffusion, to itself": Diffusion,
    "diffusion, with norms": lambda: Diffusion(norm="rms"),
    "diffusion, with a scale": lambda: Diffusion(scale=0.7),
    "diffusion, a projection alone": lambda: changed(Diffusion(), to_out=nn.Linear(15, 13)),
    "diffusion, no projection": lambda: changed(Diffusion(), to_out=nn.Identity()),
    "the names of T5": Short,
    "the names of MPT": Thirds,
    "a norm that is none": lambda: changed(Short(), qk_norm=nn.Identity()),
    "a norm that is said to be none": lambda: changed(Short(), qk_norm=False),
    "grouped, with norms": lambda: Grouped(key_bias=True, norms=True),
    "heads under another name": lambda: Short(heads="h"),
    "width of a head under another name": lambda: renamed(
        Grouped(key_bias=True), "head_dim", "d_k"
    ),
    "grouped": lambda: Grouped(key_bias=True),
    "grouped, keys without bias": lambda: Grouped(key_bias=False),
}


def renamed(module: nn.Module, name: str, other: str) -> nn.Module:
    setattr(module, other, getattr(module, name))
    delattr(module, name)
    return module


def with_triangle(module: NanoGPT) -> nn.Module:
    module.register_buffer("bias", torch.ones(TOKENS, TOKENS).tril().view(1, 1, TOKENS, TOKENS))
    return module


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
    module = randomised(SelfAttention(13, 5, 7, cross=cross))
    x, context = drawn(TOKENS, 13), drawn(SOURCE_TOKENS, 13)
    layer = read_whole(module)
    assert (layer.head_dim, layer.value_head_dim, layer.output_dim) == (5, 7, 7)
    if cross:
        close(layer(x, context), module(x, context))
    else:
        close(layer(x), module(x))


def test_attention_to_a_text() -> None:
    module = randomised(Diffusion(11))
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


def test_a_mask_that_a_module_is_handed() -> None:
    """Its tokens come before its samples; ours come after them."""
    module = randomised(nn.MultiheadAttention(15, 3, batch_first=False))
    x = drawn(TOKENS, BATCH, 15)
    layer = read_whole(module, mask=ch.causal())
    hidden = ~ch.causal().to_dense(TOKENS, TOKENS)
    close(layer(x.transpose(0, 1)).transpose(0, 1), module(x, x, x, attn_mask=hidden)[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_else_is_carried_over(dtype: torch.dtype, training: bool) -> None:
    module = NanoGPT(bias=True, causal=True).to(dtype).train(training)
    state = torch.random.get_rng_state()
    layer = ch.convert(module).layer
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {parameter.dtype for parameter in layer.parameters()} == {dtype}
    assert module.training == layer.training == training
    assert layer.dropout == 0.3


def test_hooks_are_refused_and_not_called() -> None:
    module, heard = NanoGPT(bias=True, causal=True), []
    hooks = [
        module.register_forward_hook(lambda *given: heard.append(1)),
        module.c_attn.register_forward_pre_hook(lambda *given: heard.append(2)),
    ]
    cannot_read(
        module,
        "the module has a hook, which may change what it gives; remove it before",
        "c_attn has a hook, which may change what it gives; remove it before",
    )
    assert heard == []
    for hook in hooks:
        hook.remove()
    ch.convert(module)
    llama, theirs = attention_of("llama"), nn.MultiheadAttention(8, 2)
    for of, hooked, name in ((llama, llama.q_proj, "q_proj"), (theirs, theirs, "the module")):
        hooked.register_forward_hook(lambda module, given, output: 1.5 * output)
        cannot_read(of, f"{name} has a hook, which may change what it gives; remove it before")


def test_a_forward_that_was_replaced_is_refused() -> None:
    module = attention_of("llama")
    module.forward = module.forward
    cannot_read(
        module,
        "the module has a forward of its own instead of that of its class, LlamaAttention",
    )


def test_what_a_configuration_says_and_the_forward_ignores() -> None:
    call = calls("llama", model_of("llama", **PARTLY))[0]
    layer = ch.convert(call.module).layer
    close(layer(call.x), call.output, single=True)
    assert parts_of(layer)[0].rotated_dim == layer.head_dim


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
    # A tutorial's class has the name of ours.
    module = CausalAttention(13, 15, bias=False, heads=3)
    type(module).__name__, name = "MultiHeadAttention", type(module).__name__
    assert "W_query.weight   →  query_projection.weight" in str(ch.convert(module))
    type(module).__name__ = name
    gemma = model_of("gemma3_text").layers[0].self_attn
    conversion = ch.convert(gemma)
    assert [row.how for row in conversion.rows[4:6]] == ["plus 1", "plus 1"]


def cannot_read(module: nn.Module, *reasons: str, by_itself: bool = False, **given: Any) -> None:
    aim = f"read this {type(module).__name__}{' by itself' if by_itself else ''}"
    listed = "".join(f"  - {reason}\n" for reason in reasons)
    assert_refused(lambda: ch.convert(module, **given), "convert.refused", aim, listed)


def attention_of(kind: str, **sizes: Any) -> Any:
    return calls(kind, model_of(kind, **sizes))[0].module


def changed(module: nn.Module, **attributes: Any) -> nn.Module:
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def width(
    name: str,
    width: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
) -> str:
    return (
        f"{name} gives width {width}, which must be (num_heads + 2 × num_kv_heads) × head_dim; the module says "
        f"{num_heads=}, {num_kv_heads=}, {head_dim=}"
    )


def in_whole_numbers(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(torch.int8)
    return module


REFUSED: dict[str, tuple[Any, ...]] = {
    "PyTorch's, all of it": (
        lambda: nn.MultiheadAttention(15, 3, kdim=11, add_bias_kv=True, add_zero_attn=True),
        "add_bias_kv=True: a learned key and value that every query sees",
        "add_zero_attn=True: a key and value of zeros that every query sees",
        "kdim=11 and vdim=15: not one width",
    ),
    "a parameter that is made of others": (
        lambda: prune.l1_unstructured(nn.MultiheadAttention(15, 3), "in_proj_weight", 0.5),
        "the module has a hook, which may change what it gives; remove it before",
        "in_proj_weight must be a parameter of its own; it is made of others",
    ),
    "norms of other widths": (
        lambda: changed(
            attention_of("qwen3"), q_norm=nn.RMSNorm(5, eps=1e-6), k_norm=nn.RMSNorm(6, eps=1e-6)
        ),
        "q_norm.weight (5,) and k_norm.weight (6,) must have one number for each of the 6 of a "
        "head, or of all 4 and 2 heads",
    ),
    "a model without a configuration in its layer": (
        lambda: model_of("mpnet").encoder.layer[0].attention.attn,
        "a copy of it could not be run on x of shape (2, 5, 24), to find what its weights do not tell: "
        "TypeError: its model hands it position_bias",
    ),
    "a model that clips": (
        lambda: attention_of("olmo", clip_qkv=2.0),
        "clip_qkv=2.0: our layer does not clip queries, keys and values",
    ),
    "one layer for all three, of another width": (
        lambda: changed(attention_of("phi3", pad_token_id=0), qkv_proj=nn.Linear(24, 47)),
        width("qkv_proj", 47, num_heads=4, num_kv_heads=2, head_dim=6),
    ),
    "one layer for the three of each head, of another width": (
        lambda: changed(attention_of("gpt_neox", **PARTLY), query_key_value=nn.Linear(24, 70)),
        width("query_key_value", 70, num_heads=4, num_kv_heads=None, head_dim=6),
    ),
    "queries that the keys do not divide": (
        lambda: changed(
            attention_of("phi3", pad_token_id=0),
            num_key_value_heads=3,
            qkv_proj=nn.Linear(24, 60, bias=False).double(),
        ),
        "keys of width 18 and values of width 18 are no heads for 4 heads of width 6",
    ),
    "one layer for all three that are not": (
        lambda: changed(attention_of("mpt"), Wqkv=nn.Linear(24, 71).double()),
        width("Wqkv", 71, num_heads=4, num_kv_heads=None, head_dim=6),
    ),
    "norms of a latent that add different numbers": (
        lambda: changed(
            attention_of("deepseek_v3"), q_a_layernorm=nn.RMSNorm(13, eps=1e-3).double()
        ),
        "kv_a_layernorm and q_a_layernorm must add one eps",
    ),
    "a norm without a weight that takes the mean away": (
        lambda: changed(
            attention_of("llama4_text"), qk_norm=nn.LayerNorm(6, elementwise_affine=False)
        ),
        "its output is not that of its weights: a copy that was run on 5 and 17 tokens is off by 0.59",
    ),
    "a norm that adds nothing": (
        lambda: changed(attention_of("llama4_text"), qk_norm=nn.Tanh()),
        "qk_norm must be a root mean square norm with an eps; it is Tanh",
    ),
    "norms that take the mean away": (
        lambda: attention_of("cohere", use_qk_norm=True),
        "q_norm must be a root mean square norm with a weight of one dimension and an eps; it is CohereLayerNorm",
        "k_norm must be a root mean square norm with a weight of one dimension and an eps; it is CohereLayerNorm",
    ),
    "heads of other sizes": (
        lambda: Wrapper([CausalAttention(13, 5, bias=True), CausalAttention(13, 7, bias=True)]),
        "heads must have matrices of the same shapes as each other",
    ),
    "heads that do not divide": (
        lambda: changed(NanoGPT(bias=True, causal=True), n_head=4),
        width("c_attn", 45, num_heads=4),
    ),
    "no number of heads": (
        lambda: changed(NanoGPT(bias=True, causal=True), n_head=None),
        "queries of width 15 must be num_heads × head_dim; the module says num_heads=None, "
        "head_dim=None",
    ),
    "keys of another width": (
        lambda: changed(Grouped(key_bias=True), k_proj=nn.Linear(13, 9)),
        "keys of width 9 and values of width 14 are no heads for 6 heads of width 5",
    ),
    "two contexts, and an output of another width": (
        lambda: changed(Grouped(key_bias=True), k_proj=nn.Linear(11, 10), o_proj=nn.Linear(41, 3)),
        "keys are made of width 11, values of width 13: not one context",
        "o_proj.weight takes width 41; the heads give 42",
    ),
    "three that are not": (
        lambda: changed(NanoGPT(bias=True, causal=True), c_attn=nn.Linear(15, 44)),
        width("c_attn", 44, num_heads=3),
    ),
    "a matrix that is none": (
        lambda: changed(SelfAttention(13, 5, 7, cross=False), W_key=nn.Parameter(torch.zeros(3))),
        "W_key must be a plain torch.nn.Linear, whose weight is a parameter; it is a "
        "torch.nn.parameter.Parameter",
    ),
    "several dtypes": (
        lambda: changed(Grouped(key_bias=True), k_proj=nn.Linear(13, 10).double()),
        "weights must be of one dtype on one device; got torch.float32 on cpu, torch.float64 on "
        "cpu",
    ),
    "whole numbers": (
        lambda: in_whole_numbers(Grouped(key_bias=True)),
        "weights must be floating; they are torch.int8 on cpu",
    ),
    "no numbers": (
        lambda: Diffusion(norm="rms").to("meta"),
        *(
            f"{name} has its weight on the meta device, without numbers"
            for name in ("to_q", "to_k", "to_v", "to_out.0")
        ),
    ),
    "dropout of everything": (
        lambda: changed(NanoGPT(bias=True, causal=True), attn_dropout=nn.Dropout(1.0)),
        "attn_dropout must be a probability below 1; it is 1.0",
    ),
    "a layer that is not numbered": (
        lambda: changed(attention_of("gpt2"), layer_idx=None),
        "scale_attn_by_inverse_layer_idx needs a layer_idx; it is None",
    ),
    "one norm, and one that adds nothing": (
        lambda: changed(Diffusion(norm="rms"), norm_q=None, norm_k=nn.RMSNorm(5)),
        "norm_q must be a root mean square norm with a weight of one dimension and an eps; it is NoneType",
        "norm_k must be a root mean square norm with a weight of one dimension and an eps; it is RMSNorm",
    ),
    "norms that add different numbers": (
        lambda: changed(Diffusion(norm="rms"), norm_k=nn.RMSNorm(5, eps=1e-3)),
        "norm_q adds 1e-05, norm_k 0.001: not one eps",
    ),
    "sinks of another shape": (
        lambda: changed(attention_of("gpt_oss"), sinks=nn.Parameter(torch.zeros(3).double())),
        "sinks (3,) must be one number for each of 4 heads",
    ),
    "buckets that we have none of": (
        lambda: changed(attention_of("t5"), relative_attention_max_distance=1),
        "relative_attention_bias: num_buckets must be even, 2 or more on a side, and "
        "max_distance more than those that have a bucket each; got num_buckets=8, "
        "max_distance=1",
    ),
    "a window of an encoder": (
        lambda: changed(attention_of("qwen2"), is_causal=False),
        "sliding_window=3 of a layer that is not causal",
    ),
}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: NanoGPT(bias=True, causal=True), "c_proj"),
        (lambda: attention_of("bert"), "key"),
        (lambda: attention_of("t5"), "o"),
        (lambda: attention_of("phi3", pad_token_id=0), "qkv_proj"),
        (lambda: attention_of("mpt"), "Wqkv"),
        (lambda: attention_of("gpt_neox", **PARTLY), "query_key_value"),
        (lambda: attention_of("deepseek_v3"), "kv_b_proj"),
        (Diffusion, "to_k"),
        (lambda: Grouped(key_bias=True), "q_proj"),
        (lambda: CausalAttention(13, 15, bias=True, heads=3), "out_proj"),
    ],
)
def test_what_is_no_matrix(make: Callable[[], nn.Module], name: str) -> None:
    reason = (
        f"{name} must be a plain torch.nn.Linear, whose weight is a parameter; it is a "
        "torch.nn.modules.activation.Tanh"
    )
    cannot_read(changed(make(), **{name: nn.Tanh()}), reason)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, *reasons = REFUSED[name]
    cannot_read(make(), *reasons)


ROPES_REFUSED: dict[str, tuple[Any, str]] = {
    "no base": ({"rope_type": "default"}, "no 'rope_theta'"),
    "a kind that is not known": (
        {"rope_type": "proportional", "rope_theta": 100.0},
        "no 'proportional'",
    ),
    "a number that is missing": ({"rope_type": "linear", "rope_theta": 100.0}, "no 'factor'"),
    "a number that cannot be": (
        {"rope_type": "linear", "rope_theta": 100.0, "factor": 0.5},
        "factor must be a number, 1 or more; got 0.5",
    ),
}


@pytest.mark.parametrize("name", ROPES_REFUSED)
def test_rotary_positions_that_are_refused(name: str) -> None:
    module = attention_of("llama")
    parameters, reason = ROPES_REFUSED[name]
    module.config.rope_parameters = parameters
    cannot_read(
        module,
        f"config.rope_parameters={shown(parameters)} are no rotary positions that are known: {reason}",
    )


def test_a_block_that_is_handed_its_bias() -> None:
    model = model_of("t5")
    module = model.encoder.block[1].layer[0].SelfAttention
    cannot_read(
        module,
        "this block is handed the relative bias of the first one; give that too, as "
        "relative_bias=first.relative_attention_bias",
    )
    cannot_read(
        module,
        "relative_bias.weight must have a column for each of 4 heads; its shape is (8, 3)",
        relative_bias=nn.Embedding(8, 3),
    )
    cannot_read(
        module,
        "relative_bias.weight must have a column for each of 4 heads; it is missing",
        relative_bias=nn.Identity(),
    )
    cross, other = model.decoder.block[0].layer[1].EncDecAttention, nn.Embedding(8, 4).double()
    left_over = "T5Attention // relative_bias.weight (8, 4)"
    assert_refused(lambda: ch.convert(cross, relative_bias=other), "convert.left-over", left_over)


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


def test_what_a_copy_that_is_run_shows() -> None:
    def capped(scores: Tensor) -> Tensor:
        return scores.tanh()

    def broken(scores: Tensor) -> Tensor:
        raise ValueError("out of order")

    text = (
        "its output is not that of its weights: a copy that was run on 5 and 257 tokens is off by "
    )
    with pytest.raises(UnsupportedError, match=text):
        ch.convert(Grouped(key_bias=True, extra=capped))
    cannot_read(
        Grouped(key_bias=True, extra=broken),
        "a copy of it could not be run on x of shape (2, 5, 13), to find what its weights do not "
        "tell: ValueError: out of order",
    )
    # The lecture's first version divides by the width of the input.
    with pytest.raises(UnsupportedError, match="its output is not that of its weights"):
        ch.convert(Wrapper([Head(13, 5, by=13)]))
    # A tutorial's mask is 1 where it hides; one that is 1 where it shows hides the past.
    with pytest.raises(UnsupportedError, match="its output is not that of its weights"):
        ch.convert(CausalAttention(13, 7, bias=False, mask="tril"))


def test_a_window_that_does_not_show() -> None:
    module = changed(NanoGPT(bias=True, causal=True), window_size=257)
    cannot_read(
        module, "window_size=257: a window does not show on the 257 tokens that a copy is run on"
    )
    ch.convert(changed(module, window_size=256))
    ch.convert(changed(module, window_size=None))


def test_an_output_of_another_shape() -> None:
    class Summed(NanoGPT):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sum(dim=1)

    class Named(NanoGPT):
        def forward(self, x: Tensor) -> Any:
            return {"output": super().forward(x)}

    class Locked(NanoGPT):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("one is enough")

    cannot_read(
        Summed(bias=True, causal=True),
        "its output has shape (2, 15); by its weights it would be (2, 5, 15)",
    )
    cannot_read(
        Named(bias=True, causal=True),
        "a copy of it could not be run on x of shape (2, 5, 15), to find what its weights do not "
        "tell: TypeError: its output is a dict",
    )
    cannot_read(
        Locked(bias=True, causal=True),
        "a copy of it could not be made to be run: one is enough",
    )


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


def with_gate_and_steps() -> nn.Module:
    module = changed(Grouped(key_bias=True), gate=nn.Linear(13, 3))
    module.register_buffer("steps", torch.zeros(7, 2))
    return module


test_what_is_left_over = refusals(
    run,
    (
        lambda: ch.convert(with_gate_and_steps()),
        "convert.left-over",
        "Grouped // gate.weight (3, 13), gate.bias (3,), steps (7, 2)",
    ),
    (
        lambda: ch.convert(Grouped(key_bias=True), output=nn.Linear(42, 3)),
        "convert.left-over",
        "Grouped // o_proj.weight (17, 42)",
    ),
    (
        lambda: ch.convert(Diffusion(norm="layer")),
        "convert.left-over",
        "Diffusion // norm_q.bias (5,), norm_k.bias (5,)",
    ),
    (
        lambda: ch.convert(Diffusion(group_norm=nn.GroupNorm(1, 13))),
        "convert.left-over",
        "Diffusion // group_norm.weight (13,), group_norm.bias (13,)",
    ),
)


def test_what_is_not_known() -> None:
    known = "".join(f"  - {family.words}\n" for family in FAMILIES if family.words)
    assert_refused(lambda: ch.convert(nn.Linear(2, 2)), "convert.unknown", "Linear", known)
    # A part of a model has attentions inside, and no inputs are known for it.
    left = ch.convert(model_of("bert").encoder.layer[0].attention).left
    assert "the model could not be run to compare it" in left["self"]


test_what_is_no_module_to_convert = refusals(
    run,
    (lambda: ch.convert(wrong("a layer")), "convert.type", "module // str"),
    (lambda: ch.convert(wrong(None)), "convert.type", "module // NoneType"),
    (
        lambda: ch.convert(ch.MultiHeadAttention(15, num_heads=3)),
        "convert.type",
        "module // MultiHeadAttention",
    ),
    (
        lambda: ch.convert(nn.Linear(2, 2), output=wrong("a layer")),
        "convert.type",
        "output // str",
    ),
)
