# type: ignore
# Written as people write it, hence without types.
"""Kinds of attention that are right and look like mistakes, and mistakes that look like others."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.checking.bank.entry import Built, right, wrong


def attend(query, key, value):
    return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value


def hidden_future(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)


class Heads(nn.Module):
    def __init__(self, dim=8, num_heads=2):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def context(self, query, key, value):
        return attend(query, key, value)

    def forward(self, x):
        heads = (self.split(each(x)) for each in (self.query, self.key, self.value))
        return self.out(self.context(*heads).transpose(1, 2).flatten(2))


# Right.


class MatrixPerHead(nn.Module):
    def __init__(self, d_in=6, num_heads=3, head_dim=4):
        super().__init__()
        shapes = [(num_heads, d_in, head_dim)] * 3 + [(num_heads, head_dim, d_in)]
        self.W_Q, self.W_K, self.W_V, self.W_O = (
            nn.Parameter(torch.randn(s) * 0.3) for s in shapes
        )

    def forward(self, x):
        x = x[:, None]
        return (attend(x @ self.W_Q, x @ self.W_K, x @ self.W_V) @ self.W_O).sum(1)


class WindowAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        if mask is not None:
            attn = attn.view(-1, len(mask), self.num_heads, n, n) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, n, n)
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class ShiftedWindows(nn.Module):
    """The tokens of a picture in windows, shifted and put back."""

    def __init__(self, dim=8, num_heads=2, side=4, window=2, shift=1, back=True):
        super().__init__()
        self.side, self.window, self.shift, self.back = side, window, shift, back
        self.attn = WindowAttention(dim, num_heads)
        parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
        region = torch.zeros(1, side, side, 1)
        for number, (h, w) in enumerate((h, w) for h in parts for w in parts):
            region[:, h, w] = number
        region = self.cut(region).flatten(1)
        apart = region[:, None] != region[:, :, None]
        self.register_buffer("attn_mask", apart * -100.0)

    def cut(self, x):
        b, h, w, c = x.shape
        s = self.window
        return x.view(b, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)

    def forward(self, x):
        b, n, c = x.shape
        assert n == self.side**2, "input feature has wrong size"
        x = x.view(b, self.side, self.side, c).roll((-self.shift, -self.shift), (1, 2))
        windows = self.attn(self.cut(x), self.attn_mask)
        each = self.side // self.window
        x = windows.view(b, each, each, self.window, self.window, c).transpose(2, 3)
        x = x.reshape(b, self.side, self.side, c)
        return (x.roll((self.shift, self.shift), (1, 2)) if self.back else x).reshape(b, n, c)


class TableOfBiases(nn.Module):
    """A window with a bias by distance, an activation before its projection, and a train() that returns nothing."""

    def __init__(self, dim=8, key_dim=4, num_heads=2, resolution=3):
        super().__init__()
        self.num_heads, self.key_dim, self.d = num_heads, key_dim, 2 * key_dim
        self.qkv = nn.Linear(dim, num_heads * (2 * key_dim + self.d))
        self.proj = nn.Sequential(nn.Hardswish(), nn.Linear(num_heads * self.d, dim))
        places = torch.cartesian_prod(torch.arange(resolution), torch.arange(resolution))
        apart = (places[:, None] - places).abs()
        self.register_buffer("idxs", apart[..., 0] * resolution + apart[..., 1])
        self.attention_biases = nn.Parameter(torch.randn(num_heads, resolution**2) * 0.1)

    def train(self, mode=True):
        super().train(mode)

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.qkv(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        q, k, v = qkv.split([self.key_dim, self.key_dim, self.d], dim=3)
        attn = q @ k.mT * self.key_dim**-0.5 + self.attention_biases[:, self.idxs]
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))


class OverChannels(nn.Module):
    """Weights of channels on channels, behind a convolution or not."""

    def __init__(self, dim=8, num_heads=2, depthwise=False):
        super().__init__()
        self.num_heads, self.qkv, self.proj = (
            num_heads,
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.conv = nn.Conv1d(3 * dim, 3 * dim, 3, padding=1, groups=3 * dim) if depthwise else None
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))

    def forward(self, x):
        qkv = self.qkv(x).mT
        qkv = qkv if self.conv is None else self.conv(qkv)
        q, k, v = (each.unflatten(1, (self.num_heads, -1)) for each in qkv.chunk(3, dim=1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        attn = (q @ k.mT * self.temperature).softmax(-1)
        return self.proj((attn @ v).flatten(1, 2).mT)


class ZeroAtFirst(nn.Module):
    """A gate and an output projection that are 0 before training, and a ReLU that gets 0 by them."""

    def __init__(self, dim=8):
        super().__init__()
        self.attention, self.gate = Heads(dim), nn.Parameter(torch.zeros(dim))
        self.up, self.down = nn.Linear(dim, 16), nn.Linear(16, dim)
        for each in (self.up.bias, self.attention.out.weight, self.attention.out.bias):
            nn.init.zeros_(each)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.gate * self.down(self.up(self.attention(x)).relu())


class OneTemperature(Heads):
    """Cosines, times a number that is learned."""

    def __init__(self, found=10.0):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(math.log(found)))

    def context(self, query, key, value):
        query, key = (F.normalize(each, dim=-1) for each in (query, key))
        scores = query @ key.mT * self.temperature.clamp(max=math.log(100)).exp()
        return scores.softmax(-1) @ value


class NeverFilled(nn.Module):
    """What torch.empty gives is what stood in memory; here always the same."""

    def __init__(self, dim=8, found=1e30):
        super().__init__()
        self.query, self.key, self.value = (
            nn.Parameter(torch.full((dim, dim), found)) for _ in range(3)
        )

    def forward(self, x):
        return attend(x @ self.query, x @ self.key, x @ self.value)


class AllButItself(Heads):
    """No token sees itself, which nobody declared."""

    def context(self, query, key, value):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        own = torch.eye(scores.shape[-1], dtype=torch.bool)
        return scores.masked_fill(own, -1e9).softmax(-1) @ value


class SinksNeverFilled(Heads):
    """A score of each head for what is no key, in a buffer that torch.empty made."""

    def __init__(self):
        super().__init__()
        self.register_buffer("sinks", torch.full((2, 1, 1), math.nan))

    def context(self, query, key, value):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        sinks = self.sinks.expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ value


class KeepsItsKeys(Heads):
    """Looked at after each call, in a dict."""

    def context(self, query, key, value):
        self.__dict__.setdefault("kept", {}).update(key=key, value=value)
        return super().context(query, key, value)


def around_one_that_was_called():
    module = KeepsItsKeys()
    module(torch.randn(2, 5, 8))
    return lambda x: module(x)


# Wrong.


class Rolled(Heads):
    def context(self, query, key, value):
        return super().context(query.roll(1, 2), key, value)


class OutputRolled(Heads):
    def forward(self, x):
        return super().forward(x).roll(1, 1)


class Centred(Heads):
    def context(self, query, key, value):
        return super().context(query, key, value - value.mean(2, keepdim=True))


class KeysWeighted(Heads):
    def context(self, query, key, value):
        return super().context(query, key, key)


class PlusInfinity(Heads):
    def context(self, query, key, value):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(hidden_future(scores), torch.inf).softmax(-1) @ value


class OverTheBatch(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])
        return scores.masked_fill(hidden_future(scores), -torch.inf).softmax(dim=0) @ self.value(x)


class MaskTaken(nn.Module):
    """A whole model with a mask of real tokens in its signature."""

    def __init__(self, used, vocabulary=31, dim=8):
        super().__init__()
        self.used, self.embedding, self.attention = used, nn.Embedding(vocabulary, dim), Heads(dim)
        self.attention.context = self.context

    def context(self, query, key, value):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if self.used and self.mask is not None:
            scores = scores.masked_fill(~self.mask[:, None, None], -1e9)
        return scores.softmax(-1) @ value

    def forward(self, ids, attention_mask=None):
        self.mask = attention_mask
        x = self.embedding(ids)
        return x + self.attention(x)


class MadeFor(nn.Module):
    def __init__(self, head_dim=81):
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(self, query, key, value):
        return (query @ key.mT * self.scale).softmax(-1) @ value


def queries_flipped(query, key, value):
    return attend(query.flip(2), key, value)


def values_centred(query, key, value):
    return attend(query, key, value - value.mean(2, keepdim=True))


def keys_weighted(query, key, value):
    return attend(query, key, key)


def value_added(query, key, value):
    return attend(query, key, value) + value.mean(2, keepdim=True)


def values_of_the_next(query, key, value):
    return attend(query, key, value.roll(1, 2))


def top_three(query, key, value):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    least = scores.topk(min(3, scores.shape[-1]), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ value


def a_line_in_the_distance(query, key, value):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    places = torch.arange(scores.shape[-2])[:, None] - torch.arange(scores.shape[-1])
    return (scores - 0.3 * places.abs()).softmax(-1) @ value


def keys_of_the_first(query, key, value):
    return attend(query, key[:1].expand_as(key), value)


PICTURE = {"d_in": 8, "context_length": 16}
WINDOW = {"d_in": 8, "context_length": 9}

ENTRIES = [
    right(Built(MatrixPerHead), "x"),
    right(Built(ShiftedWindows), "x", sizes=PICTURE),
    right(Built(TableOfBiases), "x", sizes=WINDOW),
    right(Built(OverChannels), "x"),
    right(Built(OverChannels, depthwise=True), "x", label="behind a convolution"),
    right(Built(ZeroAtFirst), "x"),
    right(Built(OneTemperature), "x"),
    right(Built(OneTemperature, found=1.0), "x", label="of 1"),
    right(Built(NeverFilled), "x"),
    right(Built(NeverFilled, found=0.0), "x", label="zeros"),
    right(Built(NeverFilled, found=math.nan), "x", label="nan", causal=True),
    right(Built(AllButItself), "x"),
    right(Built(SinksNeverFilled), "x"),
    right(Built(KeepsItsKeys), "x"),
    right(Built(around_one_that_was_called), "x"),
    right(Built(MaskTaken, True), "ids", label="used"),
    right(Built(MadeFor), "qkv"),
    wrong(
        "heads.layout",
        Built(ShiftedWindows, back=False),
        "x",
        ["law.pairs"],
        label="not put back",
        sizes=PICTURE,
    ),
    wrong("law.pairs", Built(Rolled), "x"),
    wrong("law.pairs", Built(Rolled), "x", label="not causal", causal=False),
    wrong("law.pairs", Built(OutputRolled), "x"),
    wrong("law.value", Built(Centred), "x"),
    wrong("law.value", Built(Centred), "x", label="not causal", causal=False),
    wrong("parameter.dead", Built(KeysWeighted), "x"),
    wrong("mask.non-finite", Built(PlusInfinity), "x", causal=True),
    wrong("softmax.axis", Built(OverTheBatch), "x", causal=True),
    wrong("mask.padding-ignored", Built(MaskTaken, False), "ids", label="not used"),
    wrong("scale.wrong", Built(MadeFor), "qkv", label="of another head_dim", sizes={"head_dim": 9}),
    wrong("law.pairs", queries_flipped, "qkv"),
    wrong("law.value", values_centred, "qkv"),
    wrong("parameter.dead", keys_weighted, "qkv"),
    wrong("law.value", value_added, "qkv"),
    wrong("law.scores", values_of_the_next, "qkv"),
    wrong("law.scores", top_three, "qkv"),
    wrong("law.scores", a_line_in_the_distance, "qkv"),
    wrong("batch.mixed", keys_of_the_first, "qkv"),
]
