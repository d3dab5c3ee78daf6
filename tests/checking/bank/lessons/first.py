# type: ignore
"""Right attention as the from-scratch tutorials build it, one idea a class.

The mistakes of learners are edits of this text; `entries.py` lists them.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


def dot_product_attention(query, key, value):
    scores = query @ key.transpose(-2, -1)
    weights = torch.softmax(scores / query.shape[-1] ** 0.5, dim=-1)
    return weights @ value


def causal_attention(query, key, value):
    scores = query @ key.transpose(-2, -1)
    queries, keys = scores.shape[-2:]
    mask = torch.triu(torch.ones(queries, keys), diagonal=1 + keys - queries)
    scores = scores.masked_fill(mask.bool(), -torch.inf)
    weights = torch.softmax(scores / key.shape[-1] ** 0.5, dim=-1)
    return weights @ value


def softmax_by_hand(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(key.size(-1))
    scores = scores - scores.amax(dim=-1, keepdim=True)
    weights = torch.exp(scores)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return torch.matmul(weights, value)


def masked_attention(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / math.sqrt(key.size(-1))
    scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return weights @ value


def alibi_attention(query, key, value):
    heads, tokens = query.shape[1], key.shape[-2]
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
    positions = torch.arange(tokens)
    distance = (positions[tokens - query.shape[-2] :, None] - positions[None, :]).abs()
    bias = -slopes[:, None, None] * distance
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores + bias, dim=-1) @ value


class SelfAttentionParameters(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values


class SelfAttentionLayers(nn.Module):
    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.transpose(-2, -1)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values


class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores = attn_scores.masked_fill(
            self.mask.bool()[:num_tokens, :num_tokens], -torch.inf
        )
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = attn_weights @ values
        return context_vec


class RenormalisedAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        weights = torch.softmax(queries @ keys.mT / keys.shape[-1] ** 0.5, dim=-1)
        simple = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        masked = weights * simple
        masked = masked / masked.sum(dim=-1, keepdim=True)
        return masked @ values


class Head(nn.Module):
    def __init__(self, d_in, head_size, context_length):
        super().__init__()
        self.key = nn.Linear(d_in, head_size, bias=False)
        self.query = nn.Linear(d_in, head_size, bias=False)
        self.value = nn.Linear(d_in, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(context_length, context_length)))

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        v = self.value(x)
        return wei @ v


class SeveralHeads(nn.Module):
    def __init__(self, d_in, head_size, context_length, num_heads):
        super().__init__()
        self.heads = nn.ModuleList(
            [Head(d_in, head_size, context_length) for _ in range(num_heads)]
        )
        self.proj = nn.Linear(num_heads * head_size, d_in)

    def forward(self, x):
        out = torch.cat([head(x) for head in self.heads], dim=-1)
        return self.proj(out)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            "mask",
            torch.triu(torch.ones(context_length, context_length), diagonal=1),
            persistent=False,
        )

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        keys = keys.view(b, num_tokens, self.num_heads, self.head_dim)
        values = values.view(b, num_tokens, self.num_heads, self.head_dim)
        queries = queries.view(b, num_tokens, self.num_heads, self.head_dim)
        keys = keys.transpose(1, 2)
        queries = queries.transpose(1, 2)
        values = values.transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)


class CrossAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x_1, x_2):
        queries_1 = self.W_query(x_1)
        keys_2 = self.W_key(x_2)
        values_2 = self.W_value(x_2)
        attn_scores = queries_1 @ keys_2.mT
        attn_weights = torch.softmax(attn_scores / keys_2.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values_2


class PaddedAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = embed_size // heads
        self.queries = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.values = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x, mask):
        N, length, width = x.shape
        values = self.values(x).reshape(N, length, self.heads, self.head_dim)
        keys = self.keys(x).reshape(N, length, self.heads, self.head_dim)
        queries = self.queries(x).reshape(N, length, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", queries, keys)
        energy = energy.masked_fill(mask[:, None, None, :] == 0, float("-1e20"))
        attention = torch.softmax(energy / self.head_dim**0.5, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", attention, values)
        return self.fc_out(out.reshape(N, length, self.heads * self.head_dim))


def rotate(x):
    tokens, width = x.shape[-2:]
    half = width // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(tokens)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1)


class RotaryAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.n_heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        future = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        output = torch.softmax(scores + future, dim=-1) @ v
        return self.wo(output.transpose(1, 2).flatten(2))


class CachedAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.reset()

    def reset(self):
        self.keys = None
        self.values = None
        self.position = 0

    def attend(self, x, keys, values, start):
        rows = torch.arange(start, start + x.shape[1])
        hidden = torch.arange(keys.shape[1])[None, :] > rows[:, None]
        scores = rotate_at(self.q(x), start) @ keys.mT / math.sqrt(keys.shape[-1])
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ values

    def full(self, x):
        return self.attend(x, rotate_at(self.k(x), 0), self.v(x), 0)

    def step(self, x):
        start = self.position
        keys, values = rotate_at(self.k(x), start), self.v(x)
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 1)
        self.values = values if self.values is None else torch.cat([self.values, values], 1)
        self.position = start + x.shape[1]
        return self.attend(x, self.keys, self.values, start)


def rotate_at(x, start):
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(start, start + x.shape[-2])[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1)
