"""The record of a call: no more than it takes, and nothing that changes afterwards."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.attention.biases import DenseBias, SumOfBiases
from clearhead.attention.problem import Problem, make_problem
from clearhead.errors import WatchError
from clearhead.masks.dense import Dense
from clearhead.masks.spans import Extent
from clearhead.watching.recording import Copies, of_heads, summarised
from tests.watching.hooks.recording import weights_of

PAST = torch.ones(5, 5, dtype=torch.bool).tril()


def problem(
    *, batch: int = 2, heads: int = 3, kv_heads: int | None = None, lengths: tuple[int, int] = (5, 5),
    **options: Any,
) -> Problem:  # fmt: skip
    query = torch.randn(batch, heads, lengths[0], 7)
    key = torch.randn(batch, kv_heads or heads, lengths[1], 7)
    return make_problem(query, key, key, **options)


def held(masked: Problem) -> Tensor:
    assert isinstance(masked.mask, Dense)
    return masked.mask.tensor


def test_a_copy_stays_as_it_was() -> None:
    visible = torch.eye(5, dtype=torch.bool)[None, None]
    bias, sinks, slopes = torch.randn(1, 3, 5, 5), torch.randn(3), torch.rand(3)
    distances = torch.randn(3, 5)
    mask = ~(ch.dense(visible) & ch.sliding_window(left=1)) | ch.dense(visible)
    for given_bias in (bias, ch.alibi(slopes=slopes), ch.relative(distances)):
        asked = problem(mask=mask, bias=given_bias, sinks=sinks)
        expected = weights_of(asked)
        copied = Copies().of(asked)
        tensors = (visible, bias, sinks, slopes, distances)
        before = [each.clone() for each in tensors]
        for each in tensors:
            each.zero_()
        assert torch.equal(weights_of(copied), expected)
        for each, was in zip(tensors, before, strict=True):
            each.copy_(was)


def test_nothing_kept_hangs_on_a_graph() -> None:
    bias = torch.randn(5, 5, requires_grad=True)
    sinks = torch.randn(3, requires_grad=True)
    copied = Copies().of(problem(bias=bias, sinks=sinks))
    assert copied.bias is not None
    assert copied.sinks is not None
    assert not copied.bias.requires_grad
    assert not copied.sinks.requires_grad


def test_equal_masks_share_a_copy() -> None:
    copies = Copies()
    one = torch.eye(5, dtype=torch.bool).flip(0)
    other = one.roll(1, dims=0)
    kept = [held(copies.of(problem(mask=each.clone()))) for each in (one, other, one, other)]
    assert kept[0].data_ptr() == kept[2].data_ptr() != kept[1].data_ptr() == kept[3].data_ptr()
    copies.clear()
    assert held(copies.of(problem(mask=one))).data_ptr() != kept[0].data_ptr()


def test_equal_biases_share_a_copy() -> None:
    copies = Copies()
    bias = torch.randn(5, 5)
    kept: list[Any] = [copies.of(problem(bias=each)).bias for each in (bias, bias.clone())]
    assert kept[0].tensor.data_ptr() == kept[1].tensor.data_ptr() != bias.data_ptr()
    wide: Any = copies.of(problem(bias=bias.expand(2, 3, 5, 5))).bias
    assert wide.tensor.shape == (1, 1, 5, 5)


@pytest.mark.parametrize(
    ("options", "described"),
    [
        ({"mask": PAST}, "causal()"),
        ({"bias": torch.zeros(5, 5).masked_fill(~PAST, -torch.inf)}, "causal()"),
        ({"mask": PAST, "bias": torch.zeros(5, 5)}, "causal()"),
        ({"mask": ch.dense(PAST) & ch.dense(PAST[4:])}, "causal()"),
        ({"mask": ch.dense(PAST[4:]) & ch.dense(PAST[4:])}, None),
        ({"mask": PAST[4:]}, None),
        ({"mask": PAST[:, 2:3]}, "dense(<1 × 1 × 5 × 1>)"),
        ({"mask": ch.padding([3, 5])}, "padding([3, 5])"),
    ],
)
def test_a_tensor_becomes_what_it_says(options: dict[str, Any], described: str | None) -> None:
    asked = problem(**options)
    copied = Copies().of(asked)
    assert copied.bias is None
    assert (None if copied.mask is None else copied.mask.describe()) == described
    assert torch.equal(weights_of(copied), weights_of(asked))


def test_the_padding_of_a_source_is_no_room_of_a_cache() -> None:
    """Keys of zeros behind the last one that is seen belong to a static cache; not in another text."""
    for cross in (False, True):
        asked = problem(lengths=(3, 7), mask=ch.dense(torch.arange(7)[None] < 5)).replace(
            cross=cross
        )
        asked.key[:, :, 5:] = 0.0
        assert Copies().of(asked).kv_len == (7 if cross else 5)


class Own(ch.Bias):
    """A bias that only its class can read: of a head, in its tens; of a key, in its units."""

    def at(self, query_index: Tensor, key_index: Tensor, extent: Extent) -> Tensor:
        head = torch.arange(extent.num_heads).view(1, -1, 1, 1)
        return (10 * head + key_index).expand(-1, -1, query_index.shape[2], -1) / 20

    def describe(self) -> str:
        return "own"


GROUPED: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask per head": {"mask": torch.rand(1, 6, 5, 5, generator=torch.Generator().manual_seed(2)) > 0.3},
    "mask": {"mask": ch.causal()},
    "bias per head": {"bias": torch.linspace(-2, 2, 150).view(1, 6, 5, 5)},
    "bias": {"bias": torch.linspace(-2, 2, 25).view(5, 5)},
    "alibi": {"bias": ch.alibi(6)},
    "relative": {"bias": ch.relative(torch.linspace(-2, 2, 30).view(6, 5))},
    "relative, of all heads": {"bias": ch.relative(torch.linspace(-2, 2, 5).view(1, 5))},
    "one's own": {"bias": Own()},
    "alibi and a bias per head": {
        "bias": SumOfBiases(ch.alibi(6), DenseBias(torch.linspace(-2, 2, 30).view(1, 6, 1, 5)))
    },
    "sinks": {"sinks": torch.linspace(-2, 2, 6)},
    "the rest": {"softcap": 2.0, "scale": 0.7},
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPED)
def test_some_heads(name: str) -> None:
    for kv_heads in (6, 2, 1):
        asked = problem(heads=6, kv_heads=kv_heads, **GROUPED[name])
        every = weights_of(asked)
        for heads in ([0], [5, 0], [0, 1, 2], [1, 4], [0, 1, 3], [5, 4, 3, 2, 1, 0]):
            some = of_heads(asked, heads, "attention")
            assert some.key.shape[1] <= len(heads), (kv_heads, heads)
            torch.testing.assert_close(weights_of(some), every[:, heads])
            if isinstance(asked.bias, SumOfBiases):  # no tensor of all pairs
                assert isinstance(some.bias, SumOfBiases)


def test_a_head_that_is_not_there() -> None:
    text = r"^\[watch.heads\] heads=\[1, 3\] were asked for; attention has num_heads=3.$"
    with pytest.raises(WatchError, match=text):
        of_heads(problem(), [1, 3], "attention")


@pytest.mark.parametrize("lengths", [(1, 1), (3, 7), (5, 101), (67, 67), (0, 5)])
def test_a_summary_of_every_size(lengths: tuple[int, int]) -> None:
    summary = summarised(problem(lengths=lengths, mask=ch.causal()), None)
    assert (summary.query_len, summary.kv_len) == lengths
    if min(lengths) == 0:
        assert summary.top_k is None
        assert summary.pooled is None
        return
    assert summary.top_k is not None
    assert summary.pooled is not None
    assert summary.top_k.keys.shape[-1] == min(8, lengths[1])
    assert summary.pooled.shape[-2:] == (min(64, lengths[0]), min(64, lengths[1]))


def test_padding_behind_a_prefix_of_keys() -> None:
    # Prefix tuning, or a prompt in chunks: the queries are the last of the keys.
    query, key = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 5, 4)
    valid = torch.tensor([[True] * 5, [True] * 4 + [False]])
    matrix = ch.AttentionMatrix(query, key, mask=ch.causal() & ch.padding(valid))
    assert matrix.real is not None
    assert matrix.real.tolist() == [[True, True, True], [True, True, False]]
    # Behind the last token of a sample that is shorter may be room, with nothing in it yet.
    room = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    for keys, real in ((key, False), (key.masked_fill(~room[:, None, :, None], 0.0), True)):
        told = ch.AttentionMatrix(query, keys, mask=ch.padding(room)).real
        assert told is not None
        assert told.tolist() == [[True] * 3, [real] * 3]


def test_queries_that_are_real_as_given() -> None:
    query, key = torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 5, 4)
    real = torch.tensor([True, True, False])
    matrix = ch.AttentionMatrix(query, key, cross=True, real_queries=real)
    assert matrix.real is not None
    assert matrix.real.tolist() == [[True, True, False]] * 2
    with pytest.raises(
        ch.errors.ArgumentTypeError, match=r"\[queries.type\] real_queries must be bool"
    ):
        ch.AttentionMatrix(query, key, real_queries=real.int())
    with pytest.raises(
        ch.errors.ShapeError, match=r"\[queries.shape\] real_queries must have shape \(query_len,\)"
    ):
        ch.AttentionMatrix(query, key, real_queries=real[:2])


def test_padded_queries_of_cross_attention_are_those_of_the_layer() -> None:
    layer = torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).eval()
    model = torch.nn.TransformerDecoder(layer, 2)
    text, source = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    of_source = torch.tensor([[False] * 4 + [True], [False] * 5])
    with torch.no_grad(), ch.watch(model) as seen:
        model(text, source, tgt_key_padding_mask=padded, memory_key_padding_mask=of_source)
    for row in seen.table():
        assert row.queries == 8
        entropy = seen[row.layer].entropy()[:, row.head]
        assert row.entropy == pytest.approx(float(entropy[~padded].mean()), rel=1e-5)
    # An encoder before it is another text, also of the same length.
    both = torch.nn.ModuleDict({"encoder": layer.self_attn, "decoder": layer.multihead_attn})
    with torch.no_grad(), ch.watch(both) as seen:
        both.forward = lambda: [
            both["encoder"](source, source, source, key_padding_mask=of_source),
            both["decoder"](text, source, source, key_padding_mask=of_source),
        ]
        both()
    assert [row.queries for row in seen.table()] == [9, 9, 10, 10]


PARTS = [[9], [3, 3, 3], [5, 1, 1, 1, 1], [1] * 9]
"""How nine tokens are read, part by part."""

SIDES = {
    "left": [[0] * 3 + [1] * 6, [0] + [1] * 8, [1] * 9],
    "right": [[1] * 6 + [0] * 3, [1] * 9, [1] * 8 + [0]],
    "ended": [[0, 0, 1, 1, 1, 1, 1, 0, 0], [1] * 6 + [0] * 3, [1] * 9],
    "every row": [[1] * 4 + [0] * 2 + [1] * 3, [1] * 4 + [0] * 5, [1] * 3 + [0] * 3 + [1] * 3],
}

CACHES: dict[str, Any] = {
    "growing": ch.layers.GrowingCache,
    "static": lambda: ch.layers.StaticCache(9),
    "fixed": lambda: ch.layers.FixedCache(12),
    "sliding": lambda: ch.layers.SlidingCache(3),
    "sliding, with room": lambda: ch.layers.SlidingCache(3, spare=4),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CACHES)
def test_a_padded_batch_that_is_read_in_parts_counts_its_real_queries(name: str, side: str) -> None:
    torch.manual_seed(0)
    window = ch.sliding_window(left=2) if "sliding" in name else ch.full()
    layer = ch.MultiHeadAttention(16, num_heads=4, mask=ch.causal() & window).double().eval()
    x, valid = torch.randn(3, 9, 16).double(), torch.tensor(SIDES[side]).bool()
    with torch.no_grad(), ch.watch(layer, keep="total") as whole:
        layer(x, valid=valid)
    assert whole[0].queries == int(valid.sum())
    keeps: tuple[Any, ...] = ("total", "summary", "matrix", "summary")
    for parts, keep in zip(PARTS, keeps, strict=True):
        cache = CACHES[name]()
        with torch.no_grad(), ch.watch(layer, keep=keep) as seen:
            for tokens, real in zip(x.split(parts, 1), valid.split(parts, 1), strict=True):
                # A part in which all are real may go without.
                layer(tokens, valid=None if real.all() else real, cache=cache)
        for row in seen.table():
            assert row.queries == whole[0].queries
            assert row.entropy == pytest.approx(float(whole[0].entropy[row.head]), abs=1e-3)
            if keep != "matrix":
                first = whole[0].roles.first
                assert first is not None
                assert row.first == pytest.approx(float(first[row.head]), abs=1e-3)


@pytest.mark.parametrize("mask", [None, ch.causal(), ch.causal() & ch.padding([5, 3])])
def test_no_numbers_of_a_call_are_held_until_the_next(mask: ch.Mask | None) -> None:
    call, copies = problem(mask=mask), Copies()
    parts = [weakref.ref(each) for each in (call.query, call.key, call.value)]
    copies.of_call(call, "layers.0.self_attn")
    del call
    assert [each() for each in parts] == [None] * 3


def test_padding_of_every_row_is_told_from_room() -> None:
    query, key = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 7, 4)
    some = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    for columns, real in (
        (some, [[True] * 3, [False] * 3]),
        (some[1:].expand(2, -1), [[False] * 3] * 2),
    ):
        matrix = ch.AttentionMatrix(query, key, mask=ch.causal() & ch.padding(columns))
        assert matrix.real is not None
        assert matrix.real.tolist() == real
    # Here each query sees one key more than the one before it.
    for mask in (ch.causal(offset=2), ch.causal(offset=2) & ch.padding(some[:1].expand(2, -1))):
        assert ch.AttentionMatrix(query, key, mask=mask).real is None
