"""Lessons 4 to 7: one head, its matrices, its scale, its layers, and its mask."""

# ruff: noqa: E501
from tests.checking.bank.course import right, wrong

MATRICES = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value
        scores = queries @ keys.T
        weights = torch.softmax(scores, dim=-1)
        return weights @ values
"""
SCALED = MATRICES.replace("softmax(scores, dim", "softmax(scores / keys.shape[-1] ** 0.5, dim")
OTHER_NAMES = """
class SelfAttention(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.ask = nn.Parameter(torch.randn(dim, out))
        self.answer = nn.Parameter(torch.randn(dim, out))
        self.tell = nn.Parameter(torch.randn(dim, out))

    def forward(self, x):
        q, k, v = torch.matmul(x, self.ask), torch.matmul(x, self.answer), torch.matmul(x, self.tell)
        scores = torch.einsum("id,jd->ij", q, k)
        powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        return torch.matmul(powers / powers.sum(dim=-1, keepdim=True), v)
"""
BY_QUERY = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(d_in, d_out))
        self.W_key = nn.Parameter(torch.randn(d_in, d_out))
        self.W_value = nn.Parameter(torch.randn(d_in, d_out))

    def forward(self, x):
        keys, values = x @ self.W_key, x @ self.W_value
        rows = []
        for token in x:
            query = token @ self.W_query
            weights = torch.softmax(keys @ query, dim=0)
            rows.append(weights @ values)
        return torch.stack(rows)
"""
FOURTH = [
    *right(4, matrices=MATRICES, scaled=SCALED, other_names=OTHER_NAMES, by_query=BY_QUERY),
    wrong(4, "parameter.dead", MATRICES, ("weights @ values", "weights @ keys"), label="key for value"),
    wrong(4, "parameter.missing", MATRICES, ("self.W_key = nn.Parameter(torch.rand(d_in, d_out))", "self.W_key = torch.rand(d_in, d_out)")),
    wrong(4, "parameter.missing", MATRICES, ("self.W_query = nn.Parameter(torch.rand(d_in, d_out))", "self.W_query = nn.Parameter(torch.rand(d_in, d_out)) * 0.1")),
    wrong(4, "parameter.dead", MATRICES, ("queries @ keys.T", "queries @ queries.T")),
    wrong(4, "parameter.dead", MATRICES, ("queries @ keys.T", "queries @ x[:, :3].T")),
    wrong(4, "parameter.shared", MATRICES, ("self.W_value = nn.Parameter(torch.rand(d_in, d_out))", "self.W_value = self.W_key")),
    wrong(4, "parameter.dead", MATRICES, ("values = x @ self.W_value", "values = x @ self.W_key")),
    wrong(4, "softmax.axis", MATRICES, ("dim=-1", "dim=0")),
    wrong(4, "law.value", MATRICES, ("weights @ values", "weights.T @ values")),
    wrong(4, "grad.blocked parameter.dead", MATRICES, ("scores = queries @ keys.T", "scores = (queries @ keys.T).detach()")),
    wrong(4, "grad.blocked parameter.missing", MATRICES, ("self.W_value = nn.Parameter(torch.rand(d_in, d_out))", "self.W_value = nn.Parameter(torch.rand(d_in, d_out), requires_grad=False)")),
    wrong(4, "softmax.missing", MATRICES, ("torch.softmax(scores, dim=-1)", "scores / scores.sum(dim=-1, keepdim=True)")),
    wrong(4, "law.pairs", BY_QUERY, ("token @ self", "x[0] @ self")),
]  # fmt: skip

ROOT = """
def attention(query, key, value):
    scores = query @ key.T / query.shape[-1] ** 0.5
    weights = torch.softmax(scores, dim=-1)
    return weights @ value
"""
MATH = """
def attention(query, key, value):
    d = key.size(-1)
    weights = F.softmax(query @ key.transpose(-2, -1) / math.sqrt(d), dim=-1)
    return weights @ value
"""
BEFORE = """
def attention(query, key, value):
    query = query * query.shape[-1] ** -0.5
    return (query @ key.mT).softmax(-1) @ value
"""
FIFTH = [
    *right(5, root=ROOT, math=MATH, before=BEFORE),
    wrong(5, "scale.wrong scale.inverse", ROOT, ("** 0.5", "** 1/2")),
    wrong(5, "scale.wrong", ROOT, ("query.shape[-1] **", "key.shape[0] **")),
    wrong(5, "scale.missing", ROOT, (" / query.shape[-1] ** 0.5", "")),
    wrong(5, "scale.wrong", MATH, ("math.sqrt(d)", "d")),
    wrong(5, "scale.inverse", ROOT, ("key.T / query", "key.T * query")),
    wrong(5, "scale.missing", ROOT, (" / query.shape[-1] ** 0.5", ""), ("return weights @ value", "return weights / query.shape[-1] ** 0.5 @ value"), label="after the softmax"),
    wrong(5, "scale.wrong", ROOT, ("query.shape[-1] ** 0.5", "query.shape[-1] ** 0.25")),
    wrong(5, "scale.wrong", BEFORE, ("return (query @ key.mT)", "key = key * key.shape[-1] ** -0.5\n    return (query @ key.mT)"), label="on both sides"),
    wrong(5, "scale.wrong", MATH, ("math.sqrt(d)", "8.0"), label="a number"),
    wrong(5, "softmax.axis", ROOT, ("dim=-1", "dim=0")),
]  # fmt: skip

LAYERS = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)
        weights = torch.softmax(queries @ keys.T / keys.shape[-1] ** 0.5, dim=-1)
        return weights @ values
"""
ONE_LAYER = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v
"""
DICT = """
class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(d_in, d_out) for name in ("query", "key", "value")})

    def forward(self, x):
        query, key, value = (layer(x) for layer in self.layers.values())
        return F.scaled_dot_product_attention(query[None], key[None], value[None])[0]
"""
SIXTH = [
    *right(6, layers=LAYERS, one_layer=ONE_LAYER, dict=DICT),
    wrong(6, "parameter.missing", LAYERS, ("self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)", "self.layers = [nn.Linear(d_in, d_out, bias=qkv_bias)]"), ("self.W_value(x)", "self.layers[0](x)"), label="a list"),
    wrong(6, "length.fixed law.length", LAYERS, ("        self.W_value = nn", "        self.bias = nn.Parameter(torch.zeros(7, d_out))\n        self.W_value = nn"), ("self.W_value(x)", "self.W_value(x) + self.bias"), label="a bias by position"),
    wrong(6, "shape.square-only", LAYERS, ("self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)", "self.W_key = nn.Linear(d_out, d_in, bias=qkv_bias)"), label="sizes turned round"),
    wrong(6, "parameter.dead", LAYERS, ("values = self.W_value(x)", "values = self.W_query(x)")),
    wrong(6, "parameter.shared parameter.dead", LAYERS, ("self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)", "self.W_key = self.W_query")),
    wrong(6, "scale.wrong", LAYERS, ("keys.shape[-1] **", "x.shape[-1] **")),
    wrong(6, "scale.missing", LAYERS, (" / keys.shape[-1] ** 0.5", "")),
    wrong(6, "parameter.missing output.nondeterministic", LAYERS, ("values = self.W_value(x)", "values = nn.Linear(x.shape[-1], 3, bias=False)(x)"), label="a layer made in forward"),
    wrong(6, "parameter.dead", LAYERS, ("weights @ values", "weights @ keys")),
    wrong(6, "softmax.axis", LAYERS, ("dim=-1", "dim=-2")),
    wrong(6, "parameter.dead", ONE_LAYER, ("q @ k.mT", "q @ q.mT")),
]  # fmt: skip

FILLED = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.T
        n = x.shape[0]
        mask = torch.triu(torch.ones(n, n), diagonal=1).bool()
        scores = scores.masked_fill(mask, -torch.inf)
        weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)
        return weights @ values
"""
RENORMALISED = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        weights = torch.softmax(queries @ keys.T / keys.shape[-1] ** 0.5, dim=-1)
        visible = torch.tril(torch.ones(len(x), len(x)))
        weights = weights * visible
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights @ values
"""
PAST = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(d_in, d_out))
        self.W_key = nn.Parameter(torch.randn(d_in, d_out))
        self.W_value = nn.Parameter(torch.randn(d_in, d_out))

    def forward(self, x):
        queries, keys, values = x @ self.W_query, x @ self.W_key, x @ self.W_value
        rows = []
        for i in range(len(x)):
            scores = keys[: i + 1] @ queries[i] / math.sqrt(queries.shape[-1])
            rows.append(torch.softmax(scores, dim=0) @ values[: i + 1])
        return torch.stack(rows)
"""
ADDED = """
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)
        self.register_buffer("future", torch.full((context_length, context_length), -torch.inf).triu(1), persistent=False)

    def forward(self, x):
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = queries @ keys.mT / math.sqrt(keys.shape[-1]) + self.future[: len(x), : len(x)]
        return F.softmax(scores, dim=-1) @ values
"""
SEVENTH = [
    *right(7, filled=FILLED, renormalised=RENORMALISED, past=PAST, added=ADDED),
    wrong(7, "mask.inverted", FILLED, ("torch.triu(torch.ones(n, n), diagonal=1)", "torch.tril(torch.ones(n, n))")),
    wrong(7, "mask.missing", FILLED, ("scores = scores.masked_fill", "scores.masked_fill")),
    wrong(7, "mask.multiplied", FILLED, ("-torch.inf", "0.0")),
    wrong(7, "mask.off-by-one", FILLED, ("diagonal=1", "diagonal=2")),
    wrong(7, "mask.off-by-one mask.non-finite", FILLED, ("diagonal=1", "diagonal=0")),
    wrong(7, "law.pairs", PAST, ("keys[: i + 1]", "keys[:i]"), ("values[: i + 1]", "values[:i]"), label="keys[:i]"),
    wrong(7, "law.pairs mask.off-by-one", PAST, ("keys[: i + 1]", "keys[: i + 2]"), ("values[: i + 1]", "values[: i + 2]"), label="keys[: i + 2]"),
    wrong(7, "mask.after-softmax", RENORMALISED, ("        weights = weights / weights.sum(dim=-1, keepdim=True)\n", "")),
    wrong(7, "softmax.axis", RENORMALISED, ("weights.sum(dim=-1, keepdim=True)", "weights.sum(dim=0, keepdim=True)")),
    wrong(7, "mask.inverted", RENORMALISED, ("torch.tril", "torch.triu")),
    wrong(7, "mask.multiplied", FILLED, ("-torch.inf", "-1e-9")),
    wrong(7, "mask.inverted mask.non-finite", FILLED, ("-torch.inf", "torch.inf")),
    wrong(7, "mask.missing", FILLED, ("        scores = scores.masked_fill(mask, -torch.inf)\n", "")),
    wrong(7, "mask.added-as-number", FILLED, ("scores.masked_fill(mask, -torch.inf)", "scores - mask.double()")),
    wrong(7, "scale.missing", FILLED, (" / keys.shape[-1] ** 0.5", "")),
    wrong(7, "mask.missing", FILLED, ("torch.softmax(scores /", "torch.softmax(queries @ keys.T /"), label="the masked scores are not used"),
]  # fmt: skip
CASES = [*FOURTH, *FIFTH, *SIXTH, *SEVENTH]
