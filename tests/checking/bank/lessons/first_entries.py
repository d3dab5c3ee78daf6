"""The mistakes that `check` is built against."""

# fmt: off
# ruff: noqa: E501
from tests.checking.bank.lessons import HEAD, HEADS, LAYERS, SPLIT, TUTORIAL, Lesson, entry, wrong

DOT, CAUSAL_FN = "first:dot_product_attention", "first:causal_attention"
LAYER, CAUSAL = "first:SelfAttentionLayers", "first:CausalAttention"
MULTI, PADDED = "first:MultiHeadAttention", "first:PaddedAttention"
CROSS, ROTARY = "first:CrossAttention", "first:RotaryAttention"
PAD = {"embed_size": 12, "heads": 3}
ROPE = {"dim": 12, "n_heads": 3}
QUERIES = "        queries = self.W_query(x)\n        values = self.W_value(x)\n        keys = keys"

RIGHT: list[Lesson] = [
    wrong("", DOT, [], "qkv"),
    wrong("", CAUSAL_FN, [], "qkv", causal=True),
    wrong("", "first:softmax_by_hand", [], "qkv"),
    wrong("", "first:masked_attention", [], "qkv,mask"),
    wrong("", "first:SelfAttentionParameters", [], "x2d", LAYERS),
    wrong("", LAYER, [], "x2d", LAYERS),
    wrong("", LAYER, [], "x", LAYERS),
    wrong("", CAUSAL, [], "x", TUTORIAL, causal=True),
    wrong("", CAUSAL, [], "x", {**TUTORIAL, "dropout": 0.5}, causal=True, dropout=0.5),
    wrong("", "first:RenormalisedAttention", [], "x", LAYERS, causal=True),
    wrong("", "first:Head", [], "x", HEAD, causal=True),
    wrong("", "first:SeveralHeads", [], "x", HEADS, causal=True),
    wrong("", MULTI, [], "x", SPLIT, causal=True),
    wrong("", CROSS, [], "x,context", LAYERS),
    wrong("", PADDED, [], "x,mask", PAD),
    wrong("", ROTARY, [], "x", ROPE, causal=True),
    wrong("", ROTARY, [], "x", ROPE, causal=True, rope={"layout": "half"}),
    wrong("", "first:CachedAttention", [], "decode", {"dim": 8}, causal=True),
]

FIRST: list[Lesson] = [
    # functions
    wrong("softmax.axis", DOT, [("query.shape[-1] ** 0.5, dim=-1", "query.shape[-1] ** 0.5, dim=0")], "qkv"),
    wrong("softmax.axis", DOT, [("query.shape[-1] ** 0.5, dim=-1", "query.shape[-1] ** 0.5, dim=-2")], "qkv"),
    wrong("scale.missing", DOT, [("scores / query.shape[-1] ** 0.5", "scores")], "qkv"),
    wrong("scale.wrong", DOT, [("scores / query.shape[-1] ** 0.5", "scores / query.shape[-2] ** 0.5")], "qkv"),
    wrong("softmax.twice", DOT, [("    weights = torch.softmax(scores / query.shape[-1] ** 0.5, dim=-1)\n", "    weights = torch.softmax(scores / query.shape[-1] ** 0.5, dim=-1).softmax(-1)\n")], "qkv"),
    wrong("law.value", DOT, [("    return weights @ value\n\n\ndef causal", "    return weights.transpose(-2, -1) @ value\n\n\ndef causal")], "qkv"),
    wrong("weights.scaled", DOT, [("    return weights @ value\n\n\ndef causal", "    return (weights / 2) @ value\n\n\ndef causal")], "qkv"),
    wrong("law.pairs", DOT, [("scores = query @ key.transpose(-2, -1)\n    weights", "scores = query @ key.reshape(*key.shape[:2], key.shape[3], key.shape[2])\n    weights")], "qkv"),
    wrong("mask.missing", CAUSAL_FN, [("    scores = scores.masked_fill(mask.bool()", "    scores.masked_fill(mask.bool()")], "qkv", causal=True),
    wrong("mask.inverted mask.non-finite", CAUSAL_FN, [("masked_fill(mask.bool(), -torch.inf)", "masked_fill(mask.bool(), torch.inf)")], "qkv", causal=True),
    wrong("mask.multiplied", CAUSAL_FN, [("mask.bool(), -torch.inf", "mask.bool(), 0.0")], "qkv", causal=True),
    wrong("mask.missing", CAUSAL_FN, [("    scores = scores.masked_fill(mask.bool(), -torch.inf)\n", "    first = scores[:, :1].masked_fill(mask.bool(), -torch.inf)\n    scores = torch.cat([first, scores[:, 1:]], 1)\n")], "qkv", causal=True),
    wrong("dtype.overflow", "first:softmax_by_hand", [("    scores = scores - scores.amax(dim=-1, keepdim=True)\n", "")], "qkv"),
    wrong("softmax.missing", "first:softmax_by_hand", [("    weights = torch.exp(scores)\n", "    weights = scores\n")], "qkv"),
    wrong("softmax.axis", "first:softmax_by_hand", [("weights.sum(dim=-1, keepdim=True)", "weights.sum(dim=-2, keepdim=True)")], "qkv"),
    wrong("mask.inverted", "first:masked_attention", [("mask == 0", "mask == 1")], "qkv,mask"),
    wrong("bias.sign", "first:alibi_attention", [("bias = -slopes", "bias = slopes")], "qkv", num_heads=4, alibi_slopes=(0.25, 0.0625, 0.015625, 0.00390625)),
    # one head
    wrong("parameter.dead", LAYER, [("        values = self.W_value(x)\n        attn_scores = queries @ keys.transpose(-2", "        values = self.W_key(x)\n        attn_scores = queries @ keys.transpose(-2")], "x", LAYERS),
    wrong("parameter.dead", LAYER, [("queries @ keys.transpose(-2, -1)", "queries @ queries.transpose(-2, -1)")], "x", {"d_in": 3, "d_out": 5}),
    wrong("parameter.dead", LAYER, [("queries @ keys.transpose(-2, -1)", "x @ keys.transpose(-2, -1)")], "x", {"d_in": 4, "d_out": 4}),
    wrong("parameter.missing", "first:SelfAttentionParameters", [("self.W_query = nn.Parameter(torch.rand(d_in, d_out))", "self.W_query = torch.rand(d_in, d_out)"), ("self.W_key = nn.Parameter(torch.rand(d_in, d_out))", "self.W_key = torch.rand(d_in, d_out)"), ("self.W_value = nn.Parameter(torch.rand(d_in, d_out))", "self.W_value = torch.rand(d_in, d_out)")], "x2d", LAYERS),
    wrong("parameter.missing", "first:SelfAttentionParameters", [("self.W_key = nn.Parameter(torch.rand(d_in, d_out))", "self.W_key = torch.rand(d_in, d_out)")], "x2d", LAYERS),
    wrong("scale.wrong", LAYER, [("torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)\n        return attn_weights @ values\n\n\nclass Causal", "torch.softmax(attn_scores / x.shape[-1] ** 0.5, dim=-1)\n        return attn_weights @ values\n\n\nclass Causal")], "x", LAYERS),
    wrong("scale.missing", LAYER, [("torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)\n        return attn_weights @ values\n\n\nclass Causal", "torch.softmax(attn_scores, dim=-1) / keys.shape[-1] ** 0.5\n        return attn_weights @ values\n\n\nclass Causal")], "x", LAYERS),
    wrong("state.global-dim", LAYER, [("        self.d_out = d_out\n        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)\n", "        self.W_query = nn.Linear(d_in, d_model, bias=qkv_bias)\n"), ("class SelfAttentionLayers", "d_model = 2\n\n\nclass SelfAttentionLayers")], "x", LAYERS),
    wrong("softmax.axis batch.mixed", LAYER, [("torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)\n        return attn_weights @ values\n\n\nclass Causal", "torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=0)\n        return attn_weights @ values\n\n\nclass Causal")], "x", LAYERS),
    # causal
    wrong("mask.inverted", CAUSAL, [("        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)\n", "        mask = torch.tril(torch.ones(context_length, context_length))\n")], "x", TUTORIAL, causal=True),
    wrong("mask.off-by-one", "first:Head", [("self.tril[:T, :T] == 0", "self.tril[:T, :T].tril(-1) == 0")], "x", HEAD, causal=True),
    wrong("state.mask-plain", CAUSAL, [('self.register_buffer("mask", mask, persistent=False)\n\n    def forward(self, x):\n        b, num_tokens, d_in = x.shape\n        keys = self.W_key(x)\n        queries = self.W_query(x)\n        values = self.W_value(x)\n        attn_scores', 'self.mask = mask\n\n    def forward(self, x):\n        b, num_tokens, d_in = x.shape\n        keys = self.W_key(x)\n        queries = self.W_query(x)\n        values = self.W_value(x)\n        attn_scores')], "x", TUTORIAL, causal=True),
    wrong("length.fixed", CAUSAL, [("            self.mask.bool()[:num_tokens, :num_tokens], -torch.inf\n", "            self.mask.bool(), -torch.inf\n")], "x", TUTORIAL, causal=True),
    wrong("mask.after-softmax", "first:RenormalisedAttention", [("        masked = masked / masked.sum(dim=-1, keepdim=True)\n", "")], "x", LAYERS, causal=True),
    wrong("softmax.axis", "first:RenormalisedAttention", [("masked.sum(dim=-1, keepdim=True)", "masked.sum(dim=1, keepdim=True)")], "x", LAYERS, causal=True),
    wrong("state.global-dim", CAUSAL, [("        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)\n        self.register_buffer(", "        mask = torch.triu(torch.ones(block_size, block_size), diagonal=1)\n        self.register_buffer("), ("class CausalAttention(nn.Module)", "block_size = 6\n\n\nclass CausalAttention(nn.Module)")], "x", TUTORIAL, causal=True),
    wrong("dropout.misplaced", CAUSAL, [("        attn_weights = self.dropout(attn_weights)\n        context_vec = attn_weights @ values\n        return context_vec", "        context_vec = attn_weights @ values\n        return self.dropout(context_vec)")], "x", {**TUTORIAL, "dropout": 0.5}, causal=True, dropout=0.5),
    wrong("dropout.misplaced", CAUSAL, [("        attn_weights = self.dropout(attn_weights)\n        context_vec = attn_weights @ values\n        return context_vec", "        context_vec = attn_weights @ self.dropout(values)\n        return context_vec")], "x", {**TUTORIAL, "dropout": 0.5}, causal=True, dropout=0.5),
    wrong("dropout.on-scores", CAUSAL, [("        attn_weights = self.dropout(attn_weights)\n        context_vec = attn_weights @ values\n        return context_vec", "        context_vec = attn_weights @ values\n        return context_vec"), ("        attn_scores = queries @ keys.transpose(1, 2)\n", "        attn_scores = self.dropout(queries @ keys.transpose(1, 2))\n")], "x", {**TUTORIAL, "dropout": 0.5}, causal=True, dropout=0.5),
    wrong("dropout.never", CAUSAL, [("        attn_weights = self.dropout(attn_weights)\n        context_vec = attn_weights @ values\n        return context_vec", "        self.dropout(attn_weights)\n        context_vec = attn_weights @ values\n        return context_vec")], "x", {**TUTORIAL, "dropout": 0.5}, causal=True, dropout=0.5),
    # several heads
    wrong("parameter.missing", "first:SeveralHeads", [("        self.heads = nn.ModuleList(\n            [Head(d_in, head_size, context_length) for _ in range(num_heads)]\n        )", "        self.heads = [Head(d_in, head_size, context_length) for _ in range(num_heads)]")], "x", HEADS, causal=True),
    wrong("heads.layout", "first:SeveralHeads", [("[Head(d_in, head_size, context_length) for _ in range(num_heads)]", "[Head(d_in, head_size, context_length)] * num_heads")], "x", HEADS, causal=True),
    wrong("heads.layout", "first:SeveralHeads", [("nn.Linear(num_heads * head_size, d_in)", "nn.Linear(head_size, d_in)"), ("torch.cat([head(x) for head in self.heads], dim=-1)", "sum(head(x) for head in self.heads)")], "x", HEADS, causal=True),
    wrong("heads.split", MULTI, [("        keys = keys.transpose(1, 2)\n        queries = queries.transpose(1, 2)\n        values = values.transpose(1, 2)\n", ""), ("keys.view(b, num_tokens, self.num_heads, self.head_dim)", "keys.view(b, self.num_heads, num_tokens, self.head_dim)"), ("values.view(b, num_tokens, self.num_heads, self.head_dim)", "values.view(b, self.num_heads, num_tokens, self.head_dim)"), ("queries.view(b, num_tokens, self.num_heads, self.head_dim)", "queries.view(b, self.num_heads, num_tokens, self.head_dim)")], "x", SPLIT, causal=True),
    wrong("heads.layout", MULTI, [("(attn_weights @ values).transpose(1, 2)\n", "attn_weights @ values\n")], "x", SPLIT, causal=True),
    wrong("law.pairs", MULTI, [("        values = values.view(b, num_tokens, self.num_heads, self.head_dim)\n", "        values = values.view(b, num_tokens, self.head_dim, self.num_heads).transpose(2, 3)\n")], "x", SPLIT, causal=True),
    wrong("softmax.axis", MULTI, [("attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)\n        attn_weights = self.dropout(attn_weights)\n        context_vec = (", "attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=1)\n        attn_weights = self.dropout(attn_weights)\n        context_vec = (")], "x", SPLIT),
    wrong("scale.wrong", MULTI, [("attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)\n        attn_weights = self.dropout(attn_weights)\n        context_vec = (", "attn_weights = torch.softmax(attn_scores / self.d_out ** 0.5, dim=-1)\n        attn_weights = self.dropout(attn_weights)\n        context_vec = (")], "x", SPLIT, causal=True),
    wrong("heads.layout", "first:SeveralHeads", [("self.heads = nn.ModuleList(\n            [Head(d_in, head_size", "self.heads = nn.ModuleList(\n            [Head(d_in // num_heads, head_size"), ("[head(x) for head in self.heads]", "[head(part) for head, part in zip(self.heads, x.chunk(3, -1))]")], "x", HEADS, causal=True),
    # two sides, padding, positions, a cache
    wrong("context.ignored", CROSS, [("values_2 = self.W_value(x_2)", "values_2 = self.W_value(x_1)")], "x,context", LAYERS),
    wrong("context.ignored", CROSS, [("keys_2 = self.W_key(x_2)", "keys_2 = self.W_key(x_1)")], "x,context", LAYERS),
    wrong("mask.on-queries mask.padding-ignored", PADDED, [("mask[:, None, None, :]", "mask[:, None, :, None]")], "x,mask", PAD),
    wrong("mask.padding-ignored", PADDED, [("        energy = energy.masked_fill(", "        energy.masked_fill(")], "x,mask", PAD),
    wrong("rope.values", ROTARY, [("q, k = rotate(q), rotate(k)", "q, k, v = rotate(q), rotate(k), rotate(v)")], "x", ROPE, causal=True, rope={"layout": "half"}),
    wrong("rope.before-split", ROTARY, [("        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))\n        q, k = rotate(q), rotate(k)\n", "        q, k, v = rotate(self.wq(x)), rotate(self.wk(x)), self.wv(x)\n        q, k, v = self.split(q), self.split(k), self.split(v)\n")], "x", ROPE, causal=True, rope={"layout": "half"}),
    wrong("cache.stale", "first:CachedAttention", [("        self.keys = None\n        self.values = None\n        self.position = 0\n", "        self.keys = None\n        self.values = None\n        if not hasattr(self, 'position'):\n            self.position = 0\n")], "decode", {"dim": 8}, causal=True),
    wrong("rope.offset cache.offset", "first:CachedAttention", [("keys, values = rotate_at(self.k(x), start)", "keys, values = rotate_at(self.k(x), 0)")], "decode", {"dim": 8}, causal=True),
]

ENTRIES = [entry(each) for each in RIGHT + FIRST]
