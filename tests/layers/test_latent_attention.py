"""Latent attention: against the model that it comes from, and against itself while decoding."""

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.layers import Cache, LatentAttention, Rotary
from tests.layers.caches.texts import KINDS
from tests.refusals import refusals, run
from tests.tolerances import assert_no_worse

SIZES: dict[str, Any] = {"num_heads": 3, "head_dim": 7, "rotary_dim": 4, "latent_dim": 11}
WIDTH = 13
X = torch.zeros(2, 5, WIDTH)


def made(**options: Any) -> LatentAttention:
    options = {"value_head_dim": 5, "query_latent_dim": 6, "mask": ch.causal()} | options
    options.setdefault("parts", [Rotary(4, layout="interleaved")])
    return LatentAttention(WIDTH, **(SIZES | options)).eval()


def assert_equal(found: Tensor, layer: LatentAttention, x: Tensor, cache: Cache) -> None:
    """The output of a row is that of the row alone, up to rounding; a ring hides what it has dropped."""
    window = getattr(cache, "window", None)
    mask = None if window is None else ch.sliding_window(left=window - 1)
    plain = layer(x, mask=mask)
    exact = layer.double()(x.double(), mask=mask)
    layer.float()
    # Taking the projection over to the query sums in another order, over other numbers.
    assert_no_worse(found, exact, plain, factor=8)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_text_in_chunks_with_padding(kind: str) -> None:
    layer, cache = made(), KINDS[kind]()
    x, valid = torch.randn(2, 12, WIDTH), torch.rand(2, 12) < 0.7
    chunks = [5, 1, 1, 4, 1]
    steps = [
        layer(some, valid=real, cache=cache)
        for some, real in zip(x.split(chunks, 1), valid.split(chunks, 1), strict=True)
    ]
    for row in range(2):
        real = valid[row]
        assert_equal(torch.cat(steps, 1)[row][real], layer, x[row][real], cache)


@torch.no_grad()
def test_weights_are_the_same_either_way() -> None:
    layer, cache = made(), ch.layers.GrowingCache()
    x = torch.randn(1, 7, WIDTH)
    layer(x[:, :5], cache=cache)
    absorbed = layer.weights(x[:, 5:], cache=cache)
    assert len(cache) == 5
    assert absorbed.problem.num_kv_heads == 1
    torch.testing.assert_close(absorbed.dense(), layer.weights(x).dense()[:, :, 5:])
    assert layer.plan(x).kernel == "fused"
    with ch.watch(layer) as seen:
        layer(x[:, 5:], cache=cache)
    torch.testing.assert_close(seen[""].dense(), absorbed.dense())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_no_tokens(kind: str) -> None:
    layer, cache = made().eval(), KINDS[kind]()
    width = layer.embed_dim
    none, x = torch.randn(2, 0, width), torch.randn(2, 3, width)
    assert layer(none).shape == (2, 0, layer.output_dim)
    for given in (none, x, none):
        found = layer(given, cache=cache)
        assert found.shape == given.shape
    assert len(cache) == 3
    found = layer(x[:, :1], cache=cache)
    torch.testing.assert_close(found, layer(torch.cat([x, x[:, :1]], 1))[:, 3:])


@torch.no_grad()
def test_a_nan_in_the_cache_shows() -> None:
    layer, cache = made(), ch.layers.GrowingCache()
    x = torch.randn(1, 4, WIDTH)
    x[0, 1, 0] = torch.nan
    steps = torch.cat([layer(token, cache=cache) for token in x.split(1, dim=1)], dim=1)
    assert steps.isnan().all(dim=-1).tolist() == [[False, True, True, True]]


class InFloat32(torch.nn.RMSNorm):
    """A norm under autocast on CUDA, where PyTorch brings it back to float32."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


@torch.no_grad()
def test_a_norm_that_comes_back_to_float32_under_autocast() -> None:
    layer, cache = made(query_latent_dim=None), ch.layers.GrowingCache()
    x = torch.randn(2, 4, WIDTH)
    layer.latent_norm = InFloat32(11)
    with torch.autocast("cpu", torch.bfloat16):
        steps = torch.cat([layer(chunk, cache=cache) for chunk in x.split([3, 1], dim=1)], dim=1)
        torch.testing.assert_close(steps, layer(x), rtol=0.1, atol=0.1)


def test_gradients_and_other_parts() -> None:
    parts = [Rotary(4), ch.layers.Softcap(3.0), ch.layers.Sinks(3), ch.layers.OutputGate(WIDTH, 3)]
    layer = made(parts=parts, bias=True, dropout=0.1).train()
    layer(torch.randn(2, 7, WIDTH)).square().sum().backward()
    assert all(each.grad is not None and each.grad.abs().sum() > 0 for each in layer.parameters())


def test_without_a_batch_and_as_text() -> None:
    layer = made(query_latent_dim=None)
    x = torch.randn(5, WIDTH)
    torch.testing.assert_close(layer(x), layer(x[None])[0])
    assert layer.extra_repr() == (
        "13, num_heads=3, head_dim=7, rotary_dim=4, latent_dim=11, value_head_dim=5, mask=causal()"
    )


test_refusals = refusals(
    run,
    (lambda: made()(torch.zeros(2, 5, 7)), "layer.input", "13 // 13 // (2, 5, 7)"),
    (lambda: made()(X.double()), "layer.dtype", "x // torch.float32 // torch.float64"),
    (lambda: made(latent_dim=0), "argument.size", "latent_dim // 0"),
    (lambda: made(mask=None)(X, cache=ch.layers.GrowingCache()), "layer.cache-causal"),
)
