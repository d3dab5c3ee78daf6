# type: ignore
# Modules as people write them, hence without types.
"""Mistakes of modules of tokens: padding, a second text, rotation, and their contexts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from tests.checking.bank import defined

ClassAttention = defined("laws.ClassAttention")
ContextOfTheFirst = defined("laws.ContextOfTheFirst")
FirstContextKept = defined("laws.FirstContextKept")
LastQueryForAll = defined("laws.LastQueryForAll")
MeanOverPadding = defined("laws.MeanOverPadding")
OneContextForAll = defined("laws.OneContextForAll")
OneQueryForAll = defined("laws.OneQueryForAll")
CountsHeads = defined("wrong_rope.CountsHeads")
RatesOfTheWidth = defined("wrong_rope.RatesOfTheWidth")
TurnsBack = defined("wrong_rope.TurnsBack")


class Heads(nn.Module):
    """Three heads; `way` is what is done at the place that a class is about."""

    width = 4

    def __init__(self, way=None):
        super().__init__()
        self.way = way
        whole = 3 * self.width
        self.query, self.key, self.value, self.out = (nn.Linear(whole, whole) for _ in range(4))

    def heads(self, x, context):
        return (
            part(each).unflatten(-1, (3, self.width)).transpose(1, 2)
            for part, each in ((self.query, x), (self.key, context), (self.value, context))
        )

    def scores(self, query, key):
        return query @ key.mT / self.width**0.5

    def merged(self, context):
        return self.out(context.transpose(1, 2).flatten(2))


class Talking(Heads):
    """Heads that share their scores, so that no product of an attention is seen inside."""

    def __init__(self, way=None):
        super().__init__(way)
        self.talk = nn.Linear(3, 3, bias=False)

    def scores(self, query, key):
        return self.talk(super().scores(query, key).movedim(1, -1)).movedim(-1, 1)


class TalkingPadded(Talking):
    def forward(self, x, mask):
        query, key, value = self.heads(x, x)
        scores = self.way(self.scores(query, key), mask[:, None, None])
        return self.merged(scores.softmax(-1) @ value)


def right(scores, mask):
    return scores.masked_fill(~mask, -1e9)


@pytest.mark.parametrize(
    ("way", "code"),
    [
        (lambda s, m: s.masked_fill(~m.mT, -1e9), "mask.padding-ignored"),
        (lambda s, m: s, "mask.padding-ignored"),
        (lambda s, m: s.masked_fill(m, -1e9), "mask.padding-ignored"),
        (lambda s, m: right(s, m.roll(1, 0)), "mask.padding-ignored"),
        (lambda s, m: s * m, "mask.padding-ignored"),
        (lambda s, m: right(s, m) * m.shape[-1], "differs"),
        (lambda s, m: right(s, m) / m.all(), "output.non-finite"),
    ],
)
def test_padding_is_judged_by_what_moves_what(way, code):
    torch.manual_seed(0)
    findings = ch.check(TalkingPadded(way), takes="x,mask").findings
    assert code in [each.code for each in findings]


def test_padding_that_moves_nothing_is_right():
    torch.manual_seed(0)
    report = ch.check(TalkingPadded(right), takes="x,mask")
    assert not report.findings, report
    assert "padding" in report.passed


class Padded(Heads):
    def forward(self, x, mask):
        query, key, value = self.heads(x, x)
        scores = self.scores(query, key).masked_fill(~mask[:, None, None], -torch.inf)
        context = self.merged(self.way(scores.softmax(-1)) @ value)
        return context * mask[..., None] if self.way is torch.nan_to_num else context


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"empty_row": "zero"}, "mask.empty-row"),
        ({"padded_queries": "zero"}, "mask.padding-ignored"),
    ],
)
def test_what_is_declared_of_padding_alone(declared, code):
    torch.manual_seed(0)
    report = ch.check(Padded(torch.nan_to_num), takes="x,mask", **declared)
    assert report.ok, report
    (finding,) = ch.check(Padded(torch.clone), takes="x,mask", **declared).findings
    assert finding.code == code


class TalkingAcross(Talking):
    def forward(self, x, context):
        query, key, value = self.heads(x, self.way(x, context))
        found = self.merged(self.scores(query, key).softmax(-1) @ value)
        return found + context[:, :1] if self.way is of_itself else found


def of_itself(x, context):
    return x


def of_both(x, context):
    return torch.cat([x, context], 1)


def of_context(x, context):
    return context


def test_a_context_is_judged_by_what_moves_what():
    torch.manual_seed(0)
    (finding,) = ch.check(TalkingAcross(of_itself), takes="x,context").findings
    assert finding.code == "context.wrong"
    for way in (of_context, of_both):
        report = ch.check(TalkingAcross(way), takes="x,context")
        assert not report.findings, report
        assert "context" in report.passed


def test_two_texts_that_are_attended_to_over_the_first_axis():
    class Across(Heads):
        def forward(self, x, context):
            parts = (self.query(x), self.key(context), self.value(context))
            query, key, value = (each.transpose(0, 1) for each in parts)
            context = (query @ key.mT / 12**0.5).softmax(-1) @ value
            return self.out(context.transpose(0, 1))

    torch.manual_seed(0)
    report = ch.check(Across(), takes="x,context")
    assert [each.code for each in report.findings] == ["law.samples"]


class Causal(Heads):
    def forward(self, x):
        query, key, value = self.heads(x, x)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = self.scores(query, key).masked_fill(future, -torch.inf).softmax(-1)
        return self.merged(self.way(weights @ value))


class Kernel(Heads):
    """Linear attention by cumulative sums."""

    def forward(self, x):
        query, key, value = self.heads(x, x)
        query, key = F.elu(query) + 1, F.elu(key) + 1
        states = (key[..., None] * value[..., None, :]).cumsum(2)
        total = (query * key.cumsum(2)).sum(-1, keepdim=True)
        return self.merged((query[..., None, :] @ states).squeeze(-2) / total)


def root_mean_square(context):
    return context * torch.rsqrt(context.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("norm", [root_mean_square, lambda context: F.normalize(context, dim=-1)])
def test_a_norm_of_each_context_is_no_merge_and_no_sum_of_heads(norm):
    torch.manual_seed(0)
    report = ch.check(Causal(norm), takes="x", causal=True)
    assert report.ok, report
    assert "heads" in report.passed


@pytest.mark.parametrize(
    ("way", "code"),
    [
        (torch.tanh, "differs"),
        (lambda context: context.mean(1, True).expand_as(context), "heads.layout"),
    ],
)
def test_a_context_that_is_changed(way, code):
    torch.manual_seed(0)
    (finding,) = ch.check(Causal(way), takes="x", causal=True).findings
    assert finding.code == code


class Rotated(Heads):
    width = 8

    def forward(self, x):
        query, key, value = self.heads(self.way(x), self.way(x))
        sides = [self.turned(each) for each in (query, key)]
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = self.scores(*sides).masked_fill(future, -torch.inf).softmax(-1)
        return self.merged(weights @ value)

    def turned(self, x):
        angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** -(torch.arange(0, 8, 2) / 8)
        angles = torch.cat([angles, angles], -1)
        one, other = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-other, one], -1) * angles.sin()


class RotatedBeside(Rotated):
    """Rotary positions, and a part of x beside them."""

    def turned(self, x):
        return super().turned(x) + 0.1 * x


@pytest.mark.parametrize(
    ("made", "declared"),
    [
        (lambda: RatesOfTheWidth(24, 3, 24), 10000.0),
        (lambda: RatesOfTheWidth(24, 3, 8), 12345.0),
        (lambda: RatesOfTheWidth(24, 3, 20), 10000.0),
        (lambda: CountsHeads(12, 3), 10000.0),
        (lambda: TurnsBack(12, 3), 10000.0),
    ],
)
def test_a_rotation_by_other_angles_is_told_by_what_they_are(made, declared):
    torch.manual_seed(0)
    rope = {"base": declared, "layout": "half"}
    (finding,) = ch.check(made(), takes="x", causal=True, num_heads=3, rope=rope).findings
    assert finding.code == "differs"


@pytest.mark.parametrize(
    ("made", "declared", "words"),
    [
        (lambda: Kernel(), {}, "no product of scores with values was seen"),
        (
            lambda: Causal(lambda context: context.amax(1, True).expand_as(context)),
            {},
            "heads: how the contexts are merged was not seen",
        ),
        (
            lambda: RotatedBeside(torch.clone),
            {"rope": {"base": 10000.0}},
            "rotary positions: query and key before their rotation were not found",
        ),
    ],
)
def test_what_is_not_seen_is_not_called_right(made, declared, words):
    torch.manual_seed(0)
    report = ch.check(made(), takes="x", causal=True, **declared)
    assert not report.findings, report
    assert any(words in each for each in report.unverified), report


@pytest.mark.parametrize("made", [OneQueryForAll, LastQueryForAll, OneContextForAll])
def test_one_query_for_all_tokens(made):
    report = ch.check(made(), takes="x")
    assert [each.code for each in report.findings] == ["law.pairs"]


def test_a_class_token_that_asks_alone_is_no_mistake():
    assert not ch.check(ClassAttention(), takes="x").findings


def test_the_context_of_the_first_sample_for_all():
    found = ch.check(ContextOfTheFirst(), takes="x,context").findings[0]
    assert found.code == "context.wrong"


def test_the_context_of_the_first_call_for_all():
    (found,) = ch.check(FirstContextKept(), takes="x,context").findings
    assert found.code == "context.wrong"


def test_a_mean_over_padding_behind_an_attention_that_hides_it():
    found = ch.check(MeanOverPadding(), takes="x,mask").findings[0]
    assert found.code == "differs"
