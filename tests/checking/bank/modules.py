"""Modules: those of the tutorials as printed, right ones in unusual styles, and wrong ones."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from tests.checking.bank.entry import Built, right, wrong

INF = float("inf")
ARGS = {"d_in": 3, "d_out": 2, "context_length": 6, "dropout": 0.0}
WIDE = {"d_in": 24, "d_out": 12, "context_length": 9, "dropout": 0.0, "num_heads": 3}
d_k = 2


# The tutorials' own (tests/golden/README.md lists them).


class SelfAttentionV1(nn.Module):
    """Tutorials 000 and 004."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(d_in, d_out), requires_grad=True)
        self.W_key = nn.Parameter(torch.randn(d_in, d_out), requires_grad=True)
        self.W_value = nn.Parameter(torch.randn(d_in, d_out), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value

        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / d_k**0.5, dim=-1)
        context_vecs = attn_weights @ values
        return context_vecs


class SelfAttentionV2(nn.Module):
    """Tutorials 000 and 004."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = torch.nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)

        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / d_k**0.5, dim=-1)
        return attn_weights @ values


class CausalAttention(nn.Module):
    """Tutorials 000 and 004, which differ in one line: the mask."""

    mask: Tensor

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.W_query = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = torch.nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("mask", self.made(context_length))

    def made(self, context_length: int) -> Tensor:
        return torch.triu(torch.ones(context_length, context_length), diagonal=1)

    def forward(self, x: Tensor) -> Tensor:
        _, num_tokens, _ = x.shape
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)

        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        return attn_weights @ values


class CausalAttention004(CausalAttention):
    """Tutorial 004: tril where triu is needed."""

    def made(self, context_length: int) -> Tensor:
        return torch.tril(torch.ones(context_length, context_length))


class Wrapper(nn.Module):
    """Tutorials 000 and 004: a list of heads."""

    head: Any = CausalAttention

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int = 2
    ) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            [self.head(d_in, d_out, context_length, dropout) for _ in range(num_heads)]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


class Wrapper004(Wrapper):
    head = CausalAttention004


class MultiHeadAttention(nn.Module):
    """Tutorial 000; the parts that others get wrong are methods."""

    mask: Tensor

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            "mask", torch.triu(torch.ones(context_length, context_length), diagonal=1)
        )

    def split(self, projected: Tensor) -> Tensor:
        batch, tokens, _ = projected.shape
        return projected.view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, context: Tensor) -> Tensor:
        batch, _, tokens, _ = context.shape
        return context.transpose(1, 2).contiguous().view(batch, tokens, self.d_out)

    def weigh(self, scores: Tensor) -> Tensor:
        return self.dropout(torch.softmax(scores / self.head_dim**0.5, dim=-1))

    def hide(self, scores: Tensor) -> Tensor:
        tokens = scores.shape[-1]
        return scores.masked_fill_(self.mask.bool()[:tokens, :tokens], -torch.inf)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            self.split(each(x)) for each in (self.W_query, self.W_key, self.W_value)
        )
        scores = self.hide(queries @ keys.transpose(2, 3))
        return self.out_proj(self.merge(self.weigh(scores) @ values))


# Wrong ones, in the styles of the tutorials.


class SplitByView(MultiHeadAttention):
    def split(self, projected: Tensor) -> Tensor:
        batch, tokens, _ = projected.shape
        return projected.view(batch, self.num_heads, tokens, self.head_dim)


class SplitByReshapeUnmasked(MultiHeadAttention):
    def split(self, projected: Tensor) -> Tensor:
        return projected.reshape(projected.shape[0], self.num_heads, -1, self.head_dim)

    def merge(self, context: Tensor) -> Tensor:
        return context.reshape(context.shape[0], -1, self.d_out)

    def hide(self, scores: Tensor) -> Tensor:
        return scores


class MergedByView(MultiHeadAttention):
    def merge(self, context: Tensor) -> Tensor:
        return context.contiguous().view(context.shape[0], -1, self.d_out)


class NotTransposed(MultiHeadAttention):
    def split(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (self.num_heads, self.head_dim))

    def merge(self, context: Tensor) -> Tensor:
        return context.flatten(2)

    def hide(self, scores: Tensor) -> Tensor:
        return scores


class NotScaled(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return self.dropout(scores.softmax(-1))


class ScaledByTheWidth(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return self.dropout((scores / math.sqrt(self.d_out)).softmax(-1))


class ScaledBySome(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return self.dropout((scores * 0.21).softmax(-1))


class OverQueries(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return (scores / self.head_dim**0.5).softmax(-2)


class ZeroedAfter(MultiHeadAttention):
    def hide(self, scores: Tensor) -> Tensor:
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        return torch.tril(super().weigh(scores))


class DropsAlways(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return F.dropout((scores / self.head_dim**0.5).softmax(-1), self.dropout.p)


class FusedDropsAlways(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_qkv, self.dropout_p = nn.Linear(width, 3 * width), 0.2

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.to_qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout_p)


class NeverDrops(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return (scores / self.head_dim**0.5).softmax(-1)


class DropsInEvalOnly(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        weights = (scores / self.head_dim**0.5).softmax(-1)
        return F.dropout(weights, self.dropout.p, training=False)


class DropsScores(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return (self.dropout(scores) / self.head_dim**0.5).softmax(-1)


class DropsScoresByHand(MultiHeadAttention):
    def hide(self, scores: Tensor) -> Tensor:
        if self.training:
            scores = scores * (torch.rand_like(scores) > self.dropout.p)
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        return (scores / self.head_dim**0.5).softmax(-1)


class DropsUnscaled(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        weights = (scores / self.head_dim**0.5).softmax(-1)
        return weights * (torch.rand_like(weights) >= self.dropout.p) if self.training else weights


class DropsByFill(MultiHeadAttention):
    def hide(self, scores: Tensor) -> Tensor:
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        weights = (scores / self.head_dim**0.5).softmax(-1)
        if not self.training:
            return weights
        return weights.masked_fill(torch.rand_like(weights) < self.dropout.p, 0.0)


class DetachedKeys(MultiHeadAttention):
    def weigh(self, scores: Tensor) -> Tensor:
        return super().weigh(scores.detach())


class RebuiltOutput(MultiHeadAttention):
    def merge(self, context: Tensor) -> Tensor:
        return super().merge(context.data)


class MaskAsParameter(MultiHeadAttention):
    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        mask = self.mask
        del self.mask
        self.mask = nn.Parameter(mask, requires_grad=False)


class MaskTooShort(MultiHeadAttention):
    def __init__(self, context_length: int, **sizes: Any) -> None:
        super().__init__(context_length=context_length - 1, **sizes)


class OutputOfTheWrongWidth(MultiHeadAttention):
    def __init__(self, d_in: int, d_out: int, **sizes: Any) -> None:
        super().__init__(d_in=d_in, d_out=d_out, **sizes)
        self.out_proj = nn.Linear(d_in, d_out)


class KeyOfTheKey(nn.Module):
    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(input_dim, output_dim)
        self.key = nn.Linear(output_dim, output_dim)
        self.value = nn.Linear(input_dim, output_dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


class ReturnsOtherWeights(MultiHeadAttention):
    def forward(self, x: Tensor) -> Any:
        queries, keys = self.split(self.W_query(x)), self.split(self.W_key(x))
        return super().forward(x), (queries @ keys.mT).softmax(-1)


# Right ones, in other styles.


class Fused(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head = heads

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for each in self.c_attn(x).split(x.shape[-1], -1)
        )
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(context.transpose(1, 2).flatten(2))


class NamelessEinsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(20, 16) for _ in range(3))
        self.d = nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        one, two, three = (f(x).unflatten(-1, (4, 4)) for f in (self.a, self.b, self.c))
        weights = (torch.einsum("bqhd,bkhd->bhqk", one, two) / 2).softmax(-1)
        return self.d(torch.einsum("bhqk,bkhd->bqhd", weights, three).flatten(-2))


class FoldedScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = 3
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        with torch.no_grad():
            self.q_proj.weight *= (width // 3) ** -0.5
            self.q_proj.bias *= (width // 3) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each(x).unflatten(-1, (3, -1)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        return ((query @ key.mT).softmax(-1) @ value).transpose(1, 2).flatten(2)


class Block(nn.Module):
    """Norm before, residual around, and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Fused(width, 3)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Grouped(nn.Module):
    groups_last = False

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = nn.Linear(18, 24), nn.Linear(18, 8), nn.Linear(18, 8)
        self.wo = nn.Linear(24, 18)

    def forward(self, x: Tensor) -> Tensor:
        query = self.wq(x).unflatten(-1, (6, 4)).transpose(1, 2)
        key, value = (
            self.shared(each(x).unflatten(-1, (2, 4)).transpose(1, 2))
            for each in (self.wk, self.wv)
        )
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        weights = (query @ key.mT / 2).masked_fill(hidden, -1e9).softmax(-1)
        return self.wo((weights @ value).transpose(1, 2).flatten(2))

    def shared(self, heads: Tensor) -> Tensor:
        return heads.repeat_interleave(3, 1)


class GroupedTiled(Grouped):
    def shared(self, heads: Tensor) -> Tensor:
        return torch.cat([heads] * 3, 1)


# Padding.


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.query, self.key, self.value, self.out = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            each(x).unflatten(-1, (3, 4)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        weights = self.weigh(query @ key.mT / 2, mask[:, None, None, :])
        return self.out((weights @ value).transpose(1, 2).flatten(2))

    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, -1e9).softmax(-1)


class PaddingIgnored(Padded):
    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.softmax(-1)


class PaddingIgnoredFused(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = mask[:, :, None, None]
        query, key, value = (
            each.unflatten(-1, (3, -1)).transpose(1, 2) for each in self.c_attn(x).chunk(3, -1)
        )
        context = F.scaled_dot_product_attention(query, key, value)
        return self.c_proj((context.transpose(1, 2) * hidden).flatten(2))


class PaddingInverted(Padded):
    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        return super().weigh(scores, ~mask)


class FirstMaskForAll(Padded):
    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        return super().weigh(scores, mask[:1])


class PaddingTimesInfinity(Padded):
    def weigh(self, scores: Tensor, mask: Tensor) -> Tensor:
        return (scores + (1 - mask.to(scores.dtype)) * -INF).softmax(-1)


# Cross-attention.


class Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(12, 12) for _ in range(4))

    def sides(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, context, context

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        layers = (self.to_q, self.to_k, self.to_v)
        query, key, value = (
            layer(side).unflatten(-1, (3, 4)).transpose(1, 2)
            for layer, side in zip(layers, self.sides(x, context), strict=True)
        )
        return self.to_out(((query @ key.mT / 2).softmax(-1) @ value).transpose(1, 2).flatten(2))


class ContextIgnored(Cross):
    def sides(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x, x


class KeysFromX(Cross):
    def sides(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x, context


class Swapped(Cross):
    def sides(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return context, x, x


class SwappedSelf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.attention(context, x, x)[0]


# Decoding.


class Decoder(nn.Module):
    window: int | None = None
    rotates = False

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.reset()

    def reset(self) -> None:
        self.keys, self.values, self.past = torch.zeros(0), torch.zeros(0), 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, past: int) -> Tensor:
        distance = torch.arange(query.shape[1])[:, None] + past - torch.arange(key.shape[1])
        hidden = distance < 0
        if self.window is not None:
            hidden |= distance > self.window
        return (query @ key.mT / 8**0.5).masked_fill(hidden, -INF).softmax(-1) @ value

    def turn(self, x: Tensor, start: int) -> Tensor:
        if not self.rotates:
            return x
        angles = (torch.arange(x.shape[1]) + start)[:, None] * 100.0 ** (-torch.arange(4) / 4)
        one, two = x.chunk(2, -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def full(self, x: Tensor) -> Tensor:
        return self.attend(self.turn(self.query(x), 0), self.turn(self.key(x), 0), self.value(x), 0)

    def start(self) -> int:
        return self.past

    def step(self, x: Tensor) -> Tensor:
        key, value = self.turn(self.key(x), self.start()), self.value(x)
        query = self.turn(self.query(x), self.start())
        self.keep(key, value)
        self.past += x.shape[1]
        return self.attend(query, self.keys, self.values, self.offset(x.shape[1]))

    def offset(self, new: int) -> int:
        return self.keys.shape[1] - new

    def keep(self, key: Tensor, value: Tensor) -> None:
        if self.past:
            key, value = torch.cat([self.keys, key], 1), torch.cat([self.values, value], 1)
        self.keys, self.values = key, value


class WindowedDecoder(Decoder):
    window = 3


class RotatingDecoder(Decoder):
    rotates = True


class MaskFromTheFirstKey(Decoder):
    def offset(self, new: int) -> int:
        return 0


class MaskOneShort(Decoder):
    def offset(self, new: int) -> int:
        return max(self.past - new - 1, 0)


class TrimsBeforeUse(WindowedDecoder):
    def keep(self, key: Tensor, value: Tensor) -> None:
        super().keep(key, value)
        self.keys, self.values = self.keys[:, -4:], self.values[:, -4:]


class TrimsOneTooMany(WindowedDecoder):
    def keep(self, key: Tensor, value: Tensor) -> None:
        super().keep(key, value)
        needed = 2 + key.shape[1]
        self.keys, self.values = self.keys[:, -needed:], self.values[:, -needed:]


class NeverEmptied(Decoder):
    def reset(self) -> None:
        if not hasattr(self, "keys"):
            super().reset()


class KeepsValues(Decoder):
    def reset(self) -> None:
        self.past = 0
        if not hasattr(self, "keys"):
            super().reset()

    def keep(self, key: Tensor, value: Tensor) -> None:
        if self.keys.numel():
            key, value = torch.cat([self.keys, key], 1), torch.cat([self.values, value], 1)
        self.keys, self.values = key, value


class RotatesFromZero(RotatingDecoder):
    def start(self) -> int:
        return 0


class RotatesOneLate(RotatingDecoder):
    def start(self) -> int:
        return self.past + 1 if self.past else 0


class FewPositions(FoldedScale):
    """Learned positions for five tokens, which it does not say."""

    def __init__(self) -> None:
        super().__init__(12)
        self.positions = nn.Embedding(5, 12)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.positions(torch.arange(x.shape[1])))


class IdentityProjections(Padded):
    """A weight that is the identity is no mask."""

    def __init__(self) -> None:
        super().__init__()
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.eye_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x, torch.ones(x.shape[:2], dtype=torch.bool))


class CrossOverQueries(Cross):
    axis = -2

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        layers = (self.to_q, self.to_k, self.to_v)
        query, key, value = (
            layer(side).unflatten(-1, (3, 4)).transpose(1, 2)
            for layer, side in zip(layers, self.sides(x, context), strict=True)
        )
        mixed = (query @ key.mT / 2).softmax(self.axis) @ value
        return self.to_out(self.merged(mixed))

    def merged(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)


class CrossMergedByReshape(CrossOverQueries):
    axis = -1

    def merged(self, heads: Tensor) -> Tensor:
        return heads.reshape(heads.shape[0], -1, 12)


class BareParameters(nn.Module):
    """Projections as parameters, that behind the heads too."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(3, 12, 4) / 12**0.5) for _ in "qkv")
        self.wo = nn.Parameter(torch.randn(3, 4, 12) / 12**0.5)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            torch.einsum("btd,hde->bhte", x, each) for each in (self.wq, self.wk, self.wv)
        )
        return torch.einsum("bhte,hed->btd", self.weigh(query @ key.mT) @ value, self.wo)

    def weigh(self, raw: Tensor) -> Tensor:
        return (raw / 2).softmax(-1)


class BareParametersUnscaled(BareParameters):
    def weigh(self, raw: Tensor) -> Tensor:
        return raw.softmax(-1)


class BareParametersSoftplus(BareParameters):
    def weigh(self, raw: Tensor) -> Tensor:
        return F.softplus(raw / 2)


class MayAttendToNothing(BareParameters):
    """exp(s) / (1 + Σ exp(s)), a sink of score 0 that nobody declares."""

    def weigh(self, raw: Tensor) -> Tensor:
        most = (raw / 2).amax(-1, keepdim=True).clamp_min(0)
        grown = (raw / 2 - most).exp()
        return grown / ((-most).exp() + grown.sum(-1, keepdim=True))


class ValueSkip(BareParameters):
    """Each token keeps its own value beside what it attends to."""

    def weigh(self, raw: Tensor) -> Tensor:
        return super().weigh(raw) + torch.eye(raw.shape[-1], dtype=raw.dtype)


class ResidualDropsUnscaled(FoldedScale):
    """A residual around, beside which what dropout does is small."""

    def __init__(self) -> None:
        super().__init__(12)
        self.norm, self.to_out, self.dropout = nn.LayerNorm(12), nn.Linear(12, 12), 0.5

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each(self.norm(x)).unflatten(-1, (3, -1)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = (query @ key.mT).softmax(-1)
        if self.training:
            weights = weights * (torch.rand_like(weights) > self.dropout)
        return x + self.to_out((weights @ value).transpose(1, 2).flatten(2))


# What is true of the classes with these arguments, and left to be found.
NARROW = {"num_heads": 1, "sizes": {"d_in": 3, "d_out": 2, "context_length": 6}}
THREE = {"num_heads": 3, "sizes": {"d_in": 24, "d_out": 12, "context_length": 9}}
TWELVE = {"num_heads": 3, "sizes": {"d_in": 12, "d_out": 12}}
THEIRS = "PyTorch's own takes three inputs"


ENTRIES = [
    wrong("softmax.axis", Built(CrossOverQueries), "x,context", facts=TWELVE),
    wrong("heads.layout", Built(CrossMergedByReshape), "x,context", facts=TWELVE),
    right(Built(BareParameters), "x", facts=TWELVE),
    right(Built(MayAttendToNothing), "x", unproved="it has a sink that is not declared"),
    wrong("scale.missing", Built(BareParametersUnscaled), "x", facts=TWELVE),
    wrong("softmax.missing", Built(BareParametersSoftplus), "x", facts=TWELVE),
    wrong(
        "dropout.unscaled",
        Built(ResidualDropsUnscaled),
        "x",
        dropout=0.5,
        unproved="a norm and a residual are around it",
    ),
    wrong("state.global-dim", Built(SelfAttentionV2, **{"d_in": 5, "d_out": 7}), "x2d"),
    wrong("mask.inverted", Built(CausalAttention004, **ARGS), "x", facts=NARROW, causal=True),
    wrong(
        "mask.inverted",
        Built(CausalAttention004, **{**ARGS, "dropout": 0.5}),
        "x",
        label="with dropout",
        facts=NARROW,
        causal=True,
    ),
    wrong("heads.split", Built(SplitByView, **WIDE), "x", facts=THREE, causal=True),
    wrong("heads.split", Built(SplitByReshapeUnmasked, **WIDE), "x", facts=THREE),
    wrong("heads.layout", Built(MergedByView, **WIDE), "x", facts=THREE, causal=True),
    wrong("heads.layout", Built(NotTransposed, **WIDE), "x", facts=THREE),
    wrong("scale.missing", Built(NotScaled, **WIDE), "x", facts=THREE, causal=True),
    wrong("scale.wrong", Built(ScaledByTheWidth, **WIDE), "x", facts=THREE, causal=True),
    wrong("scale.wrong", Built(ScaledBySome, **WIDE), "x", facts=THREE, causal=True),
    wrong("softmax.axis", Built(OverQueries, **WIDE), "x", facts=THREE, causal=True),
    wrong("mask.after-softmax", Built(ZeroedAfter, **WIDE), "x", facts=THREE, causal=True),
    wrong(
        "dropout.in-eval",
        Built(DropsAlways, **{**WIDE, "dropout": 0.4}),
        "x",
        facts=THREE,
        causal=True,
    ),
    wrong("dropout.in-eval", Built(FusedDropsAlways, **{"width": 12}), "x"),
    wrong(
        "dropout.never",
        Built(NeverDrops, **{**WIDE, "dropout": 0.4}),
        "x",
        facts=THREE,
        causal=True,
        dropout=0.4,
    ),
    wrong(
        "dropout.never",
        Built(DropsInEvalOnly, **{**WIDE, "dropout": 0.4}),
        "x",
        facts=THREE,
        causal=True,
        dropout=0.4,
    ),
    wrong(
        "dropout.on-scores",
        Built(DropsScores, **{**WIDE, "dropout": 0.4}),
        "x",
        facts=THREE,
        causal=True,
        dropout=0.4,
    ),
    wrong(
        "dropout.on-scores",
        Built(DropsScoresByHand, **{**WIDE, "dropout": 0.3}),
        "x",
        facts=THREE,
        dropout=0.3,
    ),
    wrong(
        "dropout.unscaled",
        Built(DropsUnscaled, **{**WIDE, "dropout": 0.4}),
        "x",
        facts=THREE,
        causal=True,
        dropout=0.4,
    ),
    wrong(
        "dropout.unscaled",
        Built(DropsByFill, **{**WIDE, "dropout": 0.25}),
        "x",
        facts=THREE,
        dropout=0.25,
    ),
    wrong("grad.blocked", Built(DetachedKeys, **WIDE), "x", facts=THREE, causal=True),
    wrong("grad.blocked", Built(RebuiltOutput, **WIDE), "x", facts=THREE, causal=True),
    wrong("state.mask-saved", Built(MaskAsParameter, **WIDE), "x", facts=THREE, causal=True),
    wrong(
        "state.mask-saved",
        Built(MaskTooShort, **WIDE),
        "x",
        facts=THREE,
        causal=True,
        sizes={"context_length": 9},
    ),
    wrong(
        "shape.square-only",
        Built(OutputOfTheWrongWidth, **WIDE),
        "x",
        facts=THREE,
        unproved="it is made with other arguments",
        causal=True,
    ),
    wrong(
        "shape.square-only",
        Built(KeyOfTheKey, **{"input_dim": 8, "output_dim": 6}),
        "x",
        unproved="it is made with other arguments",
    ),
    wrong("weights.not-used", Built(ReturnsOtherWeights, **WIDE), "x", facts=THREE, causal=True),
    right(
        Built(Fused, **{"width": 12, "heads": 3}),
        "x",
        facts=TWELVE,
        causal=True,
        dtypes=(torch.float16, torch.bfloat16),
    ),
    right(Built(NamelessEinsum), "x", unproved="its layers have no names", num_heads=4),
    right(Built(FoldedScale, **{"width": 12}), "x", facts={**TWELVE, "scale": 1.0}),
    right(
        Built(Block, **{"width": 12}),
        "x",
        unproved="norms, residuals and a feed-forward layer are around it",
        causal=True,
    ),
    right(Built(Grouped), "x", num_heads=6, num_kv_heads=2, causal=True),
    wrong("heads.gqa-tiled", Built(GroupedTiled), "x", num_heads=6, num_kv_heads=2, causal=True),
    right(
        Built(nn.MultiheadAttention, 12, 3, batch_first=True), "x", label="alone", unproved=THEIRS
    ),
    right(
        Built(nn.MultiheadAttention, 12, 3), "x", label="tokens first", unproved=THEIRS, causal=True
    ),
    right(
        Built(nn.MultiheadAttention, 12, 3, batch_first=True),
        "x,mask",
        label="padded",
        unproved=THEIRS,
    ),
    right(
        Built(nn.MultiheadAttention, 12, 3, batch_first=True),
        "x,context",
        label="cross",
        unproved=THEIRS,
    ),
    right(
        Built(nn.TransformerEncoderLayer, 12, 3, batch_first=True),
        "x",
        causal=True,
        label="causal",
        unproved=THEIRS,
    ),
    right(
        Built(nn.TransformerEncoderLayer, 12, 3, batch_first=True),
        "x,mask",
        label="padded",
        unproved=THEIRS,
    ),
    right(
        Built(ch.MultiHeadAttention, 12, num_heads=3, mask=ch.causal()),
        "x",
        unproved="its layers are held against the definition elsewhere",
        causal=True,
    ),
    right(Built(Padded), "x,mask", facts=TWELVE),
    wrong("mask.padding-ignored", Built(PaddingIgnored), "x,mask", facts=TWELVE),
    wrong(
        "mask.padding-ignored", Built(PaddingIgnoredFused, **{"width": 12}), "x,mask", facts=TWELVE
    ),
    wrong("mask.inverted", Built(PaddingInverted), "x,mask", facts=TWELVE),
    wrong("mask.batch-mixed", Built(FirstMaskForAll), "x,mask", facts=TWELVE),
    right(Built(Cross), "x,context", facts=TWELVE),
    wrong("context.ignored", Built(ContextIgnored), "x,context", facts=TWELVE),
    wrong(
        "context.ignored",
        Built(KeysFromX),
        "x,context",
        facts=TWELVE,
        unproved="keys and values come from two sides",
    ),
    wrong("context.swapped", Built(Swapped), "x,context", facts=TWELVE),
    wrong("context.swapped", Built(SwappedSelf), "x,context", facts=TWELVE),
    right(Built(Decoder), "decode", causal=True),
    right(Built(WindowedDecoder), "decode", causal=True, window=(3, 0)),
    right(Built(RotatingDecoder), "decode", facts={"rope": {"base": 100.0}}, causal=True),
    wrong("cache.offset", Built(MaskFromTheFirstKey), "decode", causal=True),
    wrong("cache.offset", Built(MaskOneShort), "decode", causal=True),
    wrong("cache.window", Built(TrimsBeforeUse), "decode", causal=True, window=(3, 0)),
    wrong("cache.window", Built(TrimsOneTooMany), "decode", causal=True, window=(3, 0)),
    wrong("cache.stale", Built(NeverEmptied), "decode", causal=True),
    wrong("cache.stale", Built(KeepsValues), "decode", causal=True),
    wrong(
        "rope.offset",
        Built(RotatesFromZero),
        "decode",
        facts={"rope": {"base": 100.0}},
        causal=True,
    ),
    wrong("rope.offset", Built(RotatesOneLate), "decode", causal=True, rope={"base": 100.0}),
    right(Built(FewPositions), "x", unproved="it adds learned positions"),
    right(Built(IdentityProjections), "x", facts=TWELVE),
    right(
        Built(nn.MultiheadAttention, 16, 4, add_bias_kv=True, batch_first=True),
        "x",
        label="one more key",
        unproved=THEIRS,
    ),
    right(
        Built(nn.MultiheadAttention, 16, 4, add_zero_attn=True, batch_first=True),
        "x",
        label="one empty key",
        unproved=THEIRS,
    ),
]
