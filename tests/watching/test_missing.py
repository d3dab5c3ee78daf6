"""Attention that was not seen is reported; nothing is reported of what was seen whole."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.nn.attention import flex_attention
from torch.utils.checkpoint import checkpoint

import clearhead as ch
from clearhead.errors import WatchError, WatchWarning
from tests.watching.models import Itself, OwnSoftmax

X = torch.randn(1, 5, 8)


class CrossAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x[:, :2] @ x.mT, dim=-1) @ x


class WithModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x @ x.mT) @ x


class KernelAttention(nn.Module):
    """As with a kernel of another library."""

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.exp(x @ x.mT)
        return weights / weights.sum(-1, keepdim=True) @ x


class Flex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        return flex_attention.flex_attention(x, x, x)[0]


OWN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "square scores": (OwnSoftmax, "it takes a softmax of its own"),
    "by its name": (CrossAttention, "it takes a softmax of its own"),
    "nn.Softmax": (WithModule, "it takes a softmax of its own"),
    "a kernel": (KernelAttention, "it attends by a kernel that cannot be seen"),
    "FlexAttention": (Flex, "it calls FlexAttention itself"),
}


@pytest.mark.filterwarnings("ignore:flex_attention:UserWarning")
@pytest.mark.parametrize("name", OWN)
def test_each_reason(name: str) -> None:
    make_own, reason = OWN[name]
    model = nn.Sequential(Itself(), make_own(), Itself())
    with pytest.warns(WatchWarning, match="watch.missing") as said, ch.watch(model) as seen:
        model(X)
    assert seen.layers == ("0", "2")
    [missing] = seen.missing
    assert (missing.path, missing.kind) == ("1", type(model[1]).__name__)
    assert missing.reason == reason
    assert missing.way_out
    assert str(missing) in str(said[-1].message)
    assert "not seen: 1" in repr(seen)


class Both(nn.Module):
    """A part attends by a kernel, and the whole takes a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.part = KernelAttention()

    def forward(self, x: Tensor) -> Tensor:
        return (self.part(x) @ x.mT).softmax(-1) @ x


def test_a_part_of_what_is_missing_is_not_named_as_well() -> None:
    model = nn.Sequential(Itself(), Both())
    with pytest.warns(WatchWarning, match="watch.missing"), ch.watch(model) as seen:
        model(X)
    assert [each.path for each in seen.missing] == ["1"]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.own = Itself(), OwnSoftmax()

    def forward(self, x: Tensor, *, own: bool) -> Tensor:
        x = self.seen(x)
        return checkpoint(self.own, x, use_reentrant=False) if own else x


def test_what_a_checkpoint_computes_again_was_before_the_watch() -> None:
    model, x = Checkpointed(), X.clone().requires_grad_()
    loss = model(x, own=True).sum()
    with ch.watch(model, strict=True) as seen:
        model(x, own=False)
        loss.backward()
    assert seen.missing == []
    assert len(seen.calls("seen")) == 1


def test_strict() -> None:
    model = nn.Sequential(Itself(), OwnSoftmax())
    expected = pytest.raises(WatchError, match="attended in 1 place that was not seen")
    with expected as caught, ch.watch(model, strict=True):
        model(X)
    assert caught.value.code == "watch.missing"


def test_layers_that_are_not_asked_for_are_not_missing() -> None:
    model = nn.Sequential(Itself(), OwnSoftmax())
    with ch.watch(model, layers="0", strict=True) as seen:
        model(X)
    assert seen.missing == []


class Router(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1)[..., :1] * x


class TokenMixer(nn.Module):
    """A softmax that chooses no tokens: over another axis, or as many as there are classes."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, dim=-1) + F.softmax(x @ x.mT, dim=1) @ x


class SelfOutput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class AttentionNorm(SelfOutput):
    pass


class WrapperAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Itself()
        self.output = AttentionNorm()

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.inner(x))


class OuterAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary_attention = SelfOutput()

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, self.rotary_attention(x))


@pytest.mark.parametrize("kind", [Router, TokenMixer, WrapperAttention, OuterAttention])
def test_no_alarm(kind: type[nn.Module]) -> None:
    model = nn.Sequential(Itself(), kind())
    with ch.watch(model, strict=True) as seen:
        model(X)
    assert seen.missing == []


def long_t5() -> tuple[nn.Module, dict[str, Tensor], int]:
    config = transformers.LongT5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, local_radius=3
    )
    return transformers.LongT5Model(config), {"decoder_input_ids": torch.arange(5)[None]}, 1


@pytest.mark.filterwarnings("ignore::UserWarning:transformers")
@torch.no_grad()
def test_parts_of_transformers_with_code_of_their_own() -> None:
    model, given, count = long_t5()
    ids = torch.arange(40)[None].clamp(max=49)
    with pytest.warns(WatchWarning, match="softmax of its own"), ch.watch(model.eval()) as seen:
        model(input_ids=ids, **given)
    assert len(seen.missing) == count
    assert all(each.path.startswith("encoder") for each in seen.missing)
    assert all(path.startswith("decoder") for path in seen)
    assert "output_attentions" in seen.missing[0].way_out


@pytest.mark.parametrize(
    ("package", "way_out"),
    [
        ("timm.models.cait", "set_fused_attn"),
        ("diffusers.models", "AttnProcessor2_0"),
        ("x_transformers", "flash=True.*no flash"),
        ("transformer_lens.components", "before it is booted or converted"),
        ("somebody", "scaled_dot_product_attention"),
    ],
)
def test_the_way_out_of_each_library(
    package: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnSoftmax, "__module__", package)
    model = nn.Sequential(OwnSoftmax())
    with pytest.raises(WatchError, match=way_out) as caught, ch.watch(model):
        model(X)
    assert caught.value.code == "watch.nothing-seen"


def test_a_function_that_the_model_holds_is_seen() -> None:
    function = F.scaled_dot_product_attention
    scaled = functools.partial(F.scaled_dot_product_attention, scale=0.5)

    class Attribute(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fn = function

        def forward(self, x: Tensor) -> Tensor:
            return self.fn(x, x, x)

    class Default(nn.Module):
        def forward(self, x: Tensor, fn: Any = scaled) -> Tensor:
            return fn(x, x, x)

    class Keyword(nn.Module):
        def forward(self, x: Tensor, *, fn: Any = F.scaled_dot_product_attention) -> Tensor:
            return fn(x, x, x)

    class OfClass(nn.Module):
        fn: Any = F.scaled_dot_product_attention

        def forward(self, x: Tensor) -> Tensor:
            return self.fn(x, x, x)

    class OfClassWithSelf(nn.Module):
        fn: Any = staticmethod(F.scaled_dot_product_attention)

        def forward(self, x: Tensor) -> Tensor:
            return self.fn(x, x, x)

    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return later(x, x, x) if x.ndim > 9 else function(x, x, x)

    class Closure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x, x, x)

    class Operator(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten.scaled_dot_product_attention(x, x, x)

    kinds = (Attribute, Default, Keyword, OfClass, OfClassWithSelf, Late, Closure, Operator)
    model = nn.Sequential(*(kind() for kind in kinds))
    expected = model(X)
    held = model[0].fn, Default.forward.__defaults__, vars(OfClass)["fn"]
    with ch.watch(model, strict=True) as seen:
        assert torch.equal(model(X), expected)
    assert seen.layers == tuple(map(str, range(len(kinds))))
    later = function  # not bound while it is watched
    assert later is function
    assert (model[0].fn, Default.forward.__defaults__, vars(OfClass)["fn"]) == held
    assert function is F.scaled_dot_product_attention


def test_a_patch_of_somebody_else_is_seen_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    original = F.scaled_dot_product_attention

    def theirs(*args: Any, **kwargs: Any) -> Tensor:
        return original(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", theirs)
    model = Itself()
    with ch.watch(model) as seen:
        model(X)
    assert len(seen.calls("")) == 1
    assert F.scaled_dot_product_attention is theirs


class AttentionOf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ch.MultiHeadAttention(8, num_heads=2, mask=ch.causal())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_layer_is_seen_or_missing(fullgraph: bool) -> None:
    model, x = nn.Sequential(AttentionOf(), AttentionOf()), torch.randn(1, 5, 8)
    with torch.no_grad():
        expected = model(x)
        model[1].compile(backend="eager", fullgraph=fullgraph)
        with pytest.warns(WatchWarning, match="it was compiled"), ch.watch(model) as seen:
            output = model(x)
    assert torch.equal(output, expected)
    assert seen.layers == ("0.inner",)
    assert [each.path for each in seen.missing] == ["1.inner"]


class SkippingAttention(nn.Module):
    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        return x if source is None and not self.always else x + 1


def test_an_attention_that_was_skipped_is_not_missing() -> None:
    class Model(nn.Module):
        def __init__(self, always: bool) -> None:
            super().__init__()
            self.first = ch.MultiHeadAttention(8, num_heads=2)
            self.second = SkippingAttention(always)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(x=self.first(x))

    x = torch.randn(1, 5, 8)
    skipping, running = Model(always=False), Model(always=True)
    with ch.watch(skipping, strict=True) as seen:
        skipping(x)
    assert seen.missing == []
    with pytest.warns(WatchWarning), ch.watch(running) as seen:
        running(x)
    assert [each.path for each in seen.missing] == ["second"]


def test_a_processor_of_linear_attention_takes_no_softmax() -> None:
    class LinearProcessor: ...

    linear: Any = SkippingAttention(always=True)
    linear.processor = LinearProcessor()
    model = nn.Sequential(ch.MultiHeadAttention(8, num_heads=2), linear)
    with ch.watch(model, strict=True) as seen:
        model(torch.randn(1, 5, 8))
    assert seen.missing == []
