# type: ignore
# Written as people write it, hence without types.
"""Mistakes between the scores and the weights."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, wrong

# mask.inverted


def subsequent_mask(size):
    "Mask out subsequent positions."
    attn_shape = (1, size, size)
    subsequent_mask = np.triu(np.ones(attn_shape), k=1).astype("uint8")
    return torch.from_numpy(subsequent_mask) == 0


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        nbatches = x.size(0)
        query, key, value = (
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for lin in self.linears[:3]
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(subsequent_mask(x.size(1)), -1e9)
        x = torch.matmul(scores.softmax(dim=-1), value)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class FairseqPadding(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask):
        bsz, tgt_len, embed_dim = x.size()
        x = x.transpose(0, 1)
        folded = (tgt_len, bsz * self.num_heads, self.head_dim)
        q = self.q_proj(x).mul(self.head_dim**-0.5).reshape(folded).transpose(0, 1)
        k = self.k_proj(x).reshape(folded).transpose(0, 1)
        v = self.v_proj(x).reshape(folded).transpose(0, 1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, tgt_len)
        attn_weights = attn_weights.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        attn_probs = attn_weights.view(-1, tgt_len, tgt_len).softmax(dim=-1)
        attn = torch.bmm(attn_probs, v).transpose(0, 1).reshape(tgt_len, bsz, embed_dim)
        return self.out_proj(attn).transpose(0, 1)


# mask.missing


def causal_unless_masked(query, key, value, attn_mask=None):
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=attn_mask is None
    )


class FlagNeverRead(nn.Module):
    def __init__(self, width, n_heads, causal=True):
        super().__init__()
        self.n_heads, self.causal = n_heads, causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask=None):
        n_batch, n_ctx, n_state = x.shape
        scale = (n_state // self.n_heads) ** -0.25
        q = self.query(x).view(n_batch, n_ctx, self.n_heads, -1).permute(0, 2, 1, 3) * scale
        k = self.key(x).view(n_batch, n_ctx, self.n_heads, -1).permute(0, 2, 3, 1) * scale
        v = self.value(x).view(n_batch, n_ctx, self.n_heads, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask[:n_ctx, :n_ctx]
        w = F.softmax(qk, dim=-1)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


# mask.off-by-one


def visible_from_cumsum(q, k, v):
    n, m = q.size(2), k.size(2)
    visible = torch.ones(n, m).cumsum(dim=1) <= torch.arange(n)[:, None] + m - n
    scores = torch.where(visible, q @ k.mT / math.sqrt(q.size(3)), -1e30)
    return scores.softmax(3) @ v


class SplitAtTokenPlusOne(nn.Module):
    def __init__(self, d_model, d_head):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_head, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        out = []
        for t in range(x.size(1)):
            context = slice(None, t + 2)
            logits = (k[:, context] @ q[:, t, :, None]).squeeze(-1) / math.sqrt(q.size(-1))
            out.append((logits.softmax(-1)[:, None] @ v[:, context]).squeeze(1))
        return torch.stack(out, dim=1)


# mask.top-left


def create_causal_mask(i, j, device):
    return torch.ones((i, j), device=device, dtype=torch.bool).triu(1)


def x_transformers_attend(q, k, v):
    i, j = q.shape[-2], k.shape[-2]
    dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
    mask_value = -torch.finfo(dots.dtype).max
    dots = dots.masked_fill(create_causal_mask(i, j, q.device), mask_value)
    return torch.einsum("b h i j, b h j d -> b h i d", F.softmax(dots, dim=-1), v)


# mask.window-off-by-one


class MistralMask(nn.Module):
    def __init__(self, dim, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        bsz, seqlen, dim = x.shape
        xq, xk, xv = self.wqkv(x).view(bsz, seqlen, 3, self.n_heads, -1).unbind(2)
        tensor = torch.full((seqlen, seqlen), dtype=x.dtype, fill_value=1)
        mask = torch.tril(tensor, diagonal=0)
        mask = torch.triu(mask, diagonal=1 - self.window)
        mask = torch.log(mask)
        scores = torch.einsum("bqhd,bkhd->bhqk", xq, xk) / math.sqrt(xq.shape[-1]) + mask
        output = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), xv)
        return self.wo(output.reshape(bsz, seqlen, dim))


# mask.after-softmax


def folded_weights_masked(query, key, value, mask):
    b, h, n, _ = query.shape
    q, k, v = (t.flatten(0, 1) for t in (query, key, value))
    probs = torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(q.size(-1))).softmax(-1)
    probs = probs.view(b, h, n, -1).where(mask, torch.zeros((), dtype=query.dtype))
    return torch.bmm(probs.flatten(0, 1), v).view(b, h, n, -1)


class TrilOnWeights(nn.Module):
    def __init__(self, features, size):
        super().__init__()
        self.projections = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(features, size)) for name in ("q", "k", "v")}
        )

    def forward(self, x):
        q, k, v = (x @ self.projections[name] for name in ("q", "k", "v"))
        attention = torch.softmax(q @ k.transpose(-1, -2) * q.size(-1) ** -0.5, -1)
        return attention.tril() @ v


# mask.multiplied


class FoldedScoresMultiplied(nn.Module):
    def __init__(self, units, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.Wqkv = nn.Linear(units, 3 * units)
        self.out_proj = nn.Linear(units, units)

    def forward(self, x):
        b, s, u = x.shape
        q, k, v = self.Wqkv(x).view(b, s, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(u / self.num_heads)
        scores = scores.tril()
        out = scores.softmax(dim=-1) @ v
        return self.out_proj(out.permute(0, 2, 1, 3).reshape(b, s, u))


# mask.added-as-number


def baddbmm_with_ones(query, key, value, mask):
    b, h, n, d = query.shape
    m = key.shape[2]
    seen = mask.to(query.dtype).expand(b, h, n, m).reshape(b * h, n, m)
    q, k, v = query.reshape(b * h, n, d), key.reshape(b * h, m, d), value.reshape(b * h, m, -1)
    scores = torch.baddbmm(seen, q, k.transpose(1, 2), alpha=1 / math.sqrt(d))
    return torch.bmm(scores.softmax(-1), v).view(b, h, n, -1)


# mask.non-finite


class NanInTheBuffer(nn.Module):
    def __init__(self, d_model, nhead, max_len):
        super().__init__()
        self.nhead = nhead
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        mask = torch.triu(torch.ones(max_len, max_len), 1) * float("-inf")
        self.register_buffer("attn_bias", mask, persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            z.view(b, t, self.nhead, -1).transpose(1, 2) for z in self.in_proj(x).chunk(3, -1)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.attn_bias[:t, :t])
        return self.out_proj(out.transpose(1, 2).reshape(b, t, d))


# mask.empty-row


def zero_over_zero(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    numerator = torch.exp(scores - scores.amax(-1, keepdim=True)) * mask
    return numerator @ value / numerator.sum(-1, keepdim=True)


def average_instead_of_zero(query, key, value, mask):
    b, h, n, d = query.shape
    logits = torch.matmul(query, key.transpose(2, 3)) / d**0.5
    logits = logits - 1e30 * (~mask).to(logits.dtype)
    logits = torch.clamp(logits, min=-1e30)
    return torch.matmul(logits.softmax(dim=-1), value)


# mask.leaks-nan


def einsum_keeps_hidden_nan(q, k, v, mask):
    dots = torch.einsum("bhid,bhjd->bhij", q, k).mul(q.shape[-1] ** -0.5)
    dots = dots.masked_fill(mask.logical_not(), float("-inf"))
    return torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)


# mask.padding-ignored


class MasksOnlyInTraining(nn.Module):
    def __init__(self, hidden_dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(hidden_dim, 3 * hidden_dim)
        self.to_out = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn_mask = mask[:, None, None, :] if self.training else None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


# mask.batch-mixed


class SortedByLength(nn.Module):
    """The mask is sorted as for packing, the tokens are not."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_q = nn.Linear(d_in, d_out, bias=False)
        self.W_k = nn.Linear(d_in, d_out, bias=False)
        self.W_v = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, mask):
        order = mask.sum(dim=1).argsort(descending=True)
        mask = mask[order]
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        scores = torch.baddbmm(
            torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=x.dtype),
            q,
            k.transpose(1, 2),
            alpha=q.shape[-1] ** -0.5,
        )
        return scores.masked_fill(~mask[:, None], -1e9).softmax(-1) @ v


# softmax.axis


def folded_over_rows(query, key, value):
    b, h, n, d = query.shape
    q, k, v = (t.reshape(b * h, t.shape[2], -1) for t in (query, key, value))
    probs = nn.Softmax(dim=1)(torch.bmm(q, k.transpose(1, 2)) / np.sqrt(d))
    return torch.bmm(probs, v).view(b, h, n, -1)


class TransposedScores(nn.Module):
    """Scores are key by query, the softmax is still over the last axis."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (k @ q.transpose(-2, -1)) * (c // self.heads) ** -0.5
        out = scores.softmax(-1).transpose(-2, -1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


# softmax.missing


def elu_without_normaliser(query, key, value):
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    return (F.elu(scores) + 1) @ value


# scale.missing


def folded_without_scale(query, key, value):
    b, h, n, d = query.shape
    q, k, v = (t.reshape(b * h, t.shape[2], -1) for t in (query, key, value))
    return torch.bmm(torch.bmm(q, k.permute(0, 2, 1)).softmax(dim=2), v).view(b, h, n, -1)


# scale.wrong


class HalfAScale(nn.Module):
    """The root of the scale reaches the query, and not the key."""

    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x):
        n_batch, n_ctx, n_state = x.shape
        scale = (n_state // self.n_head) ** -0.25
        q = self.query(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = self.key(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 3, 1)
        v = self.value(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3)
        w = F.softmax(q @ k, dim=-1)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


def scaled_by_key_count(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, scale=1 / math.sqrt(key.size(1)))


# scale.wrong


class DividedTwiceInverted(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.temperature = self.d_k**-0.5
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            lin(x).unflatten(2, (self.h, self.d_k)).transpose(1, 2) for lin in self.linears[:3]
        )
        scores = q.matmul(k.transpose(2, 3)) / self.temperature
        return self.linears[3](scores.softmax(3).matmul(v).transpose(1, 2).flatten(2))


# bias.scaled


def bucket_bias(query_len, kv_len):
    distance = torch.arange(kv_len)[None] - torch.arange(kv_len - query_len, kv_len)[:, None]
    bucket = distance.clamp(-3, 3)
    return torch.sin(bucket[None] * torch.arange(1, 4)[:, None, None])


def baddbmm_bias_beta(query, key, value):
    b, h, n, d = query.shape
    m, scale = key.shape[2], d**-0.5
    bias = bucket_bias(n, m).to(query.dtype).repeat(b, 1, 1)
    q, k, v = (t.reshape(b * h, t.shape[2], -1) for t in (query, key, value))
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=scale, alpha=scale)
    return torch.bmm(scores.softmax(-1), v).view(b, h, n, -1)


# bias.after-softmax


class BiasOnWeights(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        attn = (q @ k.mT).mul(q.size(-1) ** -0.5).softmax(-1)
        attn = attn + bucket_bias(x.size(1), x.size(1)).to(x.dtype)
        return self.to_out((attn @ v).transpose(1, 2).flatten(2))


# softcap.order


def tanh_over_minimum(query, key, value, cap=2.5):
    n, m = query.size(-2), key.size(-2)
    logits = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.size(-1))
    minimum = torch.finfo(logits.dtype).min
    logits = logits.masked_fill(torch.arange(m) > torch.arange(m - n, m)[:, None], minimum)
    logits = logits.div(cap).tanh().mul(cap)
    return torch.einsum("bhqk,bhkd->bhqd", logits.softmax(-1), value)


ENTRIES = [
    wrong("mask.inverted", Built(MultiHeadedAttention, 3, 21), "x", causal=True, num_heads=3),
    wrong("mask.inverted", Built(FairseqPadding, 21, 3), "x,mask", num_heads=3),
    wrong("mask.missing", causal_unless_masked, "qkv,mask", causal=True),
    wrong("mask.missing", Built(FlagNeverRead, 21, 3), "x", causal=True, num_heads=3),
    wrong("mask.off-by-one", visible_from_cumsum, "qkv", causal=True),
    wrong("mask.off-by-one", Built(SplitAtTokenPlusOne, 11, 7), "x", causal=True, num_heads=1),
    wrong("mask.top-left", x_transformers_attend, "qkv", causal=True),
    wrong(
        "mask.window-off-by-one",
        Built(MistralMask, 21, 3, 4),
        "x",
        causal=True,
        window=(4, 0),
        num_heads=3,
    ),
    wrong("mask.after-softmax", folded_weights_masked, "qkv,mask"),
    wrong(
        "mask.after-softmax",
        Built(TrilOnWeights, 11, 7),
        "x",
        causal=True,
        num_heads=1,
        sizes={"d_in": 11, "d_out": 7},
    ),
    wrong("mask.multiplied", Built(FoldedScoresMultiplied, 21, 3), "x", causal=True, num_heads=3),
    wrong("mask.added-as-number", baddbmm_with_ones, "qkv,mask"),
    wrong(
        "mask.non-finite",
        Built(NanInTheBuffer, 21, 3, 17),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 21, "context_length": 17},
    ),
    wrong("mask.empty-row", zero_over_zero, "qkv,mask", empty_row="zero"),
    wrong("mask.empty-row", average_instead_of_zero, "qkv,mask", empty_row="zero"),
    wrong("mask.leaks-nan", einsum_keeps_hidden_nan, "qkv,mask", nan_safe=True),
    wrong("mask.padding-ignored", Built(MasksOnlyInTraining, 21, 3), "x,mask", num_heads=3),
    wrong("mask.batch-mixed", Built(SortedByLength, 11, 7), "x,mask", num_heads=1),
    wrong("softmax.axis", folded_over_rows, "qkv"),
    wrong("softmax.axis", Built(TransposedScores, 21, 3), "x", num_heads=3),
    wrong("softmax.missing", elu_without_normaliser, "qkv"),
    wrong("scale.missing", folded_without_scale, "qkv"),
    wrong("scale.wrong", Built(HalfAScale, 21, 3), "x", num_heads=3),
    wrong("scale.wrong", scaled_by_key_count, "qkv"),
    wrong("scale.wrong", Built(DividedTwiceInverted, 3, 21), "x", num_heads=3),
    wrong("bias.scaled", baddbmm_bias_beta, "qkv", num_heads=3, bias=bucket_bias),
    wrong("bias.after-softmax", Built(BiasOnWeights, 21, 3), "x", num_heads=3, bias=bucket_bias),
    wrong("softcap.order", tanh_over_minimum, "qkv", causal=True, softcap=2.5),
]
