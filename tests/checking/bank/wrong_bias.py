# type: ignore
# Written as people write it, hence without types.
"""Biases and caps in the wrong place."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong

SLOPES = torch.tensor([0.5, 0.25, 0.125])


def distance_bias(query_len, kv_len):
    """Three heads, each with its own price for a token of distance, on either side."""
    i = torch.arange(kv_len - query_len, kv_len)[:, None]
    j = torch.arange(kv_len)[None, :]
    return -0.3 * torch.arange(1, 4)[:, None, None] * (i - j).abs().sqrt()


# bias.scaled


def alibi_then_scale(query, key, value):
    q_len, k_len = query.shape[-2], key.shape[-2]
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=query.dtype)
    i = torch.arange(k_len - q_len, k_len)[:, None]
    j = torch.arange(k_len)[None, :]
    scores = query @ key.transpose(-2, -1) + slopes[:, None, None] * (j - i)
    scores = scores / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(j > i, float("-inf"))
    return torch.softmax(scores, dim=-1) @ value


class RelativeBiasInside(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = distance_bias(N, N).to(x.dtype)
        attn = (q @ k.transpose(-2, -1) + bias) * self.scale
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


def bias_in_einsum(q, k, v):
    sim = torch.einsum("bhid,bhjd->bhij", q, k)
    sim = sim.add(distance_bias(q.shape[2], k.shape[2]).to(q.dtype)).mul(q.shape[-1] ** -0.5)
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(-1), v)


# bias.after-softmax


def weights_plus_bias(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    bias = distance_bias(query.size(-2), key.size(-2)).to(query.dtype)
    weights = F.softmax(scores, dim=-1) + bias
    return weights @ value


class AlibiAfterSoftmax(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.register_buffer("slopes", SLOPES.clone(), persistent=False)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q = self.query(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        k = self.key(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        v = self.value(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        steps = torch.arange(t)
        distance = (steps[:, None] - steps[None, :]).clamp(min=0)
        scores = q @ k.transpose(2, 3) / math.sqrt(d // self.num_heads)
        scores = scores.masked_fill(steps[None, :] > steps[:, None], float("-inf"))
        weights = scores.softmax(dim=-1) - self.slopes[:, None, None] * distance
        return (weights @ v).transpose(1, 2).reshape(b, t, d)


def bias_mixed_into_weights(q, k, v):
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    attn = sim.softmax(dim=-1).add(distance_bias(q.shape[2], k.shape[2]).to(q.dtype))
    return torch.einsum("bhij,bhjd->bhid", attn, v)


# softcap.order


def cap_after_mask(query, key, value, softcap=3.0):
    q_len, k_len = query.shape[-2], key.shape[-2]
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    future = torch.ones(q_len, k_len, dtype=torch.bool).triu(k_len - q_len + 1)
    scores = scores.masked_fill(future, float("-inf"))
    scores = softcap * torch.tanh(scores / softcap)
    return scores.softmax(dim=-1) @ value


class GemmaLike(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim, cap):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.cap = heads, kv_heads, head_dim, cap
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        k, v = (z.repeat_interleave(self.heads // self.kv_heads, dim=1) for z in (k, v))
        attn = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        attn = attn + torch.full((t, t), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        attn = torch.tanh(attn / self.cap) * self.cap
        out = torch.softmax(attn, dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


def cap_hides_mask(q, k, v, mask):
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    logits = torch.where(mask, logits, -1e9)
    logits = 2.0 * torch.tanh(logits / 2.0)
    return torch.einsum("bhqk,bhkd->bhqd", F.softmax(logits, dim=-1), v)


# differs

SINKS = torch.tensor([0.5, -1.0, 1.5])


def scores_beside_sinks(query, key):
    q_len, k_len = query.shape[-2], key.shape[-2]
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    future = torch.ones(q_len, k_len, dtype=torch.bool).triu(k_len - q_len + 1)
    sinks = SINKS.to(query.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return scores.masked_fill(future, float("-inf")), sinks


def sink_behind_first_dropped(query, key, value):
    probs = torch.cat(scores_beside_sinks(query, key), dim=-1).softmax(dim=-1)
    return probs[..., 1:] @ value


def sink_before_first_dropped(query, key, value):
    probs = torch.cat(scores_beside_sinks(query, key)[::-1], dim=-1).softmax(dim=-1)
    return probs[..., 1:] @ value


ENTRIES = [
    wrong("bias.scaled", alibi_then_scale, "qkv", causal=True, num_heads=3, alibi_slopes=SLOPES),
    wrong("bias.scaled", Built(RelativeBiasInside, 15, 3), "x", num_heads=3, bias=distance_bias),
    wrong("bias.scaled", bias_in_einsum, "qkv", num_heads=3, bias=distance_bias),
    wrong("bias.after-softmax", weights_plus_bias, "qkv", num_heads=3, bias=distance_bias),
    wrong(
        "bias.after-softmax",
        Built(AlibiAfterSoftmax, 15, 3),
        "x",
        causal=True,
        num_heads=3,
        alibi_slopes=SLOPES,
    ),
    wrong("bias.after-softmax", bias_mixed_into_weights, "qkv", num_heads=3, bias=distance_bias),
    wrong("softcap.order", cap_after_mask, "qkv", causal=True, softcap=3.0),
    wrong(
        "softcap.order",
        Built(GemmaLike, 11, 6, 2, 5, 2.0),
        "x",
        causal=True,
        softcap=2.0,
        num_heads=6,
        num_kv_heads=2,
        sizes={"d_in": 11, "head_dim": 5},
    ),
    wrong("softcap.order", cap_hides_mask, "qkv,mask", softcap=2.0),
    right(sink_before_first_dropped, "qkv", causal=True, num_heads=3, sinks=SINKS),
]
