"""The laws of a layer, whatever its sizes and beside every kind of cache."""

from typing import Any, NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import clearhead as ch
from clearhead.layers import Cache
from tests.layers.caches.texts import KINDS
from tests.layers.test_caching import WIDTH, made

kinds = st.sampled_from([*KINDS])
some = settings(max_examples=15)
lengths = st.integers(1, 4)


class Sizes(NamedTuple):
    """The sizes of a layer."""

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    bias: bool

    def layer(self, **options: Any) -> ch.MultiHeadAttention:
        sizes = self._asdict() | {"head_dim": 3}
        return ch.MultiHeadAttention(**sizes, **options).double().eval()


sizes = st.builds(
    lambda width, kv_heads, group, bias: Sizes(width, kv_heads * group, kv_heads, bias),
    st.sampled_from([1, 5, 8]), st.sampled_from([1, 2]), st.sampled_from([1, 3]), st.booleans(),
)  # fmt: skip


def steps(layer: ch.MultiHeadAttention, cache: Cache, x: Tensor, *cuts: int) -> Tensor:
    return torch.cat([layer(each, cache=cache) for each in x.split(list(cuts), dim=1)], dim=1)


@some
@given(kinds, lengths, lengths, lengths)
@torch.no_grad()
def test_a_fork_knows_nothing_of_the_other(kind: str, first: int, one: int, two: int) -> None:
    """In whatever order both go on, each is the text that it has read."""
    layer, cache = made("rotary"), KINDS[kind]()
    prompt, mine, theirs = (torch.randn(2, each, WIDTH) for each in (first, one, two))
    layer(prompt, cache=cache)
    fork = cache.fork()
    found = layer(mine, cache=cache), layer(theirs, cache=fork)
    for text, result in zip((mine, theirs), found, strict=True):
        alone = steps(layer, KINDS[kind](), torch.cat([prompt, text], dim=1), first, text.shape[1])
        torch.testing.assert_close(result, alone[:, first:])


@some
@given(sizes, lengths)
def test_without_a_mask_tokens_come_in_any_order(shape: Sizes, tokens: int) -> None:
    layer, x = shape.layer(), torch.randn(2, tokens, shape.embed_dim, dtype=torch.float64)
    order = torch.randperm(tokens)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


@some
@given(sizes, lengths, st.data())
def test_what_comes_later_changes_nothing_before_it(
    shape: Sizes, tokens: int, data: st.DataObject
) -> None:
    layer = shape.layer(mask=ch.causal())
    cut = data.draw(st.integers(0, tokens))
    x, other = torch.randn(2, 2, tokens, shape.embed_dim, dtype=torch.float64)
    other[:, :cut] = x[:, :cut]
    torch.testing.assert_close(layer(x)[:, :cut], layer(other)[:, :cut])


@some
@given(sizes, lengths, st.sampled_from([None, ch.causal()]))
def test_a_layer_of_pytorch_becomes_ours(shape: Sizes, tokens: int, mask: ch.Mask | None) -> None:
    width = shape.num_heads * 3
    theirs = nn.MultiheadAttention(
        width, shape.num_heads, bias=shape.bias, batch_first=True
    ).double()
    for each in theirs.parameters():
        nn.init.normal_(each)
    ours = ch.convert(theirs, mask=mask).layer
    x = torch.randn(2, tokens, width, dtype=torch.float64)
    hidden = None if mask is None else ~mask.to_dense(tokens, tokens)
    expected = theirs(x, x, x, attn_mask=hidden, need_weights=False)[0]
    torch.testing.assert_close(ours(x), expected)


@some
@given(sizes, lengths, st.data())
def test_hiding_and_editing_are_one(shape: Sizes, tokens: int, data: st.DataObject) -> None:
    """Hidden cells of some heads, in one edit, in two in either order, or once more: the mask of the call."""
    layer = shape.layer()
    heads = data.draw(st.lists(st.integers(0, shape.num_heads - 1), min_size=1, unique=True))
    x = torch.randn(2, tokens, shape.embed_dim, dtype=torch.float64)
    pairs = [
        tuple(data.draw(st.lists(st.integers(0, tokens - 1), min_size=1, unique=True)) for _ in "qk")
        for _ in range(2)
    ]  # fmt: skip
    seen = torch.ones(1, shape.num_heads, tokens, tokens, dtype=torch.bool)
    for queries, keys in pairs:
        for head in heads:
            seen[0, head, torch.tensor(queries)[:, None], torch.tensor(keys)] = False
    expected = layer(x, mask=ch.dense(seen))
    for order in (pairs, pairs[::-1], pairs * 2):
        with ch.edit(layer) as edit:
            for queries, keys in order:
                edit[0].heads[heads].hide(query=queries, key=keys)
            found = layer(x)
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(layer(x, mask=ch.full()), layer(x))


@some
@given(sizes, lengths, st.floats(0.1, 10), st.floats(0.1, 10))
def test_factors_of_keys_multiply(shape: Sizes, tokens: int, one: float, two: float) -> None:
    layer = shape.layer()
    x = torch.randn(2, tokens, shape.embed_dim, dtype=torch.float64)

    def scaled(*factors: float) -> Tensor:
        with ch.edit(layer) as edit:
            for factor in factors:
                edit[0].scale(key=0, by=factor)
            return layer(x)

    torch.testing.assert_close(scaled(one, two), scaled(one * two))
    torch.testing.assert_close(scaled(one, 1 / one), layer(x))


@some
@given(sizes, lengths)
def test_edits_that_change_nothing_and_those_that_change_all(shape: Sizes, tokens: int) -> None:
    """Its own weights and contexts change nothing; those of another text are that text's; and without any head the
    bias is left."""
    layer = shape.layer(mask=ch.causal())
    x, other = torch.randn(2, 2, tokens, shape.embed_dim, dtype=torch.float64)
    with torch.no_grad(), ch.watch(layer, keep="contexts") as mine:
        expected = layer(x)
    with torch.no_grad(), ch.watch(layer) as weights:
        layer(x)
    with torch.no_grad(), ch.edit(layer) as edit:
        edit[0].patterns_from(weights)
        torch.testing.assert_close(layer(x), expected)
    with torch.no_grad(), ch.edit(layer) as edit:
        edit[0].replace(mine)
        torch.testing.assert_close(layer(other), expected)
        edit.clear()
        edit[0].ablate()
        torch.testing.assert_close(layer(x), layer.output_projection.bias.expand_as(expected))


@some
@given(sizes, lengths, st.integers(0, 2))
def test_a_layer_is_its_problem(shape: Sizes, tokens: int, kv_len: int) -> None:
    """Its weights are those of the problem, and what it hands on is joined of their contexts."""
    layer = shape.layer(mask=ch.causal(offset=kv_len))
    x = torch.randn(2, tokens, shape.embed_dim, dtype=torch.float64)
    problem = layer.make_problem(x)
    matrix = layer.weights(x)
    context = matrix @ problem.value
    torch.testing.assert_close(layer.join(context, x), layer(x))
    direct = ch.attend(problem.query, problem.key, problem.value, mask=ch.causal(offset=kv_len))
    torch.testing.assert_close(context, direct)
