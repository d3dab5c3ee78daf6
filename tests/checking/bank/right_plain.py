# type: ignore
# Written as people write it, hence without types.
"""Correct attention, written as most people write it."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right


def attention(query, key, value):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    p_attn = F.softmax(scores, dim=-1)
    return torch.matmul(p_attn, value)


def attention_with_mask(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return scores.softmax(dim=-1) @ value


def causal_triu(query, key, value):
    q_len, k_len = query.shape[-2], key.shape[-2]
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    future = torch.triu(torch.ones(q_len, k_len), diagonal=k_len - q_len + 1).bool()
    return torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1) @ value


def sdpa(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


def sdpa_bool_mask(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def sdpa_float_mask(query, key, value, mask):
    bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
    bias = bias.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def sdpa_causal_bool(query, key, value):
    n, m = query.shape[-2], key.shape[-2]
    mask = torch.ones(n, m, dtype=torch.bool, device=query.device).tril(m - n)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def causal_and_given_mask(query, key, value, mask):
    n, m = query.shape[-2], key.shape[-2]
    mask = mask & torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.shape[-1])
    weights = torch.where(mask, scores, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, value)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        bias = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class FlashCausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.n_head = n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class TutorialCausal(nn.Module):
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
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return self.dropout(attn_weights) @ values


class TutorialWrapper(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads):
        super().__init__()
        self.heads = nn.ModuleList(
            TutorialCausal(d_in, d_out, context_length, dropout) for _ in range(num_heads)
        )

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


class TutorialMultiHead(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim)
        keys, queries, values = (
            keys.transpose(1, 2),
            queries.transpose(1, 2),
            values.transpose(1, 2),
        )
        attn_scores = queries @ keys.transpose(2, 3)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = (attn_weights @ values).transpose(1, 2)
        return self.out_proj(context_vec.contiguous().view(b, num_tokens, self.d_out))


class SelfAttention(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.weight_query = nn.Parameter(torch.rand(input_dim, output_dim))
        self.weight_key = nn.Parameter(torch.rand(input_dim, output_dim))
        self.weight_value = nn.Parameter(torch.rand(input_dim, output_dim))

    def forward(self, x):
        queries = x @ self.weight_query
        keys = x @ self.weight_key
        values = x @ self.weight_value
        attention_scores = queries @ keys.T
        scaling_factor = keys.shape[-1] ** 0.5
        attention_weights = torch.softmax(attention_scores / scaling_factor, dim=-1)
        context_vector = attention_weights @ values
        return context_vector


class SelfAttention_v2(nn.Module):
    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values


class SelfAttentionTwoWidths(nn.Module):
    def __init__(self, d_in, d_out_kq, d_out_v):
        super().__init__()
        self.d_out_kq = d_out_kq
        self.W_query = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out_v))

    def forward(self, x):
        keys = x @ self.W_key
        queries = x @ self.W_query
        values = x @ self.W_value

        attn_scores = queries @ keys.T  # unnormalized attention weights
        attn_weights = torch.softmax(attn_scores / self.d_out_kq**0.5, dim=-1)

        context_vec = attn_weights @ values
        return context_vec


class MultiHeadAttentionWrapper(nn.Module):
    def __init__(self, d_in, d_out_kq, d_out_v, num_heads):
        super().__init__()
        self.heads = nn.ModuleList(
            [SelfAttentionTwoWidths(d_in, d_out_kq, d_out_v) for _ in range(num_heads)]
        )

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


class CrossAttention(nn.Module):
    def __init__(self, d_in, d_out_kq, d_out_v):
        super().__init__()
        self.d_out_kq = d_out_kq
        self.W_query = nn.Parameter(torch.randn(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.randn(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.randn(d_in, d_out_v))

    def forward(self, x_1, x_2):  # x_2 is new
        queries_1 = x_1 @ self.W_query

        keys_2 = x_2 @ self.W_key  # new
        values_2 = x_2 @ self.W_value  # new

        attn_scores = queries_1 @ keys_2.T  # new
        attn_weights = torch.softmax(attn_scores / self.d_out_kq**0.5, dim=-1)

        context_vec = attn_weights @ values_2
        return context_vec


class ViTAttention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class LlamaLike(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(hidden, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)

    def rope(self, x):
        d = self.head_dim
        inv_freq = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
        emb = torch.outer(torch.arange(x.shape[2], dtype=x.dtype), inv_freq).repeat(1, 2)
        x1, x2 = x[..., : d // 2], x[..., d // 2 :]
        return x * emb.cos() + torch.cat((-x2, x1), dim=-1) * emb.sin()

    def repeat_kv(self, x):
        b, kv, t, d = x.shape
        n_rep = self.heads // kv
        return x[:, :, None].expand(b, kv, n_rep, t, d).reshape(b, kv * n_rep, t, d)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = self.rope(q), self.rope(k)
        k, v = self.repeat_kv(k), self.repeat_kv(v)
        attn = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        attn = attn + torch.full((t, t), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        out = F.softmax(attn, dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


def rope_interleaved(query, key, value):
    d, n, m = query.shape[-1], query.shape[-2], key.shape[-2]
    theta = 10000.0 ** (-torch.arange(0, d, 2, dtype=query.dtype) / d)
    angles = torch.arange(m, dtype=query.dtype)[:, None] * theta

    def turn(x, a):
        even, odd = x[..., ::2], x[..., 1::2]
        pair = (even * a.cos() - odd * a.sin(), even * a.sin() + odd * a.cos())
        return torch.stack(pair, dim=-1).flatten(-2)

    query, key = turn(query, angles[m - n :]), turn(key, angles)
    return torch.softmax(query @ key.mT / math.sqrt(d), dim=-1) @ value


class BertLike(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.num_attention_heads, -1).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        query_layer = self.split(self.query(hidden_states))
        key_layer = self.split(self.key(hidden_states))
        value_layer = self.split(self.value(hidden_states))
        scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        scores = scores / math.sqrt(query_layer.size(-1))
        extended = (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -10000.0
        probs = F.softmax(scores + extended, dim=-1)
        context = torch.matmul(probs, value_layer).permute(0, 2, 1, 3).contiguous()
        return context.view(hidden_states.shape)


class CausalWithPadding(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        visible = causal & mask[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.proj(out.transpose(1, 2).reshape(b, t, c))


class EinopsLike(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(0.0))

    def forward(self, x):
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        out = torch.matmul(dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class StableDiffusionCross(nn.Module):
    def __init__(self, query_dim, context_dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(query_dim, heads * dim_head, bias=False)
        self.to_k = nn.Linear(context_dim, heads * dim_head, bias=False)
        self.to_v = nn.Linear(context_dim, heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, query_dim)

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        out = torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class CachedDecoder(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)
        self.reset()

    def reset(self):
        self.cache_k, self.cache_v = None, None

    def attend(self, q, k, v):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        n, m = q.shape[2], k.shape[2]
        scores = q @ k.transpose(2, 3) / k.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(n, m).triu(m - n + 1).bool(), -torch.inf)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def step(self, x_t):
        keys, values = self.W_key(x_t), self.W_value(x_t)
        if self.cache_k is not None:
            keys = torch.cat([self.cache_k, keys], dim=1)
            values = torch.cat([self.cache_v, values], dim=1)
        self.cache_k, self.cache_v = keys, values
        return self.attend(self.W_query(x_t), keys, values)

    def full(self, x):
        return self.attend(self.W_query(x), self.W_key(x), self.W_value(x))


class RotaryDecoder(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.wq = nn.Linear(hidden, heads * head_dim, bias=False)
        self.wk = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, hidden, bias=False)
        self.past = []

    def reset(self):
        self.past = []

    def rope(self, x, start):
        half = self.head_dim // 2
        freq = 10000.0 ** -(torch.arange(half, dtype=x.dtype) / half)
        angle = (start + torch.arange(x.shape[2], dtype=x.dtype))[:, None] * freq
        a, b = x.split(half, dim=-1)
        return torch.cat(
            (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1
        )

    def run(self, x, past):
        b, t, _ = x.shape
        start = sum(k.shape[2] for k, _ in past)
        q = self.wq(x).view(b, t, self.heads, -1).transpose(1, 2)
        k = self.wk(x).view(b, t, self.kv_heads, -1).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv_heads, -1).transpose(1, 2)
        past.append((self.rope(k, start), v))
        k, v = (torch.cat(parts, dim=2) for parts in zip(*past, strict=True))
        mask = torch.ones(t, start + t, dtype=torch.bool).tril(start)
        out = F.scaled_dot_product_attention(
            self.rope(q, start), k, v, attn_mask=mask, enable_gqa=True
        )
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))

    def step(self, x_t):
        return self.run(x_t, self.past)

    def full(self, x):
        return self.run(x, [])


class WindowedDecoder(nn.Module):
    """The cache is trimmed after it was used."""

    def __init__(self, d_model, d_head, window):
        super().__init__()
        self.window = window
        self.query = nn.Linear(d_model, d_head, bias=False)
        self.key = nn.Linear(d_model, d_head, bias=False)
        self.value = nn.Linear(d_model, d_head, bias=False)
        self.reset()

    def reset(self):
        self.k = self.v = None
        self.seen = 0

    def attend(self, q, k, v, i, j):
        hidden = (j[None] > i[:, None]) | (i[:, None] - j[None] > self.window)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v

    def step(self, x_t):
        q, k, v = self.query(x_t), self.key(x_t), self.value(x_t)
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=1), torch.cat([self.v, v], dim=1)
        end = self.seen + x_t.shape[1]
        out = self.attend(q, k, v, torch.arange(self.seen, end), torch.arange(end)[-k.shape[1] :])
        self.k, self.v, self.seen = k[:, -self.window :], v[:, -self.window :], end
        return out

    def full(self, x):
        i = torch.arange(x.shape[1])
        return self.attend(self.query(x), self.key(x), self.value(x), i, i)


SLOPES = torch.tensor([0.5, 0.25, 0.125])


def alibi(query, key, value):
    n, m = query.shape[-2], key.shape[-2]
    slopes = torch.tensor([0.5, 0.25, 0.125], dtype=query.dtype)
    i, j = torch.arange(m - n, m)[:, None], torch.arange(m)[None, :]
    scores = query @ key.mT / math.sqrt(query.shape[-1]) + slopes[:, None, None] * (j - i)
    return scores.masked_fill(j > i, float("-inf")).softmax(dim=-1) @ value


def distance_bias(query_len, kv_len):
    i = torch.arange(kv_len - query_len, kv_len)[:, None]
    j = torch.arange(kv_len)[None, :]
    return -0.3 * torch.arange(1, 4)[:, None, None] * (i - j).abs().sqrt()


class RelativeBias(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        bias = distance_bias(N, N).to(x.dtype)
        attn = q @ k.transpose(-2, -1) * (C // self.num_heads) ** -0.5 + bias
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C))


def softcapped(query, key, value, softcap=3.0):
    n, m = query.shape[-2], key.shape[-2]
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = softcap * torch.tanh(scores / softcap)
    future = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ value


def sliding_window(query, key, value, left=3):
    n, m = query.shape[-2], key.shape[-2]
    i, j = torch.arange(m - n, m)[:, None], torch.arange(m)[None, :]
    visible = (j <= i) & (i - j <= left)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)


def window_on_both_sides(q, k, v):
    n, m = q.shape[-2], k.shape[-2]
    band = torch.ones(n, m, dtype=torch.bool).tril(m - n + 2).triu(m - n - 2)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(~band, -1e9).softmax(-1), v)


class DropoutOnWeights(nn.Module):
    def __init__(self, d_model, num_heads, dropout):
        super().__init__()
        self.num_heads, self.p = num_heads, dropout
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        weights = F.dropout(weights, self.p, training=self.training)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(b, t, d))


class DropoutFunctional(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, query, key, value):
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        return self.drop(weights) @ value


ROPE = {"base": 10000.0}

ENTRIES = [
    right(attention, "qkv"),
    right(attention_with_mask, "qkv,mask"),
    right(causal_triu, "qkv", causal=True),
    right(sdpa, "qkv"),
    right(sdpa_bool_mask, "qkv,mask"),
    right(sdpa_float_mask, "qkv,mask"),
    right(sdpa_causal_bool, "qkv", causal=True),
    right(causal_and_given_mask, "qkv,mask", causal=True),
    right(
        Built(CausalSelfAttention, 15, 3, 13),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15, "context_length": 13},
    ),
    right(Built(FlashCausalSelfAttention, 15, 3), "x", causal=True, num_heads=3),
    right(
        Built(TutorialCausal, 7, 5, 13, 0.0),
        "x",
        causal=True,
        num_heads=1,
        sizes={"d_in": 7, "d_out": 5, "context_length": 13},
    ),
    right(
        Built(TutorialWrapper, 7, 5, 13, 0.0, 3),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 7, "d_out": 15, "context_length": 13},
    ),
    right(
        Built(TutorialMultiHead, 7, 10, 13, 0.5, 2),
        "x",
        causal=True,
        num_heads=2,
        dropout=0.5,
        sizes={"d_in": 7, "d_out": 10, "context_length": 13},
    ),
    right(Built(SelfAttention, 7, 5), "x2d", num_heads=1, sizes={"d_in": 7, "d_out": 5}),
    right(SelfAttention_v2, "x2d", num_heads=1, sizes={"d_in": 3, "d_out": 2}),
    right(
        Built(SelfAttentionTwoWidths, 3, 2, 4),
        "x2d",
        num_heads=1,
        sizes={"d_in": 3, "head_dim": 2, "value_head_dim": 4, "d_out": 4},
    ),
    right(
        Built(MultiHeadAttentionWrapper, 7, 5, 3, 2),
        "x2d",
        num_heads=2,
        sizes={"d_in": 7, "head_dim": 5, "value_head_dim": 3, "d_out": 6},
    ),
    right(
        Built(CrossAttention, 3, 2, 4),
        "x,context",
        num_heads=1,
        sizes={"d_in": 3, "d_context": 3, "head_dim": 2, "value_head_dim": 4, "d_out": 4},
    ),
    right(Built(ViTAttention, 15, 3), "x", num_heads=3),
    right(
        Built(LlamaLike, 11, 6, 2, 4),
        "x",
        causal=True,
        num_heads=6,
        num_kv_heads=2,
        rope=ROPE | {"layout": "half"},
        sizes={"d_in": 11, "head_dim": 4},
    ),
    right(rope_interleaved, "qkv", rope=ROPE | {"layout": "interleaved"}),
    right(Built(BertLike, 15, 3), "x,mask", num_heads=3),
    right(Built(CausalWithPadding, 15, 3), "x,mask", causal=True, num_heads=3),
    right(Built(EinopsLike, 11, 3, 5), "x", num_heads=3, sizes={"d_in": 11, "head_dim": 5}),
    right(
        Built(StableDiffusionCross, 11, 7, 3, 5),
        "x,context",
        num_heads=3,
        sizes={"d_in": 11, "d_context": 7, "head_dim": 5},
    ),
    right(
        Built(CachedDecoder, 7, 15, 3),
        "decode",
        causal=True,
        num_heads=3,
        sizes={"d_in": 7, "d_out": 15},
    ),
    right(
        Built(RotaryDecoder, 11, 6, 2, 4),
        "decode",
        causal=True,
        num_heads=6,
        num_kv_heads=2,
        rope=ROPE | {"layout": "half"},
        sizes={"d_in": 11, "head_dim": 4},
    ),
    right(Built(WindowedDecoder, 7, 5, 4), "decode", causal=True, window=(4, 0), num_heads=1),
    right(alibi, "qkv", causal=True, num_heads=3, alibi_slopes=SLOPES),
    right(Built(RelativeBias, 15, 3), "x", num_heads=3, bias=distance_bias),
    right(softcapped, "qkv", causal=True, softcap=3.0),
    right(sliding_window, "qkv", causal=True, window=(3, 0)),
    right(window_on_both_sides, "qkv", window=(2, 2)),
    right(Built(DropoutOnWeights, 15, 3, 0.5), "x", num_heads=3, dropout=0.5),
    right(Built(DropoutFunctional), "qkv", dropout=0.5),
]
