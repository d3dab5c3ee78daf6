# type: ignore
# Written as people write it, hence without types.
"""Dropout at the wrong time, in the wrong place, or of the wrong size."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, wrong

# dropout.in-eval


class SdpaAlwaysDrops(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class FunctionalDropout(nn.Module):
    def __init__(self, d_in, d_out, dropout):
        super().__init__()
        self.dropout = dropout
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)
        weights = torch.softmax(q @ k.transpose(1, 2) / k.shape[-1] ** 0.5, dim=-1)
        weights = F.dropout(weights, self.dropout)
        return weights @ v


class ScaledDotProductAttention(nn.Module):
    def __init__(self, attn_dropout=0.5):
        super().__init__()
        self.p = attn_dropout

    def forward(self, q, k, v):
        attn = F.softmax(torch.matmul(q / q.shape[-1] ** 0.5, k.transpose(2, 3)), dim=-1)
        keep = torch.bernoulli(torch.full_like(attn, 1 - self.p))
        return torch.matmul(attn * keep / (1 - self.p), v)


# dropout.never


class DropoutNotCalled(nn.Module):
    def __init__(self, d_model, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
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
        return self.out_proj((weights @ v).transpose(1, 2).reshape(b, t, d))


class DropoutResultLost(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.attn_drop = nn.Dropout(dropout)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
        self.attn_drop(attn)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class DropoutSwitchedOff(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, query, key, value):
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.size(-1))
        weights = F.dropout(scores.softmax(dim=-1), p=self.p, training=False)
        return torch.einsum("bhqk,bhkd->bhqd", weights, value)


# dropout.on-scores


class DropoutBeforeSoftmax(nn.Module):
    def __init__(self, d_in, d_out, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.W_query(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        k = self.W_key(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        v = self.W_value(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        scores = self.dropout(q @ k.transpose(2, 3) / k.shape[-1] ** 0.5)
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        context = torch.softmax(scores, dim=-1) @ v
        return self.out_proj(context.transpose(1, 2).reshape(b, t, -1))


class DropsLogits(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, q, k, v):
        logits = q @ k.transpose(-2, -1)
        logits = self.drop(logits)
        return F.softmax(logits * q.shape[-1] ** -0.5, dim=-1) @ v


class DropsEnergy(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.dropout = dropout
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)

    def forward(self, x, mask):
        energy = torch.bmm(self.to_q(x), self.to_k(x).transpose(1, 2)) / x.shape[-1] ** 0.5
        energy = F.dropout(energy, self.dropout, self.training)
        energy = energy.masked_fill(~mask[:, None, :], float("-inf"))
        return torch.bmm(energy.softmax(dim=-1), self.to_v(x))


# dropout.unscaled


class RandomMask(nn.Module):
    def __init__(self, hid_dim, n_heads, dropout):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)

    def forward(self, x):
        b, n, d = x.shape
        q = self.fc_q(x).view(b, n, self.n_heads, -1).permute(0, 2, 1, 3)
        k = self.fc_k(x).view(b, n, self.n_heads, -1).permute(0, 2, 1, 3)
        v = self.fc_v(x).view(b, n, self.n_heads, -1).permute(0, 2, 1, 3)
        attention = torch.softmax(q @ k.permute(0, 1, 3, 2) / math.sqrt(q.size(-1)), dim=-1)
        if self.training:
            attention = attention * (torch.rand_like(attention) > self.dropout)
        out = (attention @ v).permute(0, 2, 1, 3).reshape(b, n, d)
        return self.fc_o(out)


class MaskedFillDropout(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, query, key, value):
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        if self.training:
            drop = torch.rand(weights.shape, device=weights.device) < self.p
            weights = weights.masked_fill(drop, 0.0)
        return weights @ value


class BernoulliHeads(nn.Module):
    def __init__(self, d_model, d_head, n_heads, p):
        super().__init__()
        self.p = p
        self.query = nn.ModuleList(nn.Linear(d_model, d_head) for _ in range(n_heads))
        self.key = nn.ModuleList(nn.Linear(d_model, d_head) for _ in range(n_heads))
        self.value = nn.ModuleList(nn.Linear(d_model, d_head) for _ in range(n_heads))

    def forward(self, x):
        outputs = []
        for query, key, value in zip(self.query, self.key, self.value):
            q, k, v = query(x), key(x), value(x)
            attn = F.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1)
            if self.training and self.p > 0:
                attn = attn * torch.bernoulli(torch.full_like(attn, 1.0 - self.p))
            outputs.append(attn @ v)
        return torch.cat(outputs, dim=-1)


ENTRIES = [
    wrong(
        "dropout.in-eval",
        Built(SdpaAlwaysDrops, 15, 3, 0.5),
        "x",
        causal=True,
        num_heads=3,
        dropout=0.5,
    ),
    wrong(
        "dropout.in-eval",
        Built(FunctionalDropout, 7, 5, 0.5),
        "x",
        num_heads=1,
        dropout=0.5,
        sizes={"d_in": 7, "d_out": 5},
    ),
    wrong("dropout.in-eval", Built(ScaledDotProductAttention), "qkv", dropout=0.5),
    wrong("dropout.never", Built(DropoutNotCalled, 15, 3, 0.5), "x", num_heads=3, dropout=0.5),
    wrong("dropout.never", Built(DropoutResultLost, 15, 3, 0.5), "x", num_heads=3, dropout=0.5),
    wrong("dropout.never", Built(DropoutSwitchedOff), "qkv", dropout=0.5),
    wrong(
        "dropout.on-scores",
        Built(DropoutBeforeSoftmax, 7, 15, 3, 0.5),
        "x",
        causal=True,
        num_heads=3,
        dropout=0.5,
        sizes={"d_in": 7, "d_out": 15},
    ),
    wrong("dropout.on-scores", Built(DropsLogits), "qkv", dropout=0.5),
    wrong("dropout.on-scores", Built(DropsEnergy, 7, 0.5), "x,mask", num_heads=1, dropout=0.5),
    wrong("dropout.unscaled", Built(RandomMask, 15, 3, 0.5), "x", num_heads=3, dropout=0.5),
    wrong("dropout.unscaled", Built(MaskedFillDropout), "qkv", dropout=0.5),
    wrong("dropout.unscaled", Built(BernoulliHeads, 7, 5, 3, 0.5), "x", num_heads=3, dropout=0.5),
]
