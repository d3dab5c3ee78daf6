# type: ignore
# Attention as people write it, hence without types.
"""Mistakes beside something else that no recipe has: what was done to the scores is read off one by one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch


def scores_of(query, key):
    return query @ key.mT / query.shape[-1] ** 0.5


def unlike(scores):
    """Something that no mutant does, so that what else is done must be read."""
    return scores + 0.3 * scores.sin()


def past(scores):
    queries, keys = scores.shape[-2:]
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def masked(scores, value=-torch.inf):
    return scores.masked_fill(~past(scores), value)


def of_scores(weigh):
    """The function of query, key and value whose weights are made of the scaled scores so."""

    def attend(query, key, value):
        return weigh(scores_of(query, key)) @ value

    return attend


def divided_before_and_after(query, key, value):
    return masked(scores_of(query, key)).softmax(-1) / (key.shape[-2] - 3) @ value


def multiplied_by_root(query, key, value):
    return masked(unlike(query @ key.mT * query.shape[-1] ** 0.5)).softmax(-1) @ value


def divided_by_root_of_length(query, key, value):
    return masked(query @ key.mT / key.shape[-2] ** 0.5).softmax(-1).pow(1.5) @ value


def squares_divided_behind(query, key, value):
    weights = scores_of(query, key) ** 2
    weights = weights * past(weights)
    return weights @ value / weights.sum(-1, keepdim=True)


def nan_for_as_many_keys(query, key, value):
    far = key.shape[-2] - query.shape[-2]
    return scores_of(query, key).softmax(-1) @ value * (far / torch.tensor(float(far)))


@pytest.mark.parametrize(
    ("subject", "codes"),
    [
        (divided_before_and_after, ["law.value"]),
        (multiplied_by_root, ["scale.wrong"]),
        (divided_by_root_of_length, ["scale.wrong", "differs"]),
        (squares_divided_behind, ["softmax.missing"]),
        (nan_for_as_many_keys, ["mask.missing"]),
        (of_scores(lambda scores: masked(scores, -2.0).softmax(-1)), ["mask.soft"]),
        (
            of_scores(lambda scores: (unlike(scores) * past(scores)).softmax(-1)),
            ["mask.soft"],
        ),
        (
            of_scores(lambda scores: (scores + 1.5 * past(scores)).softmax(-1)),
            ["mask.soft"],
        ),
        (
            of_scores(lambda scores: (scores + torch.eye(*scores.shape[-2:])).softmax(-1)),
            ["mask.missing"],
        ),
        (of_scores(lambda scores: unlike(scores).softmax(-1) * past(scores)), ["law.value"]),
        (
            of_scores(lambda scores: scores.exp() * past(scores) / scores.shape[-1]),
            ["softmax.missing", "output.non-finite"],
        ),
        (of_scores(lambda scores: masked(scores).relu()), ["softmax.missing"]),
        (of_scores(lambda scores: scores.relu()), ["softmax.missing"]),
        (
            of_scores(lambda scores: masked(unlike(scores)).softmax(-1).softmax(-1)),
            ["differs"],
        ),
        (of_scores(lambda scores: unlike(scores).softmax(-1).mT), ["softmax.axis"]),
        (
            of_scores(lambda scores: (2 * scores).softmax(-1)),
            ["mask.missing", "scale.wrong"],
        ),
        (
            of_scores(lambda scores: masked(scores * scores.shape[-1] ** 0.5).softmax(-1) / 2),
            ["scale.wrong", "law.value"],
        ),
    ],
)
def test_each_mistake_has_its_name_and_two_have_both(subject, codes):
    report = ch.check(subject, takes="qkv", causal=True)
    assert [each.code for each in report.findings] == codes


class Layer(nn.Module):
    heads, width = 3, 4

    def __init__(self, weigh=None):
        super().__init__()
        self.weigh = weigh
        whole = self.heads * self.width
        self.q, self.k, self.v, self.out = (nn.Linear(whole, whole) for _ in range(4))
        self.temperature = nn.Parameter(torch.arange(1.0, self.heads + 1)[:, None, None])

    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (self.heads, self.width)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        context = self.attend(query, key, value)
        return self.out(context.transpose(1, 2).flatten(2))

    def attend(self, query, key, value):
        return self.weigh(scores_of(query, key)) @ value


class Cosines(Layer):
    def attend(self, query, key, value):
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        return masked(query @ key.mT * self.temperature).softmax(-1) @ value


class DividedBehind(Layer):
    def attend(self, query, key, value):
        scores = unlike(scores_of(query, key))
        weights = (scores - masked(scores).amax(-1, keepdim=True)).exp() * past(query @ key.mT)
        return weights @ value / weights.sum(-1, keepdim=True)


class TwoParts(Layer):
    """Each half of a head has a scale of its own."""

    def attend(self, query, key, value):
        query = torch.cat([query[..., :2] / 2, query[..., 2:] / 3], -1)
        return masked(self.weigh(query @ key.mT)).softmax(-1) @ value


class Before(Layer):
    """The query is scaled, and not the scores."""

    def __init__(self, scaled):
        super().__init__()
        self.scaled = scaled

    def attend(self, query, key, value):
        return masked(self.scaled(self, query) @ key.mT).softmax(-1) @ value


class Mixed(Layer):
    """Tokens are mixed with those before them."""

    def __init__(self, weigh):
        super().__init__(weigh)
        self.mix = nn.Conv1d(12, 12, 3)

    def forward(self, x):
        return super().forward(self.mix(F.pad(x.mT, (2, 0))).mT)


class OneWide(Layer):
    heads, width = 8, 1


def report_of(subject, **declared):
    return ch.check(subject, takes="x", causal=True, **declared)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (
            lambda: Layer(lambda scores: masked(5 * torch.tanh(scores / 5)).softmax(-1)),
            "the scores pass through tanh",
        ),
        (Cosines, "each head has a scale of its own"),
        (DividedBehind, "something is added to the scores before the softmax (input)"),
    ],
)
def test_what_is_no_mistake_is_told(made, told):
    torch.manual_seed(0)
    report = report_of(made())
    assert report.ok, report
    assert told in report.told
    assert ("scale 1/√4" in report.passed) == (made is not Cosines)


def test_an_instance_that_is_made_for_a_width_is_right_there():
    class Made(nn.Module):
        scale = 8**-0.5

        def forward(self, query, key, value):
            return masked(query @ key.mT * self.scale).softmax(-1) @ value

    made = Made()
    made.scale = 8**-0.5
    report = ch.check(made, takes="qkv", causal=True)
    assert report.ok, report
    assert "it is made for a head_dim of 8" in report.told


def test_the_scale_may_stand_before_the_query():
    report = report_of(Before(lambda _, query: torch.tensor(0.5) * query))
    assert report.ok, report
    assert "scale 1/√4" in report.passed


def unjudged(report):
    assert not report.findings, report
    assert not report.ok
    return report.unverified


@pytest.mark.parametrize(
    ("made", "declared", "words"),
    [
        (
            lambda: TwoParts(lambda scores: scores),
            {},
            "scale: the scores are multiplied by something",
        ),
        (lambda: TwoParts(unlike), {}, "scale: the scores are multiplied by something"),
        (
            lambda: Before(lambda layer, query: layer.temperature * query),
            {},
            "scale: the scores are multiplied by something",
        ),
        (
            lambda: Before(lambda _, query: query / torch.arange(1.0, 4.0)[:, None, None]),
            {},
            "scale: the scores are multiplied by something",
        ),
        (
            lambda: Layer(lambda scores: masked(scores + scores.cos()).softmax(-1)),
            {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125])},
            "it is not the definition on its own query, key and value",
        ),
        (lambda: OneWide(lambda scores: masked(scores).softmax(-1)), {}, "at a head_dim of 1"),
    ],
)
def test_what_cannot_be_told_is_not_called_right(made, declared, words):
    torch.manual_seed(0)
    assert any(words in each for each in unjudged(report_of(made(), **declared)))


def test_the_mask_is_read_off_the_outputs_where_tokens_are_mixed_before():
    torch.manual_seed(0)
    right = report_of(Mixed(lambda scores: masked(unlike(scores)).softmax(-1)))
    assert not right.findings, right
    assert "causal" in right.passed
    wrong = report_of(Mixed(lambda scores: unlike(scores).softmax(-1)))
    assert [each.code for each in wrong.findings] == ["mask.missing"]


class Squares(Layer):
    """Squares of the scores, divided by their sum, for heads that are made wide enough."""

    def __init__(self, heads):
        self.heads = heads
        super().__init__()

    def attend(self, query, key, value):
        weights = masked(scores_of(query, key), 0.0) ** 2
        return weights @ value / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("heads", [1, 3])
def test_squares_of_scores_are_found_next_to_a_bias_for_other_heads(heads):
    torch.manual_seed(0)
    (finding,) = report_of(Squares(heads), alibi_slopes=torch.ones(5)).findings
    assert finding.code == "softmax.missing"


def test_a_declared_scale_of_one_wide_heads_must_be_there():
    torch.manual_seed(0)
    attention = OneWide(lambda scores: masked(scores).softmax(-1))
    report = report_of(attention, scale=0.5)
    assert [each.code for each in report.findings] == ["scale.missing"]


@pytest.mark.parametrize(
    ("used", "code"),
    [
        (None, "scale.wrong"),
        (1.0, "scale.missing"),
        (
            0.77,
            "scale.wrong",
        ),
        (0.3, None),
    ],
)  # fmt: skip
def test_a_scale_is_told_against_the_declared_one(used, code):
    def attention(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, scale=used)

    findings = ch.check(attention, takes="qkv", causal=False, scale=0.3).findings
    assert [each.code for each in findings] == ([] if code is None else [code])
    assert all(each.likely == "scores * 0.3" for each in findings)


def test_the_future_that_a_cap_behind_the_mask_lets_in_is_no_second_mistake():
    torch.manual_seed(0)
    layer = Layer(lambda scores: (5 * torch.tanh(masked(scores) / 5)).softmax(-1))
    findings = report_of(layer, softcap=5.0).findings
    assert [each.code for each in findings] == ["softcap.order"]
