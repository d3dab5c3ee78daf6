# pyright: basic
"""Classes and functions that nobody says how to call: how they are called, and what they came to."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import clearhead as ch
from clearhead.checking.scanning.sources import Definition, Source
from clearhead.checking.scanning.takes import is_callable, likely_takes
from clearhead.checking.scanning.trial import _normalised, tried, tried_in
from tests.checking.test_embedding import Model


class Attention(nn.Module):
    """(batch, tokens, width), or (tokens, batch, width) with `first=1`."""

    def __init__(self, d_model, num_heads, first=0):
        super().__init__()
        self.num_heads, self.first = num_heads, first
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def scores(self, query, key):
        return query @ key.mT / math.sqrt(query.shape[-1])

    def attended(self, x, context):
        def split(x):
            return x.transpose(0, self.first).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        query, key, value = (
            split(self.query(x)),
            split(self.key(context)),
            split(self.value(context)),
        )
        found = self.scores(query, key).softmax(-1) @ value
        return self.out(found.transpose(1, 2).flatten(2).transpose(0, self.first))

    def forward(self, x):
        return self.attended(x, x)


class TokensFirst(Attention):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads, first=1)


class Unscaled(Attention):
    def scores(self, query, key):
        return query @ key.mT


class Cross(Attention):
    def forward(self, x, context):
        return self.attended(x, context)


class ContextFirst(Attention):
    def forward(self, x, y):
        return self.attended(y, x)


class Perceptron(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.Softmax(-1), nn.Linear(dim, dim))

    def forward(self, x):
        return self.layers(x)


class Plain(nn.Module):
    def forward(self, q, k, v, mask=None):
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


class Scaling(nn.Module):
    def forward(self, q, k, v, scale=1.0):
        return (q @ k.mT * scale).softmax(-1) @ v


class Huge(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4096, 8)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Steps:
    def reset(self):
        pass

    def step(self, x):
        return x

    full = step


def attends(query, key, value):
    return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value


def heads_last(query, key, value):
    return attends(*(each.transpose(1, 2) for each in (query, key, value))).transpose(1, 2)


def simple(x):
    return (x @ x.mT / math.sqrt(x.shape[-1])).softmax(-1) @ x


def ends(x):
    raise SystemExit(2)


class Hidden(Attention):
    def forward(self, x, hidden_states):
        return self.attended(x, hidden_states)


class Three(nn.Module):
    def forward(self, a, b, c):
        return attends(a, b, c)


class Failing(Attention):
    def forward(self, x):
        raise ValueError("not today")


class AcrossSamples(Attention):
    """Attends over the first axis, and wants more of the second than there are samples."""

    def forward(self, x):
        assert x.shape[1] > 4
        return self.attended(x.transpose(0, 1), x.transpose(0, 1)).transpose(0, 1)


class AcrossAll(Attention):
    """Attends over samples and tokens alike."""

    def forward(self, x):
        whole = x.flatten(0, 1)[None]
        return self.attended(whole, whole).view(x.shape)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        (Attention, "x"),
        (Cross, "x,context"),
        (Plain, "x"),
        (Model, "ids"),
        (nn.TransformerDecoderLayer, "x,context"),
        (Steps, "decode"),
        (attends, "qkv"),
        (simple, "x2d"),
        (lambda q, k, v, attn_mask: q, "qkv,mask"),
        (Hidden, "x"),
        (Three, "qkv"),
    ],
)
def test_how_it_is_called_is_read_off_its_parameters(found, first):
    assert likely_takes(found)[0] == first


@pytest.mark.parametrize(
    ("found", "takes"),
    [
        (Attention, "x"),
        (Cross, "x,context"),
        (Plain, "qkv"),
        (Model, "ids"),
        (attends, "qkv"),
        (simple, "x2d"),
        (nn.MultiheadAttention, "x"),
    ],
)
def test_what_is_right_is_right(found, takes):
    made = tried(found, ch.Contract(), None, 0)
    assert made is not None
    assert (made.takes, made.report.outcome) == (takes, "right"), f"\n{made.report}"


@pytest.mark.parametrize(
    ("found", "remark"),
    [
        (TokensFirst, "tokens come before samples: (tokens, batch, width)"),
        (ContextFirst, "the context is the first of its inputs"),
        (heads_last, "heads come after tokens: (batch, tokens, heads, width)"),
    ],
)
def test_another_order_that_nobody_declared_is_no_mistake(found, remark):
    made = tried(found, ch.Contract(), None, 0)
    assert made is not None
    assert made.report.outcome == "right", f"\n{made.report}"
    assert made.report.told[0] == remark
    assert made.report.name == found.__name__
    assert made.report.place is not None
    assert made.report.place[0] == __file__


@pytest.mark.parametrize("found", [AcrossSamples, AcrossAll])
def test_samples_that_are_mixed_in_either_order_are_a_mistake(found):
    made = tried(found, ch.Contract(), None, 0)
    assert made is not None
    assert [each.code for each in made.report.findings] == ["law.samples"]
    assert made.report.name == found.__name__


def test_a_mask_that_is_handed_over_is_not_missed():
    def masked(query, key, value, mask):
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(~mask, -1e9).softmax(-1) @ value

    made = tried(masked, ch.Contract(), None, 0)
    assert made is not None
    assert (made.takes, made.report.outcome, made.unasked) == ("qkv,mask", "right", ())


def test_a_mask_that_is_not_handed_over_is_said(tmp_path):
    file = tmp_path / "masked.py"
    file.write_text("from tests.checking.scanning.test_trial import Plain\n", encoding="utf-8")
    source = Source(str(file), str(file), (Definition("Plain", 1),))
    *_, (_, row) = tried_in(source, ["Plain"], ch.Contract(), None, 0)
    assert row is not None
    assert (row.outcome, row.takes, row.why) == ("right", "qkv", "as far as asked: no mask")


def test_a_mistake_is_named():
    made = tried(Unscaled, ch.Contract(), None, 0)
    assert made is not None
    assert [each.code for each in made.report.findings] == ["scale.missing"]


def test_a_scale_that_the_caller_hands_over_is_not_judged():
    made = tried(Scaling, ch.Contract(), None, 0)
    assert made is not None
    assert made.report.outcome == "not judged"
    assert made.report.unverified == (
        "scale: the call also takes a scale, and got none; check a function that passes it",
    )


def test_what_is_declared_counts():
    made = tried(attends, ch.Contract(causal=True), None, 0)
    assert made is not None
    assert made.report.findings[0].code == "mask.missing"


def test_in_a_perceptron_nothing_attends():
    assert tried(Perceptron, ch.Contract(), None, 0) is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (nn.Transformer, "[check.call] it takes src, tgt, and no takes= stands for that."),
        (ends, "[check.exit] what is checked ended the program, by sys.exit(2)."),
    ],
)
def test_what_cannot_be_called_is_refused(found, words):
    with pytest.raises(ch.errors.ClearheadError) as caught:
        tried(found, ch.Contract(), None, 0)
    assert str(caught.value) == words


def test_what_fails_in_every_way_is_refused_with_the_first():
    with pytest.raises(ch.errors.ModelError) as caught:
        tried(Failing, ch.Contract(), None, 0)
    words = "Failing was called with takes='x' and raised ValueError: not today"
    assert caught.value.message.startswith(words)


def test_a_large_model_is_not_made():
    with pytest.raises(ch.errors.ClearheadError) as caught:
        tried(Huge, ch.Contract(), None, 0)
    assert "it has more than 30,000,000 parameters" in str(caught.value)


def test_what_has_no_call_is_left_out():
    assert not is_callable(type("Base", (nn.Module,), {}))
    assert not is_callable(type("Settings", (), {}))
    assert not is_callable(torch.pi)
    assert is_callable(Attention)


def test_a_module_is_gone_through_with_a_row_for_each(tmp_path):
    file = tmp_path / "several.py"
    file.write_text(
        "from tests.checking.scanning.test_trial import Perceptron, Unscaled, attends\n"
        "def attention(q, k, v, steps, size): pass\n",
        encoding="utf-8",
    )
    given = ["attends", "Unscaled", "Perceptron", "attention", "gone"]
    lines = [Definition(name, line) for line, name in enumerate(given, 1)]
    source = Source(str(file), str(file), tuple(lines))
    went = list(tried_in(source, given[1:], ch.Contract(), None, 0))
    assert [(name, row and row.outcome) for name, row in went] == [
        ("", None), ("Unscaled", None), ("Unscaled", "wrong"), ("Perceptron", None),
        ("attention", None), ("attention", "not made"),
    ]  # fmt: skip
    rows = [row for _, row in went if row is not None]
    assert (rows[0].why, rows[0].takes) == ("scale.missing: the scores are not scaled", "x")
    assert (rows[1].file, rows[1].line) == (str(file), 4)
    assert rows[1].why == "it takes q, k, v, steps, size, and no takes= stands for that."


def test_a_module_that_cannot_be_imported_is_one_row(tmp_path):
    file = tmp_path / "failing.py"
    file.write_text("import os\n1 / 0\n", encoding="utf-8")
    source = Source(str(file), str(file), (Definition("Attention", 3),))
    (_, begun), (name, row) = tried_in(source, ["Attention"], ch.Contract(), None, 0)
    assert begun is None
    assert row is not None
    assert (name, row.name, row.outcome, row.line) == ("", str(file), "not made", 2)
    assert row.why == "ZeroDivisionError: division by zero"


class Untold(Attention):
    """A mode of its own, that gives nothing back, as in LeViT."""

    def train(self, mode=True):
        super().train(mode)

    def eval(self):
        self.train(False)


class Rotated(Attention):
    """As in Llama: pairs are complex numbers, rotated by their positions."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.head_dim = d_model // num_heads

    def scores(self, query, key):
        def turned(x):
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            rates = 10000.0 ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
            angles = torch.arange(x.shape[-2])[:, None] * rates.to(x.dtype)
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(
                -2
            )

        return super().scores(turned(query), turned(key))

    def forward(self, x, start_pos, mask):
        assert start_pos == 0
        return super().forward(x)


class Normed(Attention):
    """A factor of its own behind normalised queries and keys."""

    def scores(self, query, key):
        query, key = (nn.functional.normalize(each, dim=-1) for each in (query, key))
        return 8 * query @ key.mT


class ReAttention(Attention):
    """The weights of the heads are mixed by learned numbers behind the softmax, as in DeepViT."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.mix = nn.Conv2d(num_heads, num_heads, 1)

    def forward(self, x):
        def split(x):
            return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        query, key, value = (split(each(x)) for each in (self.query, self.key, self.value))
        weights = self.mix(self.scores(query, key).softmax(-1))
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Induced(Attention):
    """As in Set Transformers: tokens attend to points that attended to them."""

    def __init__(self, d_model, num_heads, num_inds=4):
        super().__init__(d_model, num_heads)
        self.points = nn.Parameter(torch.randn(1, num_inds, d_model))

    def scores(self, query, key):
        return query @ key.mT

    def forward(self, x):
        found = self.attended(self.points.expand(len(x), -1, -1), x)
        return self.attended(x, found)


def linear_attention(q, k, v):
    """Features and their sums, whose first product goes over the tokens."""
    q, k = q.exp(), k.exp()
    return (q @ (k.mT @ v)) / (q @ k.sum(-2)[..., None])


def test_a_module_may_have_a_mode_that_gives_nothing_back():
    made = tried(Untold, ch.Contract(), None, 0)
    assert made is not None
    assert made.report.outcome == "right"


def test_a_rotation_that_nobody_declared_is_told_with_its_declaration():
    made = tried(Rotated, ch.Contract(), None, 0)
    assert made is not None
    (words,) = made.undeclared
    assert words == "rotates queries and keys: declare rope=dict(layout='interleaved', base=10000)"
    declared = tried(Rotated, ch.Contract(rope={"layout": "interleaved"}), None, 0)
    assert declared is not None
    assert declared.undeclared == ()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Normed, "scale: query and key are normalised"),
        (
            ReAttention,
            "weights and value: convolution changes the weights after the softmax",
        ),
        (linear_attention, "weights and value: the first product sums over the tokens"),
    ],
)
def test_another_mechanism_that_nobody_declared_is_not_judged(found, words):
    made = tried(found, ch.Contract(), None, 0)
    assert made is not None
    assert made.report.outcome == "not judged", f"\n{made.report}"
    assert made.report.unverified[0].startswith(words)


def test_a_mistake_beside_induced_points_is_one():
    made = tried(Induced, ch.Contract(), None, 0)
    assert made is not None
    assert [each.code for each in made.report.findings] == ["scale.missing"]


class OthersOnly(Attention):
    """As in Reformer: no token attends to itself."""

    def scores(self, query, key):
        own = torch.eye(query.shape[-2], dtype=torch.bool)
        return super().scores(query, key).masked_fill(own, -5e4)


def test_what_is_hidden_otherwise_than_by_a_causal_mask_is_told():
    made = tried(OthersOnly, ch.Contract(), None, 0)
    assert made is not None
    assert made.undeclared == ("hides pairs that a causal mask would not: declare what hides them",)


class Asleep(Attention):
    """The projection behind the heads begins as zeros, as in diffusion models."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)


class Biased(Attention):
    """Learned positions are added to the scores, and begin as zeros."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.positions = nn.Parameter(torch.zeros(num_heads, 600))

    def scores(self, query, key):
        return super().scores(query, key) + self.positions[:, None, : key.shape[-2]]


def test_weights_that_begin_as_zeros_are_asked_as_training_makes_them():
    made = tried(Asleep, ch.Contract(), None, 0)
    assert made is not None
    assert made.report.outcome == "right", f"\n{made.report}"
    biased = tried(Biased, ch.Contract(), None, 0)
    assert biased is not None
    assert biased.undeclared == ("adds numbers to the scores: declare bias=… or alibi_slopes=…",)


class Wants(nn.Module):
    def __init__(self, inner_layer, d_model, dropout, layer_idx):
        super().__init__()
        self.attention = inner_layer

    def forward(self, x):
        return self.attention(x)


class Processor:
    """As in diffusers: it is handed the layer that it runs."""

    def __call__(self, attn, hidden_states, encoder_hidden_states=None):
        return hidden_states


def makes_attention():
    return attends


def test_what_is_handed_a_layer_is_called_in_no_way():
    with pytest.raises(ch.errors.ModelError) as caught:
        tried(Processor, ch.Contract(), None, 0)
    assert caught.value.message == "it takes attn, hidden_states, and no takes= stands for that."


def test_what_takes_nothing_computes_no_attention():
    assert tried(makes_attention, ch.Contract(), None, 0) is None


def test_what_nobody_can_guess_is_named(tmp_path):
    file = tmp_path / "wants.py"
    file.write_text("from tests.checking.scanning.test_trial import Wants\n", encoding="utf-8")
    source = Source(str(file), str(file), (Definition("Wants", 1),))
    *_, (_, row) = tried_in(source, ["Wants"], ch.Contract(), None, 0)
    assert row is not None
    assert row.outcome == "not made"
    assert "missing" in row.why


@pytest.mark.parametrize("axis", [-1, -2])
def test_weights_that_sum_to_one_by_hand_are_attention(axis):
    def of(weights):
        observed: Any = SimpleNamespace(stages=(), weights=weights)
        return _normalised(observed)

    shares = torch.rand(3, 4, 5).exp().softmax(axis)
    assert of(shares)
    assert not of(shares * 1.1)
    assert not of(torch.tensor([[[1.5, -0.5], [-0.5, 1.5]]]))
    assert not of(torch.rand(3, 4, 5).softmax(0))
