# type: ignore
# Modules as people write them, hence without types.
"""Query, key and value inside a module, as its author moves them about."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

import clearhead as ch


class ScaledInPlace(nn.Module):
    """As in fairseq: what the projection gave is scaled in place."""

    def __init__(self, factor=4**-0.5):
        super().__init__()
        self.factor = factor
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q *= self.factor
        q, k, v = (each.unflatten(-1, (3, 4)).transpose(1, 2) for each in (q, k, v))
        return self.out_proj(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


class TokensFirst(ScaledInPlace):
    """Works with (tokens, batch, dim) inside, with heads and samples in one axis."""

    over = -1

    def forward(self, x):
        x = x.transpose(0, 1)
        tokens, batch, width = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q *= self.factor
        q, k, v = (each.view(tokens, batch * 3, 4).transpose(0, 1) for each in (q, k, v))
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(self.over)
        context = torch.bmm(weights, v).transpose(0, 1).reshape(tokens, batch, width)
        return self.out_proj(context).transpose(0, 1)


class OverRows(TokensFirst):
    over = 0


class OverQueries(TokensFirst):
    over = 1


def names(subject, **declared):
    return [each.code for each in ch.check(subject, takes="x", **declared).findings]


@pytest.mark.parametrize("cls", [ScaledInPlace, TokensFirst])
def test_a_query_that_is_scaled_in_place_is_scaled(cls):
    torch.manual_seed(0)
    report = ch.check(cls(), takes="x", num_heads=3)
    assert report.ok, report
    assert "scale 1/√4" in report.passed
    assert names(cls(1.0), num_heads=3) == ["scale.missing"]


def test_the_axis_of_the_softmax_is_found_with_tokens_first():
    assert names(OverQueries(), num_heads=3)[0] == "softmax.axis"
    report = ch.check(OverRows(), takes="x", num_heads=3)
    assert report.findings[0].code == "softmax.axis"
    assert "samples and heads together" in report.findings[0].sentence


class Bloom(nn.Module):
    """The parts of a head lie side by side in the fused projection; ALiBi is added by baddbmm."""

    slopes = torch.tensor([2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0])

    def __init__(self, beta=1.0, repeat=False, slopes=slopes):
        super().__init__()
        self.beta, self.repeat = beta, repeat
        self.query_key_value, self.dense = nn.Linear(24, 72), nn.Linear(24, 24)
        self.register_buffer("alibi", slopes)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = self.query_key_value(x).view(batch, tokens, 6, 3, 4).unbind(-2)
        q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in (q, k, v))
        bias = self.alibi[:, None, None] * torch.arange(tokens).to(x)
        many = bias.repeat_interleave(batch, 0) if self.repeat else bias.repeat(batch, 1, 1)
        scores = many.baddbmm(q, k.mT, beta=self.beta, alpha=1 / math.sqrt(4))
        future = torch.ones(tokens, tokens).triu(1).bool()
        weights = scores.masked_fill(future, torch.finfo(x.dtype).min).softmax(-1)
        return self.dense((weights @ v).unflatten(0, (batch, 6)).transpose(1, 2).flatten(2))


def test_mistakes_are_named_where_the_parts_of_a_head_lie_side_by_side():
    declared = {"causal": True, "alibi_slopes": Bloom.slopes}
    assert not names(Bloom(), **declared)
    assert names(Bloom(beta=4**-0.5), **declared) == ["bias.wrong"]
    for subject in (
        Bloom(beta=0.0),
        Bloom(repeat=True),
        Bloom(slopes=2 ** (-8 * torch.arange(1, 7) / 6)),
    ):
        assert names(subject, **declared) == ["differs"]


class Gemma(nn.Module):
    """A rotary layer with a norm before and a residual around it, and a softcap."""

    def __init__(self, base=10000.0, pairs="half", angles="half", turned="qk", bend="cap"):
        super().__init__()
        self.pairs, self.angles, self.turned, self.bend = pairs, angles, turned, bend
        self.norm = nn.LayerNorm(24)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(24, 24, bias=False) for _ in range(4)
        )
        self.register_buffer("inv_freq", base ** -(torch.arange(0, 8, 2).double() / 8))

    def rotate(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * self.inv_freq
        half = self.angles == "half"
        angles = torch.cat([angles, angles], -1) if half else angles.repeat_interleave(2, -1)
        if self.pairs == "half":
            one, two = x.chunk(2, -1)
            other = torch.cat([-two, one], -1)
        elif self.pairs == "neighbours":
            other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        else:
            other = torch.cat([-x[..., 1::2], x[..., 0::2]], -1)
        return x * angles.cos() + other * angles.sin()

    def capped(self, scores):
        if self.bend == "bent only":
            return torch.tanh(scores / 3.0)
        return 3.0 * torch.tanh(scores if self.bend == "not divided" else scores / 3.0)

    def forward(self, x):
        y = self.norm(x)
        parts = {"q": self.q_proj(y), "k": self.k_proj(y), "v": self.v_proj(y)}
        heads = {name: each.unflatten(-1, (3, 8)).transpose(1, 2) for name, each in parts.items()}
        heads |= {name: self.rotate(heads[name]) for name in self.turned}
        scores = self.capped(heads["q"] @ heads["k"].mT / math.sqrt(8))
        future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        weights = F.softmax(scores.masked_fill(future, -torch.inf), -1)
        return x + self.o_proj((weights @ heads["v"]).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"pairs": "half", "angles": "neighbours"}, "rope.layout"),
        ({"pairs": "neighbours", "angles": "half"}, "rope.layout"),
        ({"pairs": "mixed", "angles": "half"}, "rope.layout"),
        ({"pairs": "mixed", "angles": "neighbours"}, "rope.layout"),
        ({"turned": "q"}, "differs"),
        ({"turned": "k"}, "differs"),
        ({"turned": "qkv"}, "rope.layout"),
        ({"base": 500000.0}, "differs"),
        ({"bend": "bent only"}, "differs"),
        ({"bend": "not divided"}, "differs"),
    ],
)
def test_mistakes_of_rotation_and_softcap_in_a_whole_layer(options, code):
    torch.manual_seed(0)
    declared = {"causal": True, "num_heads": 3, "softcap": 3.0, "rope": {"base": 10000.0}}
    assert not names(Gemma(), **declared)
    finding = ch.check(Gemma(**options), takes="x", **declared).findings[0]
    assert finding.code == code


class NullKey(nn.Module):
    """As in x-transformers: a learned key and value that everybody sees."""

    def __init__(self, shift=0):
        super().__init__()
        self.shift = shift
        self.null_kv = nn.Parameter(torch.randn(2, 5))
        self.to_q, self.to_kv = nn.Linear(8, 15), nn.Linear(8, 10)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q = self.to_q(x).unflatten(-1, (3, 5)).transpose(1, 2) * 5**-0.5
        k, v = self.to_kv(x).chunk(2, -1)
        k, v = (
            torch.cat([null.expand(batch, 1, -1), each], 1)
            for null, each in zip(self.null_kv, (k, v), strict=True)
        )
        scores = torch.einsum("bhid,bjd->bhij", q, k)
        future = torch.ones(tokens, tokens + 1).triu(2 - self.shift).bool()
        weights = scores.masked_fill(future, -torch.finfo(x.dtype).max).softmax(-1)
        return torch.einsum("bhij,bjd->bhid", weights, v).transpose(1, 2).flatten(2)


def test_a_mask_beside_a_learned_key_is_named():
    torch.manual_seed(0)
    assert not names(NullKey(), causal=True)
    assert names(NullKey(shift=1), causal=True) == ["mask.off-by-one"]


class Resampler(nn.Module):
    """As in Flamingo: latents attend to what is given and to themselves."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, x, context):
        k, v = self.to_kv(torch.cat([context, x], 1)).chunk(2, -1)
        return (self.to_q(x) @ k.mT / 8**0.5).softmax(-1) @ v


def test_latents_that_attend_to_themselves_beside_the_context_are_told():
    report = ch.check(Resampler(), takes="x,context")
    assert report.ok
    assert "x is attended to beside the context: outputs move with other tokens of x" in report.told


class Scores(nn.Module):
    """As in Whisper: the scores come with the output, detached."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / 6**0.5
        return scores.softmax(-1) @ self.value(x), scores.detach()


def test_scores_that_are_returned_detached_are_no_weights():
    report = ch.check(Scores(), takes="x")
    assert report.ok
    words = "the second thing returned has the shape of weights, and is negative in places"
    assert words in report.minor


def both_sides(query, key, value, width=3, shift=0):
    """A window by slices of padded keys, for as many keys as queries."""
    tokens = query.shape[-2]
    places = torch.arange(tokens)[:, None] + torch.arange(2 * width + 1)
    padded = [F.pad(each, (0, 0, width + shift, width - shift)) for each in (key, value)]
    keys, values = (each[:, :, places] for each in padded)
    scores = torch.einsum("bhid,bhiwd->bhiw", query, keys) / query.shape[-1] ** 0.5
    real = (places >= width + shift) & (places < tokens + width + shift)
    weights = scores.masked_fill(~real, -torch.inf).softmax(-1)
    return torch.einsum("bhiw,bhiwd->bhid", weights, values)


@pytest.mark.parametrize("declared", [{}, {"window": (3, 3)}])
def test_a_window_by_slices_is_for_as_many_keys_as_queries(declared):
    report = ch.check(both_sides, takes="qkv", **declared)
    assert report.ok, report
    words = "with more keys than queries it is not the definition: it is for as many of both"
    assert words in report.told


def test_a_window_by_slices_that_is_shifted_is_a_mistake():
    def shifted(query, key, value):
        return both_sides(query, key, value, shift=1)

    assert not ch.check(shifted, takes="qkv", window=(3, 3)).ok


def test_attending_over_the_first_axis_says_which_axis_is_wanted():
    attention = nn.MultiheadAttention(8, 2)
    (finding,) = ch.check(lambda x: attention(x, x, x), takes="x").findings
    assert finding.code == "law.samples"
    assert finding.sentence.endswith("no token another: it attends over the first axis")
    assert "batch_first=True" in finding.likely


class Tiled(nn.Module):
    """Eight query heads that read four key heads in a tiled order, which nothing declares."""

    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(24, 24), nn.Linear(24, 24)
        self.key, self.value = nn.Linear(24, 12), nn.Linear(24, 12)

    def forward(self, x):
        q = self.query(x).unflatten(-1, (8, 3)).transpose(1, 2)
        k, v = (each(x).unflatten(-1, (4, 3)).transpose(1, 2) for each in (self.key, self.value))
        k, v = (each.repeat(1, 2, 1, 1) for each in (k, v))
        context = ((q @ k.mT / 3**0.5).softmax(-1) @ v).transpose(1, 2)
        return self.out(context.flatten(2))


def test_the_order_of_key_heads_is_said_with_their_number():
    torch.manual_seed(0)
    report = ch.check(Tiled(), takes="x")
    assert report.ok
    assert any("reads key head h % 4, not h // 2" in each for each in report.told), report.told
    declared = ch.check(Tiled(), takes="x", num_kv_heads=4, num_heads=8)
    assert [each.code for each in declared.findings] == ["heads.gqa-tiled"]


class Ways(nn.Module):
    """Heads of width 4, whose context is made as is said."""

    def __init__(self, context, heads=3):
        super().__init__()
        self.context, self.heads, width = context, heads, 4 * heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x):
        projected = (each(x) for each in (self.q_proj, self.k_proj, self.v_proj))
        heads = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
        return self.out_proj(self.context(*heads).transpose(1, 2).flatten(2))


def softmax(query, key, scale=0.5):
    return (query @ key.mT * scale).softmax(-1)


def by_landmarks(q, k, v):
    """As in Nyströmformer: over a few tokens, and back."""
    few, seen = q[:, :, :3], k[:, :, :3]
    inverse = torch.linalg.pinv(softmax(few, seen))
    return softmax(q, seen) @ inverse @ (softmax(few, k) @ v)


def two_steps(q, k, v):
    weights = softmax(q, k)
    return (weights @ weights) @ v


@pytest.mark.parametrize(
    ("context", "topic"),
    [(by_landmarks, "heads"), (two_steps, "scale")],
    ids=["landmarks", "two steps"],
)
def test_a_product_of_weights_is_no_mistake_of_a_name(context, topic):
    torch.manual_seed(0)
    report = ch.check(Ways(context), takes="x")
    assert report.outcome == "not judged", report
    assert [each.partition(":")[0] for each in report.unverified] == [topic]


def backwards(q, k, v, scale=0.5, back=True):
    context = softmax(q.flip(2), k, scale) @ v
    return context.flip(2) if back else context


def test_queries_in_another_order_are_put_back_in_theirs():
    torch.manual_seed(0)
    report = ch.check(Ways(backwards), takes="x")
    assert report.ok, report
    assert "scale 1/√4" in report.passed
    assert names(Ways(lambda *given: backwards(*given, scale=1.0))) == ["scale.missing"]
    assert names(Ways(lambda *given: backwards(*given, back=False))) == ["heads.merge"]


def grouped(q, k, v, scale=0.5):
    """Blocks as (groups, batch, heads of a group)."""
    sides = (each.unflatten(1, (2, 2)).transpose(0, 1).flatten(0, 2) for each in (q, k, v))
    query, key, value = sides
    found = softmax(query, key, scale) @ value
    return found.unflatten(0, (2, -1, 2)).transpose(0, 1).flatten(1, 2)


def test_heads_that_lie_on_both_sides_of_the_samples_are_read():
    torch.manual_seed(0)
    report = ch.check(Ways(grouped, heads=4), takes="x")
    assert report.ok, report
    assert {"heads", "scale 1/√4"} <= set(report.passed)
    assert names(Ways(lambda *given: grouped(*given, scale=1.0), heads=4)) == ["scale.missing"]


class PerHead(nn.Module):
    """A learned scale for each head, as in Swin v2."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([0.3, 0.5, 0.9])[:, None, None])

    def forward(self, q, k, v):
        return (q @ k.mT * self.temperature).softmax(-1) @ v


def bent(q, k, v):
    return (5 * torch.tanh(q @ k.mT / 2 / 5)).softmax(-1) @ v


def drawn_over(q, k, v):
    """Random numbers in place of a copy, which are none of its numbers any more."""
    return softmax(q, k) @ v + 0 * q.detach().clone().normal_()


def by_branches(q, k, v):
    """Other operations for other numbers."""
    return softmax(q, k @ torch.eye(4).to(k) if q.mean() > 0 else k) @ v


class LearnedQueries(nn.Module):
    """Queries that are not made of x, for PyTorch's function."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.arange(480.0).sin().view(3, 40, 4))

    def forward(self, q, k, v):
        queries = self.queries[:, : q.shape[2]].expand_as(q)
        return F.scaled_dot_product_attention(queries, k, v)


def in_chunks(q, k, v, scale=0.5):
    return torch.cat([softmax(each, k, scale) @ v for each in q.split(4, 2)], 2)


def banded(q, k, v, scale=0.5):
    behind = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
    hidden = (behind < 0) | (behind > 3)
    return (q @ k.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def without_scale(context):
    return lambda *given: context(*given, scale=1.0)


def of_the_whole(q, k, v):
    scores = q @ k.mT / 2
    return scores.flatten().softmax(0).view(scores.shape) @ v


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (PerHead(), "each head has a scale of its own"),
        (bent, "the scores are bent by tanh"),
        (banded, "a window of 3 tokens back and 0 ahead"),
        (drawn_over, "causal=False"),
    ],
)
def test_what_is_done_besides_and_not_declared_is_told(context, words):
    torch.manual_seed(0)
    report = ch.check(Ways(context), takes="x")
    assert report.ok, report
    assert words in report.told


@pytest.mark.parametrize(
    ("context", "code"),
    [
        (lambda q, k, v: softmax(q, k).mT @ v, "law.value"),
        (lambda q, k, v: softmax(k, q).mT @ v, "softmax.axis"),
        (of_the_whole, "softmax.axis"),
        (without_scale(banded), "scale.missing"),
        (without_scale(in_chunks), "scale.missing"),
        (lambda q, k, v: (softmax(q, k) @ v, v)[1], "parameter.dead"),
        (LearnedQueries(), "parameter.dead"),
    ],
)
def test_mistakes_of_contexts_are_named(context, code):
    torch.manual_seed(0)
    assert names(Ways(context)) == [code]


def test_chunks_of_the_queries_are_one_attention():
    torch.manual_seed(0)
    report = ch.check(Ways(in_chunks), takes="x")
    assert report.ok, report
    assert "scale 1/√4" in report.passed


def test_what_does_not_show_its_heads_is_not_judged():
    torch.manual_seed(0)
    report = ch.check(Ways(by_branches), takes="x")
    assert report.outcome == "not judged"
    assert [each.partition(":")[0] for each in report.unverified] == ["heads"]
    assert "scale 1/√4" in report.passed


class SharedKeys(nn.Module):
    """Six query heads, each of which reads one of two key heads, or of one."""

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.query, self.out = nn.Linear(24, 24), nn.Linear(24, 24)
        self.key, self.value = (nn.Linear(24, 4 * (max(order) + 1)) for _ in range(2))

    def forward(self, x):
        q, k, v = (
            each(x).unflatten(-1, (-1, 4)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        k, v = (each[:, self.order] for each in (k, v))
        return self.out((softmax(q, k) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("order", [[0] * 6, [0, 0, 1, 1, 0, 1]])
def test_key_heads_in_no_order_of_a_name_are_no_mistake(order):
    torch.manual_seed(0)
    declared = {"num_heads": 6, "num_kv_heads": max(order) + 1}
    for given in ({}, declared):
        report = ch.check(SharedKeys(order), takes="x", **given)
        assert report.ok, report
        assert not any("key head" in each for each in report.told)


class TwoWidths(nn.Module):
    """Two heads side by side, the second one wider."""

    def __init__(self):
        super().__init__()
        self.narrow, self.wide = nn.Linear(12, 12), nn.Linear(12, 18)
        self.out = nn.Linear(10, 12)

    def forward(self, x):
        heads = []
        for projection, scale in ((self.narrow, 0.5), (self.wide, 1.0)):
            q, k, v = projection(x).chunk(3, -1)
            heads.append(softmax(q, k, scale) @ v)
        return self.out(torch.cat(heads, -1))


def test_heads_of_other_widths_are_judged_apart():
    torch.manual_seed(0)
    (finding,) = ch.check(TwoWidths(), takes="x").findings
    assert finding.code == "scale.missing"
    assert finding.measured.endswith("declared is 0.4082 = 1/√6")


class HeadsByLength(Ways):
    """As many heads as the number of tokens allows."""

    def forward(self, x):
        self.heads = 3 if x.shape[1] % 2 else 2
        return super().forward(x)


def test_another_number_of_heads_at_another_length():
    def scaled(q, k, v):
        return softmax(q, k, q.shape[-1] ** -0.5) @ v

    torch.manual_seed(0)
    assert ch.check(HeadsByLength(scaled), takes="x").ok
    assert names(HeadsByLength(without_scale(in_chunks))) == ["scale.missing"]


class Unwatched(Ways):
    """Fails where its operations are recorded; of dropout, in training alone."""

    def __init__(self, context, always):
        super().__init__(context)
        self.always, self.drop = always, nn.Dropout(0.3)

    def forward(self, x):
        if (self.always or self.training) and _get_current_dispatch_mode() is not None:
            raise RuntimeError("no modes")
        return self.drop(super().forward(x))


@pytest.mark.parametrize("always", [True, False])
def test_what_cannot_be_recorded_is_not_judged(always):
    torch.manual_seed(0)
    subject = Unwatched(lambda q, k, v: softmax(q, k) @ v, always)
    report = ch.check(subject, takes="x", dropout=0.3)
    assert report.outcome == "not judged"
    assert any("where was not seen" in each for each in report.unverified), report


def test_a_rotation_of_what_is_mixed_before_is_not_judged():
    class Mixed(Ways):
        def forward(self, x):
            return super().forward(x.cumsum(1))

    torch.manual_seed(0)
    report = ch.check(Mixed(lambda q, k, v: softmax(q, k) @ v), takes="x", rope={})
    assert report.outcome == "not judged"
    assert report.unverified[1].startswith("rotary positions: query and key before their rotation")
