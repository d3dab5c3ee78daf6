# type: ignore
"""Right attention of other tutorials, in other hands; the mistakes set aside are edits of this text."""

import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value):
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        x, self.attn = attention(query, key, value, mask=None, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size, attn_pdrop=0.0, resid_pdrop=0.0):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)
        self.register_buffer(
            "bias",
            torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size),
            persistent=False,
        )
        self.n_head = n_head
        self.n_embd = n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class EncoderSelfAttention(nn.Module):
    def __init__(self, hid_dim, n_heads, dropout):
        super().__init__()
        self.hid_dim = hid_dim
        self.n_heads = n_heads
        self.head_dim = hid_dim // n_heads
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        batch_size = x.shape[0]
        Q = self.fc_q(x)
        K = self.fc_k(x)
        V = self.fc_v(x)
        Q = Q.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = K.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = V.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        scale = torch.sqrt(torch.tensor(self.head_dim, dtype=x.dtype))
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / scale
        energy = energy.masked_fill(mask.unsqueeze(1).unsqueeze(2) == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V)
        x = x.permute(0, 2, 1, 3).contiguous()
        x = x.view(batch_size, -1, self.hid_dim)
        return self.fc_o(x)


class VisionAttention(nn.Module):
    def __init__(self, dim, num_heads=4, qkv_bias=True, attn_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class DecoderCross(nn.Module):
    def __init__(self, query_dim, context_dim, heads=2, dim_head=6):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context):
        b, n, _ = x.shape
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (
            t.reshape(b, -1, self.heads, t.shape[-1] // self.heads)
            .permute(0, 2, 1, 3)
            .reshape(b * self.heads, -1, t.shape[-1] // self.heads)
            for t in (q, k, v)
        )
        sim = torch.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bij,bjd->bid", attn, v)
        out = out.reshape(b, self.heads, n, -1).permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)


class GroupedAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        freqs = 10000.0 ** (-torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        angles = torch.outer(torch.arange(seqlen).double(), freqs)
        freqs_cis = torch.polar(torch.ones_like(angles), angles)[None, :, None, :]
        xq, xk = (
            torch.view_as_real(
                torch.view_as_complex(t.double().reshape(*t.shape[:-1], -1, 2)) * freqs_cis
            )
            .flatten(3)
            .type_as(t)
            for t in (xq, xk)
        )
        repeats = self.n_heads // self.n_kv_heads
        xk, xv = (torch.repeat_interleave(t, repeats, dim=2) for t in (xk, xv))
        out = F.scaled_dot_product_attention(
            xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2), is_causal=True
        )
        return self.wo(out.transpose(1, 2).contiguous().view(bsz, seqlen, -1))


class KeyValueCache:
    def __init__(self):
        self.k = self.v = None

    def update(self, k, v):
        if self.k is not None:
            k = torch.cat([self.k, k], dim=1)
            v = torch.cat([self.v, v], dim=1)
        self.k, self.v = k, v
        return k, v


class Decoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.cache = KeyValueCache()

    def reset(self):
        self.cache = KeyValueCache()

    def core(self, q, k, v):
        T, S = q.shape[1], k.shape[1]
        keep = torch.tril(torch.ones(T, S, dtype=torch.bool), diagonal=S - T)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    def full(self, x):
        return self.core(self.query(x), self.key(x), self.value(x))

    def step(self, x):
        k, v = self.cache.update(self.key(x), self.value(x))
        return self.core(self.query(x), k, v)


def by_loops(query, key, value):
    batch, heads, tokens, width = query.shape
    out = torch.zeros(batch, heads, tokens, value.shape[-1], dtype=value.dtype)
    for b in range(batch):
        for h in range(heads):
            for i in range(tokens):
                scores = torch.stack([query[b, h, i].dot(k) for k in key[b, h]]) / width**0.5
                weights = torch.softmax(scores, dim=0)
                for j, w in enumerate(weights):
                    out[b, h, i] = out[b, h, i] + w * value[b, h, j]
    return out


def with_numpy_mask(query, key, value):
    hidden = torch.from_numpy(
        np.triu(np.ones((query.shape[-2], key.shape[-2])), k=1 + key.shape[-2] - query.shape[-2])
    )
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / np.sqrt(query.shape[-1])
    return scores.masked_fill(hidden == 1, -np.inf).softmax(-1) @ value
