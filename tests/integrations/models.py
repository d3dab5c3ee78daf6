"""Small models of transformers with random weights, one of each kind of attention."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import clearhead as ch

VOCABULARY = 101
SOURCE_LEN = 11
TOKENS = 7

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 31,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}
LAYERS = ["sliding_attention", "full_attention"]


class Kind(NamedTuple):
    """A kind of model.

    Attributes:
        make: what makes it of a config.
        config: what makes a config of sizes.
        sizes: what is in it beside `SIZES`.
        implementations: those of transformers that it runs on here.
        causal: whether it continues a text.
    """

    make: Callable[[Any], Any]
    config: Callable[..., Any]
    sizes: dict[str, Any]
    implementations: tuple[str, ...] = ("eager", "sdpa")
    causal: bool = True

    @property
    def reads_twice(self) -> bool:
        """True if there are an encoder and a decoder."""
        return self.config in (transformers.T5Config, transformers.BartConfig)


KINDS: dict[str, Kind] = {
    "gpt2": Kind(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config,
        {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.5},
    ),
    "llama": Kind(transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
    "qwen3": Kind(transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {}),
    "mistral": Kind(
        transformers.MistralForCausalLM, transformers.MistralConfig, {"sliding_window": 3}
    ),
    "gemma2": Kind(
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config,
        {"sliding_window": 3, "attn_logit_softcapping": 1.5, "layer_types": LAYERS},
        implementations=("eager",),
    ),
    "gemma3": Kind(
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig,
        {"sliding_window": 3, "layer_types": LAYERS},
    ),
    "gpt_oss": Kind(
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig,
        EXPERTS | {"num_local_experts": 3, "sliding_window": 3, "layer_types": LAYERS},
        implementations=("eager",),
    ),
    "t5": Kind(
        transformers.T5ForConditionalGeneration,
        transformers.T5Config,
        {"d_model": 24, "d_kv": 6, "d_ff": 31, "num_layers": 2, "num_heads": 4}
        | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 5}
        | {"decoder_start_token_id": 0, "dropout_rate": 0.0, "initializer_factor": 3.0},
    ),
    "bart": Kind(
        transformers.BartForConditionalGeneration,
        transformers.BartConfig,
        {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 31}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 3, "decoder_ffn_dim": 31}
        | {"init_std": 0.5, "decoder_start_token_id": 1, "forced_eos_token_id": None}
        | {"dropout": 0.0},
    ),
    "bert": Kind(
        transformers.BertModel, transformers.BertConfig, {"hidden_dropout_prob": 0.0}, causal=False
    ),
    "deepseek_v3": Kind(
        transformers.DeepseekV3ForCausalLM,
        transformers.DeepseekV3Config,
        EXPERTS
        | {"num_key_value_heads": 4, "q_lora_rank": 13, "kv_lora_rank": 11, "v_head_dim": 5}
        | {"qk_rope_head_dim": 4, "qk_nope_head_dim": 7, "n_routed_experts": 3, "head_dim": 4}
        | {"n_shared_experts": 1, "moe_intermediate_size": 13, "first_k_dense_replace": 1}
        | {"n_group": 1, "topk_group": 1},
    ),
}


class Exact(TorchFunctionMode):
    """What a model of float64 takes to float32 on its way, a softmax or a norm, is worked out in float64."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        func = Tensor.double if func is Tensor.float else func
        args = tuple(map(_exact, args))
        return func(*args, **{name: _exact(each) for name, each in (kwargs or {}).items()})


def _exact(given: Any) -> Any:
    return torch.float64 if given is torch.float32 else given


def make(name: str, implementation: str = "eager", **sizes: Any) -> Any:
    """A model in eval mode; the same weights for the same name."""
    kind = KINDS[name]
    torch.manual_seed(0)
    config = kind.config(**(SIZES | kind.sizes | sizes))
    config._attn_implementation = implementation
    config._experts_implementation = "eager"  # the others want widths that are multiples of 4
    model = kind.make(config).eval()
    for parameter in model.parameters():
        # What begins as 0 or 1 everywhere, biases and sinks, would not be noticed if it were lost.
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=round(parameter.mean().item()), std=0.1)
    return model


def same(model: Any, implementation: str) -> Any:
    """A model of another implementation with the weights and the dtype of one."""
    other = copy.deepcopy(model)
    other.set_attn_implementation(implementation)
    return other


def padded(side: str, batch: int = 3, tokens: int = TOKENS) -> Tensor:
    """The real tokens, (batch, tokens): none is padding in the first row, two and five are
    in the others. "none" is no padding at all."""
    real = torch.ones(batch, tokens, dtype=torch.int64)
    if side == "none":
        return real
    for row, padding in enumerate((0, 2, 5)):
        real[row, tokens - padding :] = 0
    return real if side == "right" else real.flip(1)


def inputs(name: str, side: str = "none") -> dict[str, Tensor]:
    """The inputs of a model: a batch of three, padded on one side or not at all."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, VOCABULARY, (3, SOURCE_LEN), generator=generator)
    if not KINDS[name].reads_twice:
        real = padded(side)
        return {"input_ids": ids[:, :TOKENS] * real, "attention_mask": real}
    real = padded(side, tokens=SOURCE_LEN)
    decoded = torch.randint(2, VOCABULARY, (3, TOKENS), generator=generator)
    return {"input_ids": ids * real, "attention_mask": real, "decoder_input_ids": decoded}


class Ours(nn.Module):
    """Blocks of our own layers, around a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(24),
                    "attention": ch.MultiHeadAttention(24, num_heads=4, num_kv_heads=2, mask=ch.causal()),
                    "mlp": nn.Linear(24, 24),
                }
            )
            for _ in range(3)
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor]:
        block: Any
        for block in self.blocks:
            x = x + block["attention"](block["norm"](x))
            x = x + block["mlp"](x).relu()
        return (x,)


def _ours() -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    one, other = torch.randn(2, 2, TOKENS, 24, dtype=torch.float64)
    return Ours(), {"x": one}, {"x": other}


def _vit() -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    sizes: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 4}
    config = transformers.ViTConfig(
        **sizes, num_hidden_layers=3, image_size=8, patch_size=4, initializer_range=0.5
    )
    one, other = torch.randn(2, 2, 3, 8, 8, dtype=torch.float64)
    return transformers.ViTModel(config), {"pixel_values": one}, {"pixel_values": other}


def _whisper() -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    config = transformers.WhisperConfig(
        d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=31, decoder_ffn_dim=31, vocab_size=50,
        num_mel_bins=6, max_source_positions=5, max_target_positions=9, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=[],
        begin_suppress_tokens=[], init_std=0.5,
    )  # fmt: skip
    one, other = torch.randn(2, 2, 6, 10, dtype=torch.float64)
    ids = torch.tensor([[3, 7, 9, 8], [3, 20, 7, 7]])
    model = transformers.WhisperForConditionalGeneration(config)
    clean = {"input_features": one, "decoder_input_ids": ids}
    return model, clean, {"input_features": other, "decoder_input_ids": ids.flip(0)}


OTHERS = {"vit": _vit, "whisper": _whisper, "ours": _ours}
"""What makes the models that no ids go into, with clean and corrupt inputs."""

TYPES = ["sliding_attention", "full_attention", "full_attention"]
DEEP: dict[str, dict[str, Any]] = {"gpt2": {"n_layer": 3}} | {
    name: {"num_hidden_layers": 3, "layer_types": TYPES} for name in ("gemma2", "gemma3", "gpt_oss")
}


def pair(
    name: str, implementation: str = "eager"
) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """A model of float64, of a kind or one of `OTHERS`, with three layers where it is of one text, and clean and
    corrupt inputs."""
    torch.manual_seed(0)
    if name in OTHERS:
        model, clean, corrupt = OTHERS[name]()
        if name != "ours":
            model.set_attn_implementation(implementation)
        return model.double().eval(), clean, corrupt
    sizes = DEEP.get(name, {} if KINDS[name].reads_twice else {"num_hidden_layers": 3})
    model, clean = make(name, implementation, **sizes).double(), inputs(name)
    other = {each: clean[each].flip(1) for each in clean if each.endswith("ids")}
    return model, clean, clean | other


def attentions(output: Any) -> list[Any]:
    """The weights of all layers in the order in which they are worked out."""
    if "cross_attentions" not in output or not output.cross_attentions:
        return list(output.attentions)
    decoder = zip(output.decoder_attentions, output.cross_attentions, strict=True)
    return [*output.encoder_attentions, *(each for pair in decoder for each in pair)]
