"""One more token: the same numbers as by the way of all calls, and the same cache."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.layers import Cache, GrowingCache, MultiHeadAttention, Part, StaticCache
from clearhead.layers import token_steps as module
from tests.refusals import assert_refused

WIDTH, HEAD_DIM = 24, 4


class ByTheWayOfAll(MultiHeadAttention):
    """A class of somebody else, which may have another path from a call to its output."""


def _pair(parts: Callable[[], list[Part]] = list, **options: Any) -> list[MultiHeadAttention]:
    """A layer, and the same as another class."""
    options = {"mask": ch.causal(), "bias": True} | options
    first = MultiHeadAttention(WIDTH, num_heads=6, head_dim=HEAD_DIM, parts=parts(), **options)
    other = ByTheWayOfAll(WIDTH, num_heads=6, head_dim=HEAD_DIM, parts=parts(), **options)
    other.load_state_dict(first.state_dict())
    return [first.eval(), other.eval()]


def _held(cache: Cache) -> list[Tensor]:
    return [store[:, :, : len(cache)] for store in cache._stores]


def _assert_same(layers: list[MultiHeadAttention], caches: Sequence[Cache], x: Tensor) -> Tensor:
    """The same output and the same in the cache, to the bit."""
    with torch.no_grad():
        mine, others = (layer(x, cache=cache) for layer, cache in zip(layers, caches, strict=True))
    torch.testing.assert_close(mine, others, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(*map(_held, caches), rtol=0, atol=0, equal_nan=True)
    assert len(caches[0]) == len(caches[1])
    assert caches[0].finite == caches[1].finite
    assert caches[0]._appended == caches[1]._appended
    return mine


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record whether each token that was asked about went the short way."""
    found: list[bool] = []
    inside = module._append_and_attend

    def note(*arguments: Any) -> Tensor | None:
        context = inside(*arguments)
        found.append(context is not None)
        return context

    monkeypatch.setattr(module, "_append_and_attend", note)
    return found


PARTS: dict[str, Callable[[], list[Part]]] = {
    "plain": list,
    "norm, rotary, gate": lambda: [
        ch.layers.QueryKeyNorm(HEAD_DIM),
        ch.layers.Rotary(HEAD_DIM),
        ch.layers.OutputGate(WIDTH, 6),
    ],
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("kv_heads", [6, 3, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("make", [GrowingCache, lambda: StaticCache(9)], ids=["grow", "static"])
def test_it_is_what_any_call_gives(
    make: Callable[[], Cache], dtype: torch.dtype, kv_heads: int, parts: str, taken: list[bool]
) -> None:
    layers = [each.to(dtype) for each in _pair(PARTS[parts], num_kv_heads=kv_heads)]
    caches = [make(), make()]
    for tokens in (3, 1, 1, 2, 1):
        _assert_same(layers, caches, torch.randn(2, tokens, WIDTH, dtype=dtype))
    assert taken == [True] * 3


def test_long_texts_go_by_products(taken: list[bool]) -> None:
    layers = _pair(num_kv_heads=1)
    caches: list[Cache] = [GrowingCache(), GrowingCache()]
    key, value = torch.randn(2, 1, 1, 70_000, HEAD_DIM)
    for cache in caches:
        cache.append(key, value)
    for _ in range(2):  # the first binds the cache to its layer
        _assert_same(layers, caches, torch.randn(1, 1, WIDTH))
    assert taken == [True]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e25])
def test_what_is_not_finite_goes_by_the_way_of_all(bad: float, taken: list[bool]) -> None:
    layers = _pair()
    caches: list[Cache] = [GrowingCache(), GrowingCache()]
    _assert_same(layers, caches, torch.randn(1, 3, WIDTH))
    x = torch.randn(1, 1, WIDTH)
    x[..., 0] = bad
    assert _assert_same(layers, caches, x).isnan().all()
    # What is held is not finite from here on, and the next token sees it.
    assert _assert_same(layers, caches, torch.randn(1, 1, WIDTH)).isnan().all()
    assert taken == [False]


def test_the_projections_run_once_on_either_way() -> None:
    layer, _ = _pair()
    cache, ran = GrowingCache(), []
    layer.key_projection.register_forward_hook(lambda *_: ran.append(1))
    with torch.no_grad():
        layer(torch.randn(1, 3, WIDTH), cache=cache)
        layer(torch.randn(1, 1, WIDTH), cache=cache)
        layer(torch.full((1, 1, WIDTH), torch.nan), cache=cache)
    assert sum(ran) == 3


def test_one_that_fails_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = _pair()
    caches: list[Cache] = [GrowingCache(), GrowingCache()]
    _assert_same(layers, caches, torch.randn(1, 3, WIDTH))

    def fail(*arguments: Any, **options: Any) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(module.F, "scaled_dot_product_attention", fail)
        with pytest.raises(KeyboardInterrupt):
            layers[0](torch.randn(1, 1, WIDTH), cache=caches[0])
    assert len(caches[0]) == 3
    _assert_same(layers, caches, torch.randn(1, 1, WIDTH))


def test_a_fork_keeps_what_it_held(taken: list[bool]) -> None:
    layer, _ = _pair()
    cache = GrowingCache()
    with torch.no_grad():
        layer(torch.randn(1, 3, WIDTH), cache=cache)
        fork = cache.fork()
        before = [each.clone() for each in _held(fork)]
        layer(torch.randn(1, 1, WIDTH), cache=cache)
        layer(torch.randn(1, 1, WIDTH), cache=cache)
    assert taken == [True, True]
    assert len(fork) == 3
    torch.testing.assert_close(_held(fork), before, rtol=0, atol=0)


def test_a_bundle_hands_on_the_cache_of_the_layer(taken: list[bool]) -> None:
    layer, _ = _pair()
    bundle = ch.layers.CacheBundle(GrowingCache)
    with torch.no_grad():
        whole = layer(x := torch.randn(1, 3, WIDTH))
        steps = [layer(token, cache=bundle) for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert taken == [True, True]


def test_what_is_refused_is_refused_as_ever() -> None:
    layer, _ = _pair()
    cache = StaticCache(4)
    token = torch.randn(1, 1, WIDTH)
    with torch.no_grad():
        layer(torch.randn(1, 3, WIDTH), cache=cache)
        with pytest.raises(ch.errors.DtypeError, match=r"layer\.dtype"):
            layer(token.double(), cache=cache)
        with pytest.raises(ch.errors.ShapeError, match=r"cache\.shape"):
            layer(torch.randn(2, 1, WIDTH), cache=cache)
        with pytest.raises(ch.errors.ArgumentError, match=r"kernel\.name"):
            layer(token, cache=cache, kernel="none")
        other = _pair()[0]
        assert_refused(lambda: other(token, cache=cache), "layer.cache-shared")
        layer(token, cache=cache)
        assert_refused(lambda: layer(token, cache=cache), "cache.full", "4 // 4 // 1")
    cache.truncate(3)
    assert_refused(lambda: layer(token, cache=cache), "cache.grad")
    assert len(cache) == 3


def test_what_is_watched_is_seen(taken: list[bool]) -> None:
    layer, _ = _pair()
    cache = GrowingCache()
    with torch.no_grad():
        layer(torch.randn(1, 3, WIDTH), cache=cache)
        with ch.watch(layer) as seen:
            layer(torch.randn(1, 1, WIDTH), cache=cache)
    assert not taken
    assert [tuple(each.shape) for each in seen.values()] == [(1, 6, 1, 4)]
