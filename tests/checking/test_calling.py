# type: ignore
# Modules as people write them, hence without types.
"""Calling a subject: by its parameters, by the inputs it takes and the outputs it gives."""

import math
import re
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import clearhead as ch
from clearhead.checking.subject.calling import call, may_hide_by_itself, unfilled_mask


class Sides(nn.Module):
    """Query, key and value go in, in an order of its own, and a mask that must be handed over."""

    def __init__(self, width=12, heads=3, scale=4):
        super().__init__()
        self.heads, self.scale = heads, scale
        self.values, self.keys, self.queries, self.fc_out = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, values, keys, query, mask):
        def split(x):
            return x.unflatten(-1, (self.heads, -1))

        v, k, q = split(self.values(values)), split(self.keys(keys)), split(self.queries(query))
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(self.scale)
        if mask is not None:
            energy = energy.masked_fill(~mask, -1e20)
        out = torch.einsum("nhqk,nkhd->nqhd", energy.softmax(-1), v)
        return self.fc_out(out.flatten(2))


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Sides()

    def forward(self, query, key, value, key_padding_mask=None):
        mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        return self.attention(value, key, query, mask)


@pytest.mark.parametrize("takes", ["x", "x,context"])
def test_query_key_and_value_are_handed_over_by_their_names(takes):
    assert "scale 1/√4" in ch.check(Sides(), takes=takes, num_heads=3).passed
    wrong = ch.check(Sides(scale=12), takes=takes, num_heads=3)
    assert [each.code for each in wrong.findings] == ["scale.wrong"]


def test_a_key_padding_mask_is_true_for_padding():
    report = ch.check(Padded(), takes="x,mask", num_heads=3)
    assert report.ok
    assert "padding" in report.passed


class Optional(nn.Module):
    """The causal mask would come from outside, as in Whisper and T5."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x, mask=None):
        scores = self.query(x) @ self.key(x).mT / 6**0.5
        if mask is not None:
            scores = scores.masked_fill(mask[: x.shape[1], : x.shape[1]], -torch.inf)
        return scores.softmax(-1) @ self.value(x)


def test_a_mask_that_is_not_handed_over_is_asked_for_and_is_no_mistake():
    layer = Optional()
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(layer, takes="x", causal=True)
    assert caught.value.code == "check.mask"
    assert str(caught.value) == (
        "[check.mask] Optional takes mask, for which takes='x' hands over nothing, and without it the "
        "future is seen. If the causal mask is to come by it, check a function that passes it: "
        "lambda x: attention(x, mask=…). If not, this is mask.missing."
    )
    future = torch.ones(30, 30).triu(1).bool()
    assert ch.check(lambda x: layer(x, mask=future), takes="x", causal=True).ok
    inverted = ch.check(lambda x: layer(x, mask=~future), takes="x", causal=True)
    assert inverted.findings[0].code == "mask.inverted"
    # Who says that it is causal hides the future by itself.
    layer.is_causal = True
    assert ch.check(layer, takes="x", causal=True).findings[0].code == "mask.missing"


@dataclass
class Given:
    weights: Tensor
    output: Tensor


class Returning(Optional):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / 6**0.5
        weights = scores.softmax(-1)
        return self.kind(weights, weights @ self.value(x))


@pytest.mark.parametrize(
    "kind", [Given, lambda weights, output: {"attn": weights, "out": output}], ids=["class", "dict"]
)
def test_an_output_with_a_name_is_found(kind):
    assert ch.check(Returning(kind), takes="x").ok


def test_an_output_at_another_place_is_picked_by_a_function():
    layer = Returning(lambda weights, output: (weights, output))
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(layer, takes="x")
    assert str(caught.value) == (
        "[check.output] it gives a number for each other token, and no vector: the context is weights @ value.\n"
        "Returning must give a vector for each token; from x [2, 7, 6] it gave "
        "[2, 7, 7]. If the output is another part of what it returns, check a function that picks "
        "it: lambda x: attention(x)[1]."
    )
    report = ch.check(lambda x: layer(x)[1], takes="x")
    assert report.ok
    assert "scale 1/√6" in report.passed


def of_samples(query, key, value, scale=True):
    scores = torch.bmm(query, key.transpose(1, 2)) / (query.shape[-1] ** 0.5 if scale else 1)
    return torch.bmm(scores.softmax(-1), value)


def of_tokens(query, key, value):
    assert query.ndim == 2
    return (query @ key.T / query.shape[-1] ** 0.5).softmax(-1) @ value


def masked_samples(query, key, value, mask):
    scores = torch.bmm(query, key.transpose(1, 2)) / query.shape[-1] ** 0.5
    return torch.bmm(scores.masked_fill(~mask, -1e9).softmax(-1), value)


@pytest.mark.parametrize(
    ("function", "takes", "axes"),
    [
        (of_samples, "qkv", "(batch, len, dim)"),
        (of_tokens, "qkv", "(len, dim)"),
        (masked_samples, "qkv,mask", "(batch, len, dim)"),
    ],
)
def test_a_function_of_fewer_axes_is_called_head_by_head(function, takes, axes):
    report = ch.check(function, takes=takes)
    assert report.ok, report
    assert f"called with {axes}" in report.told
    assert {"scale 1/√5", "gradients"} <= set(report.passed)


def test_a_mistake_in_a_function_of_fewer_axes_is_named():
    def unscaled(query, key, value):
        return of_samples(query, key, value, scale=False)

    assert ch.check(unscaled, takes="qkv").findings[0].code == "scale.missing"


class Whole(nn.Module):
    """Attention over two axes, and no batch."""

    def __init__(self):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(3, 4))

    def forward(self, x):
        scores = (x @ self.W_query) @ (x @ self.W_query).T
        return scores.softmax(-1) @ x


def test_who_takes_no_batch_is_told_so():
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(Whole(), takes="x")
    assert "\nIt takes x without a batch: takes='x2d'.\nIf it needs other sizes" in str(
        caught.value
    )


class Spread(nn.Module):
    """Wants a mask of three axes, as the Annotated Transformer does."""

    def __init__(self):
        super().__init__()
        self.inner = Sides()

    def forward(self, x, mask):
        assert mask.ndim == 3
        return self.inner(x, x, x, mask.unsqueeze(1))


def test_the_mask_that_was_handed_over_is_told():
    layer = Spread()
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(layer, takes="x,mask")
    message = str(caught.value)
    assert "\n  x       [2, 7, 12] float64\n  mask    [2, 7] bool, True = a real token\n" in message
    assert "check a function that calls it: lambda x, mask: attention(x, mask, …)." in message
    assert ch.check(lambda x, mask: layer(x, mask[:, None]), takes="x,mask", num_heads=3).ok


class OwnMask(nn.Module):
    """As in GPT-2: its own causal mask, and a parameter by which padding would come."""

    def __init__(self, hides=True, flip=False):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(12, 36), nn.Linear(12, 12)
        self.hides, self.flip = hides, flip

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            each.unflatten(-1, (3, 4)).transpose(1, 2)
            for each in self.c_attn(hidden_states).chunk(3, -1)
        )
        scores = q @ k.mT / 2
        if self.hides:
            past = torch.ones(scores.shape[-2:]).tril().bool()
            scores = torch.where(
                ~past if self.flip else past, scores, torch.tensor(-1e4).to(scores)
            )
        if attention_mask is not None:
            scores = scores + attention_mask
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_a_causal_mask_is_handed_over_only_where_there_is_none():
    words = "it has no mask of its own: the causal mask is passed as attention_mask"
    own = ch.check(OwnMask(), takes="x", causal=True, num_heads=3)
    handed = ch.check(OwnMask(hides=False), takes="x", causal=True, num_heads=3)
    assert own.ok
    assert words not in own.told
    assert handed.ok
    assert words in handed.told
    flipped = ch.check(OwnMask(flip=True), takes="x", causal=True, num_heads=3)
    assert flipped.findings[0].code == "mask.inverted"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_encoders_of_pytorch_are_handed_the_causal_mask(batch_first, causal):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for subject in (layer, encoder):
        report = ch.check(subject, takes="x", causal=causal)
        assert report.ok, report
        assert ("causal" in report.passed) == causal


def test_what_shows_no_parameters_is_called_with_the_tokens():
    class Hidden(nn.Module):
        forward = torch.relu

    given = torch.randn(2, 5, 12)
    output, beside = call(Hidden(), "x", [given], causal=True)
    assert output.equal(given.relu())
    assert beside is None
    assert unfilled_mask(Hidden(), "x") is None
    assert not may_hide_by_itself(Hidden())


class OfImages(nn.Module):
    """As in diffusion models: (batch, channels, height, width), and convolutions for projections."""

    def __init__(self, scale=8**-0.5):
        super().__init__()
        self.scale = scale
        self.norm = nn.GroupNorm(2, 8)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(8, 8, 1) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (each(h).flatten(2) for each in (self.q, self.k, self.v))
        weights = torch.bmm(q.mT, k).mul(self.scale).softmax(2)
        return x + self.proj_out(torch.bmm(v, weights.mT).view(x.shape))


def test_attention_over_an_image_is_checked_by_a_function():
    layer = OfImages()
    report = ch.check(lambda x: layer(x.mT[..., None])[..., 0].mT, takes="x")
    assert report.ok, report


def test_masks_that_are_wanted_are_none_where_none_is_declared():
    class Wanting(Optional):
        def forward(self, x, mask):
            return super().forward(x, mask)

    assert ch.check(Wanting(), takes="x").ok
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(Wanting(), takes="x", causal=True)
    assert "missing 1 required positional argument: 'mask'" in str(caught.value)


def causal(query, key, value):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:]).triu(1 + key.shape[-2] - query.shape[-2]).bool()
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ value


def behind(query, key, value):
    """As in transformers: (batch, tokens, heads, dim)."""
    return causal(query, key, value).transpose(1, 2)


def test_grouped_heads_side_by_side_leak_as_others_do():
    def grouped(query, key, value):
        group = query.shape[1] // key.shape[1]
        given = (each.repeat_interleave(group, 1) for each in (key, value))
        return behind(query, *given).flatten(2)

    heads = {"num_heads": 6, "num_kv_heads": 2}
    report = ch.check(grouped, takes="qkv", causal=True, nan_safe=True, **heads)
    assert [each.code for each in report.findings] == ["mask.leaks-nan"]


def test_a_mask_that_nobody_declared_is_told_as_what_it_is():
    assert "causal" in ch.check(causal, takes="qkv").passed


@pytest.mark.parametrize(
    "function",
    [causal, behind, lambda *given: behind(*given).flatten(2)],
    ids=["first", "behind", "merged"],
)
def test_a_function_is_judged_alike_wherever_its_heads_stand(function):
    declared = {"causal": True, "nan_safe": True, "empty_row": "zero", "dtypes": (torch.bfloat16,)}
    report = ch.check(function, takes="qkv", **declared)
    assert [each.code for each in report.findings] == ["mask.leaks-nan", "mask.empty-row"]
    assert report.findings[1].measured == "18 such rows, the first begins [nan, nan, nan]"
    assert "bfloat16" in report.passed

    def constant(*given):
        return function(0.3 * given[0] * given[0].shape[-1] ** 0.5, *given[1:])

    assert ch.check(constant, takes="qkv", causal=True).findings[0].code == "scale.wrong"


@pytest.mark.parametrize("heads", [4, 7])
def test_heads_behind_tokens_are_told_from_as_many_tokens(heads):
    assert ch.check(behind, takes="qkv", causal=True, num_heads=heads).ok


def test_of_heads_that_are_merged_wrongly_no_leak_is_said():
    def viewed(query, key, value):
        return causal(query, key, value).reshape(len(query), query.shape[2], -1)

    report = ch.check(viewed, takes="qkv", causal=True, nan_safe=True)
    assert [each.code for each in report.findings] == ["heads.layout"]


def test_the_scale_of_who_sees_one_key_alone_cannot_be_measured():
    def own(query, key, value):
        return 2 * value[:, :, -query.shape[-2] :]

    report = ch.check(own, takes="qkv", window=(0, 0))
    assert [each.code for each in report.findings] == ["softmax.missing", "parameter.dead"]


class Fixed(nn.Module):
    """Divides by a number that it was made with, as the temperature of a head of width 64."""

    def __init__(self, temperature=8.0):
        super().__init__()
        self.temperature = temperature

    def forward(self, q, k, v):
        return (q @ k.mT / self.temperature).softmax(-1) @ v


def test_a_scale_that_it_was_made_with_is_right_at_one_width():
    report = ch.check(Fixed(), takes="qkv")
    assert report.ok
    assert "it is made for a head_dim of 64" in report.told
    assert ch.check(Fixed(7.3), takes="qkv").findings[0].code == "scale.wrong"


def of_real(query, key, value, mask):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return scores.masked_fill(~mask, -1e9).softmax(-1) @ value


def refuses_rows(query, key, value, mask):
    assert mask.any(-1).all(), "a query sees nothing"
    return of_real(query, key, value, mask)


def only_single(query, key, value, mask):
    assert query.dtype == torch.float32
    return of_real(query, key, value, mask)


class Unlearning(torch.autograd.Function):
    """Its backward pass fails."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("no way back")


def no_way_back(*given):
    return Unlearning.apply(of_real(*given))


@pytest.mark.parametrize(
    ("function", "empty", "codes", "words"),
    [
        (refuses_rows, "zero", [], ""),
        (only_single, "uniform", [], "it does not run in float64"),
        (only_single, "zero", ["mask.empty-row"], ""),
        (no_way_back, "uniform", [], "the backward pass raises: no way back"),
    ],
)
def test_queries_that_see_nothing_are_looked_at_as_far_as_they_can_be(
    function, empty, codes, words
):
    report = ch.check(function, takes="qkv,mask", empty_row=empty)
    assert [each.code for each in report.findings] == codes
    said = (*report.told, *report.skipped)
    assert any(words in each for each in said), said


def test_what_drops_queries_where_there_are_more_than_keys_shows_no_empty_rows():
    def as_many(query, key, value):
        return causal(query[:, :, -key.shape[2] :], key, value)

    report = ch.check(as_many, takes="qkv", causal=True, empty_row="zero")
    assert report.ok, report
    assert not any("empty" in each for each in report.passed)


def test_the_weights_are_not_measured_where_a_value_of_ones_and_zeros_is_refused():
    def picky(query, key, value):
        assert (value != 0).all()
        return 2 * (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value

    assert ch.check(picky, takes="qkv").findings[0].code == "law.value"


def test_what_is_not_finite_and_runs_in_float64_alone_stays_there():
    constant = torch.ones(1, dtype=torch.float64)

    def hidden(query, key, value):
        scores = torch.einsum("bhij,k->bhij", query @ key.mT / query.shape[-1] ** 0.5, constant)
        future = torch.ones(scores.shape[-2:]).triu(1 + key.shape[-2] - query.shape[-2])
        return (scores + future.double() * -torch.inf).softmax(-1) @ value

    (finding,) = ch.check(hidden, takes="qkv", causal=True).findings
    assert finding.code == "output.non-finite"


class Sided(nn.Module):
    """x attends to a context."""

    def __init__(self, scale=6**-0.5):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.scale = scale

    def forward(self, x, context):
        key, value = self.key(context), self.value(context)
        parts = self.query(x).split(3, -2)
        return torch.cat([(q @ key.mT * self.scale).softmax(-1) @ value for q in parts], -2)


class SidedOddly(Sided):
    def forward(self, x, context):
        assert x.ndim == 2, "no batch"
        return super().forward(x, context)[None]


def test_cross_attention_in_chunks_is_read():
    torch.manual_seed(0)
    report = ch.check(Sided(), takes="x,context")
    assert report.ok, report
    assert "context" in report.passed
    assert [e.code for e in ch.check(Sided(1.0), takes="x,context").findings] == ["scale.missing"]


def test_a_context_that_is_mixed_before_is_told_by_what_it_moves():
    class Mixed(Sided):
        def forward(self, x, context):
            return super().forward(x, context.flip(1).cumsum(1))

    class Swapped(Sided):
        def forward(self, x, context):
            return super().forward(x, x.cumsum(1) + 0 * context.sum())

    torch.manual_seed(0)
    assert "context" in ch.check(Mixed(), takes="x,context").passed
    assert ch.check(Swapped(), takes="x,context").findings[0].code == "context.wrong"


def test_cross_attention_that_takes_no_batch_and_gives_one_is_refused():
    with pytest.raises(ch.errors.ModelError) as caught:
        ch.check(SidedOddly(), takes="x,context")
    assert caught.value.code == "check.call"
    assert "raised AssertionError: no batch\n" in caught.value.message
    assert "\n  x       [2, 5, 6]" in caught.value.message
    assert "\n  context [2, 7, 6] float64" in caught.value.message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "a tensor was expected, or a tuple that begins with one; got NoneType"),
        ((), "a tensor was expected, or a tuple that begins with one; got tuple"),
        (torch.ones(2, 3).long(), "was expected; got torch.int64, torch.strided"),
        (torch.ones(2, 3).to_sparse(), "was expected; got torch.float32, torch.sparse_coo"),
        (
            torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            "was expected; got a nested tensor",
        ),
        (
            torch.ones(2, 3).to(torch.float8_e5m2),
            "was expected; got torch.float8_e5m2, torch.strided",
        ),
        (
            torch.ones(2, 3, device="meta"),
            "holds numbers was expected; got one that has a shape alone",
        ),
        (FakeTensorMode().from_tensor(torch.ones(2)), "expected; got one that has a shape alone"),
        (
            torch.zeros(1).expand(10**5, 10**5),
            "a tensor that fits into memory was expected; got an expanded one of [100000, 100000], "
            "which would take 40.0 GB",
        ),
    ],
)
def test_an_output_that_is_no_tensor_of_numbers_is_refused(given, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        call(lambda x: given, "x", [torch.ones(2, 3)], causal=False)


def told(run, takes, *tensors):
    """Call a module that returns what it was given, by the numbers of the tensors."""

    class Asking(nn.Module):
        forward = run

    return call(Asking(), takes, tensors, causal=False)[0].tolist()


def test_a_mask_or_a_context_that_is_not_the_second_is_handed_over_by_its_name():
    x, other = torch.ones(1, 2, 3), torch.tensor([[True, False]])

    def masked(self, x, memory=None, mask=None):
        assert memory is None
        return mask.double()

    def by_position(self, query, key, value, visible):
        return visible.double()

    def crossed(self, hidden_states, attention_mask=None, context=None):
        assert attention_mask is None
        return context

    assert told(masked, "x,mask", x, other) == [[1.0, 0.0]]
    assert told(by_position, "qkv,mask", x, x, x, other) == [[1.0, 0.0]]
    assert told(crossed, "x,context", x, 2 * x) == (2 * x).tolist()


def test_a_context_without_a_name_beside_hidden_states_is_wanted():
    def crossed(self, hidden_states, image):
        return image

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'image'"):
        told(crossed, "x,context", torch.ones(1, 2, 3), torch.ones(1, 2, 3))
