# pyright: basic
"""The line of the operation that a finding is about."""

import inspect
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch


class Layer(nn.Module):
    def __init__(self, wrong=""):
        super().__init__()
        self.wrong = wrong
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))

    def forward(self, x):
        query, key, value = (
            each(x).unflatten(-1, (3, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key)  # the product
        if self.wrong != "unscaled":
            scores = scores / math.sqrt(12 if self.wrong == "width" else 4)  # the scale
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        hidden = ~hidden if self.wrong == "mask" else hidden
        if self.wrong != "unmasked":
            scores = scores.masked_fill(hidden, -1e9)  # the mask
        weights = F.softmax(scores, dim=-2 if self.wrong == "axis" else -1)  # the softmax
        return (weights @ value).transpose(1, 2).flatten(2)


class Fused(nn.Module):
    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, scale=1.0)  # the call


def line_of(found, comment):
    lines, first = inspect.getsourcelines(type(found))
    return first + next(i for i, line in enumerate(lines) if line.endswith(f"# {comment}\n"))


@pytest.mark.parametrize(
    ("wrong", "code", "comment"),
    [
        ("width", "scale.wrong", "the scale"),
        ("unscaled", "scale.missing", "the product"),
        ("mask", "mask.inverted", "the mask"),
        ("unmasked", "mask.missing", "the product"),
        ("axis", "softmax.axis", "the softmax"),
    ],
)
def test_a_finding_points_at_its_operation(wrong, code, comment):
    layer = Layer(wrong)
    report = ch.check(layer, takes="x", causal=True, num_heads=3)
    first = report.findings[0]
    line = line_of(layer, comment)
    assert (first.code, first.place) == (code, (__file__, line))
    (result, *_) = json.loads(report.to_sarif())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == line
    text = result["message"]["text"]
    assert text == f"Layer: {first.sentence}.\nLikely: {first.likely}."


def test_a_fused_call_is_one_operation():
    layer = Fused()
    first = ch.check(layer, takes="qkv").findings[0]
    assert (first.code, first.place) == ("scale.missing", (__file__, line_of(layer, "the call")))


def test_what_is_about_no_operation_points_at_nothing():
    class Writes(Layer):
        def forward(self, x):
            x.mul_(1.5)
            return super().forward(x)

    report = ch.check(Writes(), takes="x", causal=True, num_heads=3)
    places = {each.code: each.place for each in report.findings}
    assert places["input.modified"] is None
