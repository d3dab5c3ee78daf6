"""The mistakes that are set aside: `check` is judged on them once."""

# fmt: off
# ruff: noqa: E501
from tests.checking.bank.lessons import Lesson, entry, wrong

ANNOTATED, GPT = "later:MultiHeadedAttention", "later:CausalSelfAttention"
ENCODER, VISION = "later:EncoderSelfAttention", "later:VisionAttention"
CROSS, GROUPED, DECODER = "later:DecoderCross", "later:GroupedAttention", "later:Decoder"
MHA = {"h": 3, "d_model": 12, "dropout": 0.0}
MINI = {"n_embd": 12, "n_head": 3, "block_size": 10}
ENC = {"hid_dim": 12, "n_heads": 3, "dropout": 0.0}
VIT = {"dim": 12, "num_heads": 3}
SIDES = {"query_dim": 10, "context_dim": 14}
GQA = {"dim": 24, "n_heads": 6, "n_kv_heads": 2}

RIGHT_LATER: list[Lesson] = [
    wrong("", ANNOTATED, [], "x", MHA),
    wrong("", GPT, [], "x", MINI, causal=True),
    wrong("", GPT, [], "x", {**MINI, "attn_pdrop": 0.4}, causal=True, dropout=0.4),
    wrong("", ENCODER, [], "x,mask", ENC),
    wrong("", VISION, [], "x", VIT),
    wrong("", CROSS, [], "x,context", SIDES),
    wrong("", GROUPED, [], "x", GQA, causal=True, num_heads=6, num_kv_heads=2),
    wrong("", DECODER, [], "decode", {"width": 8}, causal=True),
    wrong("", "later:by_loops", [], "qkv"),
    wrong("", "later:with_numpy_mask", [], "qkv", causal=True),
]

LATER: list[Lesson] = [
    wrong("scale.missing", ANNOTATED, [(" / math.sqrt(d_k)\n", "\n")], "x", MHA),
    wrong("scale.wrong", ANNOTATED, [("math.sqrt(d_k)", "math.sqrt(query.size(1))")], "x", MHA),
    wrong("heads.layout", ANNOTATED, [("x.transpose(1, 2).contiguous().view(nbatches, -1, self.h", "x.contiguous().view(nbatches, -1, self.h")], "x", MHA),
    wrong("parameter.shared heads.layout parameter.dead", ANNOTATED, [("[copy.deepcopy(module) for _ in range(N)]", "[module for _ in range(N)]")], "x", MHA),
    wrong("dropout.in-eval", ANNOTATED, [("        p_attn = dropout(p_attn)\n", "        p_attn = F.dropout(p_attn, dropout.p)\n")], "x", {**MHA, "dropout": 0.3}, dropout=0.3),
    wrong("mask.inverted", GPT, [("self.bias[:, :, :T, :T] == 0", "self.bias[:, :, :T, :T] == 1")], "x", MINI, causal=True),
    wrong("mask.missing", GPT, [("        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float(\"-inf\"))\n", "")], "x", MINI, causal=True),
    wrong("mask.multiplied", GPT, [('float("-inf"))\n        att = F', '1e-9)\n        att = F')], "x", MINI, causal=True),
    wrong("softmax.axis", GPT, [("F.softmax(att, dim=-1)", "F.softmax(att, dim=-2)")], "x", MINI, causal=True),
    wrong("length.fixed", GPT, [("self.bias[:, :, :T, :T] == 0", "self.bias == 0")], "x", MINI, causal=True),
    wrong("dropout.misplaced", GPT, [("        att = self.attn_dropout(att)\n        y = att @ v\n", "        y = self.attn_dropout(att @ v)\n")], "x", {**MINI, "attn_pdrop": 0.4}, causal=True, dropout=0.4),
    wrong("heads.split", GPT, [("        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)\n", "        k = k.view(B, self.n_head, T, C // self.n_head)\n")], "x", MINI, causal=True),
    wrong("parameter.dead", ENCODER, [("V = self.fc_v(x)", "V = self.fc_k(x)")], "x,mask", ENC),
    wrong("mask.inverted", ENCODER, [("mask.unsqueeze(1).unsqueeze(2) == 0", "mask.unsqueeze(1).unsqueeze(2) == 1")], "x,mask", ENC),
    wrong("mask.on-queries mask.padding-ignored", ENCODER, [("mask.unsqueeze(1).unsqueeze(2) == 0", "mask.unsqueeze(1).unsqueeze(3) == 0")], "x,mask", ENC),
    wrong("scale.wrong", VISION, [("head_dim**-0.5", "head_dim**0.5")], "x", VIT),
    wrong("scale.wrong", VISION, [("head_dim**-0.5", "num_heads**-0.5")], "x", VIT),
    wrong("law.value", VISION, [("(attn @ v).transpose(1, 2)", "(attn.transpose(-2, -1) @ v).transpose(1, 2)")], "x", VIT),
    wrong("context.ignored", CROSS, [("self.to_v(context)", "self.to_v(x)"), ("nn.Linear(context_dim, inner_dim, bias=False)\n        self.to_v = nn.Linear(context_dim", "nn.Linear(context_dim, inner_dim, bias=False)\n        self.to_v = nn.Linear(query_dim")], "x,context", SIDES),
    wrong("context.swapped", CROSS, [("self.to_q(x), self.to_k(context), self.to_v(context)", "self.to_q(context), self.to_k(x), self.to_v(x)")], "x,context", {"query_dim": 10, "context_dim": 10}),
    wrong("heads.gqa-tiled", GROUPED, [("torch.repeat_interleave(t, repeats, dim=2)", "t.repeat(1, 1, repeats, 1)")], "x", GQA, causal=True, num_heads=6, num_kv_heads=2),
    wrong("rope.layout", GROUPED, [("t.double().reshape(*t.shape[:-1], -1, 2)", "t.double().reshape(*t.shape[:-1], -1, 2)")], "x", GQA, causal=True, num_heads=6, num_kv_heads=2, rope={"layout": "half"}),
    wrong("cache.offset", DECODER, [("dtype=torch.bool), diagonal=S - T)", "dtype=torch.bool))")], "decode", {"width": 8}, causal=True),
    wrong("cache.stale", DECODER, [("    def reset(self):\n        self.cache = KeyValueCache()\n\n    def core", "    def reset(self):\n        self.cache.size = 0\n\n    def core")], "decode", {"width": 8}, causal=True),
    wrong("mask.inverted mask.non-finite mask.empty-row", "later:with_numpy_mask", [("hidden == 1", "hidden == 0")], "qkv", causal=True),
    wrong("softmax.missing", "later:by_loops", [("weights = torch.softmax(scores, dim=0)", "weights = scores / scores.sum()")], "qkv"),
]

ENTRIES = [entry(each) for each in RIGHT_LATER + LATER]
