# type: ignore
# Written as people write it, hence without types.
"""Correct code in styles of its own."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right


def folded_heads(query, key, value):
    b, h, n, d = query.shape
    q, k, v = (t.reshape(b * h, t.shape[2], -1) for t in (query, key, value))
    probs = nn.Softmax(dim=2)(torch.bmm(q, k.transpose(1, 2)) / np.sqrt(d))
    return torch.bmm(probs, v).view(b, h, n, -1)


def renormalised_over_sum(query, key, value, mask):
    weights = (query @ key.mT / math.sqrt(query.size(-1))).softmax(-1) * mask
    return (weights @ value) / weights.sum(dim=-1, keepdim=True)


def mask_by_lower_than_smallest(query, key, value):
    n, m = query.shape[-2], key.shape[-2]
    scores = query @ key.mT * query.shape[-1] ** -0.5
    lowest = scores.detach().amin() - 1e4
    seen = torch.arange(m) <= torch.arange(m - n, m)[:, None]
    return torch.where(seen, scores, lowest).softmax(dim=-1) @ value


def prefix_sums(query, key, value):
    """Every row's normaliser is read from a running sum over the keys."""
    n, m = query.shape[-2], key.shape[-2]
    scores = query @ key.mT / query.shape[-1] ** 0.5
    lse = scores.logcumsumexp(dim=-1).diagonal(offset=m - n, dim1=-2, dim2=-1)
    hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    return (scores - lse[..., None]).masked_fill(hidden, -math.inf).exp() @ value


def log_space(query, key, value, mask):
    scores = (query @ key.mT).div(math.sqrt(query.shape[-1])).masked_fill(~mask, -math.inf)
    return F.log_softmax(scores, dim=-1).exp() @ value


def two_halves_merged(query, key, value):
    half = (key.shape[-2] + 1) // 2
    outs, sums = [], []
    for part in (slice(0, half), slice(half, None)):
        scores = query @ key[..., part, :].mT * query.shape[-1] ** -0.5
        sums.append(scores.logsumexp(dim=-1, keepdim=True))
        outs.append(scores.softmax(dim=-1) @ value[..., part, :])
    if key.shape[-2] == 1:
        return outs[0]
    share = torch.sigmoid(sums[0] - sums[1])
    return share * outs[0] + (1 - share) * outs[1]


def one_wide_matrix(query, key, value):
    """All heads in one block-diagonal product."""
    wide = torch.einsum("bhqd,bgkd->bhqgk", query, key) * query.shape[-1] ** -0.5
    wide = torch.diagonal(wide, dim1=1, dim2=3).permute(0, 3, 1, 2)
    return torch.einsum("bhqk,bhkd->bhqd", wide.softmax(dim=-1), value)


def extended_queries(query, key, value):
    """Grouped heads as more queries of the same key head."""
    b, h, n, d = query.shape
    kv = key.shape[1]
    stacked = query.reshape(b, kv, h // kv * n, d)
    out = F.scaled_dot_product_attention(stacked, key, value)
    return out.reshape(b, h, n, -1)


def causal_by_padding_the_front(query, key, value):
    """Queries are padded to a square, so that the plain causal flag is right."""
    missing = key.shape[-2] - query.shape[-2]
    query = F.pad(query, (0, 0, missing, 0))
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return out[..., missing:, :]


def weights_first(query, key, value):
    scores = torch.tensordot(query, key, dims=([-1], [-1])) / query.shape[-1] ** 0.5
    b, h = torch.arange(query.shape[0])[:, None], torch.arange(query.shape[1])[None]
    weights = scores[b, h, :, b, h].softmax(dim=-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, value), weights


class Annotated(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h, self.attn = d_model // h, h, None
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask):
        nbatches = x.size(0)
        query, key, value = (
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for lin in self.linears[:3]
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        self.attn = scores.softmax(dim=-1)
        x = torch.matmul(self.attn, value).transpose(1, 2).contiguous()
        return self.linears[-1](x.view(nbatches, -1, self.h * self.d_k))


class Whisper(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x):
        n_batch, n_ctx, n_state = x.shape
        scale = (n_state // self.n_head) ** -0.25
        q = self.query(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = self.key(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = self.value(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k + torch.empty(n_ctx, n_ctx).fill_(-np.inf).triu_(1)
        w = F.softmax(qk.float(), dim=-1).to(q.dtype)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


class Fairseq(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, context):
        tgt, src = x.transpose(0, 1), context.transpose(0, 1)
        tgt_len, bsz, embed_dim = tgt.size()
        q = self.q_proj(tgt) * self.head_dim**-0.5
        q = q.reshape(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = self.k_proj(src).reshape(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(src).reshape(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        attn = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1), v)
        attn = attn.transpose(0, 1).reshape(tgt_len, bsz, embed_dim)
        return self.out_proj(attn).transpose(0, 1)


class ParameterDictionary(nn.Module):
    def __init__(self, features, size, heads):
        super().__init__()
        self.heads = heads
        self.projections = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(features, size)) for name in ("q", "k", "v")}
        )

    def forward(self, x):
        q, k, v = (
            (x @ self.projections[name]).unflatten(-1, (self.heads, -1)).movedim(-2, 1)
            for name in ("q", "k", "v")
        )
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).movedim(1, -2).flatten(-2)


class FoldedScaleAtLoad(nn.Module):
    """The weights arrive with the scale in them, and the scores are left alone."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        with torch.no_grad():
            self.in_proj.weight[:d_model] *= (d_model // n_heads) ** -0.5

    def forward(self, x):
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class LinearBias(nn.Module):
    def __init__(self, slopes):
        super().__init__()
        self.register_buffer("slopes", slopes.clone(), persistent=False)

    def forward(self, query, key, value):
        n, m = query.shape[-2], key.shape[-2]
        # A bias of slope · j alone: a constant of each row falls out of the softmax.
        bias = self.slopes[:, None, None] * torch.arange(m)
        bias = bias.expand(-1, n, m).masked_fill(torch.ones(n, m).triu(m - n + 1) > 0, -math.inf)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))


class CapByHand(nn.Module):
    def __init__(self, hidden, heads, cap):
        super().__init__()
        self.heads, self.cap = heads, cap
        self.Wqkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.dense = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x):
        q, k, v = self.Wqkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        z = q @ k.mT * q.shape[-1] ** -0.5
        z = self.cap * (2 * torch.sigmoid(2 * z / self.cap) - 1)
        z = z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -math.inf)
        return self.dense((z.softmax(-1) @ v).transpose(1, 2).flatten(2))


class ChunkedWindow(nn.Module):
    """Blocks as long as the window look at themselves and at the block before."""

    def __init__(self, d_model, d_head, window):
        super().__init__()
        self.window = window
        self.to_qkv = nn.Linear(d_model, 3 * d_head, bias=False)

    def forward(self, x):
        n, w = x.shape[1], self.window
        q, k, v = F.pad(self.to_qkv(x), (0, 0, 0, -n % w)).unflatten(1, (-1, w)).chunk(3, dim=-1)
        k, v = (torch.cat([F.pad(t, (0, 0, 0, 0, 1, -1)), t], dim=2) for t in (k, v))
        gap = torch.arange(w)[:, None] + w - torch.arange(2 * w)[None]
        seen = ((gap >= 0) & (gap <= w)).repeat(q.shape[1], 1, 1)
        seen[0, :, :w] = False
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)
        return (scores.softmax(-1) @ v).flatten(1, 2)[:, :n]


class DequeDecoder(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_query = nn.Linear(d_in, d_out)
        self.W_key = nn.Linear(d_in, d_out)
        self.W_value = nn.Linear(d_in, d_out)
        self.W_o = nn.Linear(d_out, d_in)
        self.tokens = []

    def reset(self):
        self.tokens = []

    def full(self, x):
        q, k, v = (
            w(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for w in (self.W_query, self.W_key, self.W_value)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.W_o(out.transpose(1, 2).flatten(2))

    def step(self, x_t):
        # Nothing but the tokens is kept; slow, and right.
        self.tokens.append(x_t)
        return self.full(torch.cat(self.tokens, dim=1))[:, -x_t.shape[1] :]


class InverseDropout(nn.Module):
    def __init__(self, dim, heads, p):
        super().__init__()
        self.heads, self.p = heads, p
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        p = self.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return self.to_out(out.transpose(1, 2).flatten(2))


def rows_without_keys(query, key, value, mask):
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~mask, -1e30)
    e = torch.exp(scores - scores.amax(dim=-1, keepdim=True)) * mask
    return e @ value / e.sum(dim=-1, keepdim=True).clamp(min=1e-30)


class SinkAsAKey(nn.Module):
    """The sink is a key of its own, with the value zero."""

    def __init__(self, sinks):
        super().__init__()
        self.register_buffer("sinks", sinks.clone(), persistent=False)

    def forward(self, query, key, value):
        b, h, n, d = query.shape
        m = key.shape[2]
        bias = torch.zeros(h, n, m + 1, dtype=query.dtype)
        bias[:, :, 0] = self.sinks.to(query.dtype)[:, None]
        bias[:, :, 1:] = bias[:, :, 1:].masked_fill(torch.ones(n, m).triu(m - n + 1) > 0, -math.inf)
        key, value = F.pad(key, (0, 0, 1, 0)), F.pad(value, (0, 0, 1, 0))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])


class Compact(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        scores = (q @ k.T / math.sqrt(k.shape[-1])).masked_fill(future, -math.inf)
        return scores.softmax(dim=-1) @ v


def mistral():
    from transformers.models.mistral import modeling_mistral as source

    config = source.MistralConfig(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        sliding_window=None,
        attn_implementation="sdpa",
    )
    return Rotated(source.MistralAttention(config, 0), source.MistralRotaryEmbedding(config))


class Rotated(nn.Module):
    def __init__(self, attention, rotary):
        super().__init__()
        self.attention, self.rotary = attention, rotary

    def forward(self, x):
        cos, sin = self.rotary(x, torch.arange(x.shape[1])[None])
        turns = (cos.to(x.dtype), sin.to(x.dtype))
        return self.attention(x, position_embeddings=turns, attention_mask=None)[0]


def roberta():
    from transformers.models.roberta import modeling_roberta as source

    config = source.RobertaConfig(
        hidden_size=21,
        num_attention_heads=3,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return source.RobertaSelfAttention(config)


def whisper():
    from transformers.models.whisper import modeling_whisper as source

    config = source.WhisperConfig(d_model=21, attn_implementation="sdpa")
    return source.WhisperAttention(21, 3, config=config, layer_idx=0)


class EncoderLayersOwn(nn.Module):
    """The attention inside PyTorch's own encoder layer."""

    def __init__(self, d_model, nhead):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d_model, nhead, dropout=0.0, batch_first=True)
        self.attention = layer.self_attn

    def forward(self, x, mask):
        bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, -math.inf)
        return self.attention(x, x, x, key_padding_mask=bias)[0]


SLOPES = torch.tensor([0.7, 0.4, 0.1])
SINKS = torch.tensor([-0.5, 1.5, 0.0])
HALF = {"base": 10000.0, "layout": "half"}

ENTRIES = [
    right(folded_heads, "qkv"),
    right(renormalised_over_sum, "qkv,mask"),
    right(mask_by_lower_than_smallest, "qkv", causal=True),
    right(prefix_sums, "qkv", causal=True),
    right(log_space, "qkv,mask"),
    right(two_halves_merged, "qkv"),
    right(one_wide_matrix, "qkv"),
    right(extended_queries, "qkv", num_heads=10, num_kv_heads=5),
    right(causal_by_padding_the_front, "qkv", causal=True),
    right(weights_first, "qkv"),
    right(Built(Annotated, 3, 21), "x,mask", num_heads=3),
    right(Built(Whisper, 21, 3), "x", causal=True, num_heads=3),
    right(Built(Fairseq, 21, 3), "x,context", num_heads=3, sizes={"d_in": 21, "d_context": 21}),
    right(
        Built(ParameterDictionary, 11, 21, 3),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 11, "d_out": 21},
    ),
    right(Built(FoldedScaleAtLoad, 21, 3), "x", num_heads=3, scale=1.0),
    right(Built(LinearBias, SLOPES), "qkv", causal=True, num_heads=3, alibi_slopes=SLOPES),
    right(Built(CapByHand, 21, 3, 2.5), "x", causal=True, softcap=2.5, num_heads=3),
    right(Built(ChunkedWindow, 11, 7, 3), "x", causal=True, window=(3, 0), num_heads=1),
    right(
        Built(DequeDecoder, 11, 21, 3),
        "decode",
        causal=True,
        num_heads=3,
        sizes={"d_in": 11, "d_out": 11, "head_dim": 7},
    ),
    right(Built(InverseDropout, 21, 3, 0.5), "x", num_heads=3, dropout=0.5),
    right(
        Built(mistral),
        "x",
        causal=True,
        rope=HALF,
        num_heads=6,
        num_kv_heads=2,
        sizes={"d_in": 24, "head_dim": 4},
    ),
    right(Built(roberta), "x", num_heads=3, sizes={"d_in": 21}),
    right(Built(whisper), "x", num_heads=3, sizes={"d_in": 21}),
    right(rows_without_keys, "qkv,mask", empty_row="zero"),
    right(Built(SinkAsAKey, SINKS), "qkv", causal=True, num_heads=3, sinks=SINKS),
    right(Compact, "x2d", causal=True, num_heads=1, sizes={"d_in": 5, "d_out": 3}),
    right(Built(EncoderLayersOwn, 21, 3), "x,mask", num_heads=3),
]
