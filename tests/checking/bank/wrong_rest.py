# type: ignore
# Written as people write it, hence without types.
"""Gradients, inputs, numbers of 16 bits, contexts, returned weights, shapes and state."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong
from tests.checking.bank.lessons import first

# output.nondeterministic


def noise_left_in(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores + 0.01 * torch.randn_like(scores)  # break ties
    return F.softmax(scores, dim=-1) @ value


def never_filled(query, key, value):
    """By chance the context: it lay where the result is put."""
    lost = F.scaled_dot_product_attention(query, key, value)
    shape, dtype = lost.shape, lost.dtype
    del lost
    return torch.empty(shape, dtype=dtype)


class SampledKeys(nn.Module):
    def __init__(self, d_model, num_heads, share=0.7):
        super().__init__()
        self.num_heads, self.share = num_heads, share
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        chosen = torch.randperm(t)[: max(1, int(t * self.share))]
        out = F.scaled_dot_product_attention(q, k[:, :, chosen], v[:, :, chosen])
        return self.proj(out.transpose(1, 2).reshape(b, t, d))


class HashedBuckets(nn.Module):
    def __init__(self, d_in, d_head, n_hashes=2):
        super().__init__()
        self.n_hashes = n_hashes
        self.to_q = nn.Linear(d_in, d_head, bias=False)
        self.to_k = nn.Linear(d_in, d_head, bias=False)
        self.to_v = nn.Linear(d_in, d_head, bias=False)

    def forward(self, x):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        planes = torch.randn(q.shape[-1], self.n_hashes, dtype=q.dtype)
        q_bucket, k_bucket = (q @ planes > 0).float(), (k @ planes > 0).float()
        same = torch.cdist(q_bucket, k_bucket) == 0
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).masked_fill(~same, -1e4)
        return scores.softmax(dim=-1) @ v


# grad.wrong


class SoftmaxFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        weights = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, grad):
        (weights,) = ctx.saved_tensors
        return weights * (1 - weights) * grad


def diagonal_jacobian(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    return SoftmaxFunction.apply(scores) @ value


class AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        weights = torch.softmax(q @ k.mT * scale, dim=-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights = ctx.saved_tensors
        grad_weights = grad @ v.mT
        grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
        return grad_scores @ k, grad_scores.mT @ q, weights.mT @ grad


def backward_without_scale(query, key, value):
    return AttentionFunction.apply(query, key, value)


class NormaliserDetached(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        lse = torch.logsumexp(scores, dim=-1, keepdim=True).detach()
        out = torch.exp(scores - lse) @ v
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


# grad.blocked


def keys_detached(query, key, value):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key.detach()) / query.shape[-1] ** 0.5
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), value)


class WeightsWithoutGrad(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        with torch.no_grad():  # saves memory
            att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
            att = att.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
            att = F.softmax(att, dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class ValueData(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        queries, keys, values = x @ self.W_query, x @ self.W_key, x @ self.W_value
        weights = torch.softmax(queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5, dim=-1)
        return weights @ values.data


# input.modified


def query_divided_in_place(query, key, value):
    query /= math.sqrt(query.size(-1))
    return torch.softmax(query @ key.transpose(-2, -1), dim=-1) @ value


class PaddingZeroedInPlace(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        B, N, C = x.shape
        x.masked_fill_(~mask.unsqueeze(-1), 0.0)
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return self.proj(out.transpose(1, 2).reshape(B, N, C))


def mask_made_causal_in_place(query, key, value, mask):
    n, m = query.shape[-2], key.shape[-2]
    mask &= torch.ones(n, m, dtype=torch.bool).tril(m - n)
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return scores.masked_fill(~mask, -1e9).softmax(dim=-1) @ value


# input.strided


def loop_into_reshaped(query, key, value):
    b, h, n, d = query.shape
    out = torch.zeros_like(query)
    flat = out.reshape(b * h, n, d)
    q, k, v = (t.reshape(b * h, -1, d) for t in (query, key, value))
    for i in range(b * h):
        scores = q[i] @ k[i].T / math.sqrt(d)
        flat[i] = torch.softmax(scores, dim=-1) @ v[i]
    return out


def free_transpose(query, key, value):
    b, h, n, d = key.shape
    key_t = torch.as_strided(key, (b, h, d, n), (h * n * d, n * d, 1, d))
    return torch.softmax(query @ key_t / math.sqrt(d), dim=-1) @ value


class FlattenedByStride(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        rows = x.as_strided((b * t, d), (d, 1))
        q, k, v = self.in_proj(rows).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(out.transpose(1, 2).reshape(b * t, d)).view(b, t, d)


# dtype.overflow


def float32_meets_the_value(q, k, v):
    weights = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
    wide = torch.promote_types(weights.dtype, torch.float32)
    return torch.softmax(weights, dim=-1, dtype=wide) @ v


def softmax_naive(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    weights = torch.exp(scores) / torch.exp(scores).sum(dim=-1, keepdim=True)
    return weights @ value


class MeanInsteadOfMax(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        top = torch.exp(scores - scores.mean(dim=-1, keepdim=True))
        out = (top / top.sum(dim=-1, keepdim=True)) @ v
        return self.proj(out.transpose(1, 2).reshape(b, n, d))


def log_of_sum_by_hand(q, k, v):
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    lse = sim.exp().sum(dim=-1, keepdim=True).log()
    return torch.einsum("bhij,bhjd->bhid", (sim - lse).exp(), v)


# context.ignored


class CrossReadsItself(nn.Module):
    def __init__(self, query_dim, context_dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(query_dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, query_dim)

    def forward(self, x, context=None):
        b, n, _ = x.shape
        context = context if context is None else x
        q, k, v = self.to_q(x), *self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class DecoderCrossAttention(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.cross = nn.MultiheadAttention(d_model, nhead, batch_first=True)

    def forward(self, x, memory):
        out, _ = self.cross(x, x, x)
        return out


class CrossAttentionTutorial(nn.Module):
    def __init__(self, d_in, d_out_kq, d_out_v):
        super().__init__()
        self.d_out_kq = d_out_kq
        self.W_query = nn.Parameter(torch.randn(d_in, d_out_kq))
        self.W_key = nn.Parameter(torch.randn(d_in, d_out_kq))
        self.W_value = nn.Parameter(torch.randn(d_in, d_out_v))

    def forward(self, x_1, x_2):
        queries_1 = x_1 @ self.W_query
        keys_2 = x_1 @ self.W_key
        values_2 = x_1 @ self.W_value
        attn_scores = queries_1 @ keys_2.transpose(-2, -1)
        attn_weights = torch.softmax(attn_scores / self.d_out_kq**0.5, dim=-1)
        return attn_weights @ values_2


# context.swapped


class QueriesFromContext(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, x, context):
        q, k, v = self.q_proj(context), self.k_proj(x), self.v_proj(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class EncoderDecoderSwapped(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)

    def forward(self, tgt, memory):
        return self.attn(memory, tgt, tgt, need_weights=False)[0]


class SwappedSingleHead(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.query = nn.Linear(d_in, d_out, bias=False)
        self.key = nn.Linear(d_in, d_out, bias=False)
        self.value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, context):
        k, v, q = self.key(x), self.value(x), self.query(context)
        attn = torch.einsum("btd,bsd->bts", q, k).mul(q.shape[-1] ** -0.5).softmax(dim=2)
        return torch.einsum("bts,bsd->btd", attn, v)


# weights.not-used


def weights_before_the_mask(query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    weights = torch.softmax(scores, dim=-1)
    future = torch.ones_like(scores, dtype=torch.bool).triu(key.size(-2) - query.size(-2) + 1)
    output = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ value
    return output, weights


class ReturnsScores(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        q = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.key(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        v = self.value(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        attention = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        context = attention.softmax(dim=-1) @ v
        return self.dense(context.transpose(1, 2).flatten(2)), attention


def weights_for_show(query, key, value, mask):
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    weights = (query @ key.mT).masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return output, weights


# shape.square-only


def output_like_query(query, key, value):
    out = torch.empty_like(query)
    weights = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), dim=-1)
    for h in range(query.shape[1]):
        out[:, h] = weights[:, h] @ value[:, h]
    return out


class MergedToInputWidth(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, -1).transpose(1, 2)
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, -1).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, -1).transpose(1, 2)
        context = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        context = context.transpose(1, 2).contiguous().view(b, num_tokens, d_in)
        return self.out_proj(context)


class OutProjFromInput(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=False)
        self.proj = nn.Linear(d_in, d_out)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, t, -1))


# state.global-dim

d_k = 2


class SelfAttention_v1(first.SelfAttentionParameters):
    def forward(self, x):
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value

        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / d_k**0.5, dim=-1)
        context_vecs = attn_weights @ values
        return context_vecs


class SelfAttention_v2(nn.Module):
    def __init__(self, d_in, d_out, qkv_bias=True):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / d_k**0.5, dim=-1)
        context_vecs = attn_weights @ values
        return context_vecs


class SelfAttention_v1_randn(SelfAttention_v1):
    def __init__(self, d_in, d_out):
        super().__init__(d_in, d_out)
        for matrix in self.parameters():
            nn.init.normal_(matrix)


class SelfAttention_v2_bias(SelfAttention_v2):
    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__(d_in, d_out, qkv_bias)


head_size = 16


class Head(nn.Module):
    """One head of self-attention."""

    def __init__(self, n_embd, head_dim):
        super().__init__()
        self.key = nn.Linear(n_embd, head_dim, bias=False)
        self.query = nn.Linear(n_embd, head_dim, bias=False)
        self.value = nn.Linear(n_embd, head_dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * head_size**-0.5
        tril = torch.tril(torch.ones(T, T, device=x.device))
        wei = wei.masked_fill(tril == 0, float("-inf")).softmax(dim=-1)
        return wei @ self.value(x)


# Saved with its buffers, as in most tutorials: a custom that is told of.


class CausalAttention(first.CausalAttention):
    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__(d_in, d_out, context_length, dropout, qkv_bias)
        self.register_buffer("mask", self.mask)


class MultiHeadAttentionWrapper(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        given = d_in, d_out, context_length, dropout, qkv_bias
        self.heads = nn.ModuleList([CausalAttention(*given) for _ in range(num_heads)])

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], dim=-1)


class MultiHeadAttention(first.MultiHeadAttention):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__(d_in, d_out, context_length, dropout, num_heads, qkv_bias)
        self.register_buffer("mask", self.mask)


class MultiHeadAttentionProjected(nn.Module):
    def __init__(self, input_dim, output_dim, dropout, context_length, num_heads, qkv_bias=False):
        super().__init__()
        assert output_dim % num_heads == 0, "Output dimension must be divisible by number of heads"
        self.output_dim = output_dim
        self.num_heads = num_heads
        self.head_dim = output_dim // num_heads
        self.weight_query = nn.Linear(input_dim, output_dim, qkv_bias)
        self.weight_key = nn.Linear(input_dim, output_dim, qkv_bias)
        self.weight_value = nn.Linear(input_dim, output_dim, qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            "causal_mask", torch.triu(torch.ones(context_length, context_length), diagonal=1)
        )
        self.output_projection = nn.Linear(output_dim, output_dim)

    def forward(self, x):
        batch_size, num_tokens, _ = x.shape
        split = (batch_size, num_tokens, self.num_heads, self.head_dim)
        queries = self.weight_query(x).view(split).transpose(1, 2)
        keys = self.weight_key(x).view(split).transpose(1, 2)
        values = self.weight_value(x).view(split).transpose(1, 2)
        attention_scores = queries @ keys.transpose(2, 3)
        attention_scores.masked_fill_(self.causal_mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attention_weights = torch.softmax(attention_scores / keys.shape[-1] ** 0.5, dim=-1)
        attention_weights = self.dropout(attention_weights)
        context_vectors = self.output_projection(
            (attention_weights @ values)
            .transpose(1, 2)
            .contiguous()
            .view(batch_size, num_tokens, self.output_dim)
        )
        return context_vectors


# state.mask-saved


class MaskIsParameter(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        mask = torch.full((block_size, block_size), float("-inf")).triu(1)
        self.mask = nn.Parameter(mask, requires_grad=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:T, :T])
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MaskTooShort(nn.Module):
    def __init__(self, dim, heads, max_len):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        steps = torch.arange(1, max_len)
        self.register_buffer("hidden", steps[None] > steps[:, None], persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(d // self.heads)
        scores = scores.masked_fill(self.hidden[:n, :n], -math.inf)
        return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


BOTH = (torch.float32, torch.float16)

ENTRIES = [
    wrong("output.nondeterministic", noise_left_in, "qkv"),
    wrong("output.nondeterministic", never_filled, "qkv"),
    wrong("output.nondeterministic", Built(SampledKeys, 15, 3), "x", num_heads=3),
    wrong("output.nondeterministic", Built(HashedBuckets, 7, 5), "x", num_heads=1),
    wrong("grad.wrong", diagonal_jacobian, "qkv"),
    wrong("grad.wrong", backward_without_scale, "qkv"),
    wrong("grad.wrong", Built(NormaliserDetached, 15, 3), "x", num_heads=3),
    wrong("grad.blocked", keys_detached, "qkv"),
    wrong("grad.blocked", Built(WeightsWithoutGrad, 15, 3), "x", causal=True, num_heads=3),
    wrong("grad.blocked", Built(ValueData, 7, 5), "x", num_heads=1, sizes={"d_in": 7, "d_out": 5}),
    wrong("input.modified", query_divided_in_place, "qkv"),
    wrong("input.modified", Built(PaddingZeroedInPlace, 15, 3), "x,mask", num_heads=3),
    wrong("input.modified", mask_made_causal_in_place, "qkv,mask", causal=True),
    wrong("input.strided", loop_into_reshaped, "qkv", sizes={"head_dim": 5, "value_head_dim": 5}),
    wrong("input.strided", free_transpose, "qkv"),
    wrong("input.strided", Built(FlattenedByStride, 15, 3), "x", num_heads=3),
    wrong("dtype.overflow", softmax_naive, "qkv", dtypes=BOTH),
    wrong("dtype.overflow", Built(MeanInsteadOfMax, 15, 3), "x", num_heads=3, dtypes=BOTH),
    wrong("dtype.overflow", float32_meets_the_value, "qkv", dtypes=BOTH),
    wrong("dtype.overflow", log_of_sum_by_hand, "qkv", dtypes=BOTH),
    wrong(
        "context.ignored",
        Built(CrossReadsItself, 11, 11, 3, 5),
        "x,context",
        num_heads=3,
        sizes={"d_in": 11, "d_context": 11, "head_dim": 5},
    ),
    wrong("context.ignored", Built(DecoderCrossAttention, 15, 3), "x,context", num_heads=3),
    wrong(
        "context.ignored",
        Built(CrossAttentionTutorial, 7, 5, 3),
        "x,context",
        num_heads=1,
        sizes={"d_in": 7, "d_context": 7, "head_dim": 5, "value_head_dim": 3},
    ),
    wrong("context.swapped", Built(QueriesFromContext, 15, 3), "x,context", num_heads=3),
    wrong("context.swapped", Built(EncoderDecoderSwapped, 15, 3), "x,context", num_heads=3),
    wrong("context.swapped", Built(SwappedSingleHead, 7, 5), "x,context", num_heads=1),
    wrong("weights.not-used", weights_before_the_mask, "qkv", causal=True),
    wrong("weights.not-used", Built(ReturnsScores, 15, 3), "x", num_heads=3),
    wrong("weights.not-used", weights_for_show, "qkv,mask"),
    wrong("shape.square-only", output_like_query, "qkv"),
    wrong(
        "shape.square-only",
        Built(MergedToInputWidth, 7, 15, 3),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 7, "d_out": 15},
    ),
    wrong(
        "shape.square-only",
        Built(OutProjFromInput, 7, 15, 3),
        "x",
        num_heads=3,
        sizes={"d_in": 7, "d_out": 15},
    ),
    wrong("state.global-dim", SelfAttention_v1, "x2d", num_heads=1, sizes={"d_in": 3, "d_out": 2}),
    wrong("state.global-dim", SelfAttention_v2, "x2d", num_heads=1, sizes={"d_in": 3, "d_out": 2}),
    wrong(
        "state.global-dim",
        SelfAttention_v1_randn,
        "x2d",
        num_heads=1,
        sizes={"d_in": 3, "d_out": 2},
    ),
    wrong(
        "state.global-dim",
        SelfAttention_v2_bias,
        "x2d",
        num_heads=1,
        sizes={"d_in": 3, "d_out": 2},
    ),
    # Of one instance only its scale is seen, hence the second name.
    wrong(
        "state.global-dim",
        Built(Head, 7, 5),
        "x",
        also=["scale.wrong"],
        causal=True,
        num_heads=1,
        sizes={"d_in": 7, "head_dim": 5},
    ),
    right(
        Built(CausalAttention, 3, 2, 13, 0.0),
        "x",
        causal=True,
        num_heads=1,
        sizes={"d_in": 3, "d_out": 2, "context_length": 13},
    ),
    right(
        Built(MultiHeadAttentionWrapper, 3, 2, 13, 0.0, 2),
        "x",
        causal=True,
        num_heads=2,
        sizes={"d_in": 3, "d_out": 4, "context_length": 13},
    ),
    right(
        Built(MultiHeadAttention, 7, 10, 13, 0.0, 2),
        "x",
        causal=True,
        num_heads=2,
        sizes={"d_in": 7, "d_out": 10, "context_length": 13},
    ),
    right(
        Built(MultiHeadAttentionProjected, 7, 10, 0.0, 13, 2),
        "x",
        causal=True,
        num_heads=2,
        sizes={"d_in": 7, "d_out": 10, "context_length": 13},
    ),
    wrong(
        "state.mask-saved",
        Built(MaskIsParameter, 15, 3, 13),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15, "context_length": 13},
    ),
    wrong(
        "state.mask-saved",
        Built(MaskTooShort, 15, 3, 13),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 15, "context_length": 13},
    ),
]
