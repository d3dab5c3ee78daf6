# type: ignore
# Written as people write it, hence without types.
"""Mistakes of heads, dropout, gradients, inputs, contexts, shapes and state."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

from tests.checking.bank.entry import Built, wrong

# heads.split


class ReshapeToHeads(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        query, key, value = (lin(x).reshape(b, self.h, -1, self.d_k) for lin in self.linears[:3])
        scores = query @ key.transpose(2, 3) / math.sqrt(self.d_k)
        out = scores.softmax(dim=-1) @ value
        return self.linears[3](out.reshape(b, n, d))


class QuerySplitByView(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        bs, length, dim = x.size()
        shape = (bs, self.heads, length, dim // self.heads)
        q, k, v = self.query(x).view(shape), self.key(x).view(shape), self.value(x).view(shape)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return z.permute(0, 2, 1, 3).flatten(2)


# heads.layout


class FoldedMerge(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def fold(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.num_heads, -1).transpose(1, 2).reshape(b * self.num_heads, n, -1)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        attn = torch.bmm(q * self.head_dim**-0.5, k.transpose(1, 2)).softmax(dim=-1)
        return self.out_proj(torch.bmm(attn, v).view(b, n, d))


# heads.layout


class NarrowedToStart(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.W_pack = nn.Linear(width, 3 * width)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.W_pack(x).chunk(3, dim=-1)
        size = q.shape[-1] // self.heads
        outs = []
        for _ in range(self.heads):
            hq, hk, hv = (t.narrow(-1, 0, size) for t in (q, k, v))
            outs.append(F.scaled_dot_product_attention(hq, hk, hv, is_causal=True))
        return self.o_proj(torch.cat(outs, -1))


# heads.gqa-tiled


def expanded_on_the_wrong_side(query, key, value):
    b, h, n, d = query.shape
    kv, m = key.shape[1], key.shape[2]
    key = key[:, None].expand(b, h // kv, kv, m, d).reshape(b, h, m, d)
    value = value[:, None].expand(b, h // kv, kv, m, value.shape[-1]).flatten(1, 2)
    scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(d)
    return torch.matmul(torch.softmax(scores, dim=-1), value)


class HeadModulo(nn.Module):
    def __init__(self, d_model, n_heads, n_kv, head_dim):
        super().__init__()
        self.n_heads, self.n_kv = n_heads, n_kv
        self.wq = nn.Linear(d_model, n_heads * head_dim)
        self.wk = nn.Linear(d_model, n_kv * head_dim)
        self.wv = nn.Linear(d_model, n_kv * head_dim)
        self.wo = nn.Linear(n_heads * head_dim, d_model)

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.n_heads, -1)).unbind(2)
        k = self.wk(x).unflatten(-1, (self.n_kv, -1)).unbind(2)
        v = self.wv(x).unflatten(-1, (self.n_kv, -1)).unbind(2)
        outs = [
            F.scaled_dot_product_attention(q[h], k[h % self.n_kv], v[h % self.n_kv])
            for h in range(self.n_heads)
        ]
        return self.wo(torch.cat(outs, dim=-1))


# heads.layout


class FlashLayoutIntoSdpa(nn.Module):
    """flash-attn takes (batch, len, heads, dim); PyTorch's does not."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).unbind(dim=2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.c_proj(y.contiguous().view(B, T, C))


# batch.mixed


class LenFirstProjections(nn.Module):
    """Written for (len, batch, width), fed with (batch, len, width)."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        tgt_len, bsz, embed_dim = x.size()
        folded = (tgt_len, bsz * self.num_heads, self.head_dim)
        q = self.q_proj(x).view(folded).transpose(0, 1) * self.head_dim**-0.5
        k = self.k_proj(x).view(folded).transpose(0, 1)
        v = self.v_proj(x).view(folded).transpose(0, 1)
        attn = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1), v)
        return self.out_proj(attn.transpose(0, 1).reshape(tgt_len, bsz, embed_dim))


# dropout.in-eval


class DropoutMadeInForward(nn.Module):
    def __init__(self, dim, heads, p):
        super().__init__()
        self.heads, self.p = heads, p
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        attn = nn.Dropout(self.p)(attn)
        return self.to_out((attn @ v).transpose(1, 2).reshape(b, n, d))


# dropout.never


class ProbabilityNotPassed(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout):
        super().__init__()
        self.dropout = dropout
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


# dropout.on-scores


class AlphaDropout(nn.Module):
    def __init__(self, h, d_model, p):
        super().__init__()
        self.h, self.p = h, p
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (lin(x).unflatten(2, (self.h, -1)).transpose(1, 2) for lin in self.linears[:3])
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if self.training:
            scores = scores * torch.bernoulli(torch.full_like(scores, 1 - self.p))
        return self.linears[3]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


# dropout.unscaled


class ZeroedAtRandom(nn.Module):
    def __init__(self, width, p):
        super().__init__()
        self.p = p
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        w = torch.softmax(torch.baddbmm(x.new_zeros(1), q, k.mT, alpha=q.size(-1) ** -0.5), -1)
        if self.training:
            w = torch.where(torch.rand_like(w) < self.p, torch.zeros_like(w), w)
        return w @ v


# output.nondeterministic


class RandomFeatures(nn.Module):
    """Performer's idea, with features drawn anew in every call."""

    def __init__(self, width, heads, features=16):
        super().__init__()
        self.heads, self.features = heads, features
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def kernel(self, x, omega):
        x = x * x.shape[-1] ** -0.25
        return torch.exp(x @ omega - x.square().sum(-1, keepdim=True) / 2) + 1e-6

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        omega = torch.randn(q.shape[-1], self.features, dtype=x.dtype)
        q, k = self.kernel(q, omega), self.kernel(k, omega)
        out = q @ (k.mT @ v) / (q @ k.sum(dim=-2)[..., None])
        return self.proj(out.transpose(1, 2).flatten(2))


# grad.wrong


class MatmulValue(Function):
    @staticmethod
    def forward(ctx, weights, value):
        ctx.save_for_backward(weights, value)
        return weights @ value

    @staticmethod
    def backward(ctx, grad):
        weights, value = ctx.saved_tensors
        return grad @ value.mT, 2 * weights.mT @ grad


def doubled_value_gradient(query, key, value):
    weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
    return MatmulValue.apply(weights, value)


def clipped_by_a_hook(query, key, value):
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    if scores.requires_grad:
        scores.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), value)


# grad.blocked


def rebuilt_from_numbers(query, key, value):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    weights = torch.from_numpy(scores.detach().numpy()).softmax(dim=-1)
    return weights @ value


# input.modified


def key_scaled_in_place(query, key, value):
    key.mul_(key.shape[-1] ** -0.5)
    return torch.bmm(
        torch.bmm(query.flatten(0, 1), key.flatten(0, 1).mT).softmax(-1), value.flatten(0, 1)
    ).view(*query.shape[:-1], -1)


class MaskFlippedInPlace(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, mask):
        mask.logical_not_()
        return self.attn(x, x, x, key_padding_mask=mask, need_weights=False)[0]


# input.strided


def written_through_a_view(query, key, value):
    b, h, n, _ = query.shape
    out = query.new_zeros(b, h, n, value.shape[-1])
    width = query.shape[-1]
    rows = query.as_strided((b * h * n, width), (width, 1)).view(b, h, n, width)
    for i in range(n):
        scores = (rows[:, :, i : i + 1] @ key.mT).squeeze(2) / math.sqrt(width)
        out[:, :, i] = torch.einsum("bhk,bhkd->bhd", scores.softmax(-1), value)
    return out


# dtype.overflow


class SumOfExponentials(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        e = (q @ k.mT / math.sqrt(q.shape[-1])).exp()
        z = e.sum(dim=-1, keepdim=True)
        return torch.div(e @ v, z).transpose(1, 2).flatten(2)


# context.ignored


class CrossFromTheSamePack(nn.Module):
    """One packed projection for all three, of the wrong tensor."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x, context):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


# context.swapped


class ArgumentsSwapped(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def attend(self, memory, x):
        query, key, value = (
            lin(t).unflatten(2, (self.h, -1)).transpose(1, 2)
            for lin, t in zip(self.linears, (x, memory, memory))
        )
        scores = query @ key.mT / math.sqrt(query.size(-1))
        return self.linears[3]((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def forward(self, x, context):
        return self.attend(x, context)


# weights.not-used


class WeightsOfTheKeys(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        weights = (k @ q.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return self.proj(out.transpose(1, 2).flatten(2)), weights


# shape.square-only


def value_viewed_as_key(query, key, value):
    b, h, m, d = key.shape
    q, k, v = (t.reshape(b * h, -1, d) for t in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d)
    return torch.bmm(scores.softmax(-1), v).view(b, h, -1, d)


class ResizedByInput(nn.Module):
    def __init__(self, d_in, d_out, heads):
        super().__init__()
        self.heads, self.d_head = heads, d_in // heads
        self.W_query = nn.Linear(d_in, d_out)
        self.W_key = nn.Linear(d_in, d_out)
        self.W_value = nn.Linear(d_in, d_out)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.W_query(x).view(b, t, self.heads, self.d_head).transpose(1, 2)
        k = self.W_key(x).view(b, t, self.heads, self.d_head).transpose(1, 2)
        v = self.W_value(x).view(b, t, self.heads, self.d_head).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


# state.global-dim

EMBED = 2


class CompactSelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        scores = (q @ k.T / math.sqrt(EMBED)).masked_fill(future, -math.inf)
        return scores.softmax(dim=-1) @ v


# state.mask-saved


class NanoBias(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        bias = torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size)
        self.register_buffer("bias", bias)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


ENTRIES = [
    wrong("heads.split", Built(ReshapeToHeads, 3, 21), "x", num_heads=3),
    wrong("heads.split", Built(QuerySplitByView, 21, 3), "x", causal=True, num_heads=3),
    wrong("heads.layout", Built(FoldedMerge, 21, 3), "x", num_heads=3),
    wrong("heads.layout", Built(NarrowedToStart, 21, 3), "x", causal=True, num_heads=3),
    wrong("heads.gqa-tiled", expanded_on_the_wrong_side, "qkv", num_heads=10, num_kv_heads=5),
    wrong(
        "heads.gqa-tiled",
        Built(HeadModulo, 11, 6, 3, 7),
        "x",
        num_heads=6,
        num_kv_heads=3,
        sizes={"d_in": 11, "head_dim": 7},
    ),
    wrong("heads.layout", Built(FlashLayoutIntoSdpa, 21, 3), "x", num_heads=3),
    wrong("batch.mixed", Built(LenFirstProjections, 21, 3), "x", num_heads=3),
    wrong(
        "dropout.in-eval", Built(DropoutMadeInForward, 21, 3, 0.5), "x", num_heads=3, dropout=0.5
    ),
    wrong("dropout.never", Built(ProbabilityNotPassed, 21, 3, 0.5), "x", num_heads=3, dropout=0.5),
    wrong("dropout.on-scores", Built(AlphaDropout, 3, 21, 0.5), "x", num_heads=3, dropout=0.5),
    wrong("dropout.unscaled", Built(ZeroedAtRandom, 11, 0.5), "x", num_heads=1, dropout=0.5),
    wrong("output.nondeterministic", Built(RandomFeatures, 21, 3), "x", num_heads=3),
    wrong("grad.wrong", doubled_value_gradient, "qkv"),
    wrong("grad.wrong", clipped_by_a_hook, "qkv"),
    wrong("grad.blocked", rebuilt_from_numbers, "qkv"),
    wrong("input.modified", key_scaled_in_place, "qkv"),
    wrong("input.modified", Built(MaskFlippedInPlace, 21, 3), "x,mask", num_heads=3),
    wrong("input.strided", written_through_a_view, "qkv"),
    wrong(
        "dtype.overflow",
        Built(SumOfExponentials, 21, 3),
        "x",
        num_heads=3,
        dtypes=(torch.float32, torch.float16),
    ),
    wrong(
        "context.ignored",
        Built(CrossFromTheSamePack, 21, 3),
        "x,context",
        num_heads=3,
        sizes={"d_in": 21, "d_context": 21},
    ),
    wrong(
        "context.swapped",
        Built(ArgumentsSwapped, 21, 3),
        "x,context",
        num_heads=3,
        sizes={"d_in": 21, "d_context": 21},
    ),
    wrong("weights.not-used", Built(WeightsOfTheKeys, 21, 3), "x", num_heads=3),
    wrong("shape.square-only", value_viewed_as_key, "qkv"),
    wrong(
        "shape.square-only",
        Built(ResizedByInput, 15, 21, 3),
        "x",
        num_heads=3,
        sizes={"d_in": 15, "d_out": 21},
    ),
    wrong(
        "state.global-dim",
        CompactSelfAttention,
        "x2d",
        causal=True,
        num_heads=1,
        sizes={"d_in": 5, "d_out": 2},
    ),
    wrong(
        "state.mask-saved",
        Built(NanoBias, 21, 3, 17),
        "x",
        causal=True,
        num_heads=3,
        sizes={"d_in": 21, "context_length": 17},
    ),
]
