# type: ignore
# Written as people write it, hence without types.
"""Rotary positions that are off, or turn the wrong pairs."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong

# rope.offset


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class LlamaStep(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim, base=10000.0):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.base = heads, kv_heads, head_dim, base
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        self.reset()

    def reset(self):
        self.k = self.v = None

    def rope(self, x):
        steps = torch.arange(0, self.head_dim, 2, dtype=x.dtype) / self.head_dim
        angles = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), self.base**-steps)
        angles = torch.cat((angles, angles), dim=-1)
        return x * angles.cos() + rotate_half(x) * angles.sin()

    def step(self, x_t):
        b, t, _ = x_t.shape
        q = self.q_proj(x_t).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x_t).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x_t).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = self.rope(q), self.rope(k)
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        n = self.k.shape[2]
        mask = torch.ones(t, n, dtype=torch.bool).tril(n - t)
        out = F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))

    def full(self, x):
        self.reset()
        out = self.step(x)
        self.reset()
        return out


class ComplexFromStart(nn.Module):
    """Keys are turned again in every step, from the first on; the query as if it were first."""

    def __init__(self, dim, n_heads, theta=10000.0):
        super().__init__()
        self.n_heads, self.theta = n_heads, theta
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.cache = []

    def reset(self):
        self.cache.clear()

    def apply_rotary_emb(self, x):
        half = x.shape[-1] // 2
        freqs = self.theta ** -(torch.arange(half, dtype=x.dtype) / half)
        angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), freqs)
        freqs_cis = torch.polar(torch.ones_like(angles), angles)[:, None, :]
        x_ = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2))
        return torch.view_as_real(x_ * freqs_cis).flatten(3)

    def step(self, x_t):
        b, t, d = x_t.shape
        xq, xk, xv = (z.view(b, t, self.n_heads, -1) for z in self.wqkv(x_t).chunk(3, dim=-1))
        self.cache.append((xk, xv))
        keys = torch.cat([k for k, _ in self.cache], dim=1)
        values = torch.cat([v for _, v in self.cache], dim=1)
        xq, keys = self.apply_rotary_emb(xq), self.apply_rotary_emb(keys)
        scores = torch.einsum("bqhd,bkhd->bhqk", xq, keys) / math.sqrt(xq.shape[-1])
        n = keys.shape[1]
        scores = scores + torch.full((t, n), -math.inf).triu(n - t + 1)
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values)
        return self.wo(out.reshape(b, t, d))

    def full(self, x):
        self.reset()
        out = self.step(x)
        self.reset()
        return out


class PositionPlusOne(nn.Module):
    """The position grows by one for each call, whatever the chunk."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.W_query = nn.Linear(d_model, d_model, bias=False)
        self.W_key = nn.Linear(d_model, d_model, bias=False)
        self.W_value = nn.Linear(d_model, d_model, bias=False)
        self.reset()

    def reset(self):
        self.cache_k = self.cache_v = None
        self.current_pos = 0

    def rotate(self, x, start):
        half = self.head_dim // 2
        inv_freq = 10000.0 ** -(torch.arange(half, dtype=x.dtype) / half)
        angles = (start + torch.arange(x.shape[2], dtype=x.dtype))[:, None] * inv_freq
        x1, x2 = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)

    def step(self, x_t):
        b, t, d = x_t.shape
        split = (b, t, self.num_heads, self.head_dim)
        queries = self.rotate(self.W_query(x_t).view(split).transpose(1, 2), self.current_pos)
        keys = self.rotate(self.W_key(x_t).view(split).transpose(1, 2), self.current_pos)
        values = self.W_value(x_t).view(split).transpose(1, 2)
        self.current_pos += 1
        if self.cache_k is not None:
            keys = torch.cat([self.cache_k, keys], dim=2)
            values = torch.cat([self.cache_v, values], dim=2)
        self.cache_k, self.cache_v = keys, values
        scores = queries @ keys.transpose(2, 3) / self.head_dim**0.5
        future = torch.ones(t, keys.shape[2]).triu(keys.shape[2] - t + 1).bool()
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return (weights @ values).transpose(1, 2).reshape(b, t, d)

    def full(self, x):
        saved = self.cache_k, self.cache_v, self.current_pos
        self.reset()
        out = self.step(x)
        self.cache_k, self.cache_v, self.current_pos = saved
        return out


# rope.layout


class InterleavedForHalf(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def rotary(self, x):
        d = x.shape[-1]
        freqs = 10000.0 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * freqs
        even, odd = x[..., 0::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)

    def forward(self, x):
        b, t, d = x.shape
        q = self.rotary(self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2))
        k = self.rotary(self.k_proj(x).view(b, t, self.heads, -1).transpose(1, 2))
        v = self.v_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, d))


def half_for_interleaved(query, key, value, base=10000.0):
    d, q_len, k_len = query.shape[-1], query.shape[-2], key.shape[-2]
    inv_freq = 1.0 / base ** (torch.arange(0, d, 2, dtype=query.dtype) / d)
    angles = torch.arange(k_len, dtype=query.dtype)[:, None] * inv_freq
    emb = torch.cat((angles, angles), dim=-1)
    cos, sin = emb.cos(), emb.sin()
    query = query * cos[k_len - q_len :] + rotate_half(query) * sin[k_len - q_len :]
    key = key * cos + rotate_half(key) * sin
    return F.scaled_dot_product_attention(query, key, value)


def complex_for_half(q, k, v):
    d, n, m = q.shape[-1], q.shape[-2], k.shape[-2]
    freqs = 10000.0 ** -(torch.arange(d // 2, dtype=q.dtype) / (d // 2))
    angles = torch.outer(torch.arange(m, dtype=q.dtype), freqs)
    turn = torch.polar(torch.ones_like(angles), angles)
    q = torch.view_as_complex(q.unflatten(-1, (-1, 2)).contiguous()) * turn[m - n :]
    k = torch.view_as_complex(k.unflatten(-1, (-1, 2)).contiguous()) * turn
    q, k = torch.view_as_real(q).flatten(-2), torch.view_as_real(k).flatten(-2)
    mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class CountsHeads(nn.Module):
    """Positions along the axis that is that of the tokens before heads are put in front of them."""

    def __init__(self, dim, num_heads, tokens_first=False):
        super().__init__()
        self.num_heads, self.tokens_first = num_heads, tokens_first
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )

    def rope(self, x):
        d = x.shape[-1]
        inv_freq = 10000.0 ** -(torch.arange(0, d, 2, dtype=x.dtype) / d)
        angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), inv_freq)
        emb = torch.cat((angles, angles), dim=-1)[None, :, None, :]
        return x * emb.cos() + rotate_half(x) * emb.sin()

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            p(x).view(b, t, self.num_heads, -1) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.tokens_first:
            q, k = self.rope(q), self.rope(k)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        if not self.tokens_first:
            q, k = self.rope(q), self.rope(k)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


# differs


def turns_the_query_back(query, key, value):
    d, q_len, k_len = query.shape[-1], query.shape[-2], key.shape[-2]
    inv_freq = 10000.0 ** -(torch.arange(0, d, 2, dtype=query.dtype) / d)
    angles = torch.outer(torch.arange(k_len, dtype=query.dtype), inv_freq)
    emb = torch.cat((angles, angles), dim=-1)
    cos, sin = emb.cos(), emb.sin()
    query = query * cos[k_len - q_len :] - rotate_half(query) * sin[k_len - q_len :]
    key = key * cos + rotate_half(key) * sin
    return F.scaled_dot_product_attention(query, key, value)


class TurnsBack(nn.Module):
    """The other half is negated."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def turned(self, x):
        d, n = x.shape[-1], x.shape[-2]
        inv_freq = 10000.0 ** -(torch.arange(0, d, 2, dtype=x.dtype) / d)
        emb = torch.outer(torch.arange(n, dtype=x.dtype), inv_freq).repeat(1, 2)
        x1, x2 = x.chunk(2, dim=-1)
        return x * emb.cos() + torch.cat((x2, -x1), dim=-1) * emb.sin()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))


class RatesOfTheWidth(nn.Module):
    """The speeds are made for all heads together, of which a head takes the first."""

    def __init__(self, dim, num_heads, width):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        inv_freq = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        self.register_buffer("inv_freq", inv_freq[: dim // num_heads // 2], persistent=False)

    def turned(self, x):
        angles = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), self.inv_freq.to(x.dtype))
        emb = torch.cat((angles, angles), dim=-1)
        return x * emb.cos() + rotate_half(x) * emb.sin()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.proj(out.transpose(1, 2).flatten(2))


HALF = {"base": 10000.0, "layout": "half"}
INTERLEAVED = {"base": 10000.0, "layout": "interleaved"}

ENTRIES = [
    wrong(
        "rope.offset",
        Built(LlamaStep, 11, 6, 2, 4),
        "decode",
        causal=True,
        rope=HALF,
        num_heads=6,
        num_kv_heads=2,
        sizes={"d_in": 11, "head_dim": 4},
    ),
    wrong(
        "rope.offset",
        Built(ComplexFromStart, 12, 3),
        "decode",
        causal=True,
        rope=INTERLEAVED,
        num_heads=3,
    ),
    wrong(
        "rope.offset",
        Built(PositionPlusOne, 12, 3),
        "decode",
        causal=True,
        rope=HALF,
        num_heads=3,
    ),
    right(Built(CountsHeads, 12, 3, True), "x", causal=True, rope=HALF, num_heads=3),
    wrong(
        "rope.layout", Built(InterleavedForHalf, 12, 3), "x", causal=True, rope=HALF, num_heads=3
    ),
    right(Built(RatesOfTheWidth, 24, 3, 8), "x", causal=True, rope=HALF, num_heads=3),
    wrong("rope.layout", half_for_interleaved, "qkv", rope=INTERLEAVED),
    wrong("rope.layout", complex_for_half, "qkv", causal=True, rope=HALF),
]
