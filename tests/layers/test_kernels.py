"""A layer runs on the kernel that it is asked for."""

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.planning import KERNELS
from clearhead.errors import ArgumentError, UnsupportedError
from clearhead.layers import GrowingCache, LatentAttention, Rotary, SlidingCache
from tests.attention.kernels.definition import RUNNABLE

Layer = ch.MultiHeadAttention | LatentAttention
WIDTH = 13


def layers() -> list[Layer]:
    torch.manual_seed(0)
    causal = ch.causal()
    latent = LatentAttention(
        WIDTH, num_heads=3, head_dim=7, rotary_dim=4, latent_dim=11, mask=causal, parts=[Rotary(4)]
    )
    plain = ch.MultiHeadAttention(WIDTH, num_heads=3, head_dim=5, mask=causal)
    return [each.double().eval() for each in (plain, latent)]


@pytest.fixture(params=[0, 1], ids=["MultiHeadAttention", "LatentAttention"])
def layer(request: pytest.FixtureRequest) -> Layer:
    return layers()[request.param]


def text(tokens: int = 7) -> Tensor:
    return torch.randn(2, tokens, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("kernel", RUNNABLE)
def test_the_kernel_that_is_asked_for_runs(
    kernel: str, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, ran = text(), []
    expected = layer(x)
    assert layer.plan(x, kernel=kernel).kernel == kernel
    chosen = next(each for each in KERNELS if each.NAME == kernel)
    attend = chosen.attend
    monkeypatch.setattr(chosen, "attend", lambda problem: ran.append(kernel) or attend(problem))
    torch.testing.assert_close(layer(x, kernel=kernel), expected, rtol=1e-12, atol=1e-12)
    assert ran == [kernel]
    cache, found = GrowingCache(), []
    with torch.no_grad():
        found = [layer(part, cache=cache, kernel=kernel) for part in x.split([4, 1, 2], dim=1)]
    torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=1e-12, atol=1e-12)


def test_a_kernel_that_refuses_leaves_the_cache_as_it_was(layer: Layer) -> None:
    cache = GrowingCache()
    with torch.no_grad():
        layer(text(), cache=cache)
        with pytest.raises(UnsupportedError, match="it is compiled for CUDA"):
            layer(text(1), cache=cache, kernel="flex")
        assert len(cache) == 7
        with pytest.raises(UnsupportedError, match="it is compiled for CUDA"):
            layer(text(), kernel="flex")


def test_a_name_that_is_none_is_refused_first(layer: Layer) -> None:
    """Before a ring has given up the tokens that the new ones stand in the place of."""
    x, ring = text(), SlidingCache(3)
    with torch.no_grad():
        for token in x[:, :5].split(1, dim=1):
            layer(token, cache=ring)
        with pytest.raises(ArgumentError, match='kernel must be "auto" or one of "fused"'):
            layer(x[:, 5:6], cache=ring, kernel="flash")
    assert len(ring) == 5
    with pytest.raises(ArgumentError, match=r"kernel must be .* got"):
        layer.plan(x, kernel="flash")


def test_second_derivatives(layer: Layer) -> None:
    x = text(2)[:1].requires_grad_()
    with pytest.raises(UnsupportedError, match='kernel="eager" has all of them'):
        torch.autograd.gradgradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(lambda each: layer(each, kernel="eager"), (x,))
