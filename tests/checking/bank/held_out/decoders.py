# type: ignore
# Written as people write it, hence without types.
"""Cached decoders and rotary positions, wrong."""

import math
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, wrong

# cache.offset


class BoolMaskFromChunk(nn.Module):
    """The keys of the past are hidden from a chunk as if they stood behind it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.Wqkv = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.memory = []

    def reset(self):
        self.memory = []

    def forward(self, x, memory):
        b, t, d = x.shape
        q, k, v = self.Wqkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        memory.append(torch.stack((k, v)))
        k, v = torch.cat(memory, dim=3)
        mask = torch.arange(k.shape[2])[None] <= torch.arange(t)[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).reshape(b, t, d))

    def step(self, x_t):
        return self.forward(x_t, self.memory)

    def full(self, x):
        return self.forward(x, [])


# cache.unmasked


class CausalOnlyForTheFirst(nn.Module):
    """A later chunk is taken for a single token, and sees its own future."""

    def __init__(self, d_model, d_head):
        super().__init__()
        self.query = nn.Linear(d_model, d_head)
        self.key = nn.Linear(d_model, d_head)
        self.value = nn.Linear(d_model, d_head)
        self.reset()

    def reset(self):
        self.state = None

    def step(self, x_t):
        q, k, v = self.query(x_t), self.key(x_t), self.value(x_t)
        scores_mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
        if self.state is not None:
            k, v = (torch.cat(pair, dim=1) for pair in zip(self.state, (k, v)))
            scores_mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
        self.state = (k, v)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~scores_mask, -math.inf)
        return scores.softmax(-1) @ v

    def full(self, x):
        kept, self.state = self.state, None
        out = self.step(x)
        self.state = kept
        return out


class SinglesByTheMask(nn.Module):
    """The mask of a chunk is cut out of that of the whole, at the rows of its last token."""

    def __init__(self, hidden, heads, max_len):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)
        seen = torch.ones(max_len, max_len, dtype=torch.bool).tril()
        self.register_buffer("seen", seen, persistent=False)
        self.past = []

    def reset(self):
        self.past = []

    def heads_of(self, x):
        return self.c_attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def attend(self, q, k, v, seen):
        weights = torch.where(seen, q @ k.mT * q.shape[-1] ** -0.5, -math.inf).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2))

    def step(self, x_t):
        q, k, v = self.heads_of(x_t)
        self.past.append((k, v))
        k, v = (torch.cat(pair, dim=2) for pair in zip(*self.past))
        last = k.shape[2] - 1
        return self.attend(q, k, v, self.seen[last, : last + 1])

    def full(self, x):
        return self.attend(*self.heads_of(x), self.seen[: x.shape[1], : x.shape[1]])


# cache.window


class DequeOfTokens(nn.Module):
    """A deque with a maximal length loses the first keys of a prefill before they are read."""

    def __init__(self, d_in, d_out, num_heads, window):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.W_query = nn.Linear(d_in, d_out)
        self.W_key = nn.Linear(d_in, d_out)
        self.W_value = nn.Linear(d_in, d_out)
        self.W_o = nn.Linear(d_out, d_in)
        self.reset()

    def reset(self):
        self.past = deque(maxlen=self.window + 1)
        self.count = 0

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q, k, v, i, j):
        gap = i[:, None] - j[None]
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill((gap < 0) | (gap > self.window), -1e9)
        return self.W_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def step(self, x_t):
        places = range(self.count, self.count + x_t.shape[1])
        for place, token in zip(places, x_t.unbind(1), strict=True):
            self.past.append((place, self.W_key(token), self.W_value(token)))
        self.count = places.stop
        k = self.heads(torch.stack([key for _, key, _ in self.past], dim=1))
        v = self.heads(torch.stack([value for _, _, value in self.past], dim=1))
        j = torch.tensor([place for place, _, _ in self.past])
        return self.attend(self.heads(self.W_query(x_t)), k, v, torch.tensor(places), j)

    def full(self, x):
        q, k, v = (self.heads(w(x)) for w in (self.W_query, self.W_key, self.W_value))
        i = torch.arange(x.shape[1])
        return self.attend(q, k, v, i, i)


# cache.stale


class SharedDefault(nn.Module):
    """The reset makes a new dictionary, while the layer still holds the old one."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(hidden, 3 * hidden)
        self.c_proj = nn.Linear(hidden, hidden)
        self.store = {}
        self.layer_cache = self.store

    def reset(self):
        self.store = {}

    def attend(self, q, k, v):
        n, m = q.shape[2], k.shape[2]
        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(out.transpose(1, 2).flatten(2))

    def qkv(self, x):
        return self.c_attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def step(self, x_t):
        q, k, v = self.qkv(x_t)
        if "k" in self.layer_cache:
            k = torch.cat([self.layer_cache["k"], k], dim=2)
            v = torch.cat([self.layer_cache["v"], v], dim=2)
        self.layer_cache.update(k=k, v=v)
        return self.attend(q, k, v)

    def full(self, x):
        return self.attend(*self.qkv(x))


# rope.offset


class TableFromTheTop(nn.Module):
    """Cosines and sines are cut from the start of the table, whatever was cached."""

    def __init__(self, dim, heads, max_len=64):
        super().__init__()
        self.heads, head_dim = heads, dim // heads
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        inv_freq = 10000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
        table = torch.outer(torch.arange(max_len).double(), inv_freq)
        self.register_buffer("cos", table.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", table.sin().repeat(1, 2), persistent=False)
        self.reset()

    def reset(self):
        self.k_cache = self.v_cache = None

    def rotate(self, x):
        a, b = x.chunk(2, dim=-1)
        cos, sin = self.cos[: x.shape[2]].to(x.dtype), self.sin[: x.shape[2]].to(x.dtype)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    def step(self, x_t):
        b, t, d = x_t.shape
        q, k, v = self.qkv_proj(x_t).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rotate(q), self.rotate(k)
        self.k_cache = k if self.k_cache is None else torch.cat((self.k_cache, k), 2)
        self.v_cache = v if self.v_cache is None else torch.cat((self.v_cache, v), 2)
        total = self.k_cache.shape[2]
        bias = torch.full((t, total), -math.inf, dtype=x_t.dtype).triu(total - t + 1)
        out = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache, attn_mask=bias)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, d))

    def full(self, x):
        self.reset()
        out = self.step(x)
        self.reset()
        return out


# rope.layout


class PairsOfNeighbours(nn.Module):
    """GPT-J's rotation, where the weights are Llama's."""

    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        head_dim = hidden // heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def rotate_every_two(self, x):
        x1, x2 = x[..., ::2], x[..., 1::2]
        return torch.stack((-x2, x1), dim=-1).flatten(-2)

    def apply_rotary(self, x):
        d = x.shape[-1]
        inv_freq = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
        angles = torch.einsum("i,j->ij", torch.arange(x.shape[2], dtype=x.dtype), inv_freq)
        sin, cos = (t.repeat_interleave(2, dim=-1) for t in (angles.sin(), angles.cos()))
        return x * cos + self.rotate_every_two(x) * sin

    def forward(self, x):
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        q, k = self.apply_rotary(q), self.apply_rotary(k)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


HALF = {"base": 10000.0, "layout": "half"}

ENTRIES = [
    wrong("cache.offset", Built(BoolMaskFromChunk, 21, 3), "decode", causal=True, num_heads=3),
    wrong(
        "cache.unmasked", Built(CausalOnlyForTheFirst, 11, 7), "decode", causal=True, num_heads=1
    ),
    wrong(
        "cache.unmasked",
        Built(SinglesByTheMask, 21, 3, 40),
        "decode",
        causal=True,
        num_heads=3,
        sizes={"d_in": 21, "context_length": 40},
    ),
    wrong(
        "cache.window",
        Built(DequeOfTokens, 11, 21, 3, 3),
        "decode",
        causal=True,
        window=(3, 0),
        num_heads=3,
        sizes={"d_in": 11, "d_out": 11, "head_dim": 7},
    ),
    wrong("cache.stale", Built(SharedDefault, 21, 3), "decode", causal=True, num_heads=3),
    wrong(
        "rope.offset", Built(TableFromTheTop, 18, 3), "decode", causal=True, rope=HALF, num_heads=3
    ),
    wrong(
        "rope.layout",
        Built(PairsOfNeighbours, 24, 6, 2),
        "x",
        causal=True,
        rope=HALF,
        num_heads=6,
        num_kv_heads=2,
    ),
]
