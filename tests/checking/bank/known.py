# type: ignore
# Written as people write it, hence without types.
"""Attention in the manner of repositories that everybody copies from, right and with one mistake."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd=15, n_head=3, block_size=32):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        mask = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("bias", mask.view(1, 1, block_size, block_size))
        self.n_head = n_head
        self.n_embd = n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = self.masked(att, T)
        y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)

    def masked(self, att, T):
        return att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))


class HidesThePast(CausalSelfAttention):
    def masked(self, att, T):
        return att.masked_fill(self.bias[:, :, :T, :T] == 1, float("-inf"))


class MinGPTBlock(nn.Module):
    """The feed-forward part is a lambda, which holds on to the layers."""

    def __init__(self, attn, n_embd=15):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = attn()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(n_embd, 4 * n_embd),
                "c_proj": nn.Linear(4 * n_embd, n_embd),
                "act": nn.GELU(),
                "dropout": nn.Dropout(0.1),
            }
        )
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(m.act(m.c_fc(x))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlpf(self.ln_2(x))


class FairseqAttention(nn.Module):
    """(len, batch, dim), with heads and samples in one axis; the query is scaled in place."""

    def __init__(self, embed_dim=15, num_heads=3):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )

    def forward(self, query, key, value, attn_mask=None):
        tgt_len, bsz, embed_dim = query.size()
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q = self.scaled(q)
        q, k, v = (
            each.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
            for each in (q, k, v)
        )
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            attn_weights += attn_mask.unsqueeze(0)
        attn = torch.bmm(self.normalised(attn_weights), v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn), attn_weights

    def scaled(self, q):
        q *= self.scaling
        return q

    def normalised(self, attn_weights):
        return F.softmax(attn_weights, dim=-1)


class FairseqUnscaled(FairseqAttention):
    def scaled(self, q):
        return q


class FairseqOverRows(FairseqAttention):
    def normalised(self, attn_weights):
        return F.softmax(attn_weights, dim=0)


class FairseqLayer(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attn = attention()

    def forward(self, x):
        x = x.transpose(0, 1)
        future = torch.full((len(x), len(x)), float("-inf"), dtype=x.dtype).triu(1)
        return self.attn(x, x, x, attn_mask=future)[0].transpose(0, 1)


class LlamaReference(nn.Module):
    """Rotary positions by complex numbers, and a cache that is a plain attribute."""

    def __init__(self, dim=24, n_heads=6, n_kv_heads=2, max_seq_len=32):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        self.cache_k = torch.zeros(8, max_seq_len, n_kv_heads, self.head_dim)
        self.cache_v = torch.zeros(8, max_seq_len, n_kv_heads, self.head_dim)
        freqs = 10000.0 ** -(torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        angles = torch.outer(torch.arange(max_seq_len).double(), freqs)
        self.freqs_cis = torch.polar(torch.ones_like(angles), angles)

    def rotated(self, x):
        x_ = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
        freqs_cis = self.freqs_cis[: x.shape[1], None]
        return torch.view_as_real(x_ * freqs_cis).flatten(3).type_as(x)

    def repeated(self, x):
        return x.repeat_interleave(self.n_heads // self.n_kv_heads, dim=2)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xq, xk = self.rotated(xq), self.rotated(xk)
        self.cache_k = self.cache_k.to(xq)
        self.cache_v = self.cache_v.to(xq)
        self.cache_k[:bsz, :seqlen] = xk
        self.cache_v[:bsz, :seqlen] = xv
        keys = self.repeated(self.cache_k[:bsz, :seqlen]).transpose(1, 2)
        values = self.repeated(self.cache_v[:bsz, :seqlen]).transpose(1, 2)
        scores = xq.transpose(1, 2) @ keys.transpose(2, 3) / math.sqrt(self.head_dim)
        mask = torch.full((seqlen, seqlen), float("-inf")).triu(1).type_as(x)
        output = F.softmax(scores + mask, dim=-1) @ values
        return self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))


class LlamaTiled(LlamaReference):
    def repeated(self, x):
        return x.repeat(1, 1, self.n_heads // self.n_kv_heads, 1)


class MixedRotation(LlamaReference):
    """The angles lie as for halves, the pairs are neighbours."""

    def rotated(self, x):
        angles = self.freqs_cis[: x.shape[1], None].angle().repeat(1, 1, 2)
        other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return (x * angles.cos() + other * angles.sin()).type_as(x)


class Bloom(nn.Module):
    """Query, key and value of a head lie side by side; slope · key position is added by baddbmm."""

    def __init__(self, hidden_size=24, n_head=6, beta=1.0):
        super().__init__()
        self.num_heads, self.head_dim, self.beta = n_head, hidden_size // n_head, beta
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.register_buffer("alibi", SLOPES)

    def forward(self, x):
        b, t, _ = x.shape
        fused = self.query_key_value(x).view(b, t, self.num_heads, 3, self.head_dim)
        q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in fused.unbind(-2))
        alibi = (self.alibi[:, None, None] * torch.arange(t)).to(x.dtype).repeat(b, 1, 1)
        scores = alibi.baddbmm(q, k.mT, beta=self.beta, alpha=1 / math.sqrt(self.head_dim))
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        probs = F.softmax(scores.masked_fill(future, torch.finfo(scores.dtype).min), dim=-1)
        context = (probs @ v).view(b, self.num_heads, t, self.head_dim)
        return self.dense(context.permute(0, 2, 1, 3).reshape(b, t, -1))


SLOPES = torch.tensor([2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0])


class WhisperAttention(nn.Module):
    """The scores come with the output, for whoever aligns words by them."""

    def __init__(self, n_state=15, n_head=3):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x, xa=None, mask=None):
        q = self.query(x)
        k = self.key(x if xa is None else xa)
        v = self.value(x if xa is None else xa)
        scale = (q.shape[-1] // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask
        w = F.softmax(qk, dim=-1)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2)), qk.detach()


class PerceiverResampler(nn.Module):
    """Latents attend to what is given, and to themselves."""

    def __init__(self, dim=15, heads=3):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, latents, x):
        q = self.to_q(latents)
        k, v = self.to_kv(torch.cat((x, latents), dim=-2)).chunk(2, dim=-1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        sim = (q * q.shape[-1] ** -0.5) @ k.mT
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        return self.to_out((sim.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def batched_matmul(q, k, v):
    """(batch, len, dim), as it is before there are heads."""
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    return torch.bmm(F.softmax(scores, dim=-1), v)


def batched_matmul_unscaled(q, k, v):
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)


PAIRS = {"base": 10000.0, "layout": "interleaved"}
LLAMA = {
    "causal": True,
    "num_heads": 6,
    "num_kv_heads": 2,
    "rope": PAIRS,
    "sizes": {"d_in": 24, "head_dim": 4},
}
BLOOM = {"causal": True, "num_heads": 6, "alibi_slopes": SLOPES}
RESIDUAL = "a norm and a residual are around it"
TOKENS_FIRST = "it takes tokens first inside"
FUSED = "the definition does not know how its projections lie"

ENTRIES = [
    right(Built(CausalSelfAttention), "x", causal=True, num_heads=3),
    wrong("mask.inverted", Built(HidesThePast), "x", causal=True, num_heads=3),
    right(Built(MinGPTBlock, CausalSelfAttention), "x", causal=True, unproved=RESIDUAL),
    wrong(
        "mask.inverted",
        Built(MinGPTBlock, HidesThePast),
        "x",
        label="hides the past",
        causal=True,
        unproved=RESIDUAL,
    ),
    right(
        Built(FairseqLayer, FairseqAttention), "x", causal=True, num_heads=3, unproved=TOKENS_FIRST
    ),
    wrong(
        "scale.missing",
        Built(FairseqLayer, FairseqUnscaled),
        "x",
        label="not scaled",
        causal=True,
        num_heads=3,
        unproved=TOKENS_FIRST,
    ),
    wrong(
        "softmax.axis",
        Built(FairseqLayer, FairseqOverRows),
        "x",
        ["batch.mixed"],
        label="over the rows",
        causal=True,
        num_heads=3,
        unproved=TOKENS_FIRST,
    ),
    right(Built(LlamaReference), "x", **LLAMA),
    wrong("heads.gqa-tiled", Built(LlamaTiled), "x", **LLAMA),
    wrong("rope.layout", Built(MixedRotation), "x", unproved="it is neither layout", **LLAMA),
    right(Built(Bloom), "x", unproved=FUSED, **BLOOM),
    wrong(
        "bias.scaled",
        Built(Bloom, beta=4**-0.5),
        "x",
        label="scaled",
        unproved=FUSED,
        **BLOOM,
    ),
    right(Built(WhisperAttention), "x", num_heads=3),
    right(
        Built(PerceiverResampler),
        "x,context",
        num_heads=3,
        unproved="it reads x beside the context",
    ),
    right(batched_matmul, "qkv", unproved="it takes no heads"),
    wrong("scale.missing", batched_matmul_unscaled, "qkv", unproved="it takes no heads"),
]
