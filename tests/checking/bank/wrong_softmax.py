# type: ignore
# Written as people write it, hence without types.
"""Softmax over the wrong axis, or none at all."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, wrong

# softmax.axis


def over_queries(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores, dim=-2) @ value


def over_heads(q, k, v):
    attn = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    attn = F.softmax(attn, dim=1)
    return torch.einsum("bhij,bhjd->bhid", attn, v)


class OverBatch(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        queries, keys, values = x @ self.W_query, x @ self.W_key, x @ self.W_value
        attn_scores = queries @ keys.transpose(1, 2)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=0)
        return attn_weights @ values


class SelfAttentionColumns(nn.Module):
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
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=0)
        return attn_weights @ values


class KeysFirstLayout(nn.Module):
    """Scores are (batch, i, j, heads), so that the softmax belongs on axis 2."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        q = self.query(x).view(b, t, self.heads, self.d_k)
        k = self.key(x).view(b, t, self.heads, self.d_k)
        v = self.value(x).view(b, t, self.heads, self.d_k)
        scores = torch.einsum("bihd,bjhd->bijh", q, k) / math.sqrt(self.d_k)
        attn = scores.softmax(dim=1)
        return self.output(torch.einsum("bijh,bjhd->bihd", attn, v).reshape(b, t, d))


# softmax.missing


def scores_as_weights(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    visible = torch.ones_like(scores, dtype=torch.bool).tril(key.size(-2) - query.size(-2))
    return scores.masked_fill(~visible, 0) @ value


def exp_without_sum(q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class SigmoidWeights(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attn = torch.sigmoid(q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5)
        return self.to_out((attn @ v).transpose(1, 2).reshape(b, n, d))


class LogSoftmaxWeights(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.w_q = nn.Linear(d_model, d_k)
        self.w_k = nn.Linear(d_model, d_k)
        self.w_v = nn.Linear(d_model, d_k)

    def forward(self, x):
        q, k, v = self.w_q(x), self.w_k(x), self.w_v(x)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(k.shape[-1])
        return torch.bmm(F.log_softmax(scores, dim=-1), v)


ENTRIES = [
    wrong("softmax.axis", over_queries, "qkv"),
    wrong("softmax.axis", over_heads, "qkv"),
    wrong("softmax.axis", Built(OverBatch, 7, 5), "x", num_heads=1, sizes={"d_in": 7, "d_out": 5}),
    wrong(
        "softmax.axis",
        Built(SelfAttentionColumns, 7, 5),
        "x2d",
        num_heads=1,
        sizes={"d_in": 7, "d_out": 5},
    ),
    wrong("softmax.axis", Built(KeysFirstLayout, 15, 3), "x", num_heads=3),
    wrong("softmax.missing", scores_as_weights, "qkv", causal=True),
    wrong("softmax.missing", exp_without_sum, "qkv"),
    wrong("softmax.missing", Built(SigmoidWeights, 15, 3), "x", num_heads=3),
    wrong("softmax.missing", Built(LogSoftmaxWeights, 7, 5), "x", num_heads=1),
]
