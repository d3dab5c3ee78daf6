"""Projections that somebody has put in the place of a layer's own, or hung something on."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import clearhead as ch
from clearhead.layers import GrowingCache, LatentAttention, Rotary

WIDTH = 12
LAYERS: dict[str, Callable[[], Any]] = {
    "heads": lambda: ch.MultiHeadAttention(
        WIDTH, num_heads=3, mask=ch.causal(), parts=[Rotary(4)], output_bias=False
    ),
    "latents": lambda: LatentAttention(
        WIDTH, num_heads=3, head_dim=5, rotary_dim=4, latent_dim=7, mask=ch.causal(), parts=[Rotary(4)]
    ),
}  # fmt: skip
PLACES = ["query_projection", "key_projection", "value_projection", "output_projection"]


class LowRank(nn.Module):
    """A matrix of low rank beside a projection, which keeps its own weight to itself."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.in_features = base, base.in_features
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))

    def merged(self) -> nn.Linear:
        whole = copy.deepcopy(self.base)
        whole.weight = nn.Parameter(self.base.weight + self.up.weight @ self.down.weight)
        return whole


class ShownLowRank(LowRank):
    """One that shows the weight of what it stands for, as those of peft do."""

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias


class Thrice(nn.Linear):
    """A linear layer of somebody's own, with a forward that its weights do not tell."""

    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


def in_steps(layer: Any, x: Tensor) -> Tensor:
    cache = GrowingCache()
    with torch.no_grad():
        return torch.cat([layer(chunk, cache=cache) for chunk in x.split([4, 1, 2], dim=1)], dim=1)


@pytest.mark.parametrize("kind", [LowRank, ShownLowRank])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", LAYERS)
def test_low_rank(name: str, place: str, kind: type[LowRank]) -> None:
    layer = LAYERS[name]().eval()
    setattr(layer, place, kind(getattr(layer, place)))
    whole = copy.deepcopy(layer)
    setattr(whole, place, getattr(layer, place).merged())
    x = torch.randn(2, 7, WIDTH)
    torch.testing.assert_close(layer(x), whole(x))
    torch.testing.assert_close(in_steps(layer, x), whole(x).detach())
    torch.testing.assert_close(layer.weights(x)[:], whole.weights(x)[:])
    assert layer.plan(x).kernel == whole.plan(x).kernel


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_whole_numbers(name: str) -> None:
    """Their weight is a method."""
    layer = LAYERS[name]().eval()
    small = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(2, 7, WIDTH)
    torch.testing.assert_close(small(x), layer(x), atol=0.1, rtol=0.1)
    torch.testing.assert_close(in_steps(small, x), small(x), atol=0.1, rtol=0.1)


def with_bias(projection: nn.Linear) -> nn.Module:
    return nn.Linear(projection.in_features, projection.out_features)


def hooked(projection: nn.Linear) -> nn.Module:
    def doubled(module: nn.Module, given: object, output: Any) -> Tensor:
        return 2 * output

    projection.register_forward_hook(doubled)
    return projection


def hooked_before(projection: nn.Linear) -> nn.Module:
    projection.register_forward_pre_hook(lambda module, given: (3 * given[0],))
    return projection


def another_forward(projection: Any) -> nn.Module:
    plain = projection.forward
    projection.forward = functools.wraps(plain)(lambda x: 2 * plain(x))
    return projection


class Halved(Tensor):
    """A weight in a class of its own, as quantised ones are: a product with it is not that with its
    numbers."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found: Any = super().__torch_function__(func, types, args, kwargs or {})
        return 0.5 * found if func is nn.functional.linear else found


def of_another_class(projection: nn.Linear) -> nn.Module:
    projection.weight = nn.Parameter(projection.weight.detach().as_subclass(Halved))
    assert type(projection.weight) is Halved
    return projection


CHANGED: dict[str, Callable[[Any], nn.Module]] = {
    "bias": with_bias,
    "hook": hooked,
    "hook before": hooked_before,
    "another forward": another_forward,
    "another class": lambda of: Thrice(of.in_features, of.out_features, bias=False),
    "a weight of another class": of_another_class,
    "pruned": lambda of: prune.l1_unstructured(of, "weight", 0.5),
    "parametrized": parametrizations.weight_norm,
}


@pytest.mark.parametrize("how", CHANGED)
@pytest.mark.parametrize("place", ["key_projection", "value_projection"])
def test_what_is_more_than_a_matrix_is_not_absorbed(place: str, how: str) -> None:
    """While decoding, latents were taken through the weight alone."""
    layer = LAYERS["latents"]().eval()
    setattr(layer, place, CHANGED[how](getattr(layer, place)))
    x = torch.randn(2, 7, WIDTH)
    torch.testing.assert_close(in_steps(layer, x), layer(x).detach())


@pytest.mark.parametrize("name", LAYERS)
def test_weights_that_come_when_they_are_needed(name: str) -> None:
    """As of a model that is kept elsewhere: a hook brings them, and nobody asks for them before."""
    layer = LAYERS[name]().eval()
    x = torch.randn(2, 7, WIDTH)
    expected = layer(x)
    for place in PLACES:
        projection = getattr(layer, place)
        kept = projection.weight
        projection.weight = nn.Parameter(kept.to("meta"))

        def bring(module: nn.Module, given: object, kept: nn.Parameter = kept) -> None:
            module.weight = kept

        def take_away(module: Any, given: object, output: object) -> None:
            module.weight = nn.Parameter(module.weight.to("meta"))

        projection.register_forward_pre_hook(bring)
        projection.register_forward_hook(take_away)
    assert torch.equal(layer(x), expected)
    torch.testing.assert_close(in_steps(layer, x), expected.detach())


def test_what_is_watched() -> None:
    layer = LAYERS["heads"]()
    layer.query_projection = LowRank(layer.query_projection)
    with ch.watch(layer) as seen:
        layer(torch.randn(2, 7, WIDTH))
    assert seen[""].shape == (2, 3, 7, 7)


@pytest.mark.parametrize("name", PLACES[:3])
@pytest.mark.parametrize("kind", LAYERS)
def test_an_unequal_share_of_the_heads_is_refused(kind: str, name: str) -> None:
    layer = LAYERS[kind]()
    projection = getattr(layer, name)
    width, heads = projection.out_features, layer.num_heads
    setattr(layer, name, nn.Linear(projection.in_features, width // heads * 2, bias=False))
    with pytest.raises(ch.errors.ShapeError) as raised:
        layer(torch.randn(2, 5, WIDTH))
    # No layer of latents is divided by its heads.
    share = "" if kind == "latents" else ", or in tensor parallelism an equal share of them"
    due = f"{name} must give num_heads × head_dim = 3 × {width // 3} numbers a token{share}"
    assert str(raised.value) == f"[layer.projected] {due}; it gives {width // 3 * 2}."


def test_a_layer_with_a_share_of_the_heads() -> None:
    """Two layers, each with half of the heads: their outputs add up."""
    layer = ch.MultiHeadAttention(
        16, num_heads=4, num_kv_heads=2, mask=ch.causal(), output_bias=False
    )
    x, parts = torch.randn(2, 5, 16), []
    for half in range(2):
        part = copy.deepcopy(layer)
        for name in PLACES:
            weight = getattr(layer, name).weight
            weight = weight.chunk(2, dim=1 if name == "output_projection" else 0)[half]
            getattr(part, name).weight = nn.Parameter(weight)
        parts.append(part(x))
    torch.testing.assert_close(parts[0] + parts[1], layer(x))
