"""Layers of other libraries become ours, and ours theirs, with equal outputs."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import transformers
from jaxtyping import TypeCheckError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import clearhead as ch
from clearhead.errors import ArgumentTypeError, ClearheadError, UnsupportedError
from clearhead.layers import QueryKeyNorm, RelativeBias, Rotary, Scale, Sinks, Softcap
from clearhead.layers.converting.convert import family_of
from clearhead.layers.converting.separate import BERT, PROJ, T5
from tests.integrations.models import SIZES, VOCABULARY

BATCH, TOKENS, SOURCE_TOKENS = 2, 7, 11


class Call(NamedTuple):
    """What an attention of a model was called with, and what it gave."""

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
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
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
    "opt": {"ffn_dim": 31, "word_embed_proj_dim": 24, "dropout": 0.0},
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
SEES = ("clip_vision_model", "siglip_vision_model", "vit")
READS_TWICE = ("bart", "blenderbot", "m2m_100", "marian", "mbart", "pegasus", "whisper")
MODEL_TYPES = sorted({*PROJ, *BERT, *T5, "gpt2"})


def model_of(kind: str, **sizes: Any) -> Any:
    """A small model of transformers in float64 and eval mode, in which no number is 0 or 1."""
    given: dict[str, Any] = SIZES | EXPERTS | OWN.get(kind, {})
    if kind in T5:
        given = T5_SIZES
    elif kind in SEES:
        given = PICTURES
    elif kind in READS_TWICE:
        given = TWO_SIDES
    elif kind in BERT:
        given = {name: size for name, size in SIZES.items() if name != "head_dim"}
        given |= {"embedding_size": 24}
    config = AutoConfig.for_model(kind, **(given | sizes))
    config._experts_implementation = "eager"
    model = AutoModel.from_config(config, attn_implementation="eager").double().eval()
    for parameter in model.parameters():
        mean, std = (round(parameter.mean().item()), 0.1) if parameter.ndim == 1 else (0, 0.5)
        nn.init.normal_(parameter, mean=mean, std=std)
    return model


def calls(kind: str, model: Any) -> list[Call]:
    """What each attention of a model does with a text, or with a picture."""
    found: list[Call] = []

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, given: Any, output: Any) -> None:
            x = args[0] if args else given["hidden_states"]
            context = given.get("key_value_states", given.get("encoder_hidden_states"))
            found.append(Call(name, module, x, context, (args, given), output[0]))

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
        elif kind in (*READS_TWICE, *T5):
            model(input_ids=source, decoder_input_ids=ids)
        else:
            model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def beside(call: Call, model: Any) -> dict[str, Any]:
    """What belongs to a layer and stands elsewhere: the table of T5's first block."""
    side, _, place = call.name.partition(".block.")
    if not place or place.startswith("0") or "EncDec" in place:
        return {}
    first = model.get_submodule(f"{side}.block.0.layer.0.SelfAttention")
    return {"relative_bias": first.relative_attention_bias}


def close(actual: Tensor, expected: Tensor, *, single: bool = False) -> None:
    """Equal but for rounding: to that of float32, where theirs works in it whatever comes in."""
    eps = torch.finfo(torch.float32 if single else torch.float64).eps
    largest = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=64 * eps * largest)


def scrambled(module: nn.Module) -> nn.Module:
    """A copy with other weights."""
    twin = copy.deepcopy(module)
    for parameter in twin.parameters():
        nn.init.normal_(parameter)
    return twin


def goes_there_and_back(module: nn.Module, **given: Any) -> ch.MultiHeadAttention:
    """The layer of a module, after everything that holds for every conversion was checked."""
    before = copy.deepcopy(module.state_dict())
    conversion = ch.convert(module, **given)
    layer = conversion.layer
    twin = scrambled(module)
    others = {name: scrambled(each) for name, each in given.items() if name != "mask"}
    back = ch.convert(layer, into=twin, **(given | others))
    assert back.layer is layer
    assert [row.theirs for row in back.rows] == [row.theirs for row in conversion.rows]
    for parameter in layer.parameters():
        with torch.no_grad():
            parameter.zero_()
    for made_or_read in (module, twin):
        assert list(made_or_read.state_dict()) == list(before)
        for name, tensor in made_or_read.state_dict().items():
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
        layer = goes_there_and_back(call.module, **beside(call, model))
        single = kind not in (*BERT, *T5, *READS_TWICE, "gpt2")
        close(layer(call.x, call.context), call.output, single=single)


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
        close(goes_there_and_back(call.module)(call.x), call.output, single=True)


def test_the_parts_of_a_layer() -> None:
    model = model_of("gemma3_text")
    near, far = (ch.convert(call.module).layer for call in calls("gemma3_text", model))
    assert [type(part) for part in near.parts] == [QueryKeyNorm, Rotary, Scale]
    assert str(near.mask).splitlines()[0] == "causal() & sliding_window(left=2, right=None)"
    assert str(far.mask).splitlines()[0] == "causal()"
    assert [part.base for part in (near.parts[1], far.parts[1])] == [10_000.0, 1_000_000.0]
    first = calls("gemma2", model_of("gemma2"))[0].module
    assert [type(part) for part in ch.convert(first).layer.parts] == [Rotary, Scale, Softcap]
    first = calls("gpt_oss", model_of("gpt_oss"))[0].module
    assert [type(part) for part in ch.convert(first).layer.parts] == [Rotary, Sinks]
    first = calls("t5", model_of("t5"))[0].module
    assert [type(part) for part in ch.convert(first).layer.parts] == [Scale, RelativeBias]
    assert ch.convert(first).layer.dropout == 0.2


def test_bert_with_the_projection_of_its_output() -> None:
    model = model_of("bert")
    call = calls("bert", model)[0]
    dense = model.encoder.layer[0].attention.output.dense
    conversion = ch.convert(call.module, output=dense)
    close(conversion.layer(call.x), dense(call.output))
    assert ("output.weight", "output_projection.weight", "copied") in [
        (row.theirs, row.ours, row.how) for row in conversion.rows
    ]
    other = scrambled(dense)
    ch.convert(conversion.layer, into=scrambled(call.module), output=other)
    assert torch.equal(other.weight, dense.weight)


def test_gpt2_attends_to_a_context() -> None:
    config = transformers.GPT2Config(n_embd=15, n_head=3, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "eager"
    attention = transformers.models.gpt2.modeling_gpt2.GPT2Attention
    module = attention(config, is_cross_attention=True, layer_idx=0).double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x, context = drawn(BATCH, TOKENS, 15), drawn(BATCH, SOURCE_TOKENS, 15)
    layer = goes_there_and_back(module)
    assert layer.mask is None
    close(layer(x, context), module(x, encoder_hidden_states=context)[0])


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


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
        hidden = self.mask.bool()[: x.shape[1], : x.shape[1]]
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
        tokens = x.shape[1]
        scores = self.query(x) @ self.key(x).mT * self.by**-0.5
        scores = scores.masked_fill(self.tril[:tokens, :tokens] == 0, -torch.inf)
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
        self.to_out = nn.ModuleList([nn.Linear(15, 13), nn.Dropout(0.1)])
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
        projected, dropped = self.to_out
        return dropped(projected(context.transpose(1, 2).flatten(2)))


class Grouped(nn.Module):
    """A class of one's own: grouped heads, and whatever `extra` does to the scores."""

    def __init__(self, *, key_bias: bool, extra: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
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
        scores = query @ key.repeat_interleave(3, dim=1).mT / 5**0.5
        weights = torch.softmax(scores if self.extra is None else self.extra(scores), dim=-1)
        context = weights @ value.repeat_interleave(3, dim=1)
        return self.o_proj(context.transpose(1, 2).flatten(2)), None


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
    "grouped": lambda: Grouped(key_bias=True),
    "grouped, keys without bias": lambda: Grouped(key_bias=False),
}


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
    layer = goes_there_and_back(module)
    x = drawn(BATCH, TOKENS, layer.embed_dim)
    expected = module(x)
    close(layer(x), expected[0] if isinstance(expected, tuple) else expected)


@pytest.mark.parametrize("cross", [False, True])
def test_bare_matrices(cross: bool) -> None:
    module = randomised(SelfAttention(13, 5, 7, cross=cross))
    x, context = drawn(TOKENS, 13), drawn(SOURCE_TOKENS, 13)
    layer = goes_there_and_back(module)
    assert (layer.head_dim, layer.value_head_dim, layer.output_dim) == (5, 7, 7)
    if cross:
        close(layer(x, context), module(x, context))
    else:
        close(layer(x), module(x))


def test_attention_to_a_text() -> None:
    module = randomised(Diffusion(11))
    x, context = drawn(BATCH, TOKENS, 13), drawn(BATCH, SOURCE_TOKENS, 11)
    close(goes_there_and_back(module)(x, context), module(x, context))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("context_dim", [15, 11])
def test_pytorchs_layer(bias: bool, context_dim: int) -> None:
    module = nn.MultiheadAttention(
        15, 3, kdim=context_dim, vdim=context_dim, bias=bias, batch_first=True, dropout=0.25
    )
    randomised(module)
    layer = goes_there_and_back(module)
    x, context = drawn(BATCH, TOKENS, 15), drawn(BATCH, SOURCE_TOKENS, context_dim)
    close(layer(x, context), module(x, context, context)[0])
    assert layer.dropout == 0.25


def test_a_mask_that_a_module_is_handed() -> None:
    module = randomised(nn.MultiheadAttention(15, 3, batch_first=True))
    x = drawn(BATCH, TOKENS, 15)
    layer = goes_there_and_back(module, mask=ch.causal())
    hidden = ~ch.causal().to_dense(TOKENS, TOKENS)
    close(layer(x), module(x, x, x, attn_mask=hidden)[0])


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


def test_a_copy_is_run_without_hooks() -> None:
    module, heard = NanoGPT(bias=True, causal=True), []
    module.register_forward_hook(lambda *given: heard.append(1))
    module.c_attn.register_forward_pre_hook(lambda *given: heard.append(2))
    ch.convert(module)
    assert heard == []
    module(torch.zeros(1, TOKENS, 15))
    assert heard == [2, 1]


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
    back = ch.convert(conversion.layer, into=module)
    assert str(back).splitlines()[:2] == [
        "MultiHeadAttention → GPT2Attention",
        "  query_projection.weight   →  c_attn.weight[:, 0:16]   transposed",
    ]
    norms = str(ch.convert(model_of("gemma3_text").layers[0].self_attn)).splitlines()
    assert norms[5:7] == [
        "  q_norm.weight           →  parts.0.query_norm.weight  plus 1",
        "  k_norm.weight           →  parts.0.key_norm.weight    plus 1",
    ]
