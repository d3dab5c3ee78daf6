# type: ignore
# Written as people write it, hence without types.
"""Scores that are not multiplied by 1 over the root of the width of a head."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, wrong

# scale.missing


def no_scale(query, key, value):
    attn_scores = query @ key.transpose(-2, -1)
    attn_weights = torch.softmax(attn_scores, dim=-1)
    return attn_weights @ value


def sdpa_scale_one(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


class UnscaledTutorial(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1]), diagonal=1)
        attn_scores = attn_scores.masked_fill(mask.bool(), -torch.inf)
        return torch.softmax(attn_scores, dim=-1) @ values


class ScaleComputedUnused(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


# scale.wrong


class RootOfModelWidth(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size, self.heads = embed_size, heads
        self.values = nn.Linear(embed_size, embed_size, bias=False)
        self.keys = nn.Linear(embed_size, embed_size, bias=False)
        self.queries = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        N, L, _ = x.shape
        values = self.values(x).reshape(N, L, self.heads, -1)
        keys = self.keys(x).reshape(N, L, self.heads, -1)
        queries = self.queries(x).reshape(N, L, self.heads, -1)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values])
        return self.fc_out(out.reshape(N, L, self.embed_size))


def root_of_heads(query, key, value):
    scale = 1.0 / math.sqrt(query.size(1))
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    return torch.matmul(torch.softmax(scores, dim=-1), value)


def width_without_root(q, k, v):
    sim = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1]
    i, j = sim.shape[-2:]
    causal_mask = torch.ones((i, j), device=q.device, dtype=torch.bool).triu(j - i + 1)
    sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)


def root_of_length(query, key, value):
    scores = query @ key.transpose(-2, -1)
    weights = F.softmax(scores / scores.shape[-1] ** 0.5, dim=-1)
    return weights @ value


def scaled_before_sdpa(query, key, value):
    query = query / math.sqrt(query.shape[-1])
    return F.scaled_dot_product_attention(query, key, value)


class RootOfInputWidth(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.scale = dim**-0.5
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        out = torch.matmul(dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class T5Divided(nn.Module):
    """T5 has no scale: it is in the initial weights."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, hidden_states):
        b, t, _ = hidden_states.shape
        q, k, v = (
            layer(hidden_states).view(b, t, self.num_heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        scores = torch.matmul(q, k.transpose(3, 2)) / math.sqrt(q.shape[-1])
        weights = F.softmax(scores, dim=-1)
        return self.o(torch.matmul(weights, v).transpose(1, 2).reshape(b, t, -1))


def sdpa_without_the_chosen_scale(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def unscaled_beside_a_chosen_scale(q, k, v):
    return torch.softmax(q @ k.mT, dim=-1) @ v


# scale.wrong


def times_root(query, key, value):
    scores = query @ key.transpose(-2, -1) * math.sqrt(query.size(-1))
    return F.softmax(scores, dim=-1) @ value


class DividedByScale(nn.Module):
    def __init__(self, channels, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.dp_scale = (channels // num_heads) ** -0.5
        self.q_proj = nn.Linear(channels, channels)
        self.k_proj = nn.Linear(channels, channels)
        self.v_proj = nn.Linear(channels, channels)
        self.o_proj = nn.Linear(channels, channels)

    def forward(self, x):
        b, n, c = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        attn = (q / self.dp_scale) @ k.mT
        return self.o_proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c))


def sdpa_scale_is_root(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=q.size(-1) ** 0.5)


ENTRIES = [
    wrong("scale.missing", no_scale, "qkv"),
    wrong("scale.missing", sdpa_scale_one, "qkv,mask"),
    wrong(
        "scale.missing",
        Built(UnscaledTutorial, 7, 5),
        "x",
        causal=True,
        num_heads=1,
        sizes={"d_in": 7, "d_out": 5},
    ),
    wrong("scale.missing", Built(ScaleComputedUnused, 15, 3), "x", num_heads=3),
    wrong("scale.wrong", Built(RootOfModelWidth, 15, 3), "x", num_heads=3),
    wrong("scale.wrong", root_of_heads, "qkv"),
    wrong("scale.wrong", width_without_root, "qkv", causal=True),
    wrong("scale.wrong", root_of_length, "qkv"),
    wrong("scale.wrong", scaled_before_sdpa, "qkv"),
    wrong(
        "scale.wrong",
        Built(RootOfInputWidth, 11, 3, 5),
        "x",
        num_heads=3,
        sizes={"d_in": 11, "head_dim": 5},
    ),
    wrong("scale.wrong", Built(T5Divided, 15, 3), "x", num_heads=3, scale=1.0),
    wrong("scale.wrong", sdpa_without_the_chosen_scale, "qkv", scale=0.125),
    wrong("scale.missing", unscaled_beside_a_chosen_scale, "qkv", scale=0.125),
    wrong("scale.wrong", times_root, "qkv"),
    wrong("scale.wrong", Built(DividedByScale, 15, 3), "x", num_heads=3),
    wrong("scale.wrong", sdpa_scale_is_root, "qkv"),
]
