# type: ignore
# Written as people write it, hence without types.
"""Correct modules of PyTorch and of transformers, called as x -> y."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right


class SelfMultihead(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


class SelfMultiheadWithWeights(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, bias=False, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, average_attn_weights=False)


class CausalMultihead(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        out, _ = self.attn(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
        return out


class BoolMaskMultihead(nn.Module):
    """nn.MultiheadAttention hides where its mask is true."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        t = x.shape[1]
        future = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        return self.attn(x, x, x, attn_mask=future)[0]


class PaddedMultihead(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask):
        return self.attn(x, x, x, key_padding_mask=~mask, need_weights=False)[0]


class LenFirstMultihead(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        x = x.transpose(0, 1)
        return self.attn(x, x, x)[0].transpose(0, 1)


class CrossMultihead(nn.Module):
    def __init__(self, embed_dim, num_heads, context_dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(
            embed_dim, num_heads, kdim=context_dim, vdim=context_dim, batch_first=True
        )

    def forward(self, x, context):
        return self.attn(x, context, context, need_weights=False)[0]


class DroppingMultihead(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


class Functional(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        x = x.transpose(0, 1)
        out, _ = F.multi_head_attention_forward(
            x,
            x,
            x,
            x.shape[-1],
            self.num_heads,
            self.in_proj.weight,
            self.in_proj.bias,
            None,
            None,
            False,
            0.0,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
        )
        return out.transpose(0, 1)


class SdpaProjected(nn.Module):
    def __init__(self, d_in, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.q_proj = nn.Linear(d_in, heads * head_dim)
        self.k_proj = nn.Linear(d_in, kv_heads * head_dim)
        self.v_proj = nn.Linear(d_in, kv_heads * head_dim)
        self.o_proj = nn.Linear(heads * head_dim, d_in)

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class WithRotary(nn.Module):
    """The attention of a decoder of transformers, with the cosines that its model makes."""

    def __init__(self, attention, rotary):
        super().__init__()
        self.attention, self.rotary = attention, rotary

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)[None]
        cos, sin = self.rotary(x, places)
        return self.attention(
            x, position_embeddings=(cos.to(x.dtype), sin.to(x.dtype)), attention_mask=None
        )[0]


class First(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x)[0]


def llama():
    from transformers.models.llama import modeling_llama as source

    config = source.LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=2, attn_implementation="sdpa"
    )
    return WithRotary(source.LlamaAttention(config, 0), source.LlamaRotaryEmbedding(config))


def qwen2():
    from transformers.models.qwen2 import modeling_qwen2 as source

    config = source.Qwen2Config(
        hidden_size=24, num_attention_heads=6, num_key_value_heads=3, attn_implementation="sdpa"
    )
    return WithRotary(source.Qwen2Attention(config, 0), source.Qwen2RotaryEmbedding(config))


def gpt2():
    from transformers.models.gpt2 import modeling_gpt2 as source

    config = source.GPT2Config(
        n_embd=15, n_head=3, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="sdpa"
    )
    return First(source.GPT2Attention(config, layer_idx=0))


def bert():
    from transformers.models.bert import modeling_bert as source

    config = source.BertConfig(
        hidden_size=15,
        num_attention_heads=3,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    return First(source.BertSelfAttention(config))


def vit():
    from transformers.models.vit import modeling_vit as source

    config = source.ViTConfig(hidden_size=15, num_attention_heads=3, attn_implementation="sdpa")
    return First(source.ViTAttention(config))


def clip():
    from transformers.models.clip import modeling_clip as source

    config = source.CLIPVisionConfig(
        hidden_size=15, num_attention_heads=3, attn_implementation="sdpa"
    )
    return source.CLIPAttention(config)


def distilbert():
    from transformers.models.distilbert import modeling_distilbert as source

    config = source.DistilBertConfig(
        dim=15, n_heads=3, attention_dropout=0.0, attn_implementation="eager"
    )
    return source.DistilBertSelfAttention(config)


def bart():
    from transformers.models.bart import modeling_bart as source

    config = source.BartConfig(d_model=15, attn_implementation="sdpa")
    return First(
        source.BartAttention(15, 3, is_causal=True, is_decoder=True, config=config, layer_idx=0)
    )


def t5():
    from transformers.models.t5 import modeling_t5 as source

    config = source.T5Config(
        d_model=11, d_kv=5, num_heads=3, dropout_rate=0.0, attn_implementation="eager"
    )
    return First(source.T5Attention(config, has_relative_attention_bias=False, layer_idx=0))


ROPE = {"base": 10000.0, "layout": "half"}

ENTRIES = [
    right(Built(SelfMultihead, 15, 3), "x", num_heads=3),
    right(Built(SelfMultiheadWithWeights, 15, 3), "x", num_heads=3),
    right(Built(CausalMultihead, 15, 3), "x", causal=True, num_heads=3),
    right(Built(BoolMaskMultihead, 15, 3), "x", causal=True, num_heads=3),
    right(Built(PaddedMultihead, 15, 3), "x,mask", num_heads=3),
    right(Built(LenFirstMultihead, 15, 3), "x", num_heads=3),
    right(
        Built(CrossMultihead, 15, 3, 7),
        "x,context",
        num_heads=3,
        sizes={"d_in": 15, "d_context": 7},
    ),
    right(Built(DroppingMultihead, 15, 3, 0.5), "x", num_heads=3, dropout=0.5),
    right(Built(Functional, 15, 3), "x", num_heads=3),
    right(
        Built(SdpaProjected, 11, 6, 2, 5),
        "x",
        causal=True,
        num_heads=6,
        num_kv_heads=2,
        sizes={"d_in": 11, "head_dim": 5},
    ),
    right(
        Built(llama),
        "x",
        causal=True,
        num_heads=6,
        num_kv_heads=2,
        rope=ROPE,
        sizes={"d_in": 24, "head_dim": 4},
    ),
    right(
        Built(qwen2),
        "x",
        causal=True,
        num_heads=6,
        num_kv_heads=3,
        rope=ROPE,
        sizes={"d_in": 24, "head_dim": 4},
    ),
    right(Built(gpt2), "x", causal=True, num_heads=3, sizes={"d_in": 15}),
    right(Built(bert), "x", num_heads=3, sizes={"d_in": 15}),
    right(Built(vit), "x", num_heads=3, sizes={"d_in": 15}),
    right(Built(clip), "x", num_heads=3, sizes={"d_in": 15}),
    right(Built(distilbert), "x", num_heads=3, sizes={"d_in": 15}),
    right(Built(bart), "x", causal=True, num_heads=3, sizes={"d_in": 15}),
    right(Built(t5), "x", num_heads=3, scale=1.0, sizes={"d_in": 11, "head_dim": 5}),
]
