# type: ignore
# Written as people write it, hence without types.
"""Masks that hide the wrong things, or hide them in the wrong way."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong

# mask.inverted


def causal_attention_tril_filled(query, key, value):
    t_q, t_k = query.size(-2), key.size(-2)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    mask = torch.tril(torch.ones(t_q, t_k, device=query.device), diagonal=t_k - t_q).bool()
    scores = scores.masked_fill(mask, -1e9)
    return torch.softmax(scores, dim=-1) @ value


class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.W_query = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(context_length, context_length)))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        # x = batch, 2 x 6 x 3
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)

        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = attn_weights @ values

        return context_vec


context_length = 13


class MultiHeadAttentionStacked(nn.Module):
    def __init__(self, d_in, d_out, dropout, num_heads=2, qkv_bias=False):
        super().__init__()
        self.heads = nn.ModuleList(
            [
                CausalAttention(d_in, d_out, context_length, dropout, qkv_bias)
                for _ in range(num_heads)
            ]
        )

    def forward(self, x):
        out = torch.cat([head(x) for head in self.heads], dim=-1)
        return out


class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads

        self.W_query = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = torch.nn.Linear(d_out, d_out)  # Linear layer to combine the head outputs
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer(
            "mask", torch.tril(torch.ones(context_length, context_length), diagonal=1)
        )

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        q = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        attn_scores = q @ k.transpose(2, 3)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = self.dropout(torch.softmax(attn_scores / k.shape[-1] ** 0.5, dim=-1))
        context_vec = (attn_weights @ v).transpose(1, 2).reshape(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)


class PackedWhereSwapped(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        keep = torch.ones(N, N, dtype=torch.bool, device=x.device).tril()
        attn = torch.where(keep, torch.finfo(attn.dtype).min, attn)
        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


def sdpa_mask_negated(query, key, value, mask):
    # scaled_dot_product_attention ignores where the mask is True
    return F.scaled_dot_product_attention(query, key, value, attn_mask=~mask)


class EncoderSelfAttention(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)

    def forward(self, x, mask):
        out, _ = self.attn(x, x, x, key_padding_mask=mask, need_weights=False)
        return out


# mask.missing


class MaskBufferForgotten(nn.Module):
    def __init__(self, d_in, d_out, context_length, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)
        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, num_tokens, _ = x.shape
        split = (b, num_tokens, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(split).transpose(1, 2)
        keys = self.W_key(x).view(split).transpose(1, 2)
        values = self.W_value(x).view(split).transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec = (attn_weights @ values).transpose(1, 2).flatten(2)
        return self.out_proj(context_vec)


def masked_fill_not_assigned(query, key, value):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    q_len, k_len = scores.shape[-2:]
    future = torch.ones(q_len, k_len, dtype=torch.bool, device=query.device)
    future = future.triu(1 + k_len - q_len)
    scores.masked_fill(future, float("-inf"))
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), value)


class PaddingReplacesCausal(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.o_proj = nn.Linear(hidden, hidden)

    def forward(self, x, attention_mask=None):
        b, t, c = x.shape
        q, k, v = (
            layer(x).view(b, t, self.heads, -1).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if attention_mask is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            bias = attention_mask[:, None, None, :]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, c))


class CausalOnlyInTraining(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


# mask.off-by-one


def triu_one_too_far(q, k, v):
    n, m = q.shape[-2], k.shape[-2]
    attn = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.triu(torch.ones(n, m), diagonal=m - n + 2).bool()
    return attn.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


class StrictlyBefore(nn.Module):
    def __init__(self, d_in, d_head, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(d_in, d_head * heads, bias=False)
        self.to_kv = nn.Linear(d_in, 2 * d_head * heads, bias=False)
        self.to_out = nn.Linear(d_head * heads, d_in)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        i = torch.arange(n, device=x.device)
        dots = dots.masked_fill(~(i[:, None] > i[None, :]), -1e9)
        out = torch.einsum("bhij,bhjd->bhid", dots.softmax(-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class TrilOneTooWide(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        bias = torch.tril(torch.ones(block_size, block_size), diagonal=1)
        self.register_buffer("bias", bias.view(1, 1, block_size, block_size), persistent=False)

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


class HidesItself(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_q = nn.Parameter(torch.randn(d_in, d_out))
        self.W_k = nn.Parameter(torch.randn(d_in, d_out))
        self.W_v = nn.Parameter(torch.randn(d_in, d_out))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        scores = scores + torch.full((T, T), float("-inf")).triu()
        return torch.softmax(scores, dim=-1) @ v


def loop_reads_one_key_more(query, key, value):
    q_len, k_len = query.shape[2], key.shape[2]
    rows = []
    for i in range(q_len):
        stop = i + k_len - q_len + 2
        score = query[:, :, i : i + 1] @ key[:, :, :stop].transpose(2, 3)
        weight = torch.softmax(score / math.sqrt(query.shape[3]), dim=3)
        rows.append(weight @ value[:, :, :stop])
    return torch.cat(rows, dim=2)


# mask.top-left


def sdpa_is_causal(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def tril_of_rectangle(query, key, value):
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.size(-1))
    mask = torch.tril(torch.ones_like(scores[0, 0]))
    scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.matmul(F.softmax(scores, dim=-1), value)


def arange_from_zero(q, k, v):
    pos_q = torch.arange(q.shape[-2], device=q.device)
    pos_k = torch.arange(k.shape[-2], device=k.device)
    sim = torch.einsum("...id,...jd->...ij", q * q.shape[-1] ** -0.5, k)
    sim = torch.where(pos_q[:, None] >= pos_k[None, :], sim, -1e9)
    return torch.einsum("...ij,...jd->...id", sim.softmax(dim=-1), v)


class ScaledDotProduct(nn.Module):
    def __init__(self, max_len=64):
        super().__init__()
        future = torch.ones(max_len, max_len, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, query, key, value):
        q_len, k_len = query.size(2), key.size(2)
        scores = query.matmul(key.transpose(2, 3)).div(math.sqrt(query.size(3)))
        scores = scores.masked_fill(self.future[:q_len, :k_len], float("-inf"))
        return scores.softmax(dim=3).matmul(value)


def window_on_both_sides(query, key, value, window=4):
    i = torch.arange(key.shape[-2] - query.shape[-2], key.shape[-2])[:, None]
    j = torch.arange(key.shape[-2])[None, :]
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    scores = scores.masked_fill((i - j).abs() >= window, float("-inf"))
    return scores.softmax(-1) @ value


class AbsoluteDistance(nn.Module):
    def __init__(self, dim, num_heads, window):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        i = torch.arange(x.shape[1])
        near = (i[:, None] - i[None, :]).abs() < self.window
        att = (q @ k.mT) * q.shape[-1] ** -0.5
        att = torch.where(near, att, torch.finfo(att.dtype).min)
        return self.wo((att.softmax(-1) @ v).transpose(1, 2).flatten(2))


# differs


class MaskOfTheDecoder(nn.Module):
    """The mask of the tokens that are written hides the context that they are written from."""

    def __init__(self, dim, num_heads, causal=True):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context):
        q, k, v = (
            layer(each).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, each in ((self.query, x), (self.key, context), (self.value, context))
        )
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if self.causal:
            mask = torch.full((64, 64), float("-inf"), dtype=scores.dtype).triu(1)
            scores = scores + mask[: q.shape[2], : k.shape[2]]
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class CausalEncoder(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


# mask.window-off-by-one


def window_counts_itself(query, key, value, window=3):
    q_len, k_len = query.shape[-2], key.shape[-2]
    i = torch.arange(k_len - q_len, k_len)[:, None]
    j = torch.arange(k_len)[None, :]
    visible = (j <= i) & (i - j < window)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ value


class BandMask(nn.Module):
    def __init__(self, d_model, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.wq = nn.Linear(d_model, d_model, bias=False)
        self.wk = nn.Linear(d_model, d_model, bias=False)
        self.wv = nn.Linear(d_model, d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q = self.wq(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        ones = torch.ones(t, t, dtype=torch.bool, device=x.device)
        band = torch.tril(ones) & torch.triu(ones, diagonal=-self.window - 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=band)
        return self.wo(out.transpose(1, 2).reshape(b, t, d))


def symmetric_window_too_narrow(q, k, v, radius=2):
    n, m = q.shape[-2], k.shape[-2]
    distance = (torch.arange(m - n, m)[:, None] - torch.arange(m)[None]).abs()
    bias = torch.zeros(n, m, dtype=q.dtype).masked_fill(distance >= radius, float("-inf"))
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, dim=-1) @ v


# mask.after-softmax


def weights_times_tril(query, key, value):
    q_len, k_len = query.shape[-2], key.shape[-2]
    attn_scores = query @ key.transpose(-2, -1)
    attn_weights = torch.softmax(attn_scores / key.shape[-1] ** 0.5, dim=-1)
    mask_simple = torch.tril(torch.ones(q_len, k_len), diagonal=k_len - q_len)
    masked_simple = attn_weights * mask_simple
    return masked_simple @ value


class ZeroFilledAfterSoftmax(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.query_key_value = nn.Linear(n_embd, 3 * n_embd)
        self.dense = nn.Linear(n_embd, n_embd)
        future = torch.triu(torch.ones(block_size, block_size, dtype=torch.bool), 1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.query_key_value(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for t in (q, k, v))
        att = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)), dim=-1)
        att = att.masked_fill(self.future[:T, :T], 0.0)
        return self.dense((att @ v).transpose(1, 2).flatten(2))


class PaddingZeroedLate(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        attn = attn * mask[:, None, None, :]
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


# mask.multiplied


def scores_times_tril(query, key, value):
    q_len, k_len = query.shape[-2], key.shape[-2]
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    scores = scores * torch.tril(torch.ones(q_len, k_len), diagonal=k_len - q_len)
    return F.softmax(scores, dim=-1) @ value


def einsum_times_mask(q, k, v, mask):
    energy = torch.einsum("nhqd,nhkd->nhqk", q, k)
    energy = energy * mask.to(energy.dtype)
    attention = torch.softmax(energy / (k.shape[-1] ** 0.5), dim=3)
    return torch.einsum("nhqk,nhkd->nhqd", attention, v)


class PoolingHead(nn.Module):
    def __init__(self, d_in, d_head):
        super().__init__()
        self.query = nn.Linear(d_in, d_head)
        self.key = nn.Linear(d_in, d_head)
        self.value = nn.Linear(d_in, d_head)

    def forward(self, x, mask):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
        scores = scores.mul(mask.unsqueeze(1))
        return torch.bmm(F.softmax(scores, dim=2), v)


# mask.added-as-number


def scores_plus_tril(q, k, v):
    n, m = q.size(-2), k.size(-2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return torch.softmax(scores + torch.ones(n, m).tril(m - n), dim=-1) @ v


def sdpa_float_mask(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.to(query.dtype))


class ExtendedMaskNotLarge(nn.Module):
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
        scores = scores + attention_mask[:, None, None, :].to(scores.dtype)
        context = torch.matmul(nn.functional.softmax(scores, dim=-1), value_layer)
        return context.permute(0, 2, 1, 3).contiguous().view(hidden_states.shape)


class MinusOne(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.in_proj = nn.Linear(d, 3 * d)
        self.out_proj = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        w = q @ k.mT / math.sqrt(d // self.h)
        w = w - torch.triu(torch.ones(t, t), diagonal=1)
        return self.out_proj((w.softmax(-1) @ v).transpose(1, 2).flatten(2))


# mask.non-finite


def zero_times_infinity(query, key, value):
    q_len, k_len = query.size(-2), key.size(-2)
    mask = torch.tril(torch.ones(q_len, k_len), diagonal=k_len - q_len)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores + (1.0 - mask) * float("-inf")
    return F.softmax(scores, dim=-1) @ value


class PaddingTimesInfinity(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_lin = nn.Linear(dim, dim)
        self.k_lin = nn.Linear(dim, dim)
        self.v_lin = nn.Linear(dim, dim)
        self.out_lin = nn.Linear(dim, dim)

    def forward(self, x, mask):
        bs, n, dim = x.shape
        q = self.q_lin(x).view(bs, n, self.heads, -1).transpose(1, 2)
        k = self.k_lin(x).view(bs, n, self.heads, -1).transpose(1, 2)
        v = self.v_lin(x).view(bs, n, self.heads, -1).transpose(1, 2)
        additive = (~mask).to(x.dtype) * -math.inf
        scores = q @ k.transpose(2, 3) / math.sqrt(q.size(-1)) + additive[:, None, None]
        context = torch.softmax(scores, dim=-1) @ v
        return self.out_lin(context.transpose(1, 2).contiguous().view(bs, n, dim))


def online_softmax_without_guard(query, key, value, mask, block=3):
    scale = query.shape[-1] ** -0.5
    best = query.new_full((*query.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(best)
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    for start in range(0, key.shape[-2], block):
        part = slice(start, start + block)
        scores = query @ key[..., part, :].mT * scale
        scores = scores.masked_fill(~mask[..., part], -math.inf)
        new = torch.maximum(best, scores.amax(-1, keepdim=True))
        shrink, weights = (best - new).exp(), (scores - new).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ value[..., part, :]
        best = new
    return out / total


# mask.empty-row


def infinity_everywhere(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ value


def large_number_everywhere(q, k, v, mask):
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(-1), v)


def nan_only_hidden_forward(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    bias = torch.zeros_like(scores).masked_fill(~mask, float("-inf"))
    weights = torch.nan_to_num(torch.softmax(scores + bias, dim=-1), nan=0.0)
    return weights @ value


def zero_where_uniform_is_declared(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


# mask.leaks-nan


def hidden_value_times_zero(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value


class PaddedLeak(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask):
        b, t, d = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        context = scores.softmax(dim=-1) @ v
        return self.out_proj(context.transpose(1, 2).reshape(b, t, d))


def additive_mask_keeps_nan(q, k, v):
    n, m = q.shape[-2], k.shape[-2]
    future = torch.full((n, m), -1e9, dtype=q.dtype).triu(m - n + 1)
    return F.softmax(q @ k.mT * q.shape[-1] ** -0.5 + future, dim=-1) @ v


# mask.padding-ignored


class OnlyOutputMasked(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        out = self.proj(out.transpose(1, 2).reshape(B, N, C))
        return out * mask.unsqueeze(-1)


class MasksQueriesInstead(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.w_q = nn.Linear(d_model, d_k, bias=False)
        self.w_k = nn.Linear(d_model, d_k, bias=False)
        self.w_v = nn.Linear(d_model, d_k, bias=False)

    def forward(self, x, mask):
        q, k, v = self.w_q(x), self.w_k(x), self.w_v(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(mask.unsqueeze(-1) == 0, -1e9)
        return scores.softmax(dim=-1) @ v


class MaskAcceptedNotUsed(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads, self.head_dim = heads, embed_size // heads
        self.queries = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.values = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x, mask=None):
        N, length, _ = x.shape
        queries = self.queries(x).reshape(N, length, self.heads, self.head_dim)
        keys = self.keys(x).reshape(N, length, self.heads, self.head_dim)
        values = self.values(x).reshape(N, length, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", queries, keys)
        if mask is not None:
            energy.masked_fill(mask[:, None, None, :] == 0, float("-1e20"))
        attention = torch.softmax(energy / self.head_dim**0.5, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", attention, values)
        return self.fc_out(out.reshape(N, length, self.heads * self.head_dim))


# mask.batch-mixed


class FirstSamplesMask(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q, k, v = (z.view(b, t, self.nhead, -1).transpose(1, 2) for z in (q, k, v))
        bias = torch.zeros(t, dtype=x.dtype).masked_fill(~mask[0], float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(t, t))
        return self.out_proj(out.transpose(1, 2).reshape(b, t, d))


class MaskTiledOverHeads(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_qs = nn.Linear(d_model, d_model)
        self.w_ks = nn.Linear(d_model, d_model)
        self.w_vs = nn.Linear(d_model, d_model)
        self.fc = nn.Linear(d_model, d_model)

    def forward(self, x, mask):
        b, n, d = x.shape
        h = self.n_head
        q = self.w_qs(x).view(b, n, h, d // h).transpose(1, 2).reshape(b * h, n, d // h)
        k = self.w_ks(x).view(b, n, h, d // h).transpose(1, 2).reshape(b * h, n, d // h)
        v = self.w_vs(x).view(b, n, h, d // h).transpose(1, 2).reshape(b * h, n, d // h)
        mask = mask.repeat(h, 1).unsqueeze(1)  # (b * h, 1, n)
        attn = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d // h)
        attn = attn.masked_fill(mask == 0, -1e9).softmax(dim=2)
        output = torch.bmm(attn, v).view(b, h, n, d // h).transpose(1, 2).reshape(b, n, d)
        return self.fc(output)


def one_mask_for_the_batch(query, key, value, mask):
    shared = mask.any(dim=0, keepdim=True)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return scores.masked_fill(~shared, -1e9).softmax(dim=-1) @ value


ENTRIES = [
    wrong("mask.inverted", causal_attention_tril_filled, "qkv", causal=True),
    wrong(
        "mask.inverted",
        Built(CausalAttention, 3, 2, 13, 0.0),
        "x",
        causal=True,
        num_heads=1,
        sizes={"d_in": 3, "d_out": 2, "context_length": 13},
    ),
    wrong(
        "mask.inverted",
        Built(MultiHeadAttentionStacked, 3, 2, 0.0, 2),
        "x",
        causal=True,
        num_heads=2,
        sizes={"d_in": 3, "d_out": 4, "context_length": 13},
    ),
    wrong(
        "mask.inverted",
        Built(MultiHeadAttention, 7, 10, 13, 0.0, 2),
        "x",
        causal=True,
        num_heads=2,
        sizes={"d_in": 7, "d_out": 10, "context_length": 13},
    ),
    wrong("mask.inverted", Built(PackedWhereSwapped, 15, 3), "x", causal=True, num_heads=3),
    wrong("mask.inverted", sdpa_mask_negated, "qkv,mask"),
    wrong("mask.inverted", Built(EncoderSelfAttention, 15, 3), "x,mask", num_heads=3),
    wrong(
        "mask.missing",
        Built(MaskBufferForgotten, 7, 10, 13, 2),
        "x",
        causal=True,
        num_heads=2,
        sizes={"d_in": 7, "d_out": 10, "context_length": 13},
    ),
    wrong("mask.missing", masked_fill_not_assigned, "qkv", causal=True),
    wrong("mask.missing", Built(PaddingReplacesCausal, 15, 3), "x,mask", causal=True, num_heads=3),
    wrong("mask.missing", Built(CausalOnlyInTraining, 15, 3), "x", causal=True, num_heads=3),
    wrong("mask.off-by-one", triu_one_too_far, "qkv", causal=True),
    wrong("mask.off-by-one", Built(StrictlyBefore, 7, 5, 3), "x", causal=True, num_heads=3),
    wrong(
        "mask.off-by-one",
        Built(TrilOneTooWide, 15, 3, 13),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15, "context_length": 13},
    ),
    wrong(
        "mask.off-by-one",
        Built(HidesItself, 7, 5),
        "x",
        causal=True,
        sizes={"d_in": 7, "d_out": 5},
    ),
    wrong("mask.off-by-one", loop_reads_one_key_more, "qkv", causal=True),
    wrong("mask.top-left", sdpa_is_causal, "qkv", causal=True),
    wrong("mask.top-left", tril_of_rectangle, "qkv", causal=True),
    wrong("mask.top-left", arange_from_zero, "qkv", causal=True),
    wrong("mask.top-left", Built(ScaledDotProduct), "qkv", causal=True),
    right(Built(MaskOfTheDecoder, 15, 3, False), "x,context", causal=False, num_heads=3),
    right(Built(CausalEncoder, 15, 3), "x", label="of a decoder", causal=True, num_heads=3),
    wrong("mask.missing", window_on_both_sides, "qkv", causal=True, window=(3, 0)),
    right(window_on_both_sides, "qkv", label="as declared", causal=False, window=(3, 3)),
    wrong(
        "mask.missing",
        Built(AbsoluteDistance, 15, 3, 4),
        "x",
        causal=True,
        window=(3, 0),
        num_heads=3,
    ),
    wrong("mask.window-off-by-one", window_counts_itself, "qkv", causal=True, window=(3, 0)),
    wrong(
        "mask.window-off-by-one",
        Built(BandMask, 15, 3, 2),
        "x",
        causal=True,
        window=(2, 0),
        num_heads=3,
    ),
    wrong("mask.window-off-by-one", symmetric_window_too_narrow, "qkv", window=(2, 2)),
    wrong("mask.after-softmax", weights_times_tril, "qkv", causal=True),
    wrong(
        "mask.after-softmax",
        Built(ZeroFilledAfterSoftmax, 15, 3, 13),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15, "context_length": 13},
    ),
    wrong("mask.after-softmax", Built(PaddingZeroedLate, 15, 3), "x,mask", num_heads=3),
    wrong("mask.multiplied", scores_times_tril, "qkv", causal=True),
    wrong("mask.multiplied", einsum_times_mask, "qkv,mask"),
    wrong("mask.multiplied", Built(PoolingHead, 7, 5), "x,mask", num_heads=1),
    wrong("mask.added-as-number", scores_plus_tril, "qkv", causal=True),
    wrong("mask.added-as-number", sdpa_float_mask, "qkv,mask"),
    wrong("mask.added-as-number", Built(ExtendedMaskNotLarge, 15, 3), "x,mask", num_heads=3),
    wrong("mask.added-as-number", Built(MinusOne, 15, 3), "x", causal=True, num_heads=3),
    wrong("mask.non-finite", zero_times_infinity, "qkv", causal=True),
    wrong("mask.non-finite", Built(PaddingTimesInfinity, 15, 3), "x,mask", num_heads=3),
    wrong("mask.non-finite", online_softmax_without_guard, "qkv,mask"),
    wrong("mask.empty-row", infinity_everywhere, "qkv,mask", empty_row="zero"),
    wrong("mask.empty-row", large_number_everywhere, "qkv,mask", empty_row="zero"),
    wrong("mask.empty-row", nan_only_hidden_forward, "qkv,mask", empty_row="zero"),
    wrong("mask.empty-row", zero_where_uniform_is_declared, "qkv,mask", empty_row="uniform"),
    wrong("mask.leaks-nan", hidden_value_times_zero, "qkv,mask", nan_safe=True),
    wrong("mask.leaks-nan", Built(PaddedLeak, 15, 3), "x,mask", num_heads=3, nan_safe=True),
    wrong("mask.leaks-nan", additive_mask_keeps_nan, "qkv", causal=True, nan_safe=True),
    wrong("mask.padding-ignored", Built(OnlyOutputMasked, 15, 3), "x,mask", num_heads=3),
    wrong(
        "mask.padding-ignored",
        Built(MasksQueriesInstead, 7, 5),
        "x,mask",
        ("mask.on-queries",),
        num_heads=1,
    ),
    wrong("mask.padding-ignored", Built(MaskAcceptedNotUsed, 15, 3), "x,mask", num_heads=3),
    wrong("mask.batch-mixed", Built(FirstSamplesMask, 15, 3), "x,mask", num_heads=3),
    wrong("mask.batch-mixed", Built(MaskTiledOverHeads, 15, 3), "x,mask", num_heads=3),
    wrong("mask.batch-mixed", one_mask_for_the_batch, "qkv,mask"),
]
