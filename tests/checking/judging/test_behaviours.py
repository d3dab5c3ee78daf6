# type: ignore
# Modules as people write them, hence without types.
"""Dropout, gradients and returned weights of a causal layer that is right otherwise."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from tests.checking.bank import defined

QueryHandedOn = defined("laws.QueryHandedOn")
float32_meets_the_value = defined("wrong_rest.float32_meets_the_value")


class Layer(nn.Module):
    """A causal layer; `way` is done to its weights, `with_them` is returned beside its output."""

    def __init__(self, way=None, with_them=None):
        super().__init__()
        self.way, self.with_them = way, with_them
        self.query, self.key, self.value, self.out = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (3, 4)).transpose(-3, -2)
            for part in (self.query, self.key, self.value)
        )
        scores = (query @ key.mT / 2).masked_fill(self.hidden(x.shape[-2]), -torch.inf)
        weights = scores.softmax(-1)
        if self.training and self.way is not None:
            weights = self.way(weights)
        output = self.out((weights @ value).transpose(-3, -2).flatten(-2))
        return output if self.with_them is None else (output, self.with_them(weights))

    def hidden(self, tokens):
        return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)


class Fused(Layer):
    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (3, 4)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        dropped = 0.2 if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, None, dropped, True)
        return self.out(context.transpose(1, 2).flatten(2))


def report_of(subject, **declared):
    torch.manual_seed(0)
    return ch.check(subject(), **{"takes": "x", "causal": True, **declared})


def noise(weights):
    return weights * (1 + 0.1 * torch.randn(weights.shape))


def unseen(weights):
    """A factor of which no operation tells."""
    return weights * float(torch.rand(()))


@pytest.mark.parametrize("change", [noise, unseen])
def test_dropout_that_was_not_seen_to_drop_is_not_called_right(change):
    report = report_of(lambda: Layer(change), dropout=0.2)
    assert not report.findings, report
    words = "dropout: the factor of the remaining weights was not seen"
    assert any(each.startswith(words) for each in report.unverified), report


def test_dropout_that_a_kernel_does_is_right():
    report = report_of(Fused, dropout=0.2)
    assert report.ok, report
    assert "dropout" in report.passed


def test_no_dropout_is_right_as_declared_and_no_matter_of_a_function():
    assert report_of(Layer, dropout=0.0).ok
    report = ch.check(ch.attend, takes="qkv", dropout=0.1)
    assert report.unverified[0].startswith("dropout: a function has no training mode"), report


def test_a_layer_that_cannot_be_trained_is_not_called_right():
    def refuses(weights):
        return ch.attend(weights, weights[..., :1], weights)

    (why,) = report_of(lambda: Layer(refuses), dropout=0.2).unverified
    assert why.startswith("dropout: it cannot be read: ShapeError")


def test_dropout_that_is_declared_as_none_must_be_none():
    (finding,) = report_of(lambda: Layer(F.dropout), dropout=0.0).findings
    assert finding.code == "law.again"


class Overwritten(Layer):
    def __init__(self):
        super().__init__(with_them=lambda weights: weights.mul_(2))


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("nothing goes back")


class WithoutBackward(Layer):
    def forward(self, x):
        return Raises.apply(super().forward(x))


def test_a_backward_pass_that_fails():
    codes = [each.code for each in report_of(Overwritten).findings]
    assert "grad.wrong" in codes
    report = report_of(WithoutBackward)
    assert "gradients" not in report.passed
    assert "the backward pass raises: nothing goes back" in report.told


@pytest.mark.parametrize("takes", ["x", "x2d"])
def test_the_mean_of_the_heads_may_be_returned(takes):
    report = report_of(lambda: Layer(with_them=lambda weights: weights.mean(-3)), takes=takes)
    assert report.ok, report
    assert "weights returned" in report.passed
    wrong = report_of(lambda: Layer(with_them=lambda weights: 2 * weights.mean(-3)), takes=takes)
    assert [each.code for each in wrong.findings] == ["weights.not-used"]


class Holes(Layer):
    def hidden(self, tokens):
        return super().hidden(tokens) | torch.eye(tokens + 2, dtype=torch.bool)[:-2, 2:]


class Window(Layer):
    def hidden(self, tokens):
        return super().hidden(tokens) | torch.ones(tokens, tokens, dtype=torch.bool).tril(-3)


class Unused(Layer):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        (Holes, "the dependencies are neither full nor causal"),
        (Window, "a window of 2 tokens back and 0 ahead"),
        (Unused, "other.weight, other.bias has no effect"),
    ],
)
def test_what_is_not_declared_is_told(subject, words):
    report = report_of(subject, causal=None)
    assert report.ok, report
    assert any(each.startswith(words) for each in report.told), report


def test_a_query_that_sees_nothing_may_be_refused():
    def attend(query, key, value, mask):
        if not mask.any(-1).all():
            raise ValueError("a query must see something")
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value

    report = ch.check(attend, takes="qkv,mask")
    assert report.ok, report


def test_a_nan_in_a_hidden_token_where_none_may_come_through():
    (finding,) = report_of(Layer, nan_safe=True).findings
    assert finding.code == "mask.leaks-nan"


def test_a_context_that_is_not_used():
    found = ch.check(QueryHandedOn(causal=True), takes="x", causal=True).findings[0]
    assert found.code == "parameter.dead"


class LessTheMean(nn.Module):
    """Exponentials of scores less their mean, whose keys have a bias: all scores of a query are large together."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        with torch.no_grad():
            self.key.weight[0] = 0
            self.key.bias[0] = 40.0

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / 6**0.5
        top = (scores - scores.mean(-1, keepdim=True)).exp()
        return top / top.sum(-1, keepdim=True) @ self.value(x)


def test_inputs_are_made_so_large_that_the_scores_of_one_query_lie_far_apart():
    torch.manual_seed(0)
    report = ch.check(LessTheMean(), takes="x", dtypes=(torch.float16,))
    assert [each.code for each in report.findings] == ["output.non-finite"], report


def billion(query, key, value):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    past = key.shape[-2] - query.shape[-2]
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + past)
    return scores.masked_fill(hidden, -1e9).softmax(-1) @ value


def rejected(query, key, value):
    if query.dtype == torch.float16:
        raise ValueError("no half")
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("subject", [billion, float32_meets_the_value, rejected])
def test_a_call_that_fails_in_a_declared_dtype(subject):
    findings = ch.check(subject, takes="qkv", dtypes=(torch.float16,)).findings
    assert "output.non-finite" in [each.code for each in findings]
