"""One bundle for all layers of a model."""

import copy
import gc

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import (
    Cache,
    CacheBundle,
    GrowingCache,
    LatentAttention,
    MultiHeadAttention,
    Rotary,
    SlidingCache,
)
from tests.layers.caches.texts import KINDS
from tests.refusals import assert_refused, refusals

WIDTH = 12


class Model(nn.Module):
    """Layers of several kinds, of which no two may have one cache."""

    def __init__(self) -> None:
        super().__init__()
        rotary = {"mask": ch.causal(), "parts": [Rotary(6)]}
        self.layers = nn.ModuleList(
            [
                *(MultiHeadAttention(WIDTH, num_heads=2, **rotary) for _ in range(2)),
                MultiHeadAttention(WIDTH, num_heads=3, num_kv_heads=1, mask=ch.causal()),
                LatentAttention(
                    WIDTH, num_heads=2, head_dim=4, rotary_dim=6, latent_dim=5, **rotary
                ),
            ]
        )
        self.cross = MultiHeadAttention(WIDTH, num_heads=2)

    def forward(self, x: Tensor, context: Tensor, cache: CacheBundle | None = None) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, cache=cache)
        return x + self.cross(x, context, cache=cache)


@pytest.mark.parametrize("kind", ["growing", "static"])
@torch.no_grad()
def test_each_layer_has_its_own(kind: str) -> None:
    model, context = Model().double(), torch.randn(2, 3, WIDTH).double()
    x = torch.randn(2, 9, WIDTH).double()
    caches = CacheBundle(lambda layer: KINDS[kind]())
    whole = model(x, context)
    steps = [model(some, context, caches) for some in x[:, :6].split([4, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole[:, :6])
    assert [len(each) for each in caches] == [6, 6, 6, 6, 3]
    assert caches.nbytes == sum(each.nbytes for each in caches)
    # A prefix is forked; of a draft each row takes its share.
    answer = caches.fork()
    assert [len(each) for each in answer] == [6, 6, 6, 6, 3]
    torch.testing.assert_close(model(x[:, 6:8], context, answer), whole[:, 6:8])
    torch.testing.assert_close(model(x[:, 6:], context, caches), whole[:, 6:])
    other = copy.deepcopy(answer)
    for bundle in (answer, other):
        torch.testing.assert_close(model(x[:, 8:], context, bundle), whole[:, 8:])
    assert [len(each) for each in caches] == [9, 9, 9, 9, 3]
    own = CacheBundle(lambda layer: KINDS[kind]())
    decoder = Model().double()
    for layer in decoder.layers:
        layer(x, cache=own)
        layer(x[:, :3], cache=own)
    own.truncate([9, 10])
    own.reorder([1, 0])
    found = decoder.layers[0](x[:, 3:4], cache=own)
    first = decoder.layers[0](torch.cat([x[1:], x[1:, :1], x[:1, 3:4]], dim=1))[:, -1:]
    torch.testing.assert_close(found[:1], first)
    own.reset()
    assert [len(each) for each in own] == [0, 0, 0, 0]
    layer = decoder.layers[0]
    assert isinstance(layer, MultiHeadAttention)
    layer.weights(x, cache=own)
    ch.trace(layer, x, cache=own)
    assert len(own[layer]) == 0


@torch.no_grad()
def test_all_or_none() -> None:
    layers = [MultiHeadAttention(WIDTH, num_heads=2, mask=ch.causal()) for _ in range(3)]
    caches = CacheBundle(lambda layer: SlidingCache(2) if layer is layers[1] else GrowingCache())
    for token in torch.randn(2, 9, WIDTH).split(1, dim=1):
        _ = [each(token, cache=caches) for each in layers]
    assert (
        repr(caches)
        == "<CacheBundle of 3: <GrowingCache(), 9 tokens>, <SlidingCache(2), 9 tokens>>"
    )
    for length in (3, [3, 9]):
        with pytest.raises(ch.errors.ArgumentError, match="too far back"):
            caches.truncate(length)
        assert [len(each) for each in caches] == [9, 9, 9]
        assert caches[layers[0]].next_positions(1).tolist() == [9]
    del layers[2]
    gc.collect()
    assert len(list(caches)) == 2  # a layer that is gone takes its cache along


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_rows_that_one_cache_has_not_are_taken_from_none(kind: str) -> None:
    layers = [MultiHeadAttention(WIDTH, num_heads=2, mask=ch.causal()) for _ in range(2)]
    caches = CacheBundle(lambda layer: KINDS[kind]())
    x = torch.randn(3, 4, WIDTH)
    layers[0](x[:, :3], cache=caches)
    layers[1](x[:2, :3], cache=caches)
    assert_refused(lambda: caches.reorder([2, 1, 0]), "cache.reorder", "0 to 1 // 2")
    alone = KINDS[kind]()
    layers[0](x[:, :3], cache=alone)
    expected = layers[0](x[:, 3:], cache=alone)
    torch.testing.assert_close(layers[0](x[:, 3:], cache=caches), expected)


test_what_makes_no_cache_is_refused = refusals(
    CacheBundle,
    (GrowingCache(), "cache.make", "GrowingCache"),
)


def test_what_is_no_cache_is_refused() -> None:
    layer = MultiHeadAttention(WIDTH, num_heads=2, mask=ch.causal())
    with pytest.raises(ch.errors.ArgumentTypeError) as raised:
        layer(torch.randn(1, 2, WIDTH), cache=CacheBundle(dict))  # pyright: ignore
    assert str(raised.value) == (
        "[cache.make] make must be a class of caches, or a function from a layer to its cache; got one that "
        "makes dict. Give arguments by a function: lambda layer: StaticCache(1024)."
    )
    one: Cache = GrowingCache()
    shared = CacheBundle(lambda layer: one)
    other = MultiHeadAttention(WIDTH, num_heads=2, mask=ch.causal())
    with torch.no_grad():
        layer(torch.randn(1, 2, WIDTH), cache=shared)
        assert_refused(lambda: other(torch.randn(1, 2, WIDTH), cache=shared), "layer.cache-shared")
