# type: ignore
# Written as people write it, hence without types.
"""Correct attention, written in ways that look like mistakes."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.checking.bank.entry import Built, right


def renormalised(query, key, value):
    n, m = query.shape[-2], key.shape[-2]
    weights = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dim=-1)
    masked = weights * torch.tril(torch.ones(n, m), diagonal=m - n)
    return masked / masked.sum(dim=-1, keepdim=True) @ value


class RenormalisedTutorial(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.W_query(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        k = self.W_key(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        v = self.W_value(x).view(b, t, self.num_heads, -1).transpose(1, 2)
        weights = F.softmax(q @ k.transpose(2, 3) / math.sqrt(q.size(-1)), dim=-1)
        weights = weights.masked_fill(torch.ones(t, t).triu(1).bool(), 0.0)
        weights = F.normalize(weights, p=1, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(b, t, -1)


def minus_a_billion(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores.float() + torch.where(mask, 0.0, -1e9)
    return torch.softmax(scores, dim=-1).to(value.dtype) @ value


def log_of_the_mask(query, key, value, mask):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhqk,bhkd->bhqd", (scores + mask.log()).softmax(-1), value)


class ScaleInWeights(nn.Module):
    """The scale is folded into the query's projection whenever it is used."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.scale = n_heads, (d_model // n_heads) ** -0.5
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        q = F.linear(x, self.q_proj.weight * self.scale, self.q_proj.bias * self.scale)
        q, k, v = (
            z.view(b, t, self.n_heads, -1).transpose(1, 2)
            for z in (q, self.k_proj(x), self.v_proj(x))
        )
        weights = torch.softmax(q @ k.mT, dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(b, t, d))


class ScaleInInit(nn.Module):
    """As T5: the first weights are made smaller instead of the scores."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        with torch.no_grad():
            self.q.weight.mul_((d_model // n_heads) ** -0.5)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        return self.o(((q @ k.mT).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def scale_on_both_sides(query, key, value):
    root = query.shape[-1] ** -0.25
    return torch.softmax((query * root) @ (key * root).mT, dim=-1) @ value


def repeat_interleaved(query, key, value):
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, dim=-1) @ value


def grouped_einsum(query, key, value):
    b, h, n, d = query.shape
    kv, m = key.shape[1:3]
    query = (
        query.view(b, kv, h // kv, n, d)
        if query.is_contiguous()
        else query.reshape(b, kv, h // kv, n, d)
    )
    scores = torch.einsum("bkgnd,bkmd->bkgnm", query, key) / math.sqrt(d)
    scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), -math.inf)
    return torch.einsum("bkgnm,bkmd->bkgnd", scores.softmax(-1), value).reshape(b, h, n, -1)


class MultiQuery(nn.Module):
    def __init__(self, d_model, n_heads, head_dim):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim
        self.wq = nn.Linear(d_model, n_heads * head_dim, bias=False)
        self.wk = nn.Linear(d_model, head_dim, bias=False)
        self.wv = nn.Linear(d_model, head_dim, bias=False)
        self.wo = nn.Linear(n_heads * head_dim, d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t * self.n_heads, self.head_dim)
        k, v = self.wk(x), self.wv(x)
        scores = torch.bmm(q, k.transpose(1, 2)).view(b, t, self.n_heads, t) * self.head_dim**-0.5
        future = torch.arange(t)[None] > torch.arange(t)[:, None]
        weights = scores.masked_fill(future[:, None], float("-inf")).softmax(-1)
        out = torch.bmm(weights.view(b, t * self.n_heads, t), v)
        return self.wo(out.view(b, t, -1))


class PackedMultiQuery(nn.Module):
    """GPT-BigCode's: one projection of all heads' queries, of one key and of one value."""

    def __init__(self, embed_dim, num_heads, head_dim):
        super().__init__()
        self.widths = [num_heads * head_dim, head_dim, head_dim]
        self.c_attn = nn.Linear(embed_dim, sum(self.widths))
        self.c_proj = nn.Linear(num_heads * head_dim, embed_dim)

    def forward(self, hidden):
        q, k, v = self.c_attn(hidden).split(self.widths, dim=-1)
        q = q.unflatten(-1, (-1, k.shape[-1])).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k[:, None], v[:, None], is_causal=True)
        return self.c_proj(out.transpose(1, 2).flatten(2))


def online_softmax(query, key, value, block=4):
    scale = query.shape[-1] ** -0.5
    best = query.new_full((*query.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(best)
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    for start in range(0, key.shape[-2], block):
        scores = query @ key[..., start : start + block, :].mT * scale
        new = torch.maximum(best, scores.amax(-1, keepdim=True))
        shrink, weights = (best - new).exp(), (scores - new).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ value[..., start : start + block, :]
        best = new
    return out / total


def online_softmax_causal(query, key, value, rows=3, columns=4):
    n, m, scale = query.shape[-2], key.shape[-2], query.shape[-1] ** -0.5
    chunks = []
    for top in range(0, n, rows):
        q = query[..., top : top + rows, :]
        i = m - n + torch.arange(top, min(top + rows, n))[:, None]
        best, total, out = -1e30, 0.0, 0.0
        for start in range(0, min(m, int(i[-1]) + 1), columns):
            k, v = (t[..., start : start + columns, :] for t in (key, value))
            hidden = start + torch.arange(k.shape[-2]) > i
            scores = (q @ k.mT * scale).masked_fill(hidden, -1e30)
            top_score = scores.amax(-1, keepdim=True).clamp(min=best)
            weights = (scores - top_score).exp().masked_fill(hidden, 0.0)
            shrink = (best - top_score).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            out = out * shrink + weights @ v
            best = top_score
        chunks.append(out / total)
    return torch.cat(chunks, dim=-2)


def head_loop(query, key, value):
    outputs = []
    for h in range(query.shape[1]):
        scores = torch.bmm(query[:, h], key[:, h].transpose(1, 2)) / math.sqrt(query.shape[3])
        outputs.append(torch.bmm(F.softmax(scores, dim=2), value[:, h]))
    return torch.stack(outputs, dim=1)


def query_loop(query, key, value):
    n, m = query.shape[-2], key.shape[-2]
    rows = []
    for i in range(n):
        stop = m - n + i + 1
        scores = torch.einsum("bhd,bhkd->bhk", query[:, :, i], key[:, :, :stop])
        weights = torch.softmax(scores / query.shape[-1] ** 0.5, dim=-1)
        rows.append(torch.einsum("bhk,bhkd->bhd", weights, value[:, :, :stop]))
    return torch.stack(rows, dim=2)


def chunked_queries(query, key, value, mask, size=3):
    outputs = [
        F.scaled_dot_product_attention(q, key, value, attn_mask=m)
        for q, m in zip(query.split(size, dim=2), mask.split(size, dim=2), strict=True)
    ]
    return torch.cat(outputs, dim=2)


def softmax_in_float32(query, key, value):
    scores = (query @ key.mT).float() * query.shape[-1] ** -0.5
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value


def logsumexp_form(q, k, v):
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    weights = torch.exp(sim - torch.logsumexp(sim, dim=-1, keepdim=True))
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def exp_over_sum(query, key, value, mask):
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    scores = scores - scores.masked_fill(~mask, -math.inf).amax(-1, keepdim=True).detach()
    numerator = torch.exp(scores.clamp(max=0.0)) * mask
    return numerator @ value / numerator.sum(dim=-1, keepdim=True)


def powers_of_two(query, key, value):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 * 1.4426950408889634)
    weights = torch.exp2(scores - scores.amax(dim=-1, keepdim=True))
    return (weights / weights.sum(dim=-1, keepdim=True)) @ value


def baddbmm_with_mask(query, key, value, mask):
    b, h, n, d = query.shape
    m = key.shape[2]
    bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -math.inf)
    bias = bias.expand(b, h, n, m).reshape(b * h, n, m)
    q, k, v = query.reshape(b * h, n, d), key.reshape(b * h, m, d), value.reshape(b * h, m, -1)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1, alpha=d**-0.5)
    return torch.bmm(scores.softmax(dim=2), v).view(b, h, n, -1)


def keys_first(query, key, value):
    scores = torch.einsum("bhkd,bhqd->bkqh", key, query) / query.shape[-1] ** 0.5
    return torch.einsum("bkqh,bhkd->bhqd", scores.softmax(dim=1), value)


def empty_rows_are_zero(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return (scores.softmax(dim=-1) * mask.any(dim=-1, keepdim=True)) @ value


def empty_rows_are_uniform(q, k, v, mask):
    sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    sim = torch.where(mask, sim, -torch.finfo(sim.dtype).max)
    return torch.einsum("bhij,bhjd->bhid", sim.softmax(-1), v)


def sdpa_empty_rows(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def safe_from_nan(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    products = weights[..., None] * value[..., None, :, :]
    return products.masked_fill(~mask[..., None], 0.0).sum(dim=-2)


class PaddingCleaned(nn.Module):
    """Padded keys and values are zeroed, so that whatever stands there is gone."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask):
        x = torch.where(mask[..., None], x, 0.0)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return self.proj(out.transpose(1, 2).flatten(2))


class ReturnsWeightsToo(nn.Module):
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
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(dim=-1)
        return self.dense((weights @ v).transpose(1, 2).flatten(2)), weights


def output_and_weights(query, key, value, mask):
    weights = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~mask, -math.inf)
    weights = weights.softmax(dim=-1)
    return weights @ value, weights


class NeoXPacked(nn.Module):
    """Packed head by head: query, key and value of a head stand together."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.query_key_value(x).view(b, t, self.heads, 3 * c // self.heads).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(out.transpose(1, 2).reshape(b, t, c))


class HeadsAsAxis(nn.Module):
    def __init__(self, d_model, n_heads, d_head):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head) / d_model**0.5)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head) / d_model**0.5)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head) / d_model**0.5)
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) / d_model**0.5)

    def forward(self, x):
        q = torch.einsum("bpm,hmd->bphd", x, self.W_Q)
        k = torch.einsum("bpm,hmd->bphd", x, self.W_K)
        v = torch.einsum("bpm,hmd->bphd", x, self.W_V)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.W_Q.shape[-1] ** 0.5
        future = torch.ones_like(scores[0, 0]).triu(1).bool()
        pattern = scores.masked_fill(future, -1e5).softmax(-1)
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        return torch.einsum("bqhd,hdm->bqm", z, self.W_O)


class ConvolutionsOfOne(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Conv1d(channels, 3 * channels, kernel_size=1)
        self.proj = nn.Conv1d(channels, channels, kernel_size=1)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(x.transpose(1, 2)).reshape(b, 3, self.heads, c // self.heads, t)
        q, k, v = qkv.unbind(1)
        weights = torch.einsum("bhdi,bhdj->bhij", q, k).mul((c // self.heads) ** -0.5).softmax(-1)
        out = torch.einsum("bhij,bhdj->bhdi", weights, v).reshape(b, c, t)
        return self.proj(out).transpose(1, 2)


class AttentionFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, grad):
        q, k, v, weights = ctx.saved_tensors
        grad_weights = grad @ v.mT
        grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
        grad_scores = grad_scores * q.shape[-1] ** -0.5
        return grad_scores @ k, grad_scores.mT @ q, weights.mT @ grad


def backward_by_hand(query, key, value):
    return AttentionFunction.apply(query, key, value)


def checkpointed(query, key, value):
    def plain(q, k, v):
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v

    return checkpoint(plain, query, key, value, use_reentrant=False)


def mapped_over_heads(query, key, value):
    def one_head(q, k, v):
        return torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1) @ v

    return torch.vmap(torch.vmap(one_head))(query, key, value)


def len_before_heads_inside(query, key, value):
    q, k, v = (t.permute(0, 2, 1, 3) for t in (query, key, value))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v).permute(0, 2, 1, 3)


def window_by_unfold(query, key, value, left=3):
    n, m = query.shape[-2], key.shape[-2]
    keys = F.pad(key, (0, 0, left, 0)).unfold(2, left + 1, 1)[:, :, m - n :]
    values = F.pad(value, (0, 0, left, 0)).unfold(2, left + 1, 1)[:, :, m - n :]
    scores = torch.einsum("bhqd,bhqdw->bhqw", query, keys) / math.sqrt(query.shape[-1])
    positions = torch.arange(m - n, m)[:, None] - left + torch.arange(left + 1)
    weights = scores.masked_fill(positions < 0, -math.inf).softmax(dim=-1)
    return torch.einsum("bhqw,bhqdw->bhqd", weights, values)


class MaskGrows(nn.Module):
    def __init__(self, d_in, d_head):
        super().__init__()
        self.query = nn.Linear(d_in, d_head, bias=False)
        self.key = nn.Linear(d_in, d_head, bias=False)
        self.value = nn.Linear(d_in, d_head, bias=False)
        self.masks = {}

    def forward(self, x):
        t = x.shape[1]
        if t not in self.masks:
            self.masks[t] = torch.ones(t, t, dtype=torch.bool).triu(1)
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores.masked_fill(self.masks[t], float("-inf")).softmax(-1) @ v


class SumOfHeads(nn.Module):
    """Each head has its own way out, and the heads are added."""

    def __init__(self, d_model, d_head, d_value, n_heads):
        super().__init__()
        self.d_head = d_head
        self.queries = nn.ModuleList(nn.Linear(d_model, d_head) for _ in range(n_heads))
        self.keys = nn.ModuleList(nn.Linear(d_model, d_head) for _ in range(n_heads))
        self.values = nn.ModuleList(nn.Linear(d_model, d_value) for _ in range(n_heads))
        self.outs = nn.ModuleList(nn.Linear(d_value, d_model, bias=False) for _ in range(n_heads))

    def forward(self, x):
        total = 0
        for query, key, value, out in zip(
            self.queries, self.keys, self.values, self.outs, strict=True
        ):
            scores = query(x) @ key(x).transpose(1, 2) / self.d_head**0.5
            total = total + out(torch.softmax(scores, dim=-1) @ value(x))
        return total


class OtherValueWidth(nn.Module):
    def __init__(self, d_model, d_k, d_v, h):
        super().__init__()
        self.h = h
        self.W_q = nn.Linear(d_model, h * d_k)
        self.W_k = nn.Linear(d_model, h * d_k)
        self.W_v = nn.Linear(d_model, h * d_v)
        self.W_o = nn.Linear(h * d_v, d_model)

    def forward(self, x):
        q = self.W_q(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        k = self.W_k(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        v = self.W_v(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
        return self.W_o((weights @ v).transpose(1, 2).flatten(2))


class SinkInDenominator(nn.Module):
    def __init__(self, sinks):
        super().__init__()
        self.register_buffer("sinks", sinks.clone(), persistent=False)

    def forward(self, query, key, value):
        n, m = query.shape[-2], key.shape[-2]
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(m - n + 1), -math.inf)
        sink = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
        return weights @ value


class BernoulliDropout(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, query, key, value):
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        if self.training:
            weights = weights * (torch.rand_like(weights) >= self.p) / (1 - self.p)
        return weights @ value


class RingDecoder(nn.Module):
    """Slot = position % size; a chunk goes in token by token, so that nothing is lost."""

    def __init__(self, d_model, n_heads, window):
        super().__init__()
        self.n_heads, self.size = n_heads, window + 1
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)
        self.reset()

    def reset(self):
        self.ring, self.position = None, 0

    def qkv(self, x):
        return self.c_attn(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)

    def one(self, x_t):
        q, k, v = self.qkv(x_t)
        if self.ring is None:
            self.ring = k.new_zeros(2, *k.shape[:2], self.size, k.shape[-1])
        slot = self.position % self.size
        self.ring[:, :, :, slot] = torch.stack((k, v))[:, :, :, 0].detach()
        self.position += 1
        k, v = self.ring[:, :, :, : self.position]
        out = F.scaled_dot_product_attention(q, k, v)
        return self.c_proj(out.transpose(1, 2).flatten(2))

    def step(self, x_t):
        return torch.cat([self.one(token) for token in x_t.split(1, dim=1)], dim=1)

    def full(self, x):
        q, k, v = self.qkv(x)
        band = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().triu(1 - self.size)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=band)
        return self.c_proj(out.transpose(1, 2).flatten(2))


SINKS = torch.tensor([0.5, -1.0, 2.0])

ENTRIES = [
    right(renormalised, "qkv", causal=True),
    right(
        Built(RenormalisedTutorial, 7, 15, 3),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 7, "d_out": 15},
    ),
    right(minus_a_billion, "qkv,mask"),
    right(log_of_the_mask, "qkv,mask"),
    right(Built(ScaleInWeights, 15, 3), "x", num_heads=3),
    right(Built(ScaleInInit, 15, 3), "x", num_heads=3, scale=1.0),
    right(scale_on_both_sides, "qkv"),
    right(repeat_interleaved, "qkv", num_heads=6, num_kv_heads=2),
    right(grouped_einsum, "qkv", causal=True, num_heads=6, num_kv_heads=3),
    right(
        Built(MultiQuery, 11, 3, 5),
        "x",
        causal=True,
        num_heads=3,
        num_kv_heads=1,
        sizes={"d_in": 11, "head_dim": 5},
    ),
    right(
        Built(PackedMultiQuery, 11, 3, 5),
        "x",
        causal=True,
        num_heads=3,
        num_kv_heads=1,
        sizes={"d_in": 11},
    ),
    right(online_softmax, "qkv"),
    right(online_softmax_causal, "qkv", causal=True),
    right(head_loop, "qkv"),
    right(query_loop, "qkv", causal=True),
    right(chunked_queries, "qkv,mask"),
    right(softmax_in_float32, "qkv", dtypes=(torch.float32, torch.bfloat16, torch.float16)),
    right(logsumexp_form, "qkv"),
    right(exp_over_sum, "qkv,mask"),
    right(powers_of_two, "qkv"),
    right(baddbmm_with_mask, "qkv,mask"),
    right(keys_first, "qkv"),
    right(empty_rows_are_zero, "qkv,mask", empty_row="zero"),
    right(empty_rows_are_uniform, "qkv,mask", empty_row="uniform"),
    right(sdpa_empty_rows, "qkv,mask", empty_row="zero"),
    right(safe_from_nan, "qkv,mask", nan_safe=True),
    right(Built(PaddingCleaned, 15, 3), "x,mask", num_heads=3, nan_safe=True),
    right(Built(ReturnsWeightsToo, 15, 3), "x", num_heads=3),
    right(output_and_weights, "qkv,mask"),
    right(Built(NeoXPacked, 15, 3), "x", causal=True, num_heads=3),
    right(
        Built(HeadsAsAxis, 11, 3, 5),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 11, "d_out": 11, "head_dim": 5},
    ),
    right(Built(ConvolutionsOfOne, 15, 3), "x", num_heads=3, sizes={"d_in": 15}),
    right(backward_by_hand, "qkv"),
    right(checkpointed, "qkv"),
    right(mapped_over_heads, "qkv"),
    right(len_before_heads_inside, "qkv"),
    right(window_by_unfold, "qkv", causal=True, window=(3, 0)),
    right(Built(MaskGrows, 7, 5), "x", causal=True, num_heads=1),
    right(
        Built(SumOfHeads, 7, 5, 2, 3),
        "x",
        num_heads=3,
        sizes={"d_in": 7, "d_out": 7, "head_dim": 5, "value_head_dim": 2},
    ),
    right(
        Built(OtherValueWidth, 11, 5, 7, 3),
        "x",
        num_heads=3,
        sizes={"d_in": 11, "d_out": 11, "head_dim": 5, "value_head_dim": 7},
    ),
    right(Built(SinkInDenominator, SINKS), "qkv", causal=True, num_heads=3, sinks=SINKS),
    right(Built(BernoulliDropout), "qkv", dropout=0.5),
    right(Built(RingDecoder, 15, 3, 4), "decode", causal=True, window=(4, 0), num_heads=3),
]
