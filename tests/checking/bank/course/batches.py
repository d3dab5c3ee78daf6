"""Lessons 8, 9 and 11: batches and padding, dropout and buffers, two sequences."""

# ruff: noqa: E501
from tests.checking.bank.course import right, wrong

PADDED = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, mask):
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.mT / keys.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None, :], -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        return weights @ values
"""
ADDED = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.Linear(d_in, 3 * d_out)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).split(self.qkv.out_features // 3, dim=-1)
        hidden = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(mask == 0, -1e9)
        scores = torch.einsum("bid,bjd->bij", q, k) / math.sqrt(q.size(-1)) + hidden.unsqueeze(1)
        return torch.einsum("bij,bjd->bid", F.softmax(scores, dim=-1), v)
"""
BOTH = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.register_buffer("past", torch.ones(context_length, context_length).tril().bool(), persistent=False)

    def forward(self, x, mask):
        n = x.shape[1]
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
        visible = self.past[:n, :n] & mask[:, None, :]
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        return weights @ values
"""
ONE_BY_ONE = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, mask):
        samples = []
        for one, real in zip(x, mask):
            q, k, v = self.W_query(one), self.W_key(one), self.W_value(one)
            scores = (q @ k.T / k.shape[-1] ** 0.5).masked_fill(~real, float("-inf"))
            samples.append(scores.softmax(-1) @ v)
        return torch.stack(samples)
"""
EIGHTH = [
    *right(8, padded=PADDED, added=ADDED, both=BOTH, one_by_one=ONE_BY_ONE),
    wrong(8, "mask.padding-ignored mask.multiplied", PADDED, ("-torch.inf", "0.0")),
    wrong(8, "mask.padding-ignored mask.multiplied mask.missing", PADDED, ("        scores = scores.masked_fill(~mask[:, None, :], -torch.inf)\n", "        x = x * mask[:, :, None]\n"), label="padding set to 0"),
    wrong(8, "batch.mixed mask.batch-mixed", PADDED, ("        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)\n", "        b, n = mask.shape\n        long, real = x.flatten(0, 1), mask.flatten()\n        queries, keys, values = self.W_query(long), self.W_key(long), self.W_value(long)\n"), ("~mask[:, None, :]", "~real"), ("return weights @ values", "return (weights @ values).view(b, n, -1)"), label="one long text"),
    wrong(8, "length.fixed", BOTH, ("self.past[:n, :n]", "self.past"), label="a mask that is not cut"),
    wrong(8, "mask.on-queries mask.padding-ignored", PADDED, ("~mask[:, None, :]", "~mask[:, :, None]"), ("return weights @ values", "return weights.nan_to_num(0.0) @ values")),
    wrong(8, "mask.inverted", PADDED, ("~mask[:, None, :]", "mask[:, None, :]")),
    wrong(8, "mask.padding-ignored mask.missing", PADDED, ("scores = scores.masked_fill", "scores.masked_fill")),
    wrong(8, "mask.batch-mixed", PADDED, ("~mask[:, None, :]", "~mask[:1, None, :]")),
    wrong(8, "batch.mixed law.samples", PADDED, ("queries @ keys.mT", "queries @ keys[:1].mT")),
    wrong(8, "mask.after-softmax", PADDED, ("        scores = scores.masked_fill(~mask[:, None, :], -torch.inf)\n", ""), ("return weights @ values", "weights = weights * mask[:, None, :]\n        return weights @ values")),
    wrong(8, "softmax.axis", PADDED, ("dim=-1", "dim=0")),
    wrong(8, "softmax.axis", PADDED, ("dim=-1", "dim=1")),
    wrong(8, "law.samples batch.mixed", PADDED, ("        queries, keys", "        x = x + torch.sin(torch.arange(x.shape[0]) / 10)[:, None, None]\n        queries, keys"), label="the position of the sample"),
]  # fmt: skip

DROPPED = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool(), persistent=False)

    def forward(self, x):
        n = x.shape[1]
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.mT / keys.shape[-1] ** 0.5
        scores = scores.masked_fill(self.mask[:n, :n], -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        weights = self.dropout(weights)
        return weights @ values
"""
FUNCTIONAL = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout):
        super().__init__()
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=False)
        self.p = dropout
        self.register_buffer("past", torch.ones(context_length, context_length).tril(), persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        n = x.size(1)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        weights = F.softmax(scores.masked_fill(self.past[:n, :n] == 0, float("-inf")), dim=-1)
        return F.dropout(weights, self.p, self.training) @ v
"""
BY_HAND = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout=0.1):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.dropout = dropout

    def drop(self, weights):
        if not self.training:
            return weights
        kept = torch.rand_like(weights) >= self.dropout
        return weights * kept / (1 - self.dropout)

    def forward(self, x):
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.mT / keys.shape[-1] ** 0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.drop(torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)) @ values
"""
NINTH = [
    *right(9, dropped=DROPPED, functional=FUNCTIONAL, by_hand=BY_HAND),
    wrong(9, "dropout.in-eval", DROPPED, ("weights = self.dropout(weights)", "weights = nn.Dropout(self.dropout.p)(weights)")),
    wrong(9, "dropout.on-scores", DROPPED, ("        weights = self.dropout(weights)\n", ""), ("torch.softmax(scores, dim=-1)", "torch.softmax(self.dropout(scores), dim=-1)")),
    wrong(9, "dropout.unscaled", DROPPED, ("nn.Dropout(dropout)", "nn.Dropout(1 - dropout)")),
    wrong(9, "dropout.unscaled", BY_HAND, ("weights * kept / (1 - self.dropout)", "weights * kept")),
    wrong(9, "dropout.unscaled", BY_HAND, (">= self.dropout", ">= 1 - self.dropout")),
    wrong(9, "dropout.never", DROPPED, ("        weights = self.dropout(weights)\n", "        self.dropout(weights)\n")),
    wrong(9, "dropout.in-eval", FUNCTIONAL, ("self.p, self.training", "self.p")),
    wrong(9, "dropout.in-eval", BY_HAND, ("        if not self.training:\n            return weights\n", "")),
    wrong(9, "dropout.misplaced", DROPPED, ("        weights = self.dropout(weights)\n        return weights @ values", "        return self.dropout(weights @ values)")),
    wrong(9, "law.again", DROPPED, ("        weights = self.dropout(weights)\n", "        torch.manual_seed(0)\n        weights = self.dropout(weights)\n")),
    wrong(9, "state.mask-plain", DROPPED, ('self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool(), persistent=False)', "self.mask = torch.triu(torch.ones(context_length, context_length), diagonal=1).bool()")),
    wrong(9, "state.mask-saved", DROPPED, ('self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool(), persistent=False)', "self.mask = nn.Parameter(torch.triu(torch.ones(context_length, context_length), diagonal=1))"), ("self.mask[:n, :n]", "self.mask[:n, :n].bool()")),
    wrong(9, "length.fixed", DROPPED, ("self.mask[:n, :n]", "self.mask")),
]  # fmt: skip

CROSS = """
class CrossAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x, context):
        queries = self.W_query(x)
        keys = self.W_key(context)
        values = self.W_value(context)
        scores = queries @ keys.mT
        weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)
        return weights @ values
"""
MATRICES = """
class CrossAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x_1, x_2):
        queries_1 = x_1.matmul(self.W_query)
        keys_2 = x_2.matmul(self.W_key)
        values_2 = x_2.matmul(self.W_value)
        attn_scores = queries_1.matmul(keys_2.mT)
        attn_weights = torch.softmax(attn_scores / keys_2.shape[-1] ** 0.5, dim=-1)
        return attn_weights.matmul(values_2)
"""
FUSED = """
class CrossAttention(nn.Module):
    def __init__(self, d_in, d_context, d_out):
        super().__init__()
        self.to_q = nn.Linear(d_in, d_out)
        self.to_kv = nn.Linear(d_context, 2 * d_out)

    def forward(self, x, context):
        key, value = self.to_kv(context).chunk(2, dim=-1)
        return F.scaled_dot_product_attention(self.to_q(x), key, value)
"""
ELEVENTH = [
    *right(11, cross=CROSS, matrices=MATRICES, fused=FUSED),
    wrong(11, "context.ignored", CROSS, ("self.W_key(context)", "self.W_key(x)")),
    wrong(11, "context.swapped", CROSS, ("self.W_query(x)", "self.W_query(context)"), ("self.W_key(context)", "self.W_key(x)"), ("self.W_value(context)", "self.W_value(x)"), label="sides swapped"),
    wrong(11, "parameter.dead parameter.shared", CROSS, ("values = self.W_value(context)", "values = self.W_key(context)")),
    wrong(11, "context.ignored", CROSS, ("self.W_value(context)", "self.W_value(x)")),
    wrong(11, "context.ignored", CROSS, ("self.W_key(context)", "self.W_key(x)"), ("self.W_value(context)", "self.W_value(x)"), label="self-attention"),
    wrong(11, "law.pairs context.swapped", CROSS, ("self.W_query(x)", "self.W_query(context)")),
    wrong(11, "context.ignored", CROSS, ("        queries = self", "        context = torch.cat([x, context], 1)\n        queries = self"), label="x beside the context"),
    wrong(11, "law.pairs", CROSS, ("        keys = self", "        context = context[:, :-1]\n        keys = self")),
    wrong(11, "context.ignored", CROSS, ("        keys = self", "        context = context[:1].expand(len(x), -1, -1)\n        keys = self"), label="the first context for all"),
    wrong(11, "scale.missing", CROSS, (" / keys.shape[-1] ** 0.5", "")),
    wrong(11, "softmax.axis", CROSS, ("dim=-1", "dim=-2")),
]  # fmt: skip
CASES = [*EIGHTH, *NINTH, *ELEVENTH]
