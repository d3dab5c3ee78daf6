"""The layer with a cache: a whole text, chunks of it and token by token are the same."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import clearhead as ch
from clearhead.layers import Cache, GrowingCache, MultiHeadAttention, Part, SlidingCache
from clearhead.layers.parts import check_parts
from tests.layers.caches.texts import KINDS
from tests.masks.expressions import bools
from tests.refusals import refusals, run
from tests.tolerances import assert_no_worse

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 12, 4, 2, 6


class Sloped(Part):
    """A trained number for each distance, as an injected part of somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.randn(HEADS, 7))

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> dict[str, Any]:
        return {"bias": ch.relative(self.values)}


PARTS: dict[str, Callable[[], list[Part]]] = {
    "plain": list,
    "rotary": lambda: [ch.layers.Rotary(HEAD_DIM)],
    "rotary of a part": lambda: [ch.layers.Rotary(HEAD_DIM, rotated_dim=4, layout="interleaved")],
    "norm, rotary, gate": lambda: [
        ch.layers.QueryKeyNorm(HEAD_DIM),
        ch.layers.Rotary(HEAD_DIM),
        ch.layers.OutputGate(WIDTH, HEADS),
    ],
    "alibi": lambda: [ch.layers.ScoreBias(ch.alibi(HEADS))],
    "buckets": lambda: [
        ch.layers.Scale(1.0),
        ch.layers.RelativeBias(HEADS, num_buckets=8, max_distance=9, bidirectional=False),
    ],
    "numbers of distances, sinks": lambda: [Sloped(), ch.layers.Sinks(HEADS)],
    "softcap": lambda: [ch.layers.Softcap(2.0)],
    "differential": lambda: [ch.layers.Differential(HEAD_DIM)],
}
MASKS = {
    "causal": ch.causal(),
    "window": ch.causal() & ch.sliding_window(left=2),
    "not the one before": ch.causal() & ~(ch.sliding_window(left=1) & ~ch.sliding_window(left=0)),
    "prefix or window": ch.causal() & (ch.sliding_window(left=1) | ch.prefix(2)),
}


def made(parts: str = "plain", mask: str = "causal") -> MultiHeadAttention:
    layer = MultiHeadAttention(
        WIDTH,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        mask=MASKS[mask],
        parts=PARTS[parts](),
    )
    return layer.eval()


def alone(layer: MultiHeadAttention, x: Tensor, cache: Cache) -> Tensor:
    """A row without padding and without a cache; a ring hides what it has dropped."""
    window = isinstance(cache, SlidingCache)
    mask = ch.sliding_window(left=cache.window - 1) if window else None
    return layer(x[None], mask=mask)[0]


def assert_equal(found: Tensor, layer: MultiHeadAttention, x: Tensor, cache: Cache) -> None:
    """The output of a row is that of the row alone, up to rounding, or to what int8 loses."""
    plain = alone(layer, x, cache)
    exact = alone(layer.double(), x.double(), cache)
    layer.float()
    assert_no_worse(found, exact, plain)


@settings(max_examples=30)
@given(
    parts=st.sampled_from([*PARTS]),
    mask=st.sampled_from([*MASKS]),
    kind=st.sampled_from([*KINDS]),
    data=st.data(),
)
@torch.no_grad()
def test_rows_of_any_length_with_padding_anywhere(
    parts: str, mask: str, kind: str, data: st.DataObject
) -> None:
    """In any chunks, each row is what it is alone; and so it is without a cache."""
    assume(not (mask.startswith("prefix") and "sliding" in kind))  # a ring drops the prefix
    layer, cache = made(parts, mask), KINDS[kind]()
    chunks = data.draw(st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=5))
    x, count = torch.randn(2, sum(chunks), WIDTH), sum(chunks)
    valid = data.draw(st.just(torch.ones(2, count, dtype=torch.bool)) | bools(2, count))
    layer(torch.randn(2, 3, WIDTH), cache=cache)
    cache.reset()  # and it is a new one
    steps = [
        layer(some, cache=cache, valid=real)
        for some, real in zip(x.split(chunks, dim=1), valid.split(chunks, dim=1), strict=True)
    ]
    whole = torch.cat(steps, dim=1)
    at_once = layer(x, valid=valid)
    for row in range(2):
        assert_equal(whole[row][valid[row]], layer, x[row][valid[row]], cache)
        assert_equal(at_once[row][valid[row]], layer, x[row][valid[row]], GrowingCache())


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_is_of_no_account(side: str) -> None:
    """Whatever is in it, and it gets nothing: rows of zeros before the output projection."""
    layer = made("rotary", "window")
    valid = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    valid = valid.flip(1) if side == "left" else valid
    x = torch.randn(2, 7, WIDTH)
    other = x.masked_fill(~valid[..., None], 5.0)
    assert torch.equal(layer(x, valid=valid)[valid], layer(other, valid=valid)[valid])
    if side == "left":
        weights = layer.weights(x, valid=valid).dense()
        assert (weights.transpose(1, 2)[~valid] == 0).all()


@torch.no_grad()
def test_weights_while_decoding() -> None:
    layer, cache = made("rotary"), GrowingCache()
    x = torch.randn(1, 6, WIDTH)
    layer(x[:, :5], cache=cache)
    weights = layer.weights(x[:, 5:], cache=cache)
    assert len(cache) == 5
    assert layer.plan(x[:, 5:], cache=cache).kernel == "fused"
    assert len(cache) == 5
    whole = layer.weights(x)
    assert weights.shape == (1, HEADS, 1, 6)
    torch.testing.assert_close(weights.dense(), whole[..., 5:, :])
    with ch.watch(layer) as seen:
        layer(x[:, 5:], cache=cache)
    torch.testing.assert_close(seen[""].dense(), whole[..., 5:, :])


@torch.no_grad()
def test_what_is_watched_while_rows_of_different_length_are_decoded() -> None:
    layer, cache = made("alibi", "window"), GrowingCache()
    x, valid = torch.randn(2, 6, WIDTH), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with ch.watch(layer) as seen:
        layer(x[:, :5], cache=cache, valid=valid)
        layer(x[:, 5:], cache=cache)
    (_, step) = seen.calls("")
    alone = layer.weights(torch.cat([x[1, :3], x[1, 5:]])[None]).dense()
    found = step.dense()[1, :, 0]
    torch.testing.assert_close(found[:, [0, 1, 2, 5]], alone[0, :, 3])
    assert (found[:, 3:5] == 0).all()


@torch.no_grad()
def test_a_trace_while_decoding() -> None:
    layer, cache = made("rotary"), GrowingCache()
    x = torch.randn(1, 6, WIDTH)
    layer(x[:, :5], cache=cache)
    steps = ch.trace(layer, x[:, 5:], cache=cache)
    assert len(cache) == 5
    torch.testing.assert_close(steps["weights"], layer.weights(x)[..., 5:, :])
    torch.testing.assert_close(steps["output"], layer(x)[:, 5:])


@pytest.mark.parametrize("kind", ["growing", "static"])
@torch.no_grad()
def test_a_context_is_projected_once(kind: str) -> None:
    layer = MultiHeadAttention(WIDTH, num_heads=HEADS, context_dim=7, head_dim=HEAD_DIM).eval()
    x, context = torch.randn(2, 3, WIDTH), torch.randn(2, 5, 7)
    valid = torch.tensor([[True] * 5, [False, True, True, True, False]])
    cache = KINDS[kind]()
    projected = []
    layer.key_projection.register_forward_hook(lambda _, __, out: projected.append(out.shape[1]))
    steps = [layer(token, context, valid=valid, cache=cache) for token in x.split(1, dim=1)]
    assert projected == [5, 0, 0]
    assert len(cache) == 5
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, context, valid=valid))


class InFloat32(Part):
    """A norm under autocast on CUDA, where PyTorch brings it back to float32."""

    def transform_query_key(
        self, query: Tensor, key: Tensor, query_positions: Tensor, key_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        return query.float(), key.float()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_comes_back_to_float32_under_autocast(kind: str) -> None:
    layer = MultiHeadAttention(
        WIDTH, num_heads=HEADS, mask=ch.causal(), head_dim=HEAD_DIM, parts=[InFloat32()]
    )
    cache, x = KINDS[kind](), torch.randn(2, 3, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        steps = [layer(token, cache=cache) for token in x.split(1, dim=1)]
        torch.testing.assert_close(torch.cat(steps, 1), layer(x), rtol=0.1, atol=0.1)
        assert layer.make_problem(x[:, :1], cache=cache).key.dtype == torch.bfloat16


@torch.no_grad()
def test_without_a_batch() -> None:
    layer, cache = made("rotary"), GrowingCache()
    x = torch.randn(5, WIDTH)
    steps = [layer(x[:4], cache=cache), layer(x[4:], cache=cache)]
    torch.testing.assert_close(torch.cat(steps), layer(x))
    torch.testing.assert_close(layer(x, valid=torch.ones(1, 5, dtype=torch.bool)), layer(x))


X = torch.randn(2, 3, WIDTH)


def filled(kind: str, *, ragged: bool = False) -> Cache:
    cache, layer = KINDS[kind](), made()
    valid = torch.tensor([[True, True, True], [True, False, True]]) if ragged else None
    with torch.no_grad():
        layer(X, cache=cache, valid=valid)
    return cache


@torch.no_grad()
def test_a_mask_that_goes_by_position_says_so() -> None:
    weights = made(mask="window").weights(X[:, :1], cache=filled("growing", ragged=True))
    assert "sliding_window(left=2, right=None) by position" in repr(weights)


def shared() -> Tensor:
    cache, layers = GrowingCache(), (made(), made())
    return layers[1](layers[0](X, cache=cache), cache=cache)


def cross(cache: Cache) -> Tensor:
    layer = MultiHeadAttention(WIDTH, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    return layer(X, torch.randn(2, 4, WIDTH), cache=cache)


AHEAD = [
    ch.full(),
    ch.sliding_window(left=2),
    ch.sliding_window(left=2, right=1),
    ch.prefix(3),
    ch.causal() | ch.prefix(3),
    ch.causal() | ch.prefix([3, 1]),
    ch.causal(offset=2),
    ~ch.causal(),
    ch.sliding_window(left=2, right=0) | ch.prefix(1),  # which does not
]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kind", ["growing", "static", "fixed"])
@pytest.mark.parametrize("mask", AHEAD, ids=lambda mask: mask.describe())
@torch.no_grad()
def test_what_sees_a_later_token_is_refused_or_the_whole_text_at_once(
    mask: ch.Mask, kind: str, ragged: bool
) -> None:
    layer = MultiHeadAttention(WIDTH, num_heads=HEADS, mask=mask).double().eval()
    x, valid = torch.randn(2, 5, WIDTH, dtype=torch.float64), torch.ones(2, 5, dtype=torch.bool)
    valid[1, 0] = not ragged
    whole, refused = layer(x, valid=valid), 0
    for first in range(1, 5):
        cache, pieces = KINDS[kind](), [first, *[1] * (5 - first)]
        try:
            made = [
                layer(part, cache=cache, valid=real if ragged else None)
                for part, real in zip(x.split(pieces, 1), valid.split(pieces, 1), strict=True)
            ]
        except (ch.errors.ArgumentError, ch.errors.UnsupportedError) as error:
            assert error.code in ("layer.cache-ahead", "layer.cache-fixed", "cache.mask"), error  # noqa: PT017
            refused += 1
        else:
            torch.testing.assert_close(torch.cat(made, 1)[valid], whole[valid])
    assert bool(refused) == (mask is not AHEAD[-1])


def after_one(layer: MultiHeadAttention) -> Tensor:
    cache = GrowingCache()
    layer(X[:, :1], cache=cache)
    return layer(X[:, 1:], cache=cache)


class Columns(Part):
    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> dict[str, Any]:
        return {"bias": torch.zeros(1, 1, 1, 4)}


def plain(mask: ch.Mask | None = MASKS["causal"], **options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, num_heads=HEADS, mask=mask, **options).eval()


def one_more(layer: MultiHeadAttention, **options: Any) -> Tensor:
    return layer(X[:, :1], cache=filled("growing", ragged=True), **options)


FIXED = ch.layers.FixedCache(5)
test_refusals = refusals(
    torch.no_grad()(run),
    (lambda: made()(X, cache=(X, X)), "layer.cache", "tuple"),
    (
        lambda: made()(X, cache=GrowingCache),
        "layer.cache",
        "the class GrowingCache; write GrowingCache()",
    ),
    (lambda: plain(None)(X, cache=GrowingCache()), "layer.cache-causal"),
    (lambda: after_one(plain(ch.full())), "layer.cache-ahead", "full()"),
    (
        lambda: plain(ch.prefix(2))(X, cache=FIXED),
        "layer.cache-fixed",
        "FixedCache(5) // prefix(2)",
    ),
    (lambda: cross(filled("growing")), "layer.cache-context", "3 // 4"),
    (lambda: cross(SlidingCache(3)), "layer.cache-kind", "SlidingCache(3)"),
    (lambda: cross(FIXED), "layer.cache-kind", "FixedCache(5)"),
    (lambda: shared(), "layer.cache-shared"),
    (lambda: made()(X[:1], cache=filled("growing")), "cache.shape", "2 // 1"),
    (
        lambda: plain(dropout=0.5).train()(X, cache=GrowingCache()),
        "layer.cache-dropout",
        "0.5",
    ),
    (lambda: made()(X, X), "layer.causal-context"),
    (
        lambda: made()(X, valid=torch.ones(2, 4, dtype=torch.bool)),
        "cache.valid",
        "2 // 3 // (2, 4)",
    ),
    (
        lambda: one_more(made(), mask=ch.documents(torch.zeros(4).long())),
        "cache.mask",
        "documents([0, 0, 0, 0])",
    ),
    (
        lambda: one_more(plain(num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, parts=[Columns()])),
        "cache.bias",
        "<1 × 1 × 1 × 4>",
    ),
)


class Broken(Part):
    """A part that fails when the tokens are in the cache already."""

    def attend_options(self, query_positions: Tensor, key_positions: Tensor) -> dict[str, Any]:
        raise LookupError


@pytest.mark.parametrize(
    ("history", "ragged", "new"),
    [([], False, 1), ([], False, 7), ([7, 1], False, 1), ([7, 1], False, 7), ([7, 1], True, 7)],
)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_call_that_fails_leaves_the_cache_as_it_was(
    kind: str, history: list[int], ragged: bool, new: int
) -> None:
    layer, cache = made("rotary"), KINDS[kind]()
    for tokens in history:
        real = torch.arange(tokens) < torch.tensor([[tokens], [max(1, tokens - 2)]])
        layer(torch.randn(2, tokens, WIDTH), cache=cache, valid=real if ragged else None)
    twin, parts, broken = copy.deepcopy(cache), layer.parts, check_parts([Broken()])
    failures: list[tuple[Iterable[Part], dict[str, Any]]] = [
        (parts, {"mask": ch.dense(torch.ones(5, 99, dtype=torch.bool))}),
        (parts, {"kernel": "flex"}),
        (broken, {}),
    ]
    for valid in (None, torch.arange(new) < torch.tensor([[new], [new - 1]])):
        for layer.parts, options in failures:
            with pytest.raises((ch.errors.MaskError, ch.errors.UnsupportedError, LookupError)):
                layer(torch.randn(2, new, WIDTH), cache=cache, valid=valid, **options)
        layer.parts = parts
        assert len(cache) == len(twin)
        assert cache.in_order == twin.in_order
        held = slice(len(cache))
        assert torch.equal(cache.positions[..., held], twin.positions[..., held])
    if ragged:
        for each in (cache, twin):
            each.truncate(len(each) - 1)
    # Another batch may follow where there was no token yet.
    rows = 2 if history else 3
    for tokens in (1, 2, 5, 1):
        x = torch.randn(rows, tokens, WIDTH)
        assert torch.equal(layer(x, cache=cache), layer(x, cache=twin))
    for each in (cache, twin):
        each.truncate(len(each) - 1)
    x = torch.randn(rows, 1, WIDTH)
    assert torch.equal(layer(x, cache=cache), layer(x, cache=twin))


@torch.no_grad()
def test_make_problem_that_fails_leaves_the_cache_as_it_was() -> None:
    layer, cache = made(), GrowingCache()
    with pytest.raises(ch.errors.MaskError):
        layer.make_problem(X, cache=cache, mask=ch.dense(torch.ones(5, 99, dtype=torch.bool)))
    assert len(cache) == 0
    assert layer.make_problem(X[:1], cache=cache).kv_len == len(cache) == 3
