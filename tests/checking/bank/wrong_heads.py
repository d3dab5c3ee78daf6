# type: ignore
# Written as people write it, hence without types.
"""Heads and samples that are cut, joined or shared in the wrong way."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong

# heads.split


class ViewWithoutTranspose(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x):
        b, num_tokens, _ = x.shape
        queries = self.W_query(x).view(b, self.num_heads, num_tokens, self.head_dim)
        keys = self.W_key(x).view(b, self.num_heads, num_tokens, self.head_dim)
        values = self.W_value(x).view(b, self.num_heads, num_tokens, self.head_dim)
        attn_scores = queries @ keys.transpose(2, 3)
        future = torch.triu(torch.ones(num_tokens, num_tokens), diagonal=1).bool()
        attn_scores = attn_scores.masked_fill(future, -torch.inf)
        attn_weights = torch.softmax(attn_scores / self.head_dim**0.5, dim=-1)
        context = (attn_weights @ values).transpose(1, 2).reshape(b, num_tokens, -1)
        return self.out_proj(context)


class HeadsIntoBatch(nn.Module):
    def __init__(self, model_dim, num_heads):
        super().__init__()
        self.num_heads, self.dim_per_head = num_heads, model_dim // num_heads
        self.linear_q = nn.Linear(model_dim, model_dim)
        self.linear_k = nn.Linear(model_dim, model_dim)
        self.linear_v = nn.Linear(model_dim, model_dim)
        self.linear_final = nn.Linear(model_dim, model_dim)

    def forward(self, x):
        batch_size, length, width = x.shape
        query = self.linear_q(x).view(batch_size * self.num_heads, -1, self.dim_per_head)
        key = self.linear_k(x).view(batch_size * self.num_heads, -1, self.dim_per_head)
        value = self.linear_v(x).view(batch_size * self.num_heads, -1, self.dim_per_head)
        attention = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(self.dim_per_head)
        context = torch.bmm(F.softmax(attention, dim=2), value)
        context = context.view(batch_size, -1, width)
        return self.linear_final(context)


class PackedReshape(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = (t.reshape(B, self.heads, N, C // self.heads) for t in self.qkv(x).split(C, -1))
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.permute(0, 2, 1, 3).reshape(B, N, C))


# heads.layout


class MergedWithoutTranspose(nn.Module):
    def __init__(self, emb, heads):
        super().__init__()
        self.emb, self.heads = emb, heads
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        h, s = self.heads, e // self.heads
        keys = self.tokeys(x).view(b, t, h, s).transpose(1, 2)
        queries = self.toqueries(x).view(b, t, h, s).transpose(1, 2)
        values = self.tovalues(x).view(b, t, h, s).transpose(1, 2)
        dot = queries @ keys.transpose(2, 3) / s**0.5
        out = (F.softmax(dot, dim=3) @ values).reshape(b, t, h * s)
        return self.unifyheads(out)


class SdpaMergedByView(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.contiguous().view(B, T, C)
        return self.c_proj(y)


class EinsumMerge(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_k = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_v = nn.Linear(dim, heads * dim_head, bias=False)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, -1))
        k = self.to_k(x).unflatten(-1, (self.heads, -1))
        v = self.to_v(x).unflatten(-1, (self.heads, -1))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        out = torch.einsum("bhij,bjhd->bhid", sim.softmax(-1), v)
        return out.reshape(x.shape[0], x.shape[1], -1)


# heads.layout


class EveryHeadFirstSlice(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.depth = num_heads, d_model // num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        outputs = []
        for head in range(self.num_heads):
            part = slice(0, self.depth)
            scores = q[..., part] @ k[..., part].mT / math.sqrt(self.depth)
            outputs.append(scores.softmax(dim=-1) @ v[..., part])
        return self.dense(torch.cat(outputs, dim=-1))


class PackedFirstHead(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        q = q.transpose(1, 2)
        k, v = k[:, None, :, 0].expand_as(q), v[:, None, :, 0].expand_as(q)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.dense((weights @ v).transpose(1, 2).flatten(2))


def loop_reads_head_zero(query, key, value):
    out = torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    for h in range(query.shape[1]):
        scores = query[:, 0] @ key[:, 0].transpose(1, 2) / math.sqrt(query.shape[-1])
        out[:, h] = scores.softmax(-1) @ value[:, 0]
    return out


class ExpandedHead(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = (t[:, :1].expand(-1, self.heads, -1, -1) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, d))


# heads.gqa-tiled


def tiled_keys(query, key, value):
    group = query.shape[1] // key.shape[1]
    key = key.repeat(1, group, 1, 1)
    value = value.repeat(1, group, 1, 1)
    return F.scaled_dot_product_attention(query, key, value)


def grouped_einsum_swapped(query, key, value):
    b, h, n, d = query.shape
    kv = key.shape[1]
    grouped = query.reshape(b, h // kv, kv, n, d)
    scores = torch.einsum("bgknd,bkmd->bgknm", grouped, key) / math.sqrt(d)
    hidden = torch.ones(n, key.shape[2], dtype=torch.bool).triu(key.shape[2] - n + 1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("bgknm,bkmd->bgknd", weights, value).reshape(b, h, n, -1)


class GroupedByEinsum(nn.Module):
    """Queries beside the keys that they share, which are not repeated."""

    groups_first = False

    def __init__(self, dim, num_heads, num_kv_heads):
        super().__init__()
        self.kv, self.groups = num_kv_heads, num_heads // num_kv_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (
            nn.Linear(dim, dim // num_heads * num_kv_heads, bias=False) for _ in range(2)
        )
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        if self.groups_first:
            q = self.wq(x).view(b, t, self.groups, self.kv, -1).transpose(2, 3)
        else:
            q = self.wq(x).view(b, t, self.kv, self.groups, -1)
        k, v = (each(x).view(b, t, self.kv, -1) for each in (self.wk, self.wv))
        scores = torch.einsum("btkgd,bskd->bkgts", q, k) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        out = torch.einsum("bkgts,bskd->btkgd", scores.softmax(-1), v)
        out = out.transpose(2, 3) if self.groups_first else out
        return self.wo(out.reshape(b, t, -1))


class TiledByEinsum(GroupedByEinsum):
    groups_first = True


class GroupedQueryAttention(nn.Module):
    def __init__(self, d_in, d_out, num_heads, num_kv_groups):
        super().__init__()
        self.num_heads, self.num_kv_groups = num_heads, num_kv_groups
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, num_kv_groups * self.head_dim, bias=False)
        self.W_value = nn.Linear(d_in, num_kv_groups * self.head_dim, bias=False)
        self.out_proj = nn.Linear(d_out, d_out, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        queries = self.W_query(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        keys = self.W_key(x).view(b, t, self.num_kv_groups, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, t, self.num_kv_groups, self.head_dim).transpose(1, 2)
        keys = torch.cat([keys] * (self.num_heads // self.num_kv_groups), dim=1)
        values = torch.cat([values] * (self.num_heads // self.num_kv_groups), dim=1)
        scores = queries @ keys.transpose(2, 3) / self.head_dim**0.5
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        context = (torch.softmax(scores, dim=-1) @ values).transpose(1, 2).reshape(b, t, -1)
        return self.out_proj(context)


# heads.layout


def reads_len_before_heads(query, key, value):
    """query, key, value: (batch, len, heads, dim)."""
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), value)


class SdpaOnLenFirst(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        b, t, c = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, t, self.num_heads, -1)
        k = self.k_proj(hidden_states).view(b, t, self.num_heads, -1)
        v = self.v_proj(hidden_states).view(b, t, self.num_heads, -1)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(out.reshape(b, t, c))


class MatmulOverHeads(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(dim=2)
        attn = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
        return (attn @ v).flatten(-2)


# batch.mixed


class BatchFirstForgotten(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        out, _ = self.attn(x, x, x)
        return out


class EinsumSumsOverBatch(nn.Module):
    def __init__(self, d_in, d_head):
        super().__init__()
        self.query = nn.Linear(d_in, d_head, bias=False)
        self.key = nn.Linear(d_in, d_head, bias=False)
        self.value = nn.Linear(d_in, d_head, bias=False)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = torch.einsum("bqd,ckd->bqk", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bqk,bkd->bqd", scores.softmax(-1), v)


def flattened_keys(query, key, value):
    b, h, n, d = query.shape
    key = key.transpose(0, 1).reshape(h, -1, d)
    value = value.transpose(0, 1).reshape(h, -1, value.shape[-1])
    scores = torch.einsum("bhqd,hkd->bhqk", query, key) / math.sqrt(d)
    return torch.einsum("bhqk,hkd->bhqd", torch.softmax(scores, dim=-1), value)


GROUPED = {"causal": True, "num_heads": 6, "num_kv_heads": 2, "sizes": {"d_in": 24}}
ENTRIES = [
    wrong(
        "heads.split",
        Built(ViewWithoutTranspose, 7, 15, 3),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 7, "d_out": 15},
    ),
    wrong("heads.split", Built(HeadsIntoBatch, 15, 3), "x", num_heads=3),
    wrong("heads.split", Built(PackedReshape, 15, 3), "x", num_heads=3),
    wrong("heads.layout", Built(MergedWithoutTranspose, 15, 3), "x", num_heads=3),
    wrong("heads.layout", Built(SdpaMergedByView, 15, 3), "x", causal=True, num_heads=3),
    wrong("heads.layout", Built(EinsumMerge, 7, 3, 5), "x", num_heads=3),
    wrong("heads.layout", Built(EveryHeadFirstSlice, 15, 3), "x", num_heads=3),
    wrong("heads.layout", Built(PackedFirstHead, 15, 3), "x", num_heads=3),
    wrong("heads.layout", loop_reads_head_zero, "qkv"),
    wrong("heads.layout", Built(ExpandedHead, 15, 3), "x", num_heads=3),
    wrong("heads.gqa-tiled", tiled_keys, "qkv", num_heads=6, num_kv_heads=2),
    wrong(
        "heads.gqa-tiled", grouped_einsum_swapped, "qkv", causal=True, num_heads=6, num_kv_heads=3
    ),
    wrong(
        "heads.gqa-tiled",
        Built(GroupedQueryAttention, 7, 30, 6, 2),
        "x",
        causal=True,
        num_heads=6,
        num_kv_heads=2,
        sizes={"d_in": 7, "d_out": 30},
    ),
    wrong("heads.gqa-tiled", Built(TiledByEinsum, 24, 6, 2), "x", **GROUPED),
    right(Built(GroupedByEinsum, 24, 6, 2), "x", **GROUPED),
    wrong("heads.layout", reads_len_before_heads, "qkv"),
    wrong("heads.layout", Built(SdpaOnLenFirst, 15, 3), "x", num_heads=3),
    wrong("heads.layout", Built(MatmulOverHeads, 15, 3), "x", num_heads=3),
    wrong("batch.mixed", Built(BatchFirstForgotten, 15, 3), "x", num_heads=3),
    wrong("batch.mixed", Built(EinsumSumsOverBatch, 7, 5), "x", num_heads=1),
    wrong("batch.mixed", flattened_keys, "qkv"),
]
