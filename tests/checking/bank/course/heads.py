"""Lessons 10, 12 and 13: several heads, rotary positions, a cache."""

# ruff: noqa: E501
from tests.checking.bank.course import right, wrong

METHODS = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.out_proj = nn.Linear(d_out, d_out)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, context):
        return context.transpose(1, 2).flatten(2)

    def forward(self, x):
        queries, keys, values = self.split(self.W_query(x)), self.split(self.W_key(x)), self.split(self.W_value(x))
        scores = queries @ keys.mT / self.head_dim**0.5
        weights = torch.softmax(scores, dim=-1)
        return self.out_proj(self.merge(weights @ values))
"""
SEED = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)
"""
FUNCTIONS = """
def split(x, num_heads):
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).permute(0, 2, 1, 3)


def merge(heads):
    batch, num_heads, tokens, head_dim = heads.shape
    return heads.permute(0, 2, 1, 3).reshape(batch, tokens, num_heads * head_dim)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (split(each, self.num_heads) for each in self.qkv(x).chunk(3, dim=-1))
        weights = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
        return self.out(merge(weights @ v))
"""
STACKED = """
class Head(nn.Module):
    def __init__(self, d_in, head_dim):
        super().__init__()
        self.query = nn.Linear(d_in, head_dim, bias=False)
        self.key = nn.Linear(d_in, head_dim, bias=False)
        self.value = nn.Linear(d_in, head_dim, bias=False)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(d_in, d_out // num_heads) for _ in range(num_heads)])
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x):
        return self.out_proj(torch.cat([head(x) for head in self.heads], dim=-1))
"""
SPLIT = "x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)"
TENTH = [
    *right(10, methods=METHODS, seed=SEED, functions=FUNCTIONS, stacked=STACKED),
    wrong(10, "heads.split", METHODS, (SPLIT, "x.view(x.shape[0], self.num_heads, x.shape[1], self.head_dim)")),
    wrong(10, "heads.merge", METHODS, ("context.transpose(1, 2).flatten(2)", "context.reshape(context.shape[0], context.shape[2], -1)")),
    wrong(10, "softmax.axis", METHODS, ("dim=-1", "dim=1")),
    wrong(10, "heads.split", FUNCTIONS, ("x.reshape(batch, tokens, num_heads, width // num_heads).permute(0, 2, 1, 3)", "x.reshape(batch, num_heads, tokens, width // num_heads)")),
    wrong(10, "heads.merge", FUNCTIONS, ("heads.permute(0, 2, 1, 3).reshape(batch, tokens", "heads.reshape(batch, tokens")),
    wrong(10, "heads.identical", STACKED, ("[Head(d_in, d_out // num_heads) for _ in range(num_heads)]", "[Head(d_in, d_out // num_heads)] * num_heads")),
    wrong(10, "scale.wrong", METHODS, ("self.head_dim**0.5", "self.W_query.out_features**0.5")),
    wrong(10, "heads.summed", STACKED, ("torch.cat([head(x) for head in self.heads], dim=-1)", "sum(head(x) for head in self.heads)"), ("nn.Linear(d_out, d_out)", "nn.Linear(d_out // num_heads, d_out)")),
    wrong(10, "heads.merge", METHODS, ("context.transpose(1, 2).flatten(2)", "context.transpose(2, 3).reshape(context.shape[0], context.shape[2], -1)"), label="another transpose"),
    wrong(10, "parameter.dead", METHODS, ("self.out_proj(self.merge(weights @ values))", "self.merge(weights @ values)")),
    wrong(10, "heads.layout heads.split law.pairs softmax.axis", METHODS, (SPLIT, SPLIT.removesuffix(".transpose(1, 2)")), ("context.transpose(1, 2).flatten(2)", "context.flatten(2)"), label="no transpose at all"),
    wrong(10, "heads.count", STACKED, ("range(num_heads)", "range(1)"), ("d_out // num_heads", "d_out"), label="one head"),
    wrong(10, "heads.count", STACKED, ("Head(d_in, d_out // num_heads)", "Head(d_in, d_in)"), ("nn.Linear(d_out, d_out)", "nn.Linear(d_in, d_out)"), ("        return self.out_proj(torch.cat([head(x) for head in self.heads], dim=-1))", "        for head in self.heads:\n            x = head(x)\n        return self.out_proj(x)"), label="one after another"),
]  # fmt: skip

ROTATE = """
def rotate(x):
    tokens, width = x.shape[-2:]
    half = width // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(tokens)[:, None] * rates
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()], dim=-1)
"""
PAIRS = """
def rotate(x):
    width = x.shape[-1]
    rates = 1.0 / 10000.0 ** (torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(x.shape[-2]).float(), rates)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.empty_like(x)
    turned[..., 0::2] = even * torch.cos(angles) - odd * torch.sin(angles)
    turned[..., 1::2] = even * torch.sin(angles) + odd * torch.cos(angles)
    return turned
"""
COMPLEX = """
def rotate(x):
    pairs = torch.view_as_complex(x.double().contiguous().unflatten(-1, (-1, 2)))
    rates = 10000.0 ** (-torch.arange(pairs.shape[-1]) / pairs.shape[-1])
    turns = torch.polar(torch.ones(()).double(), torch.arange(x.shape[-2])[:, None].double() * rates)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
"""
ROTARY = (
    ROTATE
    + """

class RotaryAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        queries, keys, values = rotate(self.W_query(x)), rotate(self.W_key(x)), self.W_value(x)
        return torch.softmax(queries @ keys.mT / keys.shape[-1] ** 0.5, dim=-1) @ values
"""
)
TWELFTH = [
    *right(12, rotate=ROTATE),
    wrong(12, "rope.layout", PAIRS, label="pairs of neighbours"),
    wrong(12, "rope.layout", COMPLEX, label="pairs of neighbours, as complex numbers"),
    wrong(10, "differs", METHODS, ("        weights = torch", "        n = x.shape[1]\n        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)\n        weights = torch"), label="a mask of the future, which nobody asked for"),
    wrong(12, "rope.values rope.layout differs law.scores", ROTATE, ("rates = 10000.0 ** (-torch.arange(half) / half)", "rates = torch.ones(half)"), label="one speed for all"),
    wrong(12, "rope.values rope.offset differs law.scores", ROTATE, ("torch.arange(tokens)[:, None]", "torch.arange(x.shape[0])[:, None, None]"), label="position taken from the batch"),
    wrong(12, "rope.values differs law.scores rope.layout", ROTATE, ("one * angles.cos() - two", "one * angles.cos() + two")),
    wrong(12, "differs law.scores rope.layout", ROTATE, ("10000.0", "100.0")),
    wrong(12, "differs rope.values law.scores rope.layout", ROTATE, ("(-torch.arange(half) / half)", "(torch.arange(half) / half)")),
    wrong(12, "differs rope.values law.scores rope.layout", ROTATE, ("torch.arange(tokens)[:, None] * rates", "torch.arange(half) * rates"), label="the angle of the dimension"),
    wrong(12, "differs rope.values law.scores rope.layout", ROTATE, ("one * angles.sin() + two * angles.cos()", "two")),
    wrong(12, "differs rope.values law.scores rope.layout", PAIRS, ("even * torch.sin(angles) + odd", "turned[..., 0::2] * torch.sin(angles) + odd")),
]  # fmt: skip
OF_CLASSES = [
    *right(12, rotary=ROTARY),
    wrong(12, "differs rope.values rope.before-split", ROTARY, ("rotate(self.W_key(x))", "self.W_key(x)"), label="only the query turned"),
    wrong(12, "rope.values differs", ROTARY, ("rotate(self.W_key(x)), self.W_value(x)", "rotate(self.W_key(x)), rotate(self.W_value(x))"), label="the value turned too"),
    wrong(12, "differs", ROTARY, ("rotate(self.W_query(x)), rotate(self.W_key(x))", "self.W_query(x), self.W_key(x)"), label="nothing turned"),
    wrong(12, "differs rope.before-split rope.values", ROTARY, ("        queries, keys", "        x = rotate(x)\n        queries, keys"), ("rotate(self.W_query(x)), rotate(self.W_key(x))", "self.W_query(x), self.W_key(x)"), label="x turned"),
]  # fmt: skip

CACHED = """
class CachedAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.reset()

    def reset(self):
        self.keys, self.values = None, None

    def attend(self, queries, keys, values):
        scores = queries @ keys.mT / keys.shape[-1] ** 0.5
        n, m = scores.shape[-2:]
        future = torch.ones(n, m).triu(1 + m - n).bool()
        return torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1) @ values

    def full(self, x):
        return self.attend(self.W_query(x), self.W_key(x), self.W_value(x))

    def step(self, x):
        keys, values = self.W_key(x), self.W_value(x)
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=1)
            values = torch.cat([self.values, values], dim=1)
        self.keys, self.values = keys, values
        return self.attend(self.W_query(x), keys, values)
"""
LISTS = """
class CachedAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.Linear(d_in, 3 * d_out)
        self.seen = []

    def reset(self):
        self.seen = []

    def full(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        n = x.shape[1]
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + torch.full((n, n), -torch.inf).triu(1)
        return F.softmax(scores, dim=-1) @ v

    def step(self, x):
        outputs = []
        for token in x.split(1, dim=1):
            q, k, v = self.qkv(token).chunk(3, dim=-1)
            self.seen.append((k, v))
            keys = torch.cat([k for k, _ in self.seen], dim=1)
            values = torch.cat([v for _, v in self.seen], dim=1)
            outputs.append(F.softmax(q @ keys.mT / math.sqrt(q.shape[-1]), dim=-1) @ values)
        return torch.cat(outputs, dim=1)
"""
RECOMPUTED = """
class CachedAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out)
        self.W_key = nn.Linear(d_in, d_out)
        self.W_value = nn.Linear(d_in, d_out)
        self.x = None

    def reset(self):
        self.x = None

    def full(self, x):
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def step(self, x):
        self.x = x if self.x is None else torch.cat([self.x, x], 1)
        return self.full(self.x)[:, -x.shape[1] :]
"""
CACHES = "cache.stale cache.offset cache.unmasked cache.window differs"
THIRTEENTH = [
    *right(13, cached=CACHED, lists=LISTS, recomputed=RECOMPUTED),
    wrong(13, CACHES, CACHED, ("        self.keys, self.values = keys, values\n        return", "        return"), label="a cache that forgets"),
    wrong(13, CACHES, CACHED, ("[self.keys, keys]", "[keys, self.keys]"), ("[self.values, values]", "[values, self.values]"), label="new tokens in front"),
    wrong(13, CACHES, CACHED, (".triu(1 + m - n)", ".triu(1)"), label="counted from the top"),
    wrong(13, "cache.stale", CACHED, ("        self.keys, self.values = None, None\n\n", "        if not hasattr(self, 'keys'):\n            self.keys, self.values = None, None\n\n"), label="not emptied"),
    wrong(13, CACHES, LISTS, ("q @ keys.mT / math", "q @ keys.mT / 2 / math")),
    wrong(13, CACHES, LISTS, ("for k, _ in self.seen]", "for k, _ in self.seen[::-1]]")),
    wrong(13, CACHES, LISTS, ("for k, _ in self.seen]", "for k, _ in self.seen[-3:]]"), ("for _, v in self.seen]", "for _, v in self.seen[-3:]]"), label="the last three"),
    wrong(13, "mask.missing", RECOMPUTED, (", is_causal=True", "")),
]  # fmt: skip
CASES = [*TENTH, *TWELFTH, *OF_CLASSES, *THIRTEENTH]
